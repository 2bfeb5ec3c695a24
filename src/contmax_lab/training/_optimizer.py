"""The optimizer that a recipe names, over the parameter groups of its task."""

import inspect
from typing import Any

import torch
from torch import nn

from contmax_lab.contract import Task, TrainingConfig
from contmax_lab.errors import LabError, UsageError, nearest

# These take what a step of ours does not give: a closure to be called again, and gradients with holes.
_UNSUITABLE = ("lbfgs", "sparseadam", "optimizer")


def make_optimizer(task: Task, model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    """An optimizer of torch for the parameters of a model that learn.

    Args:
        task: says which learn at a pace of their own.
        model: its parameters are trained.
        training: names the optimizer and its options.

    Raises:
        UsageError: if there is no such optimizer, or it does not take the options.
        LabError: if a parameter that learns is in no group.
    """
    kind = _named(training.optimizer)
    options: dict[str, Any] = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    options |= {"lr": float(training.learning_rate), **training.optimizer_options}
    groups = _groups(task, model, training)
    if "weight_decay" not in inspect.signature(kind).parameters:
        if any(group.pop("weight_decay") for group in groups):
            raise UsageError(f"training.optimizer {training.optimizer} has no weight decay; set it to 0")
    elif "weight_decay" in options:
        raise UsageError("training.optimizer_options has weight_decay; pass training.weight_decay instead")
    try:
        return kind(groups, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"training.optimizer {training.optimizer}: {' '.join(str(error).split())}") from None


def _named(name: str) -> type[torch.optim.Optimizer]:
    known = {
        word.lower(): kind
        for word, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and word.lower() not in _UNSUITABLE
    }
    if name.lower() not in known:
        raise UsageError(
            f"training.optimizer is {name!r}{nearest(name.lower(), list(known)) or ';'} known are "
            f"{', '.join(sorted(known))}"
        )
    return known[name.lower()]


def _groups(task: Task, model: nn.Module, training: TrainingConfig) -> list[dict[str, Any]]:
    """The parameters that learn, as optimizers of torch take them."""
    groups: list[dict[str, Any]] = [
        {
            "params": [parameter for parameter in group.parameters if parameter.requires_grad],
            "weight_decay": training.weight_decay if group.weight_decay is None else group.weight_decay,
            "pace": group.learning_rate,
        }
        for group in task.parameter_groups(model)
    ]
    grouped = {id(parameter) for group in groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in grouped:
            raise LabError(f"{name} needs a gradient but is in no parameter group of the task {task.name}")
    return groups
