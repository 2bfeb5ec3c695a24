"""The questions of DAQUAR, VQA-v2 and of tables of the user's own; and questions about objects pasted into photos."""

import dataclasses
import gzip
import json
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contmax_lab.data import IMAGE_SUFFIXES, Place, numbered_lines, read_table, shuffled
from contmax_lab.errors import LabError, UsageError
from contmax_lab.tasks.vqa._answers import kind_of, normalised

_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
DAQUAR = "https://www.mpi-inf.mpg.de/visual-turing-challenge"
VQA2 = "https://visualqa.org/download.html"
COLOURS = {
    "red": (215, 25, 30),
    "green": (30, 160, 50),
    "blue": (25, 60, 215),
    "yellow": (245, 220, 30),
    "purple": (135, 30, 160),
    "orange": (245, 130, 20),
    "white": (248, 248, 248),
    "black": (10, 10, 10),
}
# Shape → whether a point (x, y) of [−1, 1]² belongs to it.
SHAPES: dict[str, Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]]] = {
    "disk": lambda x, y: x**2 + y**2 <= 1,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.92,
    "triangle": lambda x, y: (y >= -0.9) & (y <= 0.9) & (abs(x) <= 0.5 * (y + 0.9) * 1.05),
    "ring": lambda x, y: (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.35),
    "cross": lambda x, y: np.minimum(abs(x), abs(y)) <= 0.32,
    "diamond": lambda x, y: abs(x) + abs(y) <= 1,
    "bar": lambda x, y: abs(y) <= 0.34,
    "flower": lambda x, y: np.sqrt(x**2 + y**2) <= 0.62 + 0.38 * np.cos(5 * np.arctan2(x, -y)),
}
# Range of half the side of an object, as a share of the side of the image.
_HALF_SIDES = (0.08, 0.15)


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about an image.

    Args:
        image: its name, without folder and ending; for VQA-v2 the number of the image.
        text: the question.
        answers: one of each annotator, normalised.
        kind: ``yes/no``, ``number`` or ``other``.
        place: where it was read.
    """

    image: str
    text: str
    answers: tuple[str, ...]
    kind: str
    place: Place

    @property
    def words(self) -> list[str]:
        """Of the question, in lower case.

        Example:
            >>> Question("a", "What's on the left_side?", ("cup",), "other", Place(Path("a.csv"))).words
            ["what's", 'on', 'the', 'left', 'side']
        """
        return question_words(self.text)


def question_words(text: str) -> list[str]:
    """The words of a question, in lower case, without punctuation."""
    return _WORD.findall(text.lower())


def read_questions(path: Path, column: str = "image") -> list[Question]:
    """The rows of a table, .csv, .tsv or .jsonl, with the columns question, answer and `column`, which names the image.

    Raises:
        LabError: if a row has no answer, or something else is wrong, with the line.
    """
    questions = []
    for row in read_table(path, [column, "question", "answer"]):
        text, answer = row.text("question"), normalised(row.text("answer"))
        if not question_words(text):
            raise row.place.problem(f"the question {text!r} has no words")
        # Images of the user's own may be named with their ending.
        image = Path(row.text(column)).stem if column == "image" else row.text(column)
        questions.append(Question(image, text, (answer,), kind_of(answer), row.place))
    return questions


def read_vqa2(questions: Path, annotations: Path) -> list[Question]:
    """The questions of VQA-v2 with the answers of ten annotators each: the original JSON, also compressed by gzip.

    Raises:
        LabError: if a file is cut off or of another kind, or a question has no answers.
    """
    given = {entry.get("question_id"): entry for entry in _entries(annotations, "annotations")}
    found = []
    for entry in _entries(questions, "questions"):
        number, text, image = (entry.get(key) for key in ("question_id", "question", "image_id"))
        place = Place(questions)
        if not isinstance(text, str) or not question_words(text) or image is None:
            raise place.problem(f"question {number} has no image_id, or no words as question: {text!r:.60}")
        annotation = given.get(number)
        if annotation is None:
            raise place.problem(f"question {number} has no answer in {annotations}")
        answers = _answers(annotation, annotations)
        kind = str(annotation.get("answer_type") or kind_of(answers[0]))
        found.append(Question(str(image), text, answers, kind, place))
    if not found:
        raise LabError(f"{questions} has no questions")
    return found


def _answers(annotation: dict[str, Any], path: Path) -> tuple[str, ...]:
    answers = annotation.get("answers")
    if not isinstance(answers, list) or not answers:
        raise LabError(f"{path}: question {annotation.get('question_id')} has no answers")
    try:
        return tuple(normalised(str(answer["answer"])) for answer in answers)
    except (KeyError, TypeError):
        number = annotation.get("question_id")
        raise LabError(f"{path}: an answer of question {number} is not an object with the key answer") from None


def _entries(path: Path, key: str) -> Sequence[dict[str, Any]]:
    """The list under a key of a JSON file."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        entries = json.loads(content)[key]
    except FileNotFoundError:
        raise LabError(f"{path}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LabError(f"{path} cannot be decompressed, it may be cut off: {error}") from None
    except (ValueError, RecursionError) as error:
        raise LabError(f"{path} is not JSON, or is cut off: {' '.join(str(error).split())}") from None
    except (KeyError, TypeError):
        raise LabError(f"{path}: no list under the key {key}; is it a file of VQA-v2?") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise LabError(f"{path}: the value of the key {key} is not a list of objects")
    return entries


@dataclasses.dataclass(frozen=True)
class Source:
    """Questions in parts that share no image.

    Args:
        train, valid, test: the questions; the last may be none.
        folder: where images and what is made of them lie.
    """

    train: list[Question]
    valid: list[Question]
    test: list[Question]
    folder: Path


def read_folder(folder: Path, held_out: float, split: int) -> Source:
    """DAQUAR or VQA-v2, by what is in the unpacked folder.

    Where the data has no validation part, the questions about a share of the training images are held out, chosen by
    the seed `split`.

    Raises:
        LabError: if it is neither.
    """
    if not folder.is_dir():
        raise LabError(
            f"{folder}: {'no folder' if folder.exists() else 'no such folder'}; pass that of DAQUAR ({DAQUAR})"
        )
    for inner in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        if (inner / "train_images_list.txt").is_file():
            return _daquar(folder, inner, held_out, split)
    if any("question" in path.name for path in folder.iterdir()):
        return _vqa2(folder, held_out, split)
    raise LabError(f"{folder}: neither DAQUAR (train_images_list.txt; {DAQUAR}) nor VQA-v2 (*questions*.json; {VQA2})")


def read_tables(train: Path, valid: Path | None, test: Path | None, held_out: float, split: int) -> Source:
    """Tables of the user's own."""
    questions = read_questions(train)
    if valid is None:
        kept, checked = _without_images(questions, held_out, split)
    else:
        kept, checked = questions, read_questions(valid)
    return Source(kept, checked, [] if test is None else read_questions(test), train.parent)


def image_files(folder: Path) -> dict[str, Path]:
    """Name → file, of all images in a folder and the folders in it; for those of COCO also by their number."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in IMAGE_SUFFIXES and not any(part.startswith(".") for part in path.parts[-2:]):
            found[path.stem] = path
            number = path.stem.rpartition("_")[2]
            if path.stem.startswith("COCO_") and number.isdecimal():
                found[str(int(number))] = path
    return found


def _daquar(root: Path, folder: Path, held_out: float, split: int) -> Source:
    """Split by the lists of images: the published tables of questions share images between parts."""
    lists = {part: _names(folder / f"{part}_images_list.txt") for part in ("train", "test")}
    shared = lists["train"].keys() & lists["test"].keys()
    if shared:
        raise LabError(f"{folder}: {min(shared)} is an image of both parts; each image must be in one only")
    by_image: dict[str, list[Question]] = {}
    for question in read_questions(folder / "data.csv", "image_id"):
        by_image.setdefault(question.image, []).append(question)
    parts = {part: [q for name in names for q in by_image.get(name, ())] for part, names in lists.items()}
    for part, questions in parts.items():
        if not questions:
            raise LabError(f"{folder / 'data.csv'}: no question about the images of {part}_images_list.txt")
    train, valid = _without_images(parts["train"], held_out, split)
    return Source(train, valid, parts["test"], root)


def _names(path: Path) -> dict[str, None]:
    if not path.is_file():
        raise LabError(f"{path}: no such file; DAQUAR needs the lists of images of both parts ({DAQUAR})")
    return dict.fromkeys(text.strip() for _, text in numbered_lines(path) if text.strip())


def _vqa2(folder: Path, held_out: float, split: int) -> Source:
    """The published parts, if all have annotations; else validation is held out, and the published one is the test."""
    parts = {part: found for part in ("train", "val", "test") if (found := _pair(folder, part))}
    if "train" not in parts or len(parts) == 1:
        raise LabError(f"{folder}: questions and annotations are needed at least for train and val ({VQA2})")
    read = {part: read_vqa2(*pair) for part, pair in parts.items()}
    if len(read) == 3:
        return Source(read["train"], read["val"], read["test"], folder)
    train, valid = _without_images(read["train"], held_out, split)
    return Source(train, valid, read.get("val") or read["test"], folder)


def _pair(folder: Path, part: str) -> tuple[Path, Path] | None:
    """The files of questions and annotations of a part."""
    names = sorted(path for path in folder.iterdir() if path.is_file() and f"{part}" in path.name.lower())
    questions = [path for path in names if "question" in path.name]
    annotations = [path for path in names if "annot" in path.name]
    if not questions or not annotations:
        return None
    if len(questions) > 1 or len(annotations) > 1:
        raise LabError(f"{folder}: several files of questions or annotations of {part}: {questions[-1].name}")
    return questions[0], annotations[0]


def _without_images(questions: Sequence[Question], share: float, seed: int) -> tuple[list[Question], list[Question]]:
    """Questions about most of the images, and those about a share that is held out."""
    images = list(dict.fromkeys(question.image for question in questions))
    if len(images) < 2:
        raise UsageError(
            f"{questions[0].place.file}: all questions are about one image, so none can be held out; "
            "pass --data.validation"
        )
    count = min(max(round(share * len(images)), 1), len(images) - 1)
    held_out = {images[index] for index in shuffled(len(images), seed)[:count]}
    return [q for q in questions if q.image not in held_out], [q for q in questions if q.image in held_out]


@dataclasses.dataclass(frozen=True)
class Pasted:
    """An object in an image; its centre (row, column) and half its side are shares of the image."""

    shape: str
    colour: str
    centre: tuple[float, float]
    half: float

    @property
    def box(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Low and high corner, (row, column)."""
        (row, column), half = self.centre, self.half
        return (row - half, column - half), (row + half, column + half)


@dataclasses.dataclass(frozen=True)
class Scene:
    """Two objects in a photo, and which of them the question is about.

    Args:
        photo: name of the photo.
        asked, other: the objects; neither their shapes nor their colours are the same.
        by_colour: whether the question names the colour and asks for the shape, or the reverse.
    """

    photo: str
    asked: Pasted
    other: Pasted
    by_colour: bool

    def question(self, name: str, place: Place) -> Question:
        """In words, about the image of that name."""
        asked = self.asked
        if self.by_colour:
            return Question(name, f"what shape is the {asked.colour} object", (asked.shape,), "other", place)
        return Question(name, f"what colour is the {asked.shape}", (asked.colour,), "other", place)


def scenes(photos: Sequence[str], copies: int, seed: int) -> dict[str, Scene]:
    """Name of the new image → what is in it, for this many copies of each photo; a function of the seed.

    Example:
        >>> made = scenes(["kitchen"], 2, seed=0)
        >>> list(made), made["kitchen+0"].asked.shape != made["kitchen+0"].other.shape
        (['kitchen+0', 'kitchen+1'], True)
    """
    random = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=random))

    def pair(names: Sequence[str]) -> list[str]:
        return [names[index] for index in torch.randperm(len(names), generator=random)[:2].tolist()]

    found = {}
    for photo in photos:
        for copy in range(copies):
            shapes, colours = pair(list(SHAPES)), pair(list(COLOURS))
            halves = [uniform(*_HALF_SIDES) for _ in range(2)]
            while True:
                centres = [(uniform(half, 1 - half), uniform(half, 1 - half)) for half in halves]
                apart = max(abs(a - b) for a, b in zip(*centres, strict=True))
                if apart > sum(halves):
                    break
            objects = [Pasted(*parts) for parts in zip(shapes, colours, centres, halves, strict=True)]
            found[f"{photo}+{copy}"] = Scene(photo, objects[0], objects[1], by_colour=uniform(0, 1) < 0.5)
    return found


def paste(image: Tensor, scene: Scene) -> Tensor:
    """The photo, bytes (3, H, W), with both objects in it."""
    pixels = image.numpy().copy()
    height, width = pixels.shape[1:]
    for item in (scene.other, scene.asked):
        (row, column), half = item.centre, item.half
        y = ((np.arange(height) + 0.5) / height - row) / half
        x = ((np.arange(width) + 0.5) / width - column) / half
        grid_y, grid_x = np.meshgrid(y, x, indexing="ij")
        inside = SHAPES[item.shape](grid_x, grid_y) & (np.maximum(abs(grid_x), abs(grid_y)) <= 1)
        pixels[:, inside] = np.array(COLOURS[item.colour], dtype=np.uint8)[:, None]
    return torch.from_numpy(pixels)
