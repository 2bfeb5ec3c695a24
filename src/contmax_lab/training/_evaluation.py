"""Evaluation that counts every example exactly once, on any number of processes."""

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from torch import Tensor, nn

from contmax_lab.contract import Batch, Batches, Task, TrainedRun
from contmax_lab.errors import LabError
from contmax_lab.training._batches import evaluation_batches, share
from contmax_lab.training._processes import accelerator_for, seed_everything, seed_for


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    split: Sized,
    info: dict[str, Any],
    batch_size: int,
    accelerator: Accelerator,
    *,
    final: bool = True,
    kept: dict[str, str] | None = None,
    told: dict[str, Any] | None = None,
) -> dict[str, float]:
    """The metrics of a model on all examples of a split.

    Args:
        model: on the accelerator's device; it is left in the mode it was in.
        task: says what to measure.
        split: the examples.
        info: of the data that the split is part of.
        batch_size: over all processes together; 0 = all at once.
        accelerator: the processes.
        final: whether the weights are those that are kept.
        kept: gets the texts that the task wants to be kept.
        told: gets what the task finds beside metrics.

    Returns:
        Name → value, equal on all processes.
    """
    training = model.training
    model.eval()
    # A task may draw random numbers while it makes batches or strings; a fixed seed makes every evaluation repeatable.
    seed_everything(seed_for("evaluation", accelerator.process_index), accelerator.device)
    batches = _SharedBatches(task, split, batch_size, accelerator)
    batches.final, batches.kept, batches.told = final, kept, told
    metrics = task.evaluate(model, batches, info)
    model.train(training)
    return metrics


class _SharedBatches(Batches):
    """The share of one process of all batches of a split."""

    kept: dict[str, str] | None = None
    told: dict[str, Any] | None = None

    def __init__(self, task: Task, split: Sized, batch_size: int, accelerator: Accelerator) -> None:
        self._task, self._split, self._accelerator = task, split, accelerator
        rank, world = accelerator.process_index, accelerator.num_processes
        batches = evaluation_batches(len(split), batch_size, task.lengths(split))
        self._mine = [own for batch in batches if (own := share(batch, rank, world))]

    def __iter__(self) -> Iterator[Batch]:
        for indices in self._mine:
            examples = self._task.batch(self._split, indices)
            yield send_to_device(examples, self._accelerator.device, non_blocking=True)

    def keep(self, name: str, text: str) -> None:
        if self.kept is not None:
            self.kept[name] = text

    def tell(self, name: str, found: Any) -> None:
        if self.told is not None:
            self.told[name] = found

    def in_order(self, pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        found = {name: _joined([piece[name] for piece in pieces]) for name in (pieces[0] if pieces else ())}
        own = [index for indices in self._mine for index in indices]
        for name, values in found.items():
            if len(values) != len(own):
                raise ValueError(f"{name} has {len(values)} entries for {len(own)} examples; it needs one for each")
        gathered = gather_object([(own, found)]) if self._accelerator.num_processes > 1 else [(own, found)]
        shares = [(indices, values) for indices, values in gathered if indices]
        return {name: _placed([(indices, values[name]) for indices, values in shares]) for name in shares[0][1]}


def _joined(pieces: list[Any]) -> Any:
    """One entry per example of this process; tensors leave the device once, all together."""
    if isinstance(pieces[0], Tensor):
        return torch.cat([piece.detach() for piece in pieces]).cpu()
    return [entry for piece in pieces for entry in piece]


def _placed(shares: list[tuple[list[int], Any]]) -> Any:
    """The values of all processes, in the order of the split."""
    order = [index for indices, _ in shares for index in indices]
    values = _joined([values for _, values in shares])
    if isinstance(values, Tensor):
        ordered = torch.empty_like(values)
        ordered[order] = values
        return ordered
    return [entry for _, entry in sorted(zip(order, values, strict=True), key=lambda pair: pair[0])]


def evaluate_trained(trained: TrainedRun, part: str, model: nn.Module | None = None) -> dict[str, float]:
    """The metrics of a trained model, with the device, precision and batches of its recipe.

    Args:
        trained: the run; its model moves to the device.
        part: of its data: ``train``, ``valid`` or ``test``.
        model: measured instead of that of the run.

    Returns:
        Name → value, equal on all processes.

    Raises:
        LabError: if that part has no examples.
    """
    training, split = trained.recipe.training, getattr(trained.splits, part)
    if not len(split):
        told = f"the data of the run has no {part} examples"
        raise LabError(f"{told}; if you have some, name them, e.g. --data.{part} FILE")
    accelerator = accelerator_for(training)
    prepared = accelerator.prepare_model(model or trained.model, evaluation_mode=True)
    batch_size = training.evaluation_batch_size or training.batch_size
    return evaluate(prepared, trained.task, split, trained.splits.info, batch_size, accelerator)
