"""What is held in memory while training, and how a step changes it."""

import contextlib
import math
from collections.abc import Mapping

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor, nn

from contmax_lab.contract import Batch, Recipe, Splits
from contmax_lab.errors import Diverged, LabError
from contmax_lab.recorded import RepeatedParts
from contmax_lab.training._batches import Loaded, Loader
from contmax_lab.training._optimizer import Schedule, make_optimizer
from contmax_lab.training._processes import seed_everything, seed_for

# Quantities that are summed over the steps of an epoch.
_SUMS = ("loss", "weight", "gradient_norm", "steps")
_LEAST_WEIGHT = 1e-12


def diverged(what: str) -> Diverged:
    """The error of a training whose numbers are not finite, with what to do about it."""
    way = "Lower training.learning_rate, or set training.clip_norm."
    return Diverged(f"{what}; checkpoints from before are untouched. {way}")


class Learner:
    """A model, its optimizer, its learning rate and the sums of the epoch under way."""

    def __init__(self, recipe: Recipe, splits: Splits, accelerator: Accelerator) -> None:
        self.recipe, self.task, self.splits, self.accelerator = recipe, recipe.task, splits, accelerator
        seed_everything(seed_for(recipe.seed, "weights"), accelerator.device)
        model = self.task.build(recipe.model, splits)
        if recipe.training.compile:
            # In place, so that the names of the weights stay; the first call compiles, after accelerate's changes.
            model.compile()
        self.model: nn.Module = accelerator.prepare_model(model)
        # accelerate's wrapper scales gradients for float16, which the laboratory does not use.
        self.optimizer = make_optimizer(self.task, self.bare_model, recipe.training)
        self.schedule = Schedule(recipe.training)
        rank, world = accelerator.process_index, accelerator.num_processes
        can_repeat = self.task.repeats_steps and accelerator.device.type == "cuda" and world == 1
        repeats = can_repeat and recipe.training.record
        self._repeated = RepeatedParts(self._learn_from, accelerator.device) if repeats else None
        self.loader = Loader(self.task, splits.train, recipe.seed, recipe.training.accumulate, rank, world)
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=accelerator.device)

    def initialise(self) -> None:
        """Load the initial weights that the recipe names; not for a resumed training."""
        self.task.initialise(self.bare_model, self.recipe.data, self.recipe.model)

    @property
    def bare_model(self) -> nn.Module:
        """The model without what accelerate wraps around it."""
        model: nn.Module = self.accelerator.unwrap_model(self.model)
        return model

    def step(self, loaded: Loaded, number: int, total: int) -> None:
        """One update on a global batch: the gradient is that of the sum of its losses over the sum of its weights.

        `loaded` is the share of this process; `number` counts steps from 0, out of `total`.
        """
        accelerator, training = self.accelerator, self.recipe.training
        world = accelerator.num_processes
        seed_everything(seed_for(self.recipe.seed, "step", number, accelerator.process_index), accelerator.device)
        torch.default_generator.set_state(loaded.chance)
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(number, total) * group["pace"]
        # A recorded step accumulates into fixed gradient tensors, which must stay.
        self.optimizer.zero_grad(set_to_none=self._repeated is None)
        totals = []
        for place, part in enumerate(loaded.parts, start=1):
            # Processes exchange their gradients in the backward pass of the last part.
            with contextlib.nullcontext() if place == len(loaded.parts) else accelerator.no_sync(self.model):
                if self._repeated is not None:
                    totals.append(self._repeated(part))
                    continue
                # Non-blocking, so that the host does not wait for the previous step.
                here = send_to_device(part, accelerator.device, non_blocking=True)
                totals.append(self._learn_from(here, 1.0 if loaded.counted else 0.0))
        summed = torch.stack(totals).sum(0)
        if training.accumulate > 1:
            scale = self._scale(summed[1])
            for gradient in (p.grad for p in self.model.parameters() if p.grad is not None):
                gradient *= scale.to(gradient.dtype)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), training.clip_norm or math.inf)
        self.optimizer.step()
        one = norm.new_ones(()).double()
        self._sums += torch.cat([summed, torch.stack([norm.double() / world, one / world])])

    def _learn_from(self, batch: Batch, counted: float = 1.0) -> Tensor:
        """Add the gradient of a part of a batch; returns its loss and its weight, (2,)."""
        losses, weights = self._loss(batch)
        loss, weight = losses.sum() * counted, weights.detach().double().sum() * counted
        whole = self.recipe.training.accumulate == 1
        (loss * self._scale(weight).to(loss.dtype) if whole else loss).backward()
        return torch.stack([loss.detach().double(), weight])

    def _scale(self, weight: Tensor) -> Tensor:
        """The factor that turns summed losses into the mean over all processes, which average their gradients."""
        world = self.accelerator.num_processes
        everywhere: Tensor = weight if world == 1 else self.accelerator.reduce(weight.clone(), "sum")
        # A batch without any weight has no loss either.
        scale: Tensor = world / everywhere.clamp(min=_LEAST_WEIGHT)
        return scale

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        losses, weights = self.task.loss(self.model(batch), batch)
        if losses.dim() != 1 or losses.shape != weights.shape:
            raise LabError(
                f"the task {self.task.name} returns losses of shape {tuple(losses.shape)} and weights of shape "
                f"{tuple(weights.shape)}; both must have shape (B,): the sum of losses of each example, and its weight"
            )
        return losses, weights

    def sums(self) -> dict[str, float]:
        """Sums over the epoch under way and all processes: losses, weights, gradient norms, steps.

        Raises Diverged if one is not finite, before anything made from it is saved.
        """
        total = dict(zip(_SUMS, self.accelerator.reduce(self._sums.clone(), "sum").tolist(), strict=True))
        if not all(map(math.isfinite, total.values())):
            what = "loss" if not math.isfinite(total["loss"]) else "gradient"
            raise diverged(f"the training {what} is not finite")
        return total

    def set_sums(self, total: Mapping[str, float]) -> None:
        """Set the sums of the first process, 0 where one is missing; those of other processes are 0."""
        known = total if self.accelerator.is_main_process else {}
        self._sums.copy_(torch.tensor([known.get(name, 0.0) for name in _SUMS], dtype=torch.float64))

    # -- state ---------------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """Copies of the weights and buffers, on the CPU."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.bare_model.state_dict().items()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Load the weights into the model."""
        self.bare_model.load_state_dict(weights)
