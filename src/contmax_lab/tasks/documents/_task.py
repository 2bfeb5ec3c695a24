"""The task documents: losses and measures of readings, pictures of where models look."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.contract import Batch, Figure, FileAnswer, Look, Prediction, Section, Splits, TrainedRun
from contmax_lab.data import NumberedReviews, table_kind
from contmax_lab.labelled import Classifier, class_measures, text_figure
from contmax_lab.tasks.documents import SETTINGS, DocumentsData, DocumentsModel
from contmax_lab.tasks.documents._data import FIRST_WORD, load
from contmax_lab.tasks.documents._model import Reader, take_over
from contmax_lab.tasks.documents._pretrained import PretrainedReader, examples_section, export
from contmax_lab.tasks.documents._reading import Reading
from contmax_lab.tasks.documents._table import EXCHANGED, FEW_FUNCTIONS, IMDB, NO_START, PAPER, PLACES, SPEED

# Reviews with about this many words fit on a page.
_WORDS = 36
_REVIEWS = 4
_NAMES = {"discrete": "discrete", "continuous": "continuous", "combined": "discrete + continuous"}


@torch.no_grad()
def _review(runs: Sequence[TrainedRun], place: int) -> Figure:
    review, known = cast(NumberedReviews, runs[0].splits.valid).batch([place]), runs[0].splits.info["words"]
    numbers = review["tokens"][0].tolist()
    words = [known[number - FIRST_WORD] if number >= FIRST_WORD else "(unknown)" for number in numbers]
    readings = [run.model(run.task.batch(run.splits.valid, [place])) for run in runs]
    panels = [(_title(run.recipe.model, reading), reading) for run, reading in zip(runs, readings, strict=True)]
    truth = "positive" if int(review["labels"]) else "negative"
    caption = (
        f"A {truth} review. Bars: weights of discrete attention. Curve: density of continuous attention, per word, "
        "beside bars on the scale to the right; the words it selects are shaded. Words in grey are not attended in the "
        "last panel."
    )
    return text_figure(f"Attention over review {place + 1}", words, panels, caption)


def _title(model: DocumentsModel, reading: Reading) -> str:
    form = {1.0: "softmax", 2.0: "sparsemax"}.get(float(model.alpha), f"α = {model.alpha:g}")
    gates = "" if model.head == "pooled" else f", {model.head}"
    functions = "" if model.attention == "discrete" else f", K = {model.num_basis}{gates}"
    functions += ", words" if model.values == "words" else ""
    return f"{_NAMES[model.attention]} {form}{functions}: {float(reading.logits.sigmoid()):.0%} positive"


class DocumentClassification(Classifier, settings=SETTINGS):
    """Positive or negative?"""

    summary = "film reviews, positive or negative, by attention over their words"
    reproduces = (PAPER, NO_START, EXCHANGED, IMDB, FEW_FUNCTIONS, SPEED, PLACES)
    looks_at = "text"
    reads_texts = True
    load = staticmethod(load)
    export = staticmethod(export)

    def build(self, model: DocumentsModel, splits: Splits) -> nn.Module:
        """A network with fresh weights and the word vectors of the data."""
        return Reader(model, splits.info["vectors"])

    def initialise(self, network: nn.Module, data: DocumentsData, model: DocumentsModel) -> None:
        """Word vectors and LSTM of the run that the model begins with, if it names one."""
        if model.start is not None:
            take_over(network, model.start, data)

    def loss(self, output: Reading, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy."""
        losses = F.binary_cross_entropy_with_logits(output.logits.float(), batch["labels"].float(), reduction="none")
        return losses, torch.ones_like(losses)

    def measures(self, output: Reading, batch: Batch) -> dict[str, Tensor]:
        """Whether the label is right, and the share of the words that are attended; likewise of shortened reviews."""
        labels, words = batch["labels"], output.mask.sum(-1)
        measures = {**class_measures(output.scores, labels, rarest=1), "attended": output.inside.sum(-1) / words}
        for name, rest in output.shortened.items():
            # A review without words is answered by tossing a coin.
            measures[name] = torch.where(rest.words > 0, _right(rest.logits, labels), 0.5)
        if output.shortened:
            measures["selected"] = output.shortened["kept"].words / words
        return measures

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """Where trained models look in some validation reviews, by default positive and negative ones in turn."""
        if not runs:
            return []
        documents = cast(NumberedReviews, runs[0].splits.valid)
        order, labels = (documents.lengths - _WORDS).abs().argsort(stable=True).tolist(), documents.labels.tolist()
        sides = [[place for place in order if labels[place] == label] for label in (1, 0)]
        chosen = [place for pair in zip(*sides, strict=False) for place in pair][:_REVIEWS]
        return [_review(runs, place) for place in examples or chosen]

    def predict(self, trained: TrainedRun, words: Sequence[str]) -> Prediction:
        """Whether a text is positive, and which of its words say so."""
        return PretrainedReader(cast(Reader, trained.model), trained.splits.info["words"], {}).predict(words)

    def holds_many(self, path: Path, info: dict[str, Any]) -> bool:
        """Whether it is a table."""
        return bool(table_kind(path))

    def predict_file(
        self, model: nn.Module, info: dict[str, Any], path: Path, column: str = "", keep: Sequence[str] = ()
    ) -> Iterator[FileAnswer]:
        """Whether each text of a table is positive; the texts are in the column text, unless another one is named."""
        return PretrainedReader(cast(Reader, model), info["words"], {}).predict_file(path, column or "text", keep)

    def look(self, model: nn.Module, info: dict[str, Any], given: Any) -> Look:
        """The words of a text."""
        return PretrainedReader(cast(Reader, model), info["words"], {}).look(given)

    def packaged(self) -> tuple[nn.Module, Splits]:
        """The small reader of film reviews."""
        reader = PretrainedReader.load()
        return reader.model, Splits((), (), (), {"words": reader.words})

    def showcase(self) -> Sequence[Section]:
        """The model that comes with the package, on sentences of ours."""
        return [examples_section(PretrainedReader.load())]

    def read_exported(self, folder: Path) -> tuple[nn.Module, dict[str, Any]]:
        """The reader of a folder, and its words."""
        reader = PretrainedReader.load(folder)
        return reader.model, {"words": reader.words}

    def predict_exported(self, folder: Path | None, words: Sequence[str]) -> Prediction:
        """Whether a text is positive, and which of its words say so."""
        return (PretrainedReader.load(folder) if folder else PretrainedReader.load()).predict(words)


def _right(logits: Tensor, labels: Tensor) -> Tensor:
    return ((logits > 0).long() == labels).float()


TASK = DocumentClassification()
