"""Which files of a folder are for training, validation and test."""

import re
from pathlib import Path

from contmax_lab.errors import LabError
from contmax_lab.tasks.translation._sentences import Languages, exists

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


def find_parts(folder: Path, languages: Languages) -> dict[str, list[Path]]:
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
    places = [place for place in _places(folder, languages) if exists(place, languages)]
    parts = {part: _of_part([p for p in places if _NAMES[part].search(_stem(p))]) for part in PARTS}
    if not parts["train"]:
        wanted = f"train.{languages.source} and train.{languages.target}, or train.tsv"
        raise LabError(f"{folder}: no training part ({wanted}); name one by --data.train. {ORIGINALS}")
    return parts


def _places(folder: Path, languages: Languages) -> list[Path]:
    places = []
    for path in sorted(folder.iterdir()):
        for ending in (f".{languages.source}.xml", f".{languages.source}"):
            if path.name.endswith(ending):
                places.append(path.with_name(path.name.removesuffix(ending)))
                break
        if path.suffix == ".tsv":
            places.append(path)
    return list(dict.fromkeys(places))


def _stem(place: Path) -> str:
    return place.name.removesuffix(".tsv")


def _of_part(places: list[Path]) -> list[Path]:
    campaign = [place for place in places if _CAMPAIGN.match(place.name)]
    return campaign or places[:1]
