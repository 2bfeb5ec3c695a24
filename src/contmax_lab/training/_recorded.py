"""A step of a training, recorded once and played back: a GPU then waits for no launch of its many small kernels."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from contmax_lab.contract import Task, TrainingConfig
from contmax_lab.training._optimizer import make_optimizer

# Libraries are loaded, kernels compiled and the state of an optimizer is made at the first use.
_REHEARSALS = 3
# Optimizers that count their steps on the device, if they are told to.
_RECORDABLE = ("adam", "adamw")


def can_be_recorded(training: TrainingConfig, device: torch.device) -> bool:
    """Whether there is a way to record the steps of a training on a device."""
    return device.type == "cuda" and training.optimizer.lower() in _RECORDABLE


def recordable_optimizer(task: Task, model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    """As `make_optimizer`, with a step that can be recorded: its learning rates are tensors on the device."""
    options = {"capturable": True, "fused": True, **training.optimizer_options}
    optimizer = make_optimizer(task, model, dataclasses.replace(training, optimizer_options=options))
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
    return optimizer


def set_rate(group: dict[str, Any], rate: float) -> None:
    """The learning rate of a group of parameters, recorded or not."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


class RecordedStep:
    """A step that always works on the same tensors, as a CUDA graph after the first few.

    The first calls take the step as it is; then it is recorded, which takes no step, and every later call plays it.
    Random numbers are those of the generator of the device, as if nothing had been recorded.

    Args:
        step: changes tensors in place, looks at none of their values, and leaves gradients of its own behind.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._rehearsals = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Take the step."""
        if self._rehearsals < _REHEARSALS:
            self._rehearse()
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._step()
        self._graph.replay()

    def _rehearse(self) -> None:
        """On a stream of its own, as what autograd remembers of the stream must not be in the recording."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step()
        torch.cuda.current_stream().wait_stream(side)
        self._rehearsals += 1
