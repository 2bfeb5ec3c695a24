"""What is held in memory while training, and how a step changes it."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor, nn

from contmax_lab.errors import Diverged
from contmax_lab.recipes import Recipe, TrainingConfig
from contmax_lab.tasks import Splits, Task
from contmax_lab.training._batches import share
from contmax_lab.training._randomness import seed_everything, seed_for
from contmax_lab.training._schedule import learning_rate


class Learner:
    """A model, its optimizer and the sums of the epoch under way.

    Args:
        recipe: decides everything.
        task: of the recipe.
        splits: its data.
        accelerator: device, precision and processes.
    """

    def __init__(self, recipe: Recipe, task: Task, splits: Splits, accelerator: Accelerator) -> None:
        self.recipe, self.task, self.splits, self.accelerator = recipe, task, splits, accelerator
        seed_everything(seed_for(recipe.seed, "weights"), accelerator.device)
        self.model: nn.Module = accelerator.prepare_model(task.build(recipe.model, splits))
        # Scaling of gradients and the like are for precisions we do not use: the optimizer is torch's own, unwrapped.
        self.optimizer = _optimizer(self.model, recipe.training)
        self._sums = torch.zeros(3, dtype=torch.float64, device=accelerator.device)

    def initialise(self) -> None:
        """Take over what the recipe begins with; not for a training that goes on."""
        self.task.initialise(self.bare_model, self.recipe)

    @property
    def bare_model(self) -> nn.Module:
        """The model without what accelerate wraps around it."""
        model: nn.Module = self.accelerator.unwrap_model(self.model)
        return model

    def step(self, indices: Sequence[int], number: int, total: int) -> None:
        """One update on a global batch: the gradient is that of the mean loss over all its examples.

        Args:
            indices: of the batch, over all processes.
            number: of the step, from 0.
            total: steps of the whole training.
        """
        accelerator, training = self.accelerator, self.recipe.training
        rank, world = accelerator.process_index, accelerator.num_processes
        seed_everything(seed_for(self.recipe.seed, "step", number, rank), accelerator.device)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(training, number, total)
        mine = share(indices, rank, world)
        # Every process takes part in every step, or the others wait for ever: one without examples counts for nothing.
        examples = self.task.batch(self.splits.train, mine or indices[:1])
        # The host goes on while the batch travels: it must not wait for the step before.
        batch = send_to_device(examples, accelerator.device, non_blocking=True)
        losses = self.task.losses(self.model(batch), batch)
        loss = losses.sum() * (1.0 if mine else 0.0)
        self.optimizer.zero_grad()
        # Processes average their gradients, hence the factor.
        (loss * (world / len(indices))).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), training.clip_norm or math.inf)
        self.optimizer.step()
        self._sums += torch.stack([loss.detach().double(), norm.double() / world, norm.new_ones(()).double() / world])

    def sums(self) -> list[float]:
        """Sum of losses, sum of gradient norms and steps of the epoch under way, over all processes.

        Raises:
            Diverged: if one is not finite, before anything is saved that was made from it.
        """
        total: list[float] = self.accelerator.reduce(self._sums.clone(), "sum").tolist()
        if not all(map(math.isfinite, total)):
            what = "loss" if not math.isfinite(total[0]) else "gradient"
            raise Diverged(
                f"the training {what} is not finite; checkpoints from before are untouched. Lower "
                "training.learning_rate, or set training.clip_norm."
            )
        return total

    def set_sums(self, total: Sequence[float]) -> None:
        """Begin with these; processes other than the first with nothing."""
        values = total if self.accelerator.is_main_process else [0.0] * 3
        self._sums.copy_(torch.tensor(values, dtype=torch.float64))

    # -- state ---------------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """Copies of the weights and buffers, on the CPU."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.bare_model.state_dict().items()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Take the weights over."""
        self.bare_model.load_state_dict(weights)

    def optimizer_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The optimizer's state as tensors by name, and what is no tensor."""
        stored = self.optimizer.state_dict()
        tensors: dict[str, Tensor] = {}
        plain: dict[str, Any] = {}
        for index, entries in stored["state"].items():
            for name, value in entries.items():
                (tensors if isinstance(value, Tensor) else plain)[f"{index}.{name}"] = value
        return tensors, {"plain": plain, "groups": stored["param_groups"]}

    def load_optimizer_state(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        """Take the optimizer's state over."""
        state: dict[int, dict[str, Any]] = {}
        for key, value in {**tensors, **rest["plain"]}.items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        self.optimizer.load_state_dict({"state": state, "param_groups": rest["groups"]})


def _optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if training.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=training.learning_rate, momentum=0.9, weight_decay=training.weight_decay)
    kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=training.learning_rate, weight_decay=training.weight_decay)
