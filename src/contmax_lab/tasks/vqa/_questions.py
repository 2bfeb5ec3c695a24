"""Questions about images, with the answers that people gave; and the readers of tables and of VQA-v2."""

import dataclasses
import gzip
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contmax_lab.data import Place, read_table
from contmax_lab.errors import LabError
from contmax_lab.tasks.vqa._answers import kind_of, normalised

_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


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


def read_questions(path: Path) -> list[Question]:
    """The rows of a table with the columns image, question and answer.

    Args:
        path: .csv, .tsv or .jsonl; an image is named with or without its ending.

    Raises:
        LabError: if a row has no answer, or something else is wrong, with the line.
    """
    questions = []
    for row in read_table(path, ["image", "question", "answer"]):
        answer = normalised(row.text("answer"))
        image, text = Path(row.text("image")).stem, row.text("question")
        if not question_words(text):
            raise row.place.problem(f"the question {text!r} has no words")
        questions.append(Question(image, text, (answer,), kind_of(answer), row.place))
    return questions


def read_vqa2(questions: Path, annotations: Path) -> list[Question]:
    """The questions of VQA-v2 with the answers of ten annotators each, in the original format.

    Args:
        questions, annotations: JSON, also compressed by gzip.

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
