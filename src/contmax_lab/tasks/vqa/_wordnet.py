"""Nouns of WordNet and how alike they are; and with that, how alike two answers are (WUPS)."""

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from contmax_lab.data import numbered_lines
from contmax_lab.errors import LabError

# Where Debian's package wordnet-base puts it.
DEFAULT_FOLDER = Path("/usr/share/wordnet")
_FILES = ("index.noun", "data.noun")
# Endings of plurals and what stands for them in the singular, as WordNet itself has them.
_PLURALS = (("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"),
            ("ies", "y"))  # fmt: skip


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
        self._senses = dict(_read_index(folder / "index.noun"))
        self._hypernyms = dict(_read_senses(folder / "data.noun"))
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

    with w the similarity of two nouns, a tenth of it where it is below the threshold.

    Args:
        given: A.
        truth: T.
        threshold: 0.9 and 0 are usual.
        nouns: WordNet.

    Reference: Malinowski and Fritz 2014, "A multi-world approach to question answering about real-world scenes".
    """

    def weighted(one: str, other: str) -> float:
        similar = nouns.similarity(one, other)
        return similar if similar >= threshold else 0.1 * similar

    def covered(some: Sequence[str], by: Sequence[str]) -> float:
        return math.prod(max(weighted(one, other) for other in by) for one in some)

    parts, others = ([part.strip() for part in answer.split(",")] for answer in (given, truth))
    return min(covered(parts, others), covered(others, parts))


def _read_index(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Lemma → its senses, by their place in the file of data."""
    for number, line in numbered_lines(path):
        if line.startswith(" "):  # the licence
            continue
        fields = line.split()
        try:
            senses = fields[-int(fields[2]) :]
        except (IndexError, ValueError):
            raise LabError(f"{path}, line {number}: not a line of WordNet's index: {line[:60]!r}") from None
        yield fields[0], tuple(senses)


def _read_senses(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Sense → the senses right above it, of classes and of instances."""
    for number, line in numbered_lines(path):
        if line.startswith(" "):
            continue
        fields = line.split(" | ")[0].split()
        try:
            words = int(fields[3], 16)
            first = 4 + 2 * words
            pointers = fields[first + 1 : first + 1 + 4 * int(fields[first])]
        except (IndexError, ValueError):
            raise LabError(f"{path}, line {number}: not a line of WordNet's data: {line[:60]!r}") from None
        up = [pointers[i + 1] for i in range(0, len(pointers), 4) if pointers[i] in ("@", "@i")]
        yield fields[0], tuple(up)
