"""Reading any English text with a model from a folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor

from contmax_lab.contract import Look, Prediction
from contmax_lab.errors import LabError, UsageError
from contmax_lab.labelled import model_settings, read_weights
from contmax_lab.tasks.documents._model import Reader
from contmax_lab.tasks.documents._prepared import FIRST_WORD, UNKNOWN
from contmax_lab.tasks.documents._reading import Reading
from contmax_lab.tasks.documents._settings import DocumentsModel
from contmax_lab.tasks.documents._tokens import tokenize
from contmax_lab.tasks.documents.pretrained._verdict import Verdict, verdict_figure

_SHIPPED = Path(__file__).parent
_CLASSES = ("negative", "positive")


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
    def load(cls, folder: Path = _SHIPPED) -> Self:
        """Read a model; by default the one in the package.

        Raises:
            LabError: if a file is missing or does not fit the others.
        """
        try:
            card = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
            values, size = {**card["model"]}, (FIRST_WORD + len(words), int(card["dimensions"]))
        except FileNotFoundError as error:
            raise LabError(f"{error.filename}: no such file; make the folder with contmax export RUN") from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise LabError(f"{folder} holds no model that can be read: {' '.join(str(error).split())}") from None
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
        reading: Reading = self.model({"tokens": tokens})
        return Verdict(words, float(reading.logits.sigmoid()), reading)

    @torch.no_grad()
    def look(self, text: str) -> Look:
        """The text taken apart.

        Raises:
            UsageError: as of `read`.
        """
        words, tokens = self._tokens(text)
        values, attended = self.model.attend(tokens)

        def decide(context: Tensor) -> Tensor:
            positive = self.model.logit(context).sigmoid()
            return torch.cat([1 - positive, positive], -1)

        attend: Any = self.model.attention
        # Of a combined attention, the continuous part.
        continuous = getattr(attend, "continuous", attend)
        basis, penalty = getattr(continuous, "basis", None), getattr(continuous, "penalty", 0.01)
        return Look(values[0], [attended], decide, _CLASSES, words, basis=basis, penalty=penalty)

    def _tokens(self, text: str) -> tuple[list[str], Tensor]:
        """The words, and their numbers (1, L)."""
        words = tokenize(text)
        if not words:
            raise UsageError("the text has no words; pass a sentence or two")
        if not any(word in self._numbers for word in words):
            raise UsageError(f"the model knows {len(self.words):,} English words, but none of this text; pass another")
        return words, torch.tensor([[self._numbers.get(word, UNKNOWN) for word in words]])

    def predict(self, words: Sequence[str]) -> Prediction:
        """The verdict on a text from the command line, with every attended stretch in brackets."""
        verdict = self.read(" ".join(words))
        positive = verdict.probability >= 0.5
        sure = verdict.probability if positive else 1 - verdict.probability
        text = f"{'positive' if positive else 'negative'} ({sure:.0%})\n{verdict.marked()}"
        return Prediction(text, verdict_figure(verdict, "Attention"))
