"""Many small trainings as one: replicas that share a model and a recipe, and differ in data and seed.

A network of a few thousand weights leaves a processor idle between its operations. Here all replicas take every step
together: their weights lie in one tensor each, with the replica as its first dimension (`torch.func`), and each learns
from all its own examples at once. Replicas do not influence each other: losses are summed, and the optimizer treats
every number by itself. Up to rounding and dropout, the numbers are those of separate trainings.
"""

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from contmax_lab.contract import Batch, Recipe, Task
from contmax_lab.errors import Diverged, Interrupted, UsageError
from contmax_lab.files import Checkpoint, read_checkpoint, write_checkpoint
from contmax_lab.recorded import RecordedStep
from contmax_lab.runs import Run
from contmax_lab.training._optimizer import (
    can_be_recorded,
    learning_rate,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
    recordable_optimizer,
    set_rate,
)
from contmax_lab.training._processes import accelerator_for, seed_everything, seed_for, stop_requests
from contmax_lab.training._saving import joined, section

# These optimizers treat every number by itself, so that replicas in one tensor do not mix.
_ELEMENTWISE = ("adam", "adamw", "sgd")
_PARTS = ("train", "valid", "test")
_TRIED = {"learning_rate", "weight_decay"}


def train_together(recipes: Sequence[Recipe], runs: Sequence[Run], checkpoint: Path) -> None:
    """Train replicas as one ensemble, from the start or from its checkpoint, and test them.

    The results of each run are those of `train`, for its best weights; those of its last weights are under ``last``.

    Args:
        recipes: equal except for data and seed; full batches, no early stop, the validation loss as monitor.
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
        _fit(ensemble, runs, checkpoint)
    for place, run in enumerate(runs):
        run.finish(Checkpoint(ensemble.best_weights(place), {}), ensemble.results(place))
    checkpoint.unlink(missing_ok=True)


def _check(recipes: Sequence[Recipe]) -> None:
    first = recipes[0]
    training = first.training
    if any((recipe.model, recipe.training) != (first.model, training) for recipe in recipes):
        raise UsageError("recipes that are trained together must be the same except for their data and seed")
    wanted = {"batch_size": 0, "accumulate": 1, "clip_norm": 0, "patience": 0, "monitor": "loss", "goal": "min"}
    needs = [f"training.{k}={v}; got {getattr(training, k)}" for k, v in wanted.items() if getattr(training, k) != v]
    if training.optimizer.lower() not in _ELEMENTWISE or training.schedule in ("epochs", "milestones", "plateau"):
        needs.append("adam, adamw or sgd, and a schedule that depends on the step alone")
    if any(set(one) != _TRIED or not one["learning_rate"] > 0 for one in training.tries):
        needs.append(f"a positive learning_rate and a weight_decay in each of training.tries; got {training.tries}")
    if needs:
        raise UsageError(f"training several models together needs {needs[0]}")


def _fit(ensemble: "_Ensemble", runs: Sequence[Run], checkpoint: Path) -> None:
    training, sizes = ensemble.training, [0] * len(runs)
    if checkpoint.exists():
        stored = read_checkpoint(checkpoint)
        ensemble.restore(stored)
        # Checkpoints of older versions do not say how long the learning curves are.
        sizes = stored.state.get("metrics_bytes", sizes)
    for run, size in zip(runs, sizes, strict=True):
        run.truncate_metrics(size)
    saved, records = time.monotonic(), list[list[dict[str, Any]]]()
    with stop_requests() as request:
        while ensemble.step < ensemble.steps:
            records.append(ensemble.advance())
            if request or time.monotonic() - saved > training.checkpoint_seconds:
                write_checkpoint(checkpoint, ensemble.checkpoint(_append_metrics(runs, records)))
                saved = time.monotonic()
            if request:
                told = f"stopped at step {ensemble.step}, everything is saved; the same command continues"
                raise Interrupted(told, request.exit_code)
    _append_metrics(runs, records)


def _append_metrics(runs: Sequence[Run], records: list[list[dict[str, Any]]]) -> list[int]:
    """Move the records, by evaluation and replica, to the files of the runs; returns the sizes of these.

    This waits for a checkpoint: an evaluation takes less time than to open the files of all replicas.
    """
    for place, run in enumerate(runs):
        run.append_metrics(*(of_replicas[place] for of_replicas in records))
        run.sync_metrics()
    records.clear()
    return [run.metrics_size() for run in runs]


@dataclasses.dataclass(frozen=True)
class _StackedExamples:
    """One part of the data of all replicas.

    Args:
        batch: (R, L, …), padded to the longest with copies of examples.
        counts: of each replica, (R,).
    """

    batch: Batch
    counts: Tensor

    @classmethod
    def of(cls, task: Task, wholes: Sequence[Sized], device: torch.device) -> Self:
        """All examples of each replica."""
        batches = [task.batch(whole, range(len(whole))) for whole in wholes]
        longest = max(map(len, wholes))
        rows = [torch.arange(longest) % len(whole) for whole in wholes]
        batch = {
            name: torch.stack([b[name][r] for b, r in zip(batches, rows, strict=True)]).to(device)
            for name in batches[0]
        }
        return cls(batch, torch.tensor([len(whole) for whole in wholes], device=device))

    @property
    def mask(self) -> Tensor:
        """Which examples are no padding, (R, L)."""
        longest = int(next(iter(self.batch.values())).shape[1])
        return torch.arange(longest, device=self.counts.device) < self.counts.unsqueeze(-1)


def _replica_means(totals: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """The mean of each replica, (R,), from the sum and the weight of each of its examples, (R, L).

    Example:
        >>> mask = torch.tensor([[True, True], [True, False]])
        >>> _replica_means(torch.tensor([[1.0, 3.0], [5.0, 9.0]]), torch.ones(2, 2), mask)
        tensor([2., 5.])
    """
    return (totals * mask).sum(-1) / (weights * mask).sum(-1)


class _Ensemble:
    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self.recipes, self.task, self.training = recipes, recipes[0].task, recipes[0].training
        self.device = accelerator_for(self.training).device
        self.splits = [recipe.load() for recipe in recipes]
        models = []
        for recipe, splits in zip(recipes, self.splits, strict=True):
            seed_everything(seed_for(recipe.seed, "weights"), torch.device("cpu"))
            models.append(self.task.build(recipe.model, splits))
        parameters, buffers = stack_module_state(models)
        self.parameters: dict[str, Tensor] = {
            name: nn.Parameter(tensor.detach().to(self.device)) for name, tensor in parameters.items()
        }
        self.buffers = {name: tensor.to(self.device) for name, tensor in buffers.items()}
        self.skeleton = copy.deepcopy(models[0]).to("meta")
        self.examples = {
            part: _StackedExamples.of(self.task, [getattr(splits, part) for splits in self.splits], self.device)
            for part in _PARTS
        }
        self.mask = self.examples["train"].mask
        count = len(recipes)
        self.best = {name: tensor.detach().clone() for name, tensor in self.parameters.items()}
        # The training loss, summed over the steps since the last evaluation.
        self.loss_sum = torch.zeros(count, device=self.device)
        self.best_loss = torch.full((count,), torch.inf, device=self.device)
        self.best_epoch = torch.zeros(count, dtype=torch.long, device=self.device)
        self.step, self.seconds = 0, 0.0
        tried: Sequence[dict[str, Any]] = self.training.tries or [{}]
        self.tries = [dataclasses.replace(self.training, **one) for one in tried]
        self.steps = self.training.epochs * len(self.tries)
        self._first = dict(self.best)
        self._training_losses = torch.compile(self._losses, dynamic=False) if self.training.compile else self._losses
        if self.parameters:
            self._begin_try(0)

    def _begin_try(self, number: int) -> None:
        """Begin again from the first weights, with the settings of that try."""
        self._set_parameters(self._first)
        is_recorded = can_be_recorded(self.training, self.device)
        make = recordable_optimizer if is_recorded else make_optimizer
        self.optimizer = make(self.task, nn.ParameterList(self.parameters.values()), self.tries[number])
        self._take_step: Callable[[], None] = RecordedStep(self._learn) if is_recorded else self._learn

    @torch.no_grad()
    def _set_parameters(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _output(self, own: dict[str, Tensor], buffers: dict[str, Tensor], examples: Batch) -> Any:
        """The output of the model of one replica for its examples."""
        return functional_call(self.skeleton, (own, buffers), (examples,))

    def _losses(self, parameters: dict[str, Tensor], batch: Batch, mask: Tensor) -> Tensor:
        """Mean loss of each replica, (R,)."""

        def alone(own: dict[str, Tensor], buffers: dict[str, Tensor], examples: Batch) -> tuple[Tensor, Tensor]:
            return self.task.loss(self._output(own, buffers, examples), examples)

        losses, weights = torch.vmap(alone, randomness="different")(parameters, self.buffers, batch)
        return _replica_means(losses, weights, mask)

    def advance(self) -> list[dict[str, Any]]:
        """Take the steps up to the next evaluation, and evaluate; returns a record of metrics for each replica."""
        begun, training = time.monotonic(), self.training
        # Random numbers are a function of the step, so that a resumed training draws those of an uninterrupted one.
        seed_everything(seed_for(self.recipes[0].seed, "ensemble", self.step), self.device)
        self.skeleton.train()
        self.loss_sum.zero_()
        done = self.step % training.epochs
        if self.step and not done:
            self._begin_try(self.step // training.epochs)
        now = self.tries[self.step // training.epochs]
        steps = min(training.evaluate_every, training.epochs - done)
        for place in range(done, done + steps):
            for group in self.optimizer.param_groups:
                set_rate(group, learning_rate(now, place, training.epochs) * group["pace"])
            self._take_step()
            self.step += 1
        found, train = self._evaluated(), (self.loss_sum / steps).tolist()
        measured = {"training loss": train} | {f"validation {name}": [v[name] for v in found] for name in found[0]}
        for name, values in measured.items():
            if not all(map(math.isfinite, values)):
                raise Diverged(f"the {name} is not finite after step {self.step}; lower training.learning_rate")
        self._keep_best([valid["loss"] for valid in found])
        self.seconds += time.monotonic() - begun
        record = {"epoch": self.step, "step": self.step}
        return [
            {**record, "train": {"loss": loss}, "valid": valid, "seconds": round(self.seconds, 3)}
            for loss, valid in zip(train, found, strict=True)
        ]

    def _learn(self) -> None:
        self.optimizer.zero_grad()
        losses = self._training_losses(self.parameters, self.examples["train"].batch, self.mask)
        losses.sum().backward()
        self.optimizer.step()
        self.loss_sum += losses.detach()

    def _measures(
        self, own: dict[str, Tensor], buffers: dict[str, Tensor], examples: Batch
    ) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
        """Losses and weights of the examples of one replica, and what its task measures."""
        output = self._output(own, buffers, examples)
        return self.task.loss(output, examples), self.task.measures(output, examples)

    @torch.no_grad()
    def _evaluated(self) -> list[dict[str, float]]:
        """The metrics of each replica on its validation examples."""
        self.skeleton.eval()
        valid = self.examples["valid"]
        (totals, weights), measures = torch.vmap(self._measures)(self.parameters, self.buffers, valid.batch)
        losses = _replica_means(totals.double(), weights.double(), valid.mask).tolist()
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
        """The best weights of one replica, with the names that they have in its model."""
        named = self.skeleton.state_dict()
        best = {**self.best, **self.buffers}
        return {name: tensor[place].detach().cpu() for name, tensor in best.items() if name in named}

    def results(self, place: int) -> dict[str, Any]:
        """The content of results.json of one replica."""
        splits = self.splits[place]
        best, last = (
            {part: self._measured(place, weights, part) for part in ("valid", "test")}
            for weights in (self.best, self.parameters)
        )
        return {
            "task": self.task.name,
            "seed": self.recipes[place].seed,
            **best,
            "last": last,
            "best_epoch": int(self.best_epoch[place]),
            **self._chosen(place),
            "epochs": self.step,
            "steps": self.step,
            "processes": 1,
            "parameters": sum(tensor[place].numel() for tensor in self.parameters.values()),
            "examples": {part: len(getattr(splits, part)) for part in _PARTS},
            "timing": {
                "seconds": round(self.seconds, 3),
                "seconds_per_epoch": round(self.seconds / max(self.step, 1), 6),
                "trained_together": len(self.recipes),
            },
        }

    def _chosen(self, place: int) -> dict[str, Any]:
        """The try with the best weights of one replica, and the epoch of it, where several were tried."""
        if not self.training.tries:
            return {}
        number, epochs = divmod(int(self.best_epoch[place]) - 1, self.training.epochs)
        return {"try": {**self.training.tries[number], "epochs": epochs + 1}}

    @torch.no_grad()
    def _measured(self, place: int, parameters: dict[str, Tensor], part: str) -> dict[str, float]:
        """The metrics of one replica, as `Task.evaluate` defines them."""
        self.skeleton.eval()
        examples = self.examples[part]
        batch = {name: tensor[place, : int(examples.counts[place])] for name, tensor in examples.batch.items()}
        own, buffers = ({name: x[place] for name, x in of.items()} for of in (parameters, self.buffers))
        (losses, weights), measures = self._measures(own, buffers, batch)
        found = self.task.summarise({name: value.cpu() for name, value in measures.items()})
        return {"loss": float(losses.double().sum() / weights.double().sum()), **found}

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def checkpoint(self, metrics_bytes: Sequence[int]) -> Checkpoint:
        """All that a resumed training needs, with the sizes of the files of metrics."""
        moments, _ = optimizer_state(self.optimizer)
        tensors = joined({"parameters": self.parameters, "best": self.best, "optimizer": moments})
        tensors |= {"best_loss": self.best_loss, "best_epoch": self.best_epoch}
        state = {"step": self.step, "seconds": self.seconds, "replicas": len(self.recipes)}
        return Checkpoint(tensors, {**state, "metrics_bytes": [*metrics_bytes]})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""
        tensors, state = checkpoint.tensors, checkpoint.state
        if state["replicas"] != len(self.recipes):
            raise UsageError(f"the checkpoint has {state['replicas']} replicas, not {len(self.recipes)}; delete it")
        # The optimizer has to be that of the try under way; at the end of a try, the next step makes that of the next.
        self.step, self.seconds = state["step"], state["seconds"]
        self._begin_try(max(self.step - 1, 0) // self.training.epochs)
        self._set_parameters(section(tensors, "parameters"))
        self.best = {name: tensor.to(self.device) for name, tensor in section(tensors, "best").items()}
        groups = self.optimizer.state_dict()["param_groups"]
        load_optimizer_state(self.optimizer, section(tensors, "optimizer"), {"plain": {}, "groups": groups})
        self.best_loss, self.best_epoch = (tensors[name].to(self.device) for name in ("best_loss", "best_epoch"))
