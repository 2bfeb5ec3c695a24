"""The optimizer that a recipe names, and its learning rate."""

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from contmax_lab.contract import Task, TrainingConfig
from contmax_lab.errors import LabError, UsageError, nearest

# LBFGS needs a closure and SparseAdam sparse gradients; our step has neither.
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
    known = {
        word.lower(): kind
        for word, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and word.lower() not in _UNSUITABLE
    }
    kind = known.get(training.optimizer.lower())
    if kind is None:
        near = nearest(training.optimizer.lower(), list(known)) or ";"
        raise UsageError(f"training.optimizer is {training.optimizer!r}{near} known are {', '.join(sorted(known))}")
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


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Copies of the optimizer's state as tensors by name, on the CPU, and what is no tensor."""
    stored = optimizer.state_dict()
    entries = {f"{index}.{name}": value for index, own in stored["state"].items() for name, value in own.items()}
    tensors = {key: x.detach().to("cpu", copy=True) for key, x in entries.items() if isinstance(x, Tensor)}
    plain = {key: value for key, value in entries.items() if key not in tensors}
    return tensors, {"plain": plain, "groups": stored["param_groups"]}


def load_optimizer_state(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
    """Restore what `optimizer_state` returned."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **rest["plain"]}.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": rest["groups"]})


# Optimizers that can count their steps on the device.
_RECORDABLE = ("adam", "adamw")


def can_be_recorded(training: TrainingConfig, device: torch.device) -> bool:
    """Whether the steps of a training can be recorded as a CUDA graph."""
    return device.type == "cuda" and training.optimizer.lower() in _RECORDABLE


def recordable_optimizer(task: Task, model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    """As `make_optimizer`, with a step that can be recorded: its learning rates are tensors on the device."""
    options = {"capturable": True, "fused": True, **training.optimizer_options}
    optimizer = make_optimizer(task, model, dataclasses.replace(training, optimizer_options=options))
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
    return optimizer


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a group of parameters; in place where it is a tensor of a recorded step."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def learning_rate(config: TrainingConfig, step: int, total: int) -> float:
    r"""Linear warm-up to the highest value η, then the schedule.

    .. math:: \text{cosine: } \tfrac\eta2 (1 + \cos \pi u), \quad \text{linear: } \eta\,(1 - u), \quad
              \text{inverse\_sqrt: } \eta \sqrt{w / s}

    with s the step from 1, w the steps of the warm-up and u the share of the rest that is done.

    Args:
        config: of the training.
        step: from 0.
        total: steps of the whole training.

    Example:
        >>> config = TrainingConfig(learning_rate=0.1, schedule="cosine", warmup_steps=2)
        >>> [round(learning_rate(config, step, 6), 3) for step in range(6)]
        [0.05, 0.1, 0.1, 0.085, 0.05, 0.015]
    """
    peak, warmup = float(config.learning_rate), int(config.warmup_steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(total - warmup, 1)
    shares = {
        "cosine": 0.5 * (1 + math.cos(math.pi * done)),
        "linear": 1 - done,
        "inverse_sqrt": math.sqrt(max(warmup, 1) / (step + 1)),
    }
    return peak * shares.get(config.schedule, 1.0)


@dataclasses.dataclass
class Schedule:
    """The learning rate of a training, and all that it depends on beside the step.

    Args:
        config: of the training.
        factor: by which the rate has fallen at the ends of epochs, or on a plateau.
        stale: evaluations without a new best since then.

    Example:
        >>> schedule = Schedule(TrainingConfig(learning_rate=0.1, schedule="plateau", decay_every=2))
        >>> for best in (True, False, False):
        ...     schedule.evaluated(best)
        >>> schedule.rate(step=3, total=10)
        0.05
    """

    config: TrainingConfig
    factor: float = 1.0
    stale: int = 0

    def rate(self, step: int, total: int) -> float:
        """The learning rate of a step, counted from 0, out of `total`."""
        return learning_rate(self.config, step, total) * self.factor

    def epoch_done(self, epoch: int) -> None:
        """The epoch with this number, from 1, is over."""
        every = self.config.schedule == "epochs" and epoch % self.config.decay_every == 0
        if every or (self.config.schedule == "milestones" and epoch in self.config.decay_at):
            self.factor *= self.config.decay

    def evaluated(self, is_best: bool) -> None:
        """An evaluation found the best weights so far, or did not."""
        self.stale = 0 if is_best else self.stale + 1
        if self.config.schedule == "plateau" and self.stale >= self.config.decay_every:
            self.factor, self.stale = self.factor * self.config.decay, 0

    def state(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"factor": self.factor, "stale": self.stale}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from a checkpoint."""
        self.factor, self.stale = state["factor"], int(state["stale"])
