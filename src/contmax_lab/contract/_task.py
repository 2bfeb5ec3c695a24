"""What a task is: data, a model and what is measured, as functions without state that the engines call."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from contmax_lab.contract._shown import Figure, FileAnswer, Look, Prediction, Section
from contmax_lab.contract._table import Cell, Table
from contmax_lab.contract._training import TrainingConfig
from contmax_lab.errors import LabError, UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

Batch = dict[str, "Tensor"]


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """Some parameters of a model.

    Args:
        parameters: of the model; those without gradient are left out by the loop.
        learning_rate: factor on that of the recipe.
        weight_decay: instead of that of the recipe; None = the recipe's.
    """

    parameters: Sequence[nn.Parameter]
    learning_rate: float = 1.0
    weight_decay: float | None = None


class Batches(abc.ABC):
    """The examples of a split in batches on the device. Of several processes each sees its own share.

    `final` says whether the weights are those that a training keeps. What takes long, such as generating texts, need
    not be done in the evaluations on the way there: of these only the monitored metric matters.
    """

    final: bool = True

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """The batches of this process; there may be none."""

    @abc.abstractmethod
    def in_order(self, pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What was found out on all processes, each example once and in the order of the split.

        Every process has to call it, once for each time it has gone over the batches.

        Args:
            pieces: for each batch, in the order of the iteration: name → one entry per example, as a tensor (B, …) or
                a list of B objects.

        Returns:
            Name → one entry per example of the split, on the CPU, the same on every process.
        """

    def keep(self, name: str, text: str) -> None:  # noqa: B027, there may be no place to keep it
        """Store a text with the run, beside its metrics, if this is a final evaluation of a training.

        Args:
            name: of its file.
            text: what was generated, say.
        """

    def tell(self, name: str, found: Any) -> None:  # noqa: B027, there may be nobody to tell
        """Store what is no metric with the results, under this name, if this is a final evaluation of a training.

        Args:
            name: a key of results.json, which has an entry for each part of the data below it.
            found: anything that JSON can hold.
        """


@dataclasses.dataclass(frozen=True)
class Splits:
    """The examples of a task, in three parts that share none.

    Args:
        train, valid, test: anything with a length, as `Task.batch` understands it.
        info: what the model, an evaluation or a report must know of the data: classes, vocabulary, normalisation.
            ``remarks`` are lines for people on what is unusual; data check and train print them.
    """

    train: Sized
    valid: Sized
    test: Sized
    info: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides a training.

    Args:
        task: what is trained.
        data: the task's `data_config`.
        model: the task's `model_config`.
        training: how to train.
        seed: random seed (weights, data order, dropout).
        search: dotted key → choices for ``contmax search``: a list, or {low, high, log} for a range.
    """

    task: Task
    data: Any
    model: Any
    training: TrainingConfig
    seed: int = 0
    search: dict[str, Any] = dataclasses.field(default_factory=dict)

    def load(self) -> Splits:
        """The examples, with the weights that the classes shall have in the loss.

        Raises:
            LabError: as `Task.load`, or if there are no classes that could have weights.
        """
        splits, wanted = self.task.load(self.data, self.seed), self.training.class_weights
        return splits if wanted == "none" else self.task.weigh_classes(splits, wanted)


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run that is done, with its model in memory.

    Args:
        folder: of the run.
        recipe: what it was trained by.
        splits: its data, loaded again.
        model: with the best weights, in evaluation mode, on the CPU.
        results: the content of results.json.
        label: what pictures and tables call it.
    """

    folder: Path
    recipe: Recipe
    splits: Splits
    model: nn.Module
    results: dict[str, Any]
    label: str

    @property
    def task(self) -> Task:
        """The task of the recipe."""
        return self.recipe.task


@dataclasses.dataclass(frozen=True)
class Settings:
    """What can be set of a task, by the attributes of `Task`: known without torch, and without the task itself."""

    name: str
    data_config: type
    model_config: type
    recipe_file: Path | None

    @classmethod
    def of_package(cls, file: str, data_config: type, model_config: type) -> Self:
        """The settings of a task with the name of its package, given by ``__file__``, which holds ``recipe.yaml``."""
        folder = Path(file).parent
        return cls(folder.name, data_config, model_config, folder / "recipe.yaml")

    @classmethod
    def of(cls, task: Task) -> Self:
        """The settings of a task that has been imported."""
        return cls(task.name, task.data_config, task.model_config, task.recipe_file)


def seedless(load: Callable[[Any], Splits]) -> Callable[..., Splits]:
    """`Task.load` by a function of the data alone: the split has a seed of its own, which seeds of trainings share."""
    return lambda task, data, seed: load(data)


class Task(abc.ABC):
    """One kind of experiment. It holds no state: everything that varies is in the two configurations.

    A subclass names its configurations, which are dataclasses whose fields have a default and a line of documentation,
    by attributes or all at once, ``class Tides(Task, settings=…)``. It says how to load, batch, build and measure.
    Randomness comes from torch's global generator: the loop seeds it
    before every step as a function of the seed, the step and the process, so that a resumed run draws the same numbers.

    Needed: `load`, `build`, `loss`; and `batch`, where the examples make no batches themselves. Usual: `measures`, or
    `evaluate` where a model generates. The rest has a default.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    data_config: ClassVar[type]
    model_config: ClassVar[type]
    # YAML with the settings of the task and its named variants; None = the defaults of the configurations.
    recipe_file: ClassVar[Path | None] = None
    # Validation metrics that are worth a learning curve; empty = all of them.
    curves: ClassVar[Sequence[str]] = ()
    reproduces: ClassVar[Sequence[Table]] = ()
    # Whether batches of one shape always take the same operations, none of which waits for a value, and many batches
    # have the same shape. On a GPU, steps of such a training are recorded, once for each shape. A parameter that is not
    # used by a batch has the gradient 0 then, not None.
    repeats_steps: ClassVar[bool] = False
    # What `look` takes; batches of a task that looks at images hold ``pixels``. None = there is nothing to look at.
    looks_at: ClassVar[Literal["text", "image"] | None] = None
    # Whether `predict` takes a text, so that a file of text is one.
    reads_texts: ClassVar[bool] = False

    def __init_subclass__(cls, settings: Settings | None = None) -> None:
        for name, value in vars(settings).items() if settings else ():
            setattr(cls, name, value)

    # Metrics of which the largest value is best; to keep the weights with the smallest is an error.
    rising: ClassVar[Sequence[str]] = ()

    # -- data and model ------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def load(self, data: Any, seed: int) -> Splits:
        """Read the examples; the same for the same configuration and seed.

        Raises:
            LabError: if a file is missing or is not what it should be, with the line.
        """

    def prepare(self, data: Any) -> str:
        """Compute once what all trainings on the data share, such as features of images, and say where it is.

        Trainings that find nothing prepared do it themselves, so that this is for those who want it apart. By default
        there is nothing to prepare.

        Raises:
            LabError: if there is nothing to prepare, or something is wrong with the data.
        """
        raise LabError(f"the task {self.name} has no features to compute in advance; train it directly")

    @abc.abstractmethod
    def build(self, model: Any, splits: Splits) -> nn.Module:
        """A fresh model, whose ``forward(batch)`` returns what `loss` and `measures` take."""

    def initialise(self, network: nn.Module, data: Any, model: Any) -> None:  # noqa: B027, most have nothing to do here
        """Put weights from elsewhere into a fresh model before it is trained; by default it stays as it is.

        Raises:
            LabError: if they are missing or do not fit.
        """

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """The examples with these indices, as tensors whose first dimension is the example.

        By default ``split.batch(indices)``. With ``training.workers`` other processes call it, so it changes nothing
        and draws from torch's generator only.
        """
        batch: Batch = cast(Any, split).batch(indices)
        return batch

    def lengths(self, split: Sized) -> Sequence[int] | None:
        """The length of each example, where batches should hold similar lengths; None where not.

        By default ``split.example_lengths``, if there is such an attribute.
        """
        return getattr(split, "example_lengths", None)

    def weigh_classes(self, splits: Splits, wanted: str | Sequence[float]) -> Splits:
        """The splits with weights of classes in the loss; by default there is no way.

        Args:
            splits: of `load`.
            wanted: ``"balanced"``, or a weight for each class.

        Raises:
            UsageError: if there is no way, or another number of classes.
        """
        raise UsageError(f"training.class_weights: the task {self.name} has no classes to be weighed; leave it out")

    # -- training ------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def loss(self, output: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of each example the sum of what is to become small, and the weight it was summed over; both of shape (B,).

        The loop makes the sum of all sums over the sum of all weights small, over the batches of all processes. A
        weight is 1 where every example counts alike, and the number of tokens where every token does.
        """

    def parameter_groups(self, network: nn.Module) -> Sequence[ParameterGroup]:
        """Parameters that learn at different paces; every one that learns is in one group. By default one group."""
        return (ParameterGroup(tuple(network.parameters())),)

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def measures(self, output: Any, batch: Batch) -> dict[str, Tensor]:
        """What is measured of each example, each of shape (B, …); by default nothing beside the loss."""
        return {}

    def summarise(self, measures: dict[str, Tensor]) -> dict[str, float]:
        """The metrics of a split from the measures of all its examples, each once, in the order of the split.

        By default the means. A metric that is no mean is made here from what was counted per example.
        """
        return {name: float(values.double().mean()) for name, values in measures.items()}

    def evaluate(self, model: nn.Module, batches: Batches, info: dict[str, Any]) -> dict[str, float]:
        """The metrics of a model on a split, the same on every process; the loop has switched gradients off.

        By default ``loss`` and what `summarise` makes of `measures`. A task that generates strings overrides it: it
        generates batch by batch, and scores what `Batches.in_order` gives back.

        Args:
            model: in evaluation mode, on the device of the batches.
            batches: the examples of the split.
            info: of the `Splits`.
        """
        loss, found = self.measured(model, batches)
        return {"loss": loss, **self.summarise(found)}

    def measured(
        self, model: nn.Module, batches: Batches, more: Callable[[Batch], dict[str, Any]] = lambda batch: {}
    ) -> tuple[float, dict[str, Any]]:
        """The loss of a split, and the measures of all its examples, each once, in the order of the split.

        Args:
            model, batches: of `evaluate`.
            more: batch → what else is found out of each of its examples.
        """
        pieces = []
        for batch in batches:
            output = model(batch)
            total, weight = self.loss(output, batch)
            measures = self.measures(output, batch)
            pieces.append({"loss.sum": total, "loss.weight": weight, **measures, **more(batch)})
        found = batches.in_order(pieces)
        total, weight = (found.pop(name).double().sum() for name in ("loss.sum", "loss.weight"))
        return float(total / weight), found

    def score(self, kept: Mapping[str, str]) -> dict[str, float]:
        """Metrics that are made of the texts that a final evaluation has kept; by default none.

        An evaluation leaves them out where a package that it would take is not installed; ``contmax reproduce`` adds
        them later, where it is.

        Args:
            kept: name → text, as given to `Batches.keep`.
        """
        return {}

    def compare(self, kept: Sequence[tuple[Cell, Mapping[str, str]]]) -> dict[str, Any]:
        """How the rows of a table differ, from the texts that were kept of the test examples; by default nothing.

        Args:
            kept: cells that are done, with name → text.

        Returns:
            Whatever JSON can hold, for the file of the table; under ``notes`` lines for readers.
        """
        return {}

    # -- people --------------------------------------------------------------------------------------------------------

    def answer(self, output: Any, batch: Batch, info: dict[str, Any]) -> str:
        """What a model says of the one example of a batch, in words; by default what is measured of it."""
        measured = self.measures(output, batch).items()
        return "  ".join(f"{name} {float(value.double().mean()):.4g}" for name, value in measured)

    def predict(self, trained: TrainedRun, words: Sequence[str]) -> Prediction:
        """What a trained model says of an input; by default ``words`` is the number of a validation example, from 1.

        Args:
            trained: the run.
            words: of the command line, after the folder of the run.

        Raises:
            UsageError: if the input is not understood.
        """
        import torch

        count = len(trained.splits.valid)
        if len(words) != 1 or not words[0].isdecimal() or not 1 <= int(words[0]) <= count:
            found = " ".join(words) or "nothing"
            raise UsageError(f"pass the number of a validation example, from 1 to {count}; got {found}")
        place = int(words[0]) - 1
        batch = self.batch(trained.splits.valid, [place])
        with torch.no_grad():
            text = self.answer(trained.model(batch), batch, trained.splits.info)
        figures = self.figures([trained], [place])
        return Prediction(text, figures[0] if figures else None)

    def holds_many(self, path: Path, info: dict[str, Any]) -> bool:
        """Whether a file or folder that exists holds many inputs for `predict_file`; by default not.

        Args:
            path: of the file.
            info: of the data that a model was trained on; empty where it is not known yet.

        Raises:
            LabError: if it cannot be read.
        """
        return False

    def predict_file(
        self, model: nn.Module, info: dict[str, Any], path: Path, column: str = "", keep: Sequence[str] = ()
    ) -> Iterator[FileAnswer]:
        """What a model says of every input of a file, in its order; by default there is no way.

        An input that cannot be read gets an answer that says why, and those after it get theirs. The file may be
        larger than the memory.

        Args:
            model: in evaluation mode.
            info: of the data that it was trained on.
            path: of the file, or of a folder of inputs.
            column: of the inputs, where the file is a table; empty = the one that the training table had.
            keep: columns of the table that shall stand beside the answers.

        Raises:
            LabError: if there is no such file, or it has not the columns.
            UsageError: if there is no way.
        """
        raise UsageError(f"the task {self.name} answers one input at a time; leave out --into and pass an INPUT")

    def tables(self) -> Sequence[Table]:
        """The tables that ``contmax reproduce`` can make; by default those of the attribute `reproduces`."""
        return self.reproduces

    def figures(self, runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> Sequence[Figure]:
        """Pictures of trained models, those that tell most first, beside the learning curves that every task gets.

        Args:
            runs: of this task; their data may differ.
            examples: which validation examples to draw, from 0, where pictures are of single examples; by default a few
                that a rule finds.
        """
        return ()

    def look(self, model: nn.Module, info: dict[str, Any], given: Any) -> Look:
        """What a model attends to in a new input, for ``contmax explore``; by default there is no way.

        Args:
            model: in evaluation mode.
            info: of the data that it was trained on.
            given: a text; or an image, as the content of a file or as bytes (3, H, W).

        Raises:
            LabError: if there is no way, or nothing can be made of the input.
        """
        raise LabError(f"inputs of the task {self.name} cannot be looked at")

    def packaged(self) -> tuple[nn.Module, Splits] | None:
        """A trained model that comes with the package and data to show it with; by default there is none."""
        return None

    def showcase(self) -> Sequence[Section]:
        """Parts of the demo that need no training, such as what a model that comes with the package says."""
        return ()

    # -- models that leave the laboratory ------------------------------------------------------------------------------

    def export(self, trained: TrainedRun, folder: Path, measure: Callable[[nn.Module, str], dict[str, float]]) -> int:
        """Write a trained run as a small self-contained model folder, and return its bytes; by default there is no way.

        Args:
            trained: the run.
            folder: made if it does not exist; ``config.json`` in it has the key ``task``.
            measure: model, part of the data → metrics; for what rounding has changed.

        Raises:
            LabError: if it cannot be done.
        """
        raise LabError(f"{trained.folder} is a run of the task {self.name}, which cannot be exported as a model folder")

    def read_exported(self, folder: Path) -> tuple[nn.Module, dict[str, Any]]:
        """The model of a folder that `export` has made, in evaluation mode, and the ``info`` that `look` takes.

        Nothing of the folder is executed: weights are safetensors, the rest is JSON or text.

        Raises:
            LabError: if there is no such model.
        """
        raise LabError(f"the task {self.name} has no exported models")

    def predict_exported(self, folder: Path | None, words: Sequence[str]) -> Prediction:
        """What an exported model says of an input.

        Args:
            folder: that `export` has made; None = the one that comes with the package.
            words: of the command line.

        Raises:
            LabError: if there is no such model.
            UsageError: if the input is not understood.
        """
        raise LabError(f"the task {self.name} has no exported models")
