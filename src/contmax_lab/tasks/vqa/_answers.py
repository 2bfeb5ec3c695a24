"""Answers: one spelling, a vocabulary, and how far an answer agrees with those of people."""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from contmax_lab.data import numbered_lines
from contmax_lab.errors import LabError

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
# Where Debian's package wordnet-base puts it.
DEFAULT_FOLDER = Path("/usr/share/wordnet")
_FILES = ("index.noun", "data.noun")
# Endings of plurals and what stands for them in the singular, as WordNet itself has them.
_PLURALS = (("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"),
            ("ies", "y"))  # fmt: skip


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

    over the n annotators: the accuracy of VQA, in which annotator i is left out in turn. Where there are fewer than
    three others, all of them must agree; where there is one annotator, the answer must be the same.

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
    """The answers that a model can give, the most frequent first, and how often each occurs in training."""

    answers: tuple[str, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, given: Iterable[str], min_count: int) -> "AnswerVocabulary":
        """Answers that were given `min_count` times or more; all of them where that leaves none."""
        counted: Mapping[str, int] = collections.Counter(given)
        kept = {answer: count for answer, count in counted.items() if count >= min_count} or counted
        order = sorted(kept, key=lambda answer: (-kept[answer], answer))
        return cls(tuple(order), tuple(kept[answer] for answer in order))


class Nouns:
    """The hypernyms of all noun senses.

    Args:
        folder: with ``index.noun`` and ``data.noun`` of WordNet 3, and ``noun.exc`` for irregular plurals.

    Raises:
        LabError: if a file is missing or not as it should be, with the line.
    """

    def __init__(self, folder: Path) -> None:
        for name in _FILES:
            if not (folder / name).is_file():
                raise LabError(f"{folder / name}: no such file; WordNet is in Debian's package wordnet-base")
        # Lemma → its senses, and sense → the senses above it; senses are named by their place in data.noun.
        self._senses = dict(_read(folder / "index.noun", "index", lambda fields: fields[-int(fields[2]) :]))
        self._hypernyms = dict(_read(folder / "data.noun", "data", _above))
        irregular = folder / "noun.exc"
        lines = numbered_lines(irregular) if irregular.is_file() else ()
        self._irregular = {words[0]: words[1:] for _, line in lines if len(words := line.split()) > 1}
        self._similar: dict[tuple[str, str], float] = {}

    def senses(self, word: str) -> tuple[str, ...]:
        """The senses of a noun, also in the plural; none if it is not in WordNet."""
        lemma = word.lower().replace(" ", "_")
        singular = [lemma[: -len(end)] + new for end, new in _PLURALS if lemma.endswith(end) and len(lemma) > len(end)]
        forms = [lemma, *self._irregular.get(lemma, singular)]
        return tuple(dict.fromkeys(sense for form in forms for sense in self._senses.get(form, ())))

    def similarity(self, one: str, other: str) -> float:
        """Wu and Palmer's similarity of two nouns, the greatest of all their senses; 1 if they are the same word.

        .. math:: \\max \\frac{2\\,d(s)}{\\ell(a, s) + \\ell(b, s) + 2\\,d(s)}

        with s the deepest common hypernym of senses a and b, d its depth and ℓ the steps up to it.
        """
        if one == other:
            return 1.0
        key = (one, other) if one < other else (other, one)
        if key not in self._similar:
            pairs = ((a, b) for a in self.senses(one) for b in self.senses(other))
            self._similar[key] = max((self._of_senses(a, b) for a, b in pairs), default=0.0)
        return self._similar[key]

    def _of_senses(self, one: str, other: str) -> float:
        up, also_up = self._steps_up(one), self._steps_up(other)
        common = up.keys() & also_up.keys()
        if not common:
            return 0.0
        subsumer = max(common, key=lambda sense: (self._depth(sense, longest=False), sense in (one, other), sense))
        depth = self._depth(subsumer, longest=True) + 1
        return 2 * depth / (up[subsumer] + also_up[subsumer] + 2 * depth)

    @functools.cache  # noqa: B019, one object for the whole of a process
    def _steps_up(self, sense: str) -> dict[str, int]:
        """Hypernyms of a sense, itself included, and the fewest steps to each."""
        steps, front = {sense: 0}, [sense]
        while front:
            front = [new for old in front for new in self._hypernyms.get(old, ())]
            reached = max(steps.values()) + 1
            front = [new for new in dict.fromkeys(front) if new not in steps]
            steps.update(dict.fromkeys(front, reached))
        return steps

    @functools.cache  # noqa: B019, one object for the whole of a process
    def _depth(self, sense: str, *, longest: bool) -> int:
        """Steps from the root, by the longest or the shortest way."""
        above = [1 + self._depth(up, longest=longest) for up in self._hypernyms.get(sense, ())]
        return (max if longest else min)(above, default=0)


def wups(given: str, truth: str, threshold: float, nouns: Nouns) -> float:
    r"""How alike two answers are, each of which may have several parts, divided by commas.

    .. math:: \min\Big(\prod_{a \in A} \max_{t \in T} w(a, t),\; \prod_{t \in T} \max_{a \in A} w(a, t)\Big)

    with A the parts of the given answer, T those of the true one, and w the similarity of two nouns, a tenth of it
    below the threshold (0.9 and 0 are usual).

    Reference: Malinowski and Fritz 2014, "A multi-world approach to question answering about real-world scenes".
    """

    def weighted(one: str, other: str) -> float:
        similar = nouns.similarity(one, other)
        return similar if similar >= threshold else 0.1 * similar

    def covered(some: Sequence[str], by: Sequence[str]) -> float:
        return math.prod(max(weighted(one, other) for other in by) for one in some)

    parts, others = ([part.strip() for part in answer.split(",")] for answer in (given, truth))
    return min(covered(parts, others), covered(others, parts))


def _read(path: Path, kind: str, parse: Callable[[list[str]], Sequence[str]]) -> Iterator[tuple[str, Sequence[str]]]:
    """First field of each line → what `parse` takes of its fields."""
    for number, line in numbered_lines(path):
        if line.startswith(" "):  # the licence
            continue
        fields = line.split(" | ")[0].split()
        try:
            yield fields[0], parse(fields)
        except (IndexError, ValueError):
            raise LabError(f"{path}, line {number}: not a line of WordNet's {kind}: {line[:60]!r}") from None


def _above(fields: list[str]) -> list[str]:
    """The senses right above a sense, of classes and of instances."""
    first = 4 + 2 * int(fields[3], 16)
    pointers = fields[first + 1 : first + 1 + 4 * int(fields[first])]
    return [pointers[i + 1] for i in range(0, len(pointers), 4) if pointers[i] in ("@", "@i")]
