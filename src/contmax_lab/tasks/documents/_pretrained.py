"""A trained model and its words: is any English text positive or negative, and which words say so?

A small one comes with the package, the folder ``pretrained``: ``model.safetensors`` (weights, float16), ``vocab.txt``
(the words it knows) and ``config.json`` (its configuration, how it was trained, what was measured). ``contmax predict``
uses it; ``contmax export`` makes such a folder from a run.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from contmax_lab.contract import Figure, FileAnswer, Look, Prediction, Section, TrainedRun
from contmax_lab.data import TableRow
from contmax_lab.errors import UsageError
from contmax_lab.files import plain
from contmax_lab.labelled import (
    answered,
    look_of,
    model_settings,
    read_card,
    read_weights,
    table_inputs,
    text_figure,
    told_of,
    write_model,
)
from contmax_lab.tasks.documents import DocumentsModel
from contmax_lab.tasks.documents._data import FIRST_WORD, UNKNOWN, tokenize
from contmax_lab.tasks.documents._model import Reader
from contmax_lab.tasks.documents._reading import Reading

EXAMPLES = (
    "I expected little, and the first half hour is slow, but then it turns into one of the most moving and beautifully "
    "acted films I have seen in years. Do not miss it.",
    "The trailer promised a thriller. What we got is a dull, badly written mess with wooden dialogue and no tension "
    "at all. Even the fine cast cannot save it.",
    "Great costumes, a famous director, lovely music, and still I was bored to tears: the plot makes no sense.",
)
SHIPPED = Path(__file__).with_name("pretrained")
_WORDS = "vocab.txt"
_CLASSES = ("negative", "positive")
_CAPTION = (
    "Bars: weights of single words. Curve: the density over the text, on the scale to the right; what it selects is "
    "shaded."
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the model says of one text.

    Args:
        words: of the text, as the model reads them.
        reading: of a batch with that text alone.
    """

    words: list[str]
    reading: Reading

    @property
    def probability(self) -> float:
        """The probability that the text is positive."""
        return float(self.reading.logits.sigmoid())

    def marked(self) -> str:
        """The text with every attended stretch in brackets."""
        pieces: list[str] = []
        attended = [False, *self.reading.inside[0].tolist(), False]
        for place, word in enumerate(self.words, start=1):
            begins = attended[place] and not attended[place - 1]
            ends = attended[place] and not attended[place + 1]
            pieces.append(f"{'[' if begins else ''}{word}{']' if ends else ''}")
        return " ".join(pieces)

    def figure(self, title: str) -> Figure:
        """Where the model looks in the text."""
        panels = [(f"{self.probability:.0%} positive", self.reading)]
        return text_figure(title, self.words, panels, _CAPTION, height=1.6)


class PretrainedReader:
    """A trained model and its words.

    Args:
        model: in evaluation mode.
        words: word i has the number 2 + i.
        card: the content of config.json.
    """

    def __init__(self, model: Reader, words: list[str], card: dict[str, Any]) -> None:
        self.model, self.words, self.card = model, words, card
        self._numbers = {word: FIRST_WORD + place for place, word in enumerate(words)}

    @classmethod
    def load(cls, folder: Path = SHIPPED) -> Self:
        """Read a model; by default the one in the package.

        Raises:
            LabError: if a file is missing or does not fit the others.
        """

        def understood(card: dict[str, Any]) -> tuple[dict[str, Any], list[str], dict[str, Any], tuple[int, int]]:
            words = (folder / _WORDS).read_text(encoding="utf-8").split("\n")[:-1]
            return card, words, {**card["model"]}, (FIRST_WORD + len(words), int(card["dimensions"]))

        card, words, values, size = read_card(folder, understood)
        settings = model_settings(folder, DocumentsModel, values)
        model = read_weights(folder, lambda: Reader(settings, torch.zeros(size)))
        return cls(cast(Reader, model), words, card)

    @torch.no_grad()
    def read(self, text: str) -> Verdict:
        """Positive or negative?

        Raises:
            UsageError: if the text has no words, or the model knows none of them.
        """
        words, tokens = self._tokens(text)
        return Verdict(words, self.model({"tokens": tokens}))

    @torch.no_grad()
    def look(self, text: str) -> Look:
        """What the model attends to in a text, and how it decides.

        Raises:
            UsageError: if the text has no words, or the model knows none of them.
        """
        words, tokens = self._tokens(text)
        values, attended = self.model.attend(tokens)

        def decide(context: Tensor) -> Tensor:
            positive = self.model.logit(context).sigmoid()
            return torch.cat([1 - positive, positive], -1)

        return look_of(self.model.attention, values, [attended], decide, classes=_CLASSES, words=words)

    def predict(self, words: Sequence[str]) -> Prediction:
        """The verdict on a text from the command line, with every attended stretch in brackets."""
        verdict = self.read(" ".join(words))
        positive = verdict.probability >= 0.5
        sure = verdict.probability if positive else 1 - verdict.probability
        return Prediction(f"{_CLASSES[positive]} ({sure:.0%})\n{verdict.marked()}", verdict.figure("Attention"))

    def predict_file(self, path: Path, column: str, keep: Sequence[str]) -> Iterator[FileAnswer]:
        """The verdict on every text of a table, with its attended words."""

        def read(row: TableRow) -> list[str]:
            try:
                return self._tokens(row.text(column))[0]
            except UsageError as error:
                raise row.place.problem(str(error)) from None

        def answer(texts: list[list[str]]) -> list[dict[str, Any]]:
            # One at a time: texts may be of very different lengths.
            return [self._told(words) for words in texts]

        return answered(table_inputs(path, column, keep, read), answer, most=1)

    def _told(self, words: list[str]) -> dict[str, Any]:
        reading = self.model({"tokens": self._numbered(words)})
        seen = zip(words, reading.inside[0].tolist(), strict=True)
        return {**told_of(reading, _CLASSES)[0], "attended words": " ".join(word for word, inside in seen if inside)}

    def _numbered(self, words: Sequence[str]) -> Tensor:
        return torch.tensor([[self._numbers.get(word, UNKNOWN) for word in words]])

    def _tokens(self, text: str) -> tuple[list[str], Tensor]:
        """The words, and their numbers (1, L)."""
        words = tokenize(text)
        if not words:
            raise UsageError("the text has no words; pass a sentence or two")
        if not any(word in self._numbers for word in words):
            raise UsageError(f"the model knows {len(self.words):,} English words, but none of this text; pass another")
        return words, self._numbered(words)


def examples_section(reader: PretrainedReader) -> Section:
    """A table of verdicts, and a picture of each."""
    verdicts = [reader.read(text) for text in EXAMPLES]
    table = [["text, with what is attended in brackets", "positive"]]
    table += [[verdict.marked(), f"{verdict.probability:.0%}"] for verdict in verdicts]
    accuracy = reader.card["figures"]["test"]["accuracy"]
    lead = (
        f"The model that comes with the package, {accuracy:.1%} right on the test half of IMDB, on sentences of ours."
    )
    figures = [verdict.figure(f"Sentence {place}") for place, verdict in enumerate(verdicts, start=1)]
    return Section("Positive or negative?", lead, table, figures)


def export(trained: TrainedRun, folder: Path, measure: Callable[[nn.Module, str], dict[str, float]]) -> int:
    """Write model.safetensors, vocab.txt and config.json; arguments, result and errors as of `write_model`."""
    recipe, results = trained.recipe, trained.results
    model = plain(recipe.model)
    start = model.pop("start")
    card = {
        "model": model,
        "dimensions": trained.splits.info["dimensions"],
        "trained": {
            "on": "IMDB reviews (Maas et al. 2011), official training half; word vectors begin as GloVe 6B",
            "examples": results["examples"],
            "data": plain({key: getattr(recipe.data, key) for key in ("max_words", "valid", "split")}),
            "training": plain(recipe.training),
            "start": "word vectors" if start is None else "a language model of the same reviews (task language)",
            "seed": recipe.seed,
            "epochs": results["epochs"],
            "best_epoch": results["best_epoch"],
        },
    }
    words = "".join(f"{word}\n" for word in trained.splits.info["words"])
    return write_model(trained, card, folder, measure, {_WORDS: words})
