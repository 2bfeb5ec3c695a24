"""Answers: one spelling, a vocabulary, and how far an answer agrees with those of people."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

_NUMBER_WORDS = "zero one two three four five six seven eight nine ten"
_NUMBERS = {word: str(number) for number, word in enumerate(_NUMBER_WORDS.split())} | {"none": "0"}
_ARTICLES = {"a", "an", "the"}
# Contractions whose apostrophe people leave out.
_CONTRACTED = """
ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd how'll how's i'd've i'm
i've isn't it'd it'll let's ma'am mightn't might've mustn't must've needn't o'clock oughtn't shan't should've shouldn't
somebody's someone's that'd that's there'd there're there's they'd they'll they're they've wasn't we've weren't what'll
what're what's what've when's where'd where's where've who'd who'll who's who've why'll why're why's won't would've
wouldn't y'all you'd you'll you're you've
"""
_CONTRACTIONS = {word.replace("'", ""): word for word in _CONTRACTED.split()}
_COMMA_IN_NUMBER = re.compile(r"(?<=\d),(?=\d)")
_POINT = re.compile(r"(?<!\d)\.(?!\d)|\.(?!\d)")
_PUNCTUATION = re.compile(r"[;/\[\]\"{}()=+\\<>@`?!_\-]")


def normalised(answer: str) -> str:
    """An answer in the spelling of the official evaluation of VQA: lower case, digits, no articles, no punctuation.

    Commas are kept between the parts of an answer with several, as DAQUAR has them.

    Example:
        >>> normalised("The Two dogs."), normalised("dont know!"), normalised("1,000"), normalised("cup, garbage_bin")
        ('2 dogs', "don't know", '1000', 'cup, garbage bin')
    """
    parts = _COMMA_IN_NUMBER.sub("", answer.lower().replace("\n", " ").replace("\t", " ")).split(",")
    return ", ".join(spelled for part in parts if (spelled := _spelled(part))) or answer.strip().lower()


def _spelled(part: str) -> str:
    words = _PUNCTUATION.sub(" ", _POINT.sub("", part)).split()
    numbered = [_NUMBERS.get(word, word) for word in words if word not in _ARTICLES]
    return " ".join(_CONTRACTIONS.get(word, word) for word in numbered)


def kind_of(answer: str) -> str:
    """What VQA-v2 calls the type of an answer.

    Example:
        >>> kind_of("no"), kind_of("12"), kind_of("red")
        ('yes/no', 'number', 'other')
    """
    if answer in ("yes", "no"):
        return "yes/no"
    return "number" if answer.replace(".", "", 1).isdecimal() else "other"


def soft_accuracy(answers: Sequence[str]) -> dict[str, float]:
    r"""What each answer is worth that any annotator gave; all others are worth nothing.

    .. math:: \frac1n \sum_i \min\Big(\frac{\#\{j \ne i : a_j = a\}}{3}, 1\Big)

    the accuracy of VQA, in which annotator i is left out in turn. Where there are fewer than three others, all of them
    must agree; where there is one annotator, the answer must be the same.

    Args:
        answers: of the n annotators.

    Example:
        >>> worth = soft_accuracy(["red"] * 2 + ["dark red"] + ["brown"] * 7)
        >>> {answer: round(value, 3) for answer, value in worth.items()}
        {'red': 0.6, 'dark red': 0.3, 'brown': 1.0}
    """
    count = len(answers)
    if count == 1:
        return {answers[0]: 1.0}
    needed = min(3, count - 1)
    return {
        answer: (same * min((same - 1) / needed, 1.0) + (count - same) * min(same / needed, 1.0)) / count
        for answer, same in collections.Counter(answers).items()
    }


@dataclasses.dataclass(frozen=True)
class AnswerVocabulary:
    """The answers that a model can give, the most frequent first.

    Args:
        answers: in their order.
        counts: how often each occurs in training.
    """

    answers: tuple[str, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, given: Iterable[str], min_count: int) -> "AnswerVocabulary":
        """Answers that were given so often at least; all of them where that leaves none."""
        counted: Mapping[str, int] = collections.Counter(given)
        kept = {answer: count for answer, count in counted.items() if count >= min_count} or counted
        order = sorted(kept, key=lambda answer: (-kept[answer], answer))
        return cls(tuple(order), tuple(kept[answer] for answer in order))
