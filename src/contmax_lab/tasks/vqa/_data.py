"""The data of a training: questions as numbers, features of images, answers."""

import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from contmax_lab.contract import Batch, Splits
from contmax_lab.data import Place, half_table, pixels
from contmax_lab.errors import LabError, UsageError
from contmax_lab.labelled import some
from contmax_lab.tasks.vqa import VqaData
from contmax_lab.tasks.vqa._answers import DEFAULT_FOLDER, AnswerVocabulary, Nouns, soft_accuracy
from contmax_lab.tasks.vqa._features import SIZE, Features, GridFile, extract, open_features
from contmax_lab.tasks.vqa._questions import (
    Question,
    Scene,
    Source,
    image_files,
    paste,
    read_folder,
    read_tables,
    scenes,
)

KINDS = ("yes/no", "number", "other")
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Asked:
    """The questions of one part.

    Args:
        questions: with their answers.
        tokens: numbers of their words, 0 = padding, (Q, T).
        features: of the images.
        answers: that a model can give.
        truth: number of the first annotator's answer among all answers of the data, (Q,).
        scenes: where objects were pasted, by the name of the image.
        resident: whether a batch names the rows of the features instead of holding them.
    """

    questions: list[Question]
    tokens: Tensor
    features: Features
    answers: dict[str, int]
    truth: Tensor
    scenes: dict[str, Scene]
    resident: bool

    def __len__(self) -> int:
        return len(self.questions)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Words, features, what each answer is worth, the kind of question, and boxes of pasted objects."""
        chosen = [self.questions[index] for index in indices]
        worth = torch.zeros(len(chosen), len(self.answers))
        for row, question in enumerate(chosen):
            for answer, value in soft_accuracy(question.answers).items():
                if answer in self.answers:
                    worth[row, self.answers[answer]] = value
        kinds = torch.tensor([KINDS.index(q.kind) if q.kind in KINDS else len(KINDS) - 1 for q in chosen])
        rows = torch.tensor(list(indices))
        batch = {"tokens": self.tokens[rows], "worth": worth, "kind": kinds, "truth": self.truth[rows]}
        images = [question.image for question in chosen]
        if self.resident and isinstance(self.features, GridFile):
            batch["rows"] = torch.tensor([self.features.rows[image] for image in images])
        else:
            batch.update(self.features.take(images))
        if self.scenes:
            boxes = torch.tensor([[self.scenes[image].asked.box, self.scenes[image].other.box] for image in images])
            batch |= {"box": boxes[:, 0], "other_box": boxes[:, 1]}
        return batch


def load(data: VqaData) -> Splits:
    """Read the questions, find or make the features, number words and answers."""
    source, made = _source(data)
    features = _features(data, source, made)
    parts = {part: some(getattr(source, part), data) for part in ("train", "valid", "test")}
    for question in (q for part in parts.values() for q in part):
        features.check(question.image, question.place)
    train = parts["train"]
    vocabulary = AnswerVocabulary.of((max(q.answers, key=q.answers.count) for q in train), data.min_count)
    words = sorted({word for question in train for word in question.words})
    vectors = None
    found = data.vectors or next(iter(sorted(source.folder.glob("glove*.txt"))), None)
    if found is not None:
        known, table = half_table(found, set(words))
        # Words without a vector count as unknown.
        words, vectors = known, torch.from_numpy(table.astype(np.float32))
    numbers = {word: FIRST_WORD + index for index, word in enumerate(words)}
    every = sorted({q.answers[0] for part in parts.values() for q in part})
    places = {answer: index for index, answer in enumerate(every)}
    answers = {answer: index for index, answer in enumerate(vocabulary.answers)}

    def asked(questions: list[Question]) -> Asked:
        tokens = padded_words([q.words for q in questions], numbers, data.max_words)
        truth = torch.tensor([places[q.answers[0]] for q in questions], dtype=torch.long)
        return Asked(questions, tokens, features, answers, truth, made, data.resident)

    info: dict[str, Any] = {
        "answers": vocabulary,
        "every_answer": every,
        "word_numbers": numbers,
        "vectors": vectors,
        "features": features,
        "nouns": None if made or len(train[0].answers) > 1 else _nouns(data),
        "max_words": int(data.max_words),
        "resident": data.resident,
        "images": data.images or source.folder,
        "words": len(numbers),
        "distinct answers": len(answers),
        "distinct images": len({q.image for part in parts.values() for q in part}),
    }
    return Splits(asked(parts["train"]), asked(parts["valid"]), asked(parts["test"]), info)


def padded_words(questions: Sequence[Sequence[str]], numbers: dict[str, int], longest: int) -> Tensor:
    """Numbers of words, (Q, T), 0 behind the end."""
    rows = [torch.tensor([numbers.get(word, UNKNOWN) for word in words[:longest]]) for words in questions]
    return pad_sequence(rows, batch_first=True) if rows else torch.zeros(0, 1, dtype=torch.long)


def prepare(data: VqaData) -> str:
    """Make the features that trainings need, if they are missing, and say where they are."""
    source, made = _source(data)
    features = _features(data, source, made)
    where = features.path if isinstance(features, GridFile) else data.features
    return f"features of {features.channels} channels, grid {features.grid or 'of regions'}: {where}"


def _source(data: VqaData) -> tuple[Source, dict[str, Scene]]:
    """The questions, and the scenes where objects are to be pasted."""
    if data.path is not None and data.train is not None:
        raise UsageError("pass --data.path or --data.train, not both")
    if data.pasted_train and not data.pasted:
        raise UsageError("--data.pasted_train works only with --data.pasted N, the copies for validation and test")
    if data.train is not None:
        source = read_tables(data.train, data.validation, data.test, data.held_out, data.split)
    elif data.path is not None:
        source = read_folder(data.path, data.held_out, data.split)
    else:
        raise UsageError(
            "no data was given; pass --data.path FOLDER of DAQUAR or VQA-v2, or --data.train FILE, a table with the "
            "columns image, question and answer"
        )
    if not data.pasted:
        return source, {}
    copies = (data.pasted_train or data.pasted, data.pasted, data.pasted)
    photos = [dict.fromkeys(q.image for q in part) for part in (source.train, source.valid, source.test)]
    made = [scenes([*photos[part]], copies[part], 3 * data.split + part) for part in range(3)]
    asked = [[scene.question(name, Place(source.folder)) for name, scene in part.items()] for part in made]
    return Source(asked[0], asked[1], asked[2], source.folder), made[0] | made[1] | made[2]


def _features(data: VqaData, source: Source, made: dict[str, Scene]) -> Features:
    """The features that the settings name, or else features extracted from the images."""
    if data.features is not None and (data.features.is_dir() or not data.images) and data.features.exists():
        return open_features(data.features)
    target = data.features or source.folder / ".contmax" / f"{_features_name(data)}.npy"
    if target.suffix != ".npy":
        raise LabError(f"{target}: no such folder; pass one with features, or the name of a file that ends in .npy")
    folder = data.images or source.folder
    files = image_files(folder)
    questions = [question for part in (source.train, source.valid, source.test) for question in part]
    names: dict[str, Path] = {}
    for question in questions:
        photo = made[question.image].photo if made else question.image
        if photo not in files:
            raise question.place.problem(f"the image {photo} is not in {folder}; pass --data.images or --data.features")
        names[question.image] = files[photo]
    order = list(names)

    @functools.lru_cache(maxsize=64)
    def photo_of(path: Path) -> Tensor:
        return pixels(path, SIZE)

    def read(index: int) -> Tensor:
        image = photo_of(names[order[index]])
        return paste(image, made[order[index]]) if made else image

    extract(read, order, target)
    return GridFile(target)


def _features_name(data: VqaData) -> str:
    """Name of the file: images with other pasted objects need other features."""
    if not data.pasted:
        return "efficientnet-lite0"
    train = f"{data.pasted_train}-" if data.pasted_train else ""
    return f"pasted-{train}{data.pasted}-{data.split}"


def _nouns(data: VqaData) -> Nouns | None:
    if data.wordnet is None and data.path is None:
        return None
    if data.wordnet is None and not DEFAULT_FOLDER.is_dir():
        print(
            f"WUPS is not measured: no WordNet at {DEFAULT_FOLDER}; install wordnet-base or pass --data.wordnet",
            file=sys.stderr,
        )
        return None
    return Nouns(data.wordnet or DEFAULT_FOLDER)
