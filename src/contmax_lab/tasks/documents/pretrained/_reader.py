"""Reading any English text with a model from a folder, and making such a folder from a run."""

import copy
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, cast

import safetensors.torch
import torch
from torch import Tensor, nn

from contmax.viz import plot_text_attention
from contmax_lab.contract import Figure, Look, Prediction, Section, TrainedRun
from contmax_lab.drawing import Theme, new_axes, picture_width
from contmax_lab.errors import LabError, UsageError
from contmax_lab.files import plain, write_atomically, write_json
from contmax_lab.labelled import model_settings, read_weights
from contmax_lab.provenance import provenance
from contmax_lab.tasks.documents import DocumentsModel
from contmax_lab.tasks.documents._model import Reader
from contmax_lab.tasks.documents._prepared import FIRST_WORD, UNKNOWN
from contmax_lab.tasks.documents._reading import Reading
from contmax_lab.tasks.documents._reviews import tokenize


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


def verdict_figure(verdict: Verdict, title: str) -> Figure:
    """Where the model looks in a text."""

    def draw(theme: Theme) -> Any:
        figure, axes = new_axes(width=picture_width(verdict.words), height=1.6)
        plot_text_attention(verdict.words, verdict.reading.weights, verdict.reading.density, ax=axes[0])
        axes[0].set_title(f"{verdict.probability:.0%} positive", loc="left", fontsize=9)
        return figure

    caption = (
        "Bars: weights of single words. Curve: the density over the text, on the scale to the right; what it selects "
        "is shaded."
    )
    return Figure(title, draw, caption)


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


EXAMPLES = (
    "I expected little, and the first half hour is slow, but then it turns into one of the most moving and beautifully "
    "acted films I have seen in years. Do not miss it.",
    "The trailer promised a thriller. What we got is a dull, badly written mess with wooden dialogue and no tension "
    "at all. Even the fine cast cannot save it.",
    "Great costumes, a famous director, lovely music, and still I was bored to tears: the plot makes no sense.",
)


def examples_section(reader: PretrainedReader, texts: Sequence[str] = EXAMPLES) -> Section:
    """A table of verdicts, and a picture of each."""
    verdicts = [reader.read(text) for text in texts]
    table = [["text, with what is attended in brackets", "positive"]]
    table += [[verdict.marked(), f"{verdict.probability:.0%}"] for verdict in verdicts]
    accuracy = reader.card["figures"]["test"]["accuracy"]
    lead = (
        f"The model that comes with the package, {accuracy:.1%} right on the test half of IMDB, on sentences of ours."
    )
    figures = [verdict_figure(verdict, f"Sentence {place}") for place, verdict in enumerate(verdicts, start=1)]
    return Section("Positive or negative?", lead, table, figures)


def export(trained: TrainedRun, folder: Path, measure: Callable[[nn.Module, str], dict[str, float]]) -> int:
    """Write model.safetensors, vocab.txt and config.json.

    Args:
        trained: a run of the task documents.
        folder: made if it does not exist.
        measure: model, part of the data → metrics.

    Returns:
        Bytes written.

    Raises:
        LabError: if a file cannot be written.
    """
    weights = {name: tensor.to(torch.float16).contiguous() for name, tensor in trained.model.state_dict().items()}
    # What is written is what is measured; the run that was given stays as it is.
    rounded = copy.deepcopy(trained.model)
    rounded.load_state_dict(weights)
    # The test texts are looked at again only where the run was tested.
    parts = ("valid", "test") if trained.results["test"] else ("valid",)
    card = _card(trained, {part: measure(rounded, part) for part in parts})
    write_atomically(folder / "model.safetensors", safetensors.torch.save(weights))
    words = "".join(f"{word}\n" for word in trained.splits.info["words"])
    write_atomically(folder / "vocab.txt", words.encode("utf-8"))
    write_json(folder / "config.json", card)
    return sum((folder / name).stat().st_size for name in ("model.safetensors", "vocab.txt", "config.json"))


def _card(trained: TrainedRun, figures: dict[str, dict[str, float]]) -> dict[str, Any]:
    recipe, results = trained.recipe, trained.results
    data = {"max_words": recipe.data.max_words, "valid": recipe.data.valid, "split": recipe.data.split}
    model = plain(recipe.model)
    start = model.pop("start")
    return {
        "task": "documents",
        "model": model,
        "dimensions": trained.splits.info["dimensions"],
        "trained": {
            "on": "IMDB reviews (Maas et al. 2011), official training half; word vectors begin as GloVe 6B",
            "examples": results["examples"],
            "data": plain(data),
            "training": plain(recipe.training),
            "start": "word vectors" if start is None else "a language model of the same reviews (task language)",
            "seed": recipe.seed,
            "epochs": results["epochs"],
            "best_epoch": results["best_epoch"],
        },
        "figures": figures,
        "exported": provenance(("contmax", "torch")),
    }
