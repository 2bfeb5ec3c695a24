"""Evaluation that counts every example exactly once, on any number of processes."""

from collections.abc import Sized

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor, nn

from contmax_lab.tasks import Task
from contmax_lab.training._batches import evaluation_batches, share


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, split: Sized, batch_size: int, accelerator: Accelerator) -> dict[str, float]:
    """The metrics of a model on all examples of a split.

    Args:
        model: on the accelerator's device; it is left in the mode it was in.
        task: says what to measure.
        split: the examples.
        batch_size: over all processes together; 0 = all at once.
        accelerator: the processes.

    Returns:
        Name → value, the same on every process.
    """
    training = model.training
    model.eval()
    batches = evaluation_batches(len(split), batch_size, task.lengths(split))
    rank, world = accelerator.process_index, accelerator.num_processes
    pieces: list[dict[str, Tensor]] = []
    for indices in batches:
        # A process without an example in this batch measures the first one, to know names and shapes; see _in_order.
        examples = task.batch(split, share(indices, rank, world) or indices[:1])
        batch = send_to_device(examples, accelerator.device, non_blocking=True)
        output = model(batch)
        pieces.append({"loss": task.losses(output, batch), **task.measures(output, batch)})
    model.train(training)
    return task.summarise({name: _in_order([p[name] for p in pieces], batches, accelerator) for name in pieces[0]})


def _in_order(pieces: list[Tensor], batches: list[list[int]], accelerator: Accelerator) -> Tensor:
    """Measures of all examples, from all processes, in the order of the split; on the CPU."""
    world = accelerator.num_processes
    width = max(-(-len(batch) // world) for batch in batches)
    padded = torch.stack([_padded(piece.detach(), width) for piece in pieces])
    # (world · batches, width, …): what was padded has no index and is dropped.
    everything: Tensor = accelerator.gather(padded).cpu().unflatten(0, (world, len(batches)))
    ordered: Tensor = everything.new_empty((sum(map(len, batches)), *everything.shape[3:]))
    for number, indices in enumerate(batches):
        for rank in range(world):
            mine = share(indices, rank, world)
            ordered[mine] = everything[rank, number, : len(mine)]
    return ordered


def _padded(piece: Tensor, width: int) -> Tensor:
    return torch.cat([piece, piece.new_zeros((width - len(piece), *piece.shape[1:]))])
