"""Reading pairs of sentences, in the layouts in which they are published."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from contmax_lab.data import numbered_lines
from contmax_lab.errors import LabError
from contmax_lab.tasks.translation import TranslationData

# Lines of the training files of IWSLT that hold no sentence.
_TAGS = re.compile(r"</?(url|keywords|speaker|talkid|title|description|reviewer|translator|doc)\b")
_TAGGED = "train.tags."
# Its text, and where it stands.
Sentence = tuple[str, str]
PARTS = ("train", "valid", "test")
ORIGINALS = (
    "Multi30k: https://github.com/multi30k/dataset, Tatoeba: https://www.manythings.org/anki, IWSLT 2017: "
    "https://wit3.fbk.eu"
)
# The name of a part stands between the beginning, the end, dots, dashes and underscores: iwslt17_validation.tsv.
_NAMES = {
    "train": re.compile(r"(^|[._-])train([._-]|$)"),
    "valid": re.compile(r"(^|[._-])(val|valid|validation|dev\d*)([._-]|$)"),
    "test": re.compile(r"(^|[._-])(test\d*|tst\d*)([._-]|$)"),
}
# Test sets of all years together are the test of IWSLT 2017.
_CAMPAIGN = re.compile(r"IWSLT\d+\.TED\.")


def read_pairs(where: Path, data: TranslationData) -> Iterator[tuple[str, str]]:
    """Pairs of sentences.

    Args:
        where: a table, ``.tsv``, without a header; or what the names of two files have in common: ``train`` for
            ``train.de`` and ``train.en``, one sentence in a line, or for ``train.de.xml`` and ``train.en.xml``.
        data: how these end, or which columns to take.

    Raises:
        LabError: at the first thing that is not as it should be, with file and line.
    """
    if where.suffix == ".tsv":
        yield from _of_table(where, data)
        return
    sides = [_side(where, ending) for ending in (data.source, data.target)]
    tagged = where.name.startswith(_TAGGED)
    first, second = (_sentences(path, tagged=tagged) for path in sides)
    for one, other in zip_longest(first, second):
        if one is None or other is None:
            longer, shorter = (sides[1], sides[0]) if one is None else (sides[0], sides[1])
            raise LabError(
                f"{shorter} has fewer sentences than {longer}, which continues at {(one or other)[1]}; both files "
                "must have the same number of sentences"
            )
        # The published training set has some talks with a sentence that nobody has translated.
        if tagged and not (one[0] and other[0]):
            continue
        for text, place in (one, other):
            if not text:
                raise LabError(f"{place}: the sentence is empty; take it out of both files, or fill it")
        yield one[0], other[0]


def files_of(where: Path, data: TranslationData) -> list[Path]:
    """The files that `read_pairs` reads.

    Raises:
        LabError: if one is missing.
    """
    if where.suffix == ".tsv":
        if not where.is_file():
            raise LabError(f"{where}: no such file; pass a table, source TAB target")
        return [where]
    return [_side(where, ending) for ending in (data.source, data.target)]


def _found(where: Path, ending: str) -> Path | None:
    named = (where.with_name(f"{where.name}.{ending}{kind}") for kind in ("", ".xml"))
    return next((path for path in named if path.is_file()), None)


def _side(where: Path, ending: str) -> Path:
    path = _found(where, ending)
    if path is None:
        raise LabError(
            f"{where}.{ending}: no such file; pass what the names of two files have in common, {where.name} for "
            f"{where.name}.{ending} and its translation, with --data.source and --data.target; or a .tsv file"
        )
    return path


def _of_table(path: Path, data: TranslationData) -> Iterator[tuple[str, str]]:
    columns = data.source_column - 1, data.target_column - 1
    for number, line in numbered_lines(path):
        fields = line.split("\t")
        if len(fields) <= max(columns):
            raise LabError(
                f"{path}, line {number}: {len(fields)} columns, where the sentences are columns "
                f"{data.source_column} and {data.target_column}, with a tab between them"
            )
        source, target = (fields[column].strip() for column in columns)
        for name, text in (("source", source), ("target", target)):
            if not text:
                raise LabError(f"{path}, line {number}: the {name} sentence is empty; take the line out, or fill it")
        yield source, target


def _sentences(path: Path, *, tagged: bool) -> Iterator[Sentence]:
    if path.suffix == ".xml":
        yield from _of_xml(path)
        return
    for number, line in numbered_lines(path):
        if not (tagged and _TAGS.match(line.lstrip())):
            yield line.strip(), f"{path}, line {number}"


def _of_xml(path: Path) -> Iterator[Sentence]:
    """The segments of a file of the evaluation campaign."""
    # Read as text first, so that a wrong encoding is reported with its line.
    lines = [line for _, line in numbered_lines(path)]
    try:
        root = ElementTree.fromstring("\n".join(lines).encode())
    except ElementTree.ParseError as error:
        raise LabError(f"{path}: not complete XML ({error}); download it again") from None
    segments = list(root.iter("seg"))
    if not segments:
        raise LabError(f"{path}: the XML has no <seg>, which hold the sentences of IWSLT")
    for number, segment in enumerate(segments, start=1):
        yield "".join(segment.itertext()).strip(), f"{path}, segment {number}"


def find_parts(folder: Path, data: TranslationData) -> dict[str, list[Path]]:
    """The parts of a folder of published data, each as what `read_pairs` reads.

    Multi30k (``train.de``, ``val.de``, ``test_2016_flickr.de``), Tatoeba (``train.tsv``, …), IWSLT 2017
    (``train.tags.de-en.de``, ``IWSLT17.TED.dev2010.de-en.de.xml``, …), or others named like one of these. Of several
    test sets it is the first by name, except for IWSLT's, which are taken together.

    Raises:
        LabError: if there is no training part.
    """
    if not folder.is_dir():
        found = "a file" if folder.exists() else "no such folder"
        raise LabError(f"{folder}: {found}; pass the folder of the unpacked data. {ORIGINALS}")
    places = _places(folder, data)
    named = {part: [p for p in places if _NAMES[part].search(p.name.removesuffix(".tsv"))] for part in PARTS}
    campaigns = {part: [p for p in own if _CAMPAIGN.match(p.name)] for part, own in named.items()}
    parts = {part: campaigns[part] or own[:1] for part, own in named.items()}
    if not parts["train"]:
        wanted = f"train.{data.source} and train.{data.target}, or train.tsv"
        raise LabError(f"{folder}: no training part ({wanted}); name one by --data.train. {ORIGINALS}")
    return parts


def _places(folder: Path, data: TranslationData) -> list[Path]:
    """Tables, and what the names of two files have in common, in the order of their names."""
    places = []
    for path in sorted(folder.iterdir()):
        stem = path.name.removesuffix(".xml")
        if path.suffix == ".tsv" and path.is_file():
            places.append(path)
        elif stem.endswith(f".{data.source}"):
            place = path.with_name(stem.removesuffix(f".{data.source}"))
            places += [place] if all(_found(place, ending) for ending in (data.source, data.target)) else []
    return list(dict.fromkeys(places))
