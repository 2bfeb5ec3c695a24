"""Many small trainings as one: replicas that share a model and a recipe, and differ in data and seed.

A network of a few thousand weights leaves a processor idle between its operations. Here all replicas take every step
together: their weights lie in one tensor each, with the replica as its first dimension (`torch.func`), and each is
taught by its own examples, all of them at once. No replica knows of the others: losses are summed, and the optimizer
treats every number by itself. The numbers are those of training alone up to rounding and dropout, which draws others.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from contmax_lab.contract import Batch, Recipe, Splits
from contmax_lab.errors import Diverged, Interrupted, UsageError
from contmax_lab.files import Checkpoint, read_checkpoint, write_checkpoint
from contmax_lab.recorded import RecordedStep
from contmax_lab.runs import Run
from contmax_lab.training._interruption import stop_requests
from contmax_lab.training._optimizer import make_optimizer
from contmax_lab.training._processes import accelerator_for
from contmax_lab.training._randomness import seed_everything, seed_for
from contmax_lab.training._recordable import can_be_recorded, recordable_optimizer, set_rate
from contmax_lab.training._schedule import learning_rate
from contmax_lab.training._stacked import StackedCurves, StackedExamples, replica_means

# These treat every number by itself, so that replicas in one tensor stay apart.
_ELEMENTWISE = ("adam", "adamw", "sgd")
_PARTS = ("train", "valid", "test")


def train_together(recipes: Sequence[Recipe], runs: Sequence[Run], checkpoint: Path) -> None:
    """Train replicas as one ensemble, from the start or from its checkpoint, and test them.

    The results of each run are those of `train`, for its best weights; those of its last weights are under ``last``.

    Args:
        recipes: the same except for data and seed; full batches, no early stop, the validation loss as monitor.
        runs: the folder of each.
        checkpoint: file that holds what is needed to go on; gone when all is done.

    Raises:
        UsageError: if the recipes cannot be trained together.
        Diverged: if a loss is not finite.
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    _check(recipes)
    for recipe, run in zip(recipes, runs, strict=True):
        run.folder.mkdir(parents=True, exist_ok=True)
        run.begin(recipe, resume=True)
    ensemble = _Ensemble(recipes)
    if ensemble.parameters:
        _fit(ensemble, StackedCurves(runs), checkpoint)
    for place, run in enumerate(runs):
        run.finish(Checkpoint(ensemble.best_weights(place), {}), ensemble.results(place))
    checkpoint.unlink(missing_ok=True)


def _check(recipes: Sequence[Recipe]) -> None:
    first = recipes[0]
    training = first.training
    if any((recipe.model, recipe.training) != (first.model, training) for recipe in recipes):
        raise UsageError("recipes that are trained together must be the same except for their data and seed")
    wanted = {"batch_size": 0, "accumulate": 1, "clip_norm": 0, "patience": 0, "monitor": "loss", "goal": "min"}
    for key, value in wanted.items():
        if getattr(training, key) != value:
            raise UsageError(
                f"training several models together needs training.{key}={value}; got {getattr(training, key)}"
            )
    if training.optimizer.lower() not in _ELEMENTWISE or training.schedule in ("epochs", "milestones", "plateau"):
        raise UsageError(
            "training several models together needs adam, adamw or sgd, and a schedule that depends on the step alone"
        )


def _fit(ensemble: "_Ensemble", curves: StackedCurves, checkpoint: Path) -> None:
    training = ensemble.training
    written = [0] * len(ensemble.recipes)
    if checkpoint.exists():
        stored = read_checkpoint(checkpoint)
        ensemble.restore(stored)
        # A checkpoint from before there were curves does not say.
        written = stored.state.get("metrics_bytes", written)
    curves.truncate(written)
    saved = time.monotonic()
    with stop_requests() as request:
        while ensemble.step < training.epochs:
            curves.add(ensemble.advance())
            if request or time.monotonic() - saved > training.checkpoint_seconds:
                write_checkpoint(checkpoint, ensemble.checkpoint(curves.write()))
                saved = time.monotonic()
            if request:
                error = Interrupted(f"stopped at step {ensemble.step}, everything is saved; the same command continues")
                error.exit_code = request.exit_code
                raise error
    curves.write()


class _Ensemble:
    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self.recipes, self.task, self.training = recipes, recipes[0].task, recipes[0].training
        self.device = accelerator_for(self.training).device
        self.splits = [self.task.load(recipe.data, recipe.seed) for recipe in recipes]
        models = [self._fresh(recipe, splits) for recipe, splits in zip(recipes, self.splits, strict=True)]
        parameters, buffers = stack_module_state(models)
        self.parameters: dict[str, Tensor] = {name: self._leaf(tensor) for name, tensor in parameters.items()}
        self.buffers = {name: tensor.to(self.device) for name, tensor in buffers.items()}
        self.skeleton = copy.deepcopy(models[0]).to("meta")
        self.examples = {
            part: StackedExamples.of(self.task, [getattr(splits, part) for splits in self.splits], self.device)
            for part in _PARTS
        }
        self.mask = self.examples["train"].mask
        count = len(recipes)
        self.best = {name: tensor.detach().clone() for name, tensor in self.parameters.items()}
        # Of the training examples, summed over the steps since the last evaluation.
        self.loss_sum = torch.zeros(count, device=self.device)
        self.best_loss = torch.full((count,), torch.inf, device=self.device)
        self.best_epoch = torch.zeros(count, dtype=torch.long, device=self.device)
        self.step, self.seconds = 0, 0.0
        is_recorded = can_be_recorded(self.training, self.device)
        if self.parameters:
            make = recordable_optimizer if is_recorded else make_optimizer
            self.optimizer = make(self.task, nn.ParameterList(self.parameters.values()), self.training)
        self._training_losses = torch.compile(self._losses, dynamic=False) if self.training.compile else self._losses
        self._take_step: Callable[[], None] = RecordedStep(self._learn) if is_recorded else self._learn

    def _fresh(self, recipe: Recipe, splits: Splits) -> nn.Module:
        seed_everything(seed_for(recipe.seed, "weights"), torch.device("cpu"))
        return self.task.build(recipe.model, splits)

    def _leaf(self, tensor: Tensor) -> nn.Parameter:
        return nn.Parameter(tensor.detach().to(self.device))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _losses(self, parameters: dict[str, Tensor], batch: Batch, mask: Tensor) -> Tensor:
        """Mean loss of each replica, (R,)."""

        def alone(own: dict[str, Tensor], buffers: dict[str, Tensor], examples: Batch) -> tuple[Tensor, Tensor]:
            return self.task.loss(functional_call(self.skeleton, (own, buffers), (examples,)), examples)

        losses, weights = torch.vmap(alone, randomness="different")(parameters, self.buffers, batch)
        return replica_means(losses, weights, mask)

    def advance(self) -> list[dict[str, Any]]:
        """The steps up to the next evaluation, and that evaluation: of each replica a record for its curve."""
        begun, training = time.monotonic(), self.training
        # Random numbers are a function of the step, so that a training that goes on draws the same.
        seed_everything(seed_for(self.recipes[0].seed, "ensemble", self.step), self.device)
        self.skeleton.train()
        self.loss_sum.zero_()
        steps = min(training.evaluate_every, training.epochs - self.step)
        for _ in range(steps):
            self._set_rates()
            self._take_step()
            self.step += 1
        found, train = self._evaluated(), (self.loss_sum / steps).tolist()
        if not all(map(math.isfinite, train)):
            raise Diverged(f"the training loss is not finite at step {self.step}; lower training.learning_rate")
        for name in found[0]:
            if not all(math.isfinite(valid[name]) for valid in found):
                raise Diverged(
                    f"the validation {name} is not finite after step {self.step}; lower training.learning_rate"
                )
        self._keep_best([valid["loss"] for valid in found])
        self.seconds += time.monotonic() - begun
        record = {"epoch": self.step, "step": self.step}
        return [
            {**record, "train": {"loss": loss}, "valid": valid, "seconds": round(self.seconds, 3)}
            for loss, valid in zip(train, found, strict=True)
        ]

    def _set_rates(self) -> None:
        for group in self.optimizer.param_groups:
            set_rate(group, learning_rate(self.training, self.step, self.training.epochs) * group["pace"])

    def _learn(self) -> None:
        self.optimizer.zero_grad()
        losses = self._training_losses(self.parameters, self.examples["train"].batch, self.mask)
        losses.sum().backward()
        self.optimizer.step()
        self.loss_sum += losses.detach()

    @torch.no_grad()
    def _evaluated(self) -> list[dict[str, float]]:
        """The metrics of each replica on its validation examples."""

        def alone(
            own: dict[str, Tensor], buffers: dict[str, Tensor], examples: Batch
        ) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
            output = functional_call(self.skeleton, (own, buffers), (examples,))
            return self.task.loss(output, examples), self.task.measures(output, examples)

        self.skeleton.eval()
        valid = self.examples["valid"]
        (totals, weights), measures = torch.vmap(alone)(self.parameters, self.buffers, valid.batch)
        losses = replica_means(totals.double(), weights.double(), valid.mask).tolist()
        measures = {name: values.cpu() for name, values in measures.items()}
        return [
            {"loss": loss, **self.task.summarise({name: values[place, :count] for name, values in measures.items()})}
            for place, (loss, count) in enumerate(zip(losses, valid.counts.tolist(), strict=True))
        ]

    @torch.no_grad()
    def _keep_best(self, losses: Sequence[float]) -> None:
        loss = torch.tensor(losses, device=self.device)
        better = loss < self.best_loss
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_epoch = torch.where(better, self.step, self.best_epoch)
        for name, tensor in self.parameters.items():
            chosen = better.reshape(-1, *[1] * (tensor.dim() - 1))
            self.best[name] = torch.where(chosen, tensor, self.best[name])

    # -- the end -------------------------------------------------------------------------------------------------------

    def best_weights(self, place: int) -> dict[str, Tensor]:
        """Those of one replica, as a model of its own has them."""
        return self._state(place, self.best)

    def _state(self, place: int, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = self.skeleton.state_dict()
        return {
            name: tensor[place].detach().cpu()
            for name, tensor in {**parameters, **self.buffers}.items()
            if name in kept
        }

    def results(self, place: int) -> dict[str, Any]:
        """The content of results.json of one replica."""
        splits, recipe = self.splits[place], self.recipes[place]
        best, last = (
            {part: self._measured(place, weights, part) for part in ("valid", "test")}
            for weights in (self.best, self.parameters)
        )
        sizes = [tensor[place].numel() for tensor in self.parameters.values()]
        return {
            "task": self.task.name,
            "seed": recipe.seed,
            **best,
            "last": last,
            "best_epoch": int(self.best_epoch[place]),
            "epochs": self.step,
            "steps": self.step,
            "processes": 1,
            "parameters": sum(sizes),
            "examples": {part: len(getattr(splits, part)) for part in _PARTS},
            "timing": {
                "seconds": round(self.seconds, 3),
                "seconds_per_epoch": round(self.seconds / max(self.step, 1), 6),
                "trained_together": len(self.recipes),
            },
        }

    @torch.no_grad()
    def _measured(self, place: int, parameters: dict[str, Tensor], part: str) -> dict[str, float]:
        """What `Task.evaluate` would find, of one replica."""
        self.skeleton.eval()
        examples = self.examples[part]
        count = int(examples.counts[place])
        batch = {name: tensor[place, :count] for name, tensor in examples.batch.items()}
        own = {name: tensor[place] for name, tensor in {**parameters, **self.buffers}.items()}
        output = functional_call(self.skeleton, own, (batch,))
        losses, weights = self.task.loss(output, batch)
        measures = {name: value.cpu() for name, value in self.task.measures(output, batch).items()}
        return {"loss": float(losses.double().sum() / weights.double().sum()), **self.task.summarise(measures)}

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def checkpoint(self, metrics_bytes: Sequence[int]) -> Checkpoint:
        """All that a training that goes on needs, with the sizes of the files of metrics."""
        moments = {
            f"optimizer.{index}.{name}": value
            for index, entries in self.optimizer.state_dict()["state"].items()
            for name, value in entries.items()
        }
        tensors = {
            **{f"parameters.{name}": tensor for name, tensor in self.parameters.items()},
            **{f"best.{name}": tensor for name, tensor in self.best.items()},
            **moments,
            "best_loss": self.best_loss,
            "best_epoch": self.best_epoch,
        }
        state = {"step": self.step, "seconds": self.seconds, "replicas": len(self.recipes)}
        return Checkpoint(tensors, {**state, "metrics_bytes": [*metrics_bytes]})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from there."""
        tensors, state = checkpoint.tensors, checkpoint.state
        if state["replicas"] != len(self.recipes):
            raise UsageError(f"the checkpoint has {state['replicas']} replicas, not {len(self.recipes)}; delete it")
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[f"parameters.{name}"])
        self.best = {name: tensors[f"best.{name}"].to(self.device) for name in self.best}
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, index, name = key.split(".")
                moments.setdefault(int(index), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.best_loss, self.best_epoch = (tensors[name].to(self.device) for name in ("best_loss", "best_epoch"))
        self.step, self.seconds = state["step"], state["seconds"]
