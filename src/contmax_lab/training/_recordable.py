"""Which steps of a training can be recorded, and optimizers whose steps can."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from contmax_lab.contract import Task, TrainingConfig
from contmax_lab.training._optimizer import make_optimizer

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
