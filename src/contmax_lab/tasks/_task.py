"""What a task is: data, a model and what is measured, as pure functions that the training loop calls."""

import abc
import dataclasses
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

if TYPE_CHECKING:
    from contmax_lab.recipes import Recipe
    from contmax_lab.report import Figure, Section
    from contmax_lab.runs import TrainedRun
    from contmax_lab.tables import Table

Batch = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Splits:
    """The examples of a task, in three parts that share none.

    Args:
        train, valid, test: anything with a length, as `Task.batch` understands it.
        info: what the model or a report must know of the data: classes, vocabulary, normalisation.
    """

    train: Sized
    valid: Sized
    test: Sized
    info: dict[str, Any] = dataclasses.field(default_factory=dict)


class Task(abc.ABC):
    """One kind of experiment. It holds no state: everything that varies is in the two configurations.

    A subclass names its configurations, which are dataclasses whose fields have a default and a line of documentation,
    and says how to load, batch, build and measure. Randomness comes from torch's global generator: the loop seeds it
    before every step as a function of the seed, the step and the process, so that a resumed run draws the same numbers.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    data_config: ClassVar[type]
    model_config: ClassVar[type]
    # Validation metrics that are worth a learning curve; empty = all of them.
    curves: ClassVar[Sequence[str]] = ()

    @abc.abstractmethod
    def load(self, data: Any, seed: int) -> Splits:
        """Read the examples; the same for the same configuration and seed.

        Raises:
            LabError: if a file is missing or is not what it should be, with the line.
        """

    @abc.abstractmethod
    def build(self, model: Any, splits: Splits) -> nn.Module:
        """A fresh model, whose ``forward(batch)`` returns what `losses` and `measures` take."""

    def initialise(self, network: nn.Module, recipe: "Recipe") -> None:  # noqa: B027, most tasks have nothing to do here
        """Put weights from elsewhere into a fresh model before it is trained; by default it stays as it is.

        Raises:
            LabError: if they are missing or do not fit.
        """

    @abc.abstractmethod
    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """The examples with these indices, as tensors whose first dimension is the example."""

    @abc.abstractmethod
    def losses(self, output: Any, batch: Batch) -> Tensor:
        """The training loss of each example, shape (B,). The loop takes the mean over the global batch."""

    @abc.abstractmethod
    def measures(self, output: Any, batch: Batch) -> dict[str, Tensor]:
        """What is measured of each example, each of shape (B, …); the key "loss" is added by the loop."""

    def summarise(self, measures: dict[str, Tensor]) -> dict[str, float]:
        """The metrics of a split from the measures of all its examples, each once, in the order of the split.

        By default the means. A metric that is no mean (BLEU, say) is made here from what was counted per example.
        """
        return {name: float(values.double().mean()) for name, values in measures.items()}

    def lengths(self, split: Sized) -> Sequence[int] | None:
        """The length of each example, where batches should hold similar lengths; by default None."""
        return None

    def tables(self) -> "Sequence[Table]":
        """The tables that ``contmax reproduce`` can make; by default none."""
        return ()

    def figures(self, runs: "Sequence[TrainedRun]", examples: Sequence[int] = ()) -> "Sequence[Figure]":
        """Pictures of trained models, those that tell most first, beside the learning curves that every task gets.

        Args:
            runs: trained on the same data.
            examples: which to draw, from 0, where pictures are of single examples; by default a few that a rule finds.
        """
        return ()

    def showcase(self) -> "Sequence[Section]":
        """Parts of the demo that need no training, such as what a model that comes with the package says."""
        return ()
