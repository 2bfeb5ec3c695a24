"""Reading any English text with a model from a folder."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Self

import safetensors
import torch

from contmax_lab.errors import LabError, UsageError
from contmax_lab.tasks.documents import FIRST_WORD, UNKNOWN, DocumentsModel, Reader, Reading, tokenize

_SHIPPED = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the model says of one text.

    Args:
        words: of the text, as the model reads them.
        probability: of being positive.
        reading: where it looked, a batch with one text.
    """

    words: list[str]
    probability: float
    reading: Reading

    @property
    def attended(self) -> list[bool]:
        """Which words were attended."""
        inside: list[bool] = self.reading.inside[0].tolist()
        return inside

    def marked(self) -> str:
        """The text with every attended stretch in brackets."""
        pieces: list[str] = []
        attended = [False, *self.attended, False]
        for place, word in enumerate(self.words, start=1):
            begins = attended[place] and not attended[place - 1]
            ends = attended[place] and not attended[place + 1]
            pieces.append(f"{'[' if begins else ''}{word}{']' if ends else ''}")
        return " ".join(pieces)


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
            with safetensors.safe_open(folder / "model.safetensors", framework="pt") as file:
                weights = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118, no mapping
            model = Reader(DocumentsModel(**card["model"]), torch.zeros(FIRST_WORD + len(words), card["dimensions"]))
            model.load_state_dict(weights)
        except FileNotFoundError as error:
            raise LabError(f"{error.filename}: no such file; make the folder with contmax export RUN") from None
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise LabError(f"{folder} holds no model that can be read: {' '.join(str(error).split())}") from None
        return cls(model.eval(), words, card)

    @torch.no_grad()
    def read(self, text: str) -> Verdict:
        """Positive or negative?

        Raises:
            UsageError: if the text has no words, or the model knows none of them.
        """
        words = tokenize(text)
        if not words:
            raise UsageError("the text has no words; pass a sentence or two")
        if not any(word in self._numbers for word in words):
            raise UsageError(f"the model knows {len(self.words):,} English words, but none of this text; pass another")
        tokens = torch.tensor([[self._numbers.get(word, UNKNOWN) for word in words]])
        reading: Reading = self.model({"tokens": tokens})
        return Verdict(words, float(reading.logits.sigmoid()), reading)
