"""The task: losses and measures of readings."""

from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.errors import LabError
from contmax_lab.tables import Table
from contmax_lab.tasks import Batch, Splits, Task
from contmax_lab.tasks.documents._data import Documents, DocumentsData, load
from contmax_lab.tasks.documents._model import DocumentsModel, Reader
from contmax_lab.tasks.documents._reading import Reading
from contmax_lab.tasks.documents._table import FEW_FUNCTIONS, IMDB, PLACES, SPEED


class DocumentClassification(Task):
    """Positive or negative?"""

    name = "documents"
    summary = "film reviews, positive or negative, by attention over their words"
    data_config = DocumentsData
    model_config = DocumentsModel

    def load(self, data: DocumentsData, seed: int) -> Splits:
        """The split has a seed of its own, so that seeds of the training share it."""
        return load(data, seed)

    def build(self, model: DocumentsModel, splits: Splits) -> nn.Module:
        """A network with fresh weights and the word vectors of the data."""
        return Reader(model, splits.info["vectors"])

    def initialise(self, network: nn.Module, recipe: Any) -> None:
        """Word vectors and LSTM of the run that the recipe begins with, if it names one."""
        if recipe.model.start is not None:
            _take_over(network, recipe.model.start, recipe.data)

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Numbers of words, padded, and labels; random numbers where the reviews are to be tested by deletion."""
        documents = cast(Documents, split)[indices]
        batch, draws = {"tokens": documents.padded(), "labels": documents.labels}, documents.padded_draws()
        return batch if draws is None else {**batch, "draws": draws}

    def losses(self, output: Reading, batch: Batch) -> Tensor:
        """Cross-entropy."""
        return F.binary_cross_entropy_with_logits(output.logits.float(), batch["labels"].float(), reduction="none")

    def measures(self, output: Reading, batch: Batch) -> dict[str, Tensor]:
        """Whether the label is right, and the share of the words that are attended; likewise of shortened reviews."""
        labels, words = batch["labels"], output.mask.sum(-1)
        measures = {"accuracy": _right(output.logits, labels), "attended": output.inside.sum(-1) / words}
        for name, rest in output.shortened.items():
            # Of nothing, nothing can be said: the answer is a coin.
            measures[name] = torch.where(rest.words > 0, _right(rest.logits, labels), 0.5)
        if output.shortened:
            measures["selected"] = output.shortened["kept"].words / words
        return measures

    def lengths(self, split: Sized) -> Sequence[int]:
        """Words of each review."""
        lengths: list[int] = cast(Documents, split).lengths.tolist()
        return lengths

    def tables(self) -> Sequence[Table]:
        """The paper's table, the same with few basis functions, the time of each attention, and where they look."""
        return (IMDB, FEW_FUNCTIONS, SPEED, PLACES)

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """Where trained models look in some reviews."""
        from contmax_lab.tasks.documents._figures import attended_words

        return attended_words(runs, examples)

    def showcase(self) -> Any:
        """The model that comes with the package, on sentences of ours."""
        from contmax_lab.pretrained import PretrainedReader, examples_section

        return [examples_section(PretrainedReader.load())]


def _right(logits: Tensor, labels: Tensor) -> Tensor:
    return ((logits > 0).long() == labels).float()


def _take_over(network: nn.Module, start: Path, data: DocumentsData) -> None:
    """Begin with the word vectors and the LSTM of a run of the task language on the same reviews and words."""
    from contmax_lab.runs import Run, read_checkpoint

    run = Run(start)
    if not run.weights.is_file():
        raise LabError(f"--model.start: {start} holds no trained model; make one with contmax train language/imdb")
    begun = run.recipe()
    if begun.task != "language":
        raise LabError(f"--model.start: {start} is a run of the task {begun.task}; pass one of the task language")
    for field in ("max_words", "dimensions", "valid", "split"):
        theirs, ours = getattr(begun.data, field), getattr(data, field)
        # Another split would have read what is held out here; other words have other numbers.
        if theirs != ours:
            raise LabError(
                f"--model.start: {start} was trained with data.{field}={theirs}, this is {ours}; use the same"
            )
    own = network.state_dict()
    taken = {
        name: tensor
        for name, tensor in read_checkpoint(run.weights).tensors.items()
        if name.startswith(("embedding.", "encoder."))
    }
    wrong = [name for name, tensor in taken.items() if name not in own or own[name].shape != tensor.shape]
    if wrong:
        raise LabError(f"--model.start: {start} does not fit ({wrong[0]}); train it with the same hidden_dim")
    network.load_state_dict(taken, strict=False)
