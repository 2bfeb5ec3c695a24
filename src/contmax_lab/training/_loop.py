"""The loop: steps, evaluations, checkpoints, the end."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from contmax_lab.contract import Recipe
from contmax_lab.errors import Interrupted, LabError, UsageError
from contmax_lab.files import Checkpoint, read_checkpoint
from contmax_lab.runs import Run
from contmax_lab.training._batches import Loaded, Order, Plan
from contmax_lab.training._evaluation import evaluate
from contmax_lab.training._learner import Learner, diverged
from contmax_lab.training._optimizer import learning_rate, load_optimizer_state, optimizer_state
from contmax_lab.training._processes import StopRequest, accelerator_for, stop_requests
from contmax_lab.training._progress import Display, TensorBoard, WeightsAndBiases, events_for
from contmax_lab.training._saving import Saver, joined, section

# Words of the errors that densities, ours and torch's, raise where their parameters are not finite.
_REFUSALS = ("must be finite", "to satisfy the constraint")


def train(
    recipe: Recipe, run: Run, *, resume: bool = False, test: bool = False, extend: bool = False
) -> dict[str, Any]:
    """Train a recipe in a folder, from the start or from the last checkpoint.

    Args:
        recipe: decides everything; on a CPU, every bit of the result.
        run: the folder.
        resume: go on where a run in that folder stopped; a run that is done returns its results.
        test: measure the best weights on the test examples at the end, also of a run that is done without that.
        extend: with `resume`, a run that was begun with fewer epochs, or less patience, goes on, even if it is done;
            and at its end it keeps what it needs for that, weights, best weights and the state of the optimizer.

    Returns:
        The content of results.json: ``valid``, ``test``, ``best_epoch``, ``epochs``, ``steps``, ``processes``,
        ``parameters``, ``timing``.

    Raises:
        LabError: if data, disk, numbers or a checkpoint are bad; what was saved before is untouched.
        Interrupted: after Ctrl-C or SIGTERM, with everything saved.
    """
    if recipe.training.tries:
        raise UsageError(
            "training.tries are for tables whose repetitions are trained together, by contmax reproduce; a training by "
            "itself has one learning_rate and one weight_decay: leave tries out"
        )
    accelerator = accelerator_for(recipe.training)
    with contextlib.ExitStack() as stack:
        if accelerator.is_main_process:
            stack.enter_context(run.claimed())
            _begin(recipe, run, resume=resume, extend=extend)
        accelerator.wait_for_everyone()
        done, goes_on = run.results(), extend and run.is_extended_by(recipe)
        if done is not None and not goes_on and not (test and run.is_untested()):
            return done
        request = stack.enter_context(stop_requests())
        training = _Training(recipe, run, accelerator, request, stack.enter_context(Saver(run)))
        if done is not None and not goes_on:
            return training.tested(done)
        training.restore()
        if goes_on:
            training.extend()
        try:
            training.fit()
            return training.finish(test, extendable=extend)
        except ValueError as error:
            if not any(words in str(error) for words in _REFUSALS):
                raise
            why = " ".join(str(error).split())[:120]
            raise diverged(f"the training diverged after step {training.position.step}: {why} …") from None


def _begin(recipe: Recipe, run: Run, *, resume: bool, extend: bool) -> None:
    try:
        run.begin(recipe, resume=resume, extend=extend)
    except UsageError:
        # Data that cannot be read is said first: another folder would not mend it.
        recipe.load()
        raise


def extension_note(recipe: Recipe, run: Run) -> str:
    """What `train` does with a run that the recipe makes longer, in a line; empty if it does not make it longer."""
    if not run.is_extended_by(recipe) or not (history := run.history()):
        return ""
    now, begun, done = recipe.training, run.recipe(recipe.task).training, history[-1]["epoch"]
    if now.epochs < begun.epochs:
        return ""
    told = f"{run.folder} goes on after epoch {done}, now up to epoch {now.epochs}"
    if begun.epochs == now.epochs or now.schedule not in ("cosine", "linear"):
        return told
    share = learning_rate(now, done, now.epochs) / now.learning_rate if not now.warmup_steps else None
    rate = f", {share:.0%} of the highest" if share is not None else ""
    return (
        f"{told}; training.schedule {now.schedule} falls to 0 with the last epoch, so that the learning rate is now "
        f"that of a training of {now.epochs} epochs{rate}. Trained so from the start, the result would be another one"
    )


@dataclasses.dataclass
class _Position:
    """Where a training is; the JSON part of a checkpoint.

    `batch` batches of `epoch` are done; `best` is the monitored metric of the weights that are kept.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best: float | None = None
    best_epoch: int = 0
    stale: int = 0
    seconds: float = 0.0
    metrics_bytes: int = 0


class _Training:
    def __init__(self, recipe: Recipe, run: Run, accelerator: Accelerator, request: StopRequest, saver: Saver) -> None:
        self.recipe, self.run, self.accelerator, self.request, self.saver = recipe, run, accelerator, request, saver
        self.config = recipe.training
        self.task = recipe.task
        self.splits = recipe.load()
        for name, split in (("training", self.splits.train), ("validation", self.splits.valid)):
            if not len(split):
                raise LabError(f"there are no {name} examples; check the section data of the recipe")
        if self.config.monitor in self.task.rising and self.config.goal == "min":
            told = f"training.monitor {self.config.monitor} is best where it is largest, but training.goal is min"
            raise UsageError(f"{told}; pass --training.goal max")
        self.plan = Plan(self.config, recipe.seed, len(self.splits.train), self.task.lengths(self.splits.train))
        self.learner = Learner(recipe, self.splits, accelerator)
        self.position = _Position()
        self.best_weights: dict[str, Tensor] = {}
        # Key of results.json → part of the data → what the task has found beside metrics.
        self.told: dict[str, dict[str, Any]] = {}
        self._last_tick = self._last_save = time.monotonic()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        checkpoint = self.run.last_checkpoint()
        if checkpoint is None:
            self.learner.initialise()
            # No process may save a checkpoint before all have looked for one.
            self.accelerator.wait_for_everyone()
            if self.accelerator.is_main_process:
                self.run.truncate_metrics(0)
            return
        tensors, state = checkpoint.tensors, checkpoint.state
        self.position = _Position(**state["position"])
        self.learner.load_weights(section(tensors, "model"))
        load_optimizer_state(self.learner.optimizer, section(tensors, "optimizer"), state["optimizer"])
        self.learner.schedule.load_state(state["schedule"])
        self.learner.set_sums(state["sums"])
        self.best_weights = section(tensors, "best")
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            self.run.truncate_metrics(self.position.metrics_bytes)

    def extend(self) -> None:
        """Write down that the run becomes longer, once nothing can be in the way of that."""
        patience, stale = self.config.patience, self.position.stale
        if 0 < patience <= stale:
            raise UsageError(
                f"{self.run.folder} stopped early, after {self.position.epoch} epochs: training.patience is "
                f"{patience}, and {stale} evaluations had no new best. More epochs alone change nothing; pass a larger "
                "--training.patience too, or 0 for no early stop"
            )
        if self.accelerator.is_main_process:
            self.run.extend(self.recipe)
        self.accelerator.wait_for_everyone()

    def save(self) -> None:
        sums = self.learner.sums()
        self._tick()
        self._last_save = time.monotonic()
        if not self.accelerator.is_main_process:
            return
        self.position.metrics_bytes = self.run.metrics_size()
        optimizer, rest = optimizer_state(self.learner.optimizer)
        tensors = joined({"model": self.learner.weights(), "optimizer": optimizer, "best": self.best_weights})
        state = {"position": dataclasses.asdict(self.position), "optimizer": rest, "sums": sums}
        state["schedule"] = self.learner.schedule.state()
        self.saver.save(self.position.step, Checkpoint(tensors, state))

    def _tick(self) -> None:
        now = time.monotonic()
        self.position.seconds += now - self._last_tick
        self._last_tick = now

    # -- steps ---------------------------------------------------------------------------------------------------------

    def fit(self) -> None:
        main = self.accelerator.is_main_process
        events = events_for(self.recipe, self.run.folder) if main else []
        with contextlib.ExitStack() as stack:
            display = Display(self.run.folder.name, self.config.epochs, visible=main)
            for place in (*events, display):
                stack.callback(place.close)
            pin = self.accelerator.device.type == "cuda"
            batches = self.learner.loader.stream(self._orders(), self.config.workers, pin=pin)
            epochs, patience = int(self.config.epochs), int(self.config.patience)
            while self.position.epoch < epochs and not 0 < patience <= self.position.stale:
                self._epoch(batches, display)
                self._close_epoch(display, events)

    def _epoch(self, batches: Iterator[Loaded], display: Display) -> None:
        position, steps = self.position, self.plan.steps_per_epoch
        started, first = time.monotonic(), position.batch
        while position.batch < steps:
            self.learner.step(next(batches), position.step, self.config.epochs * steps)
            position.step += 1
            position.batch += 1
            examples = (position.batch - first) / steps * len(self.splits.train)
            display.at(position.epoch + position.batch / steps, examples / (time.monotonic() - started))
            self._pause()

    def _orders(self) -> Iterator[Order]:
        """The steps that are left, up to the end of the last epoch."""
        position = dataclasses.replace(self.position)
        for epoch in range(position.epoch, self.config.epochs):
            done = position.batch if epoch == position.epoch else 0
            for place, indices in enumerate(self.plan.epoch(epoch)[done:], start=done):
                yield Order(epoch * self.plan.steps_per_epoch + place, indices)

    def _pause(self) -> None:
        """Between two steps, save if a checkpoint is due, and stop if a signal has arrived."""
        self.saver.check()
        interval = self.config.checkpoint_seconds
        # A disk that is slower than the interval does not hold the training up, unless every step is to be saved.
        due = time.monotonic() - self._last_save >= interval and not (interval and self.saver.is_busy)
        stop, due = self._agreed(bool(self.request), due and self.accelerator.is_main_process)
        if stop or due:
            self.save()
        if stop:
            self.saver.wait()
            told = f"stopped at step {self.position.step}, everything is saved; pass --resume to continue"
            raise Interrupted(told, self.request.exit_code)

    def _agreed(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag, raised on all processes if it is raised on any."""
        if self.accelerator.num_processes == 1:
            return flags
        raised = torch.tensor(flags, dtype=torch.float32, device=self.accelerator.device)
        return tuple(value > 0 for value in self.accelerator.reduce(raised, "sum").tolist())

    # -- evaluations ---------------------------------------------------------------------------------------------------

    def _close_epoch(self, display: Display, events: list[TensorBoard | WeightsAndBiases]) -> None:
        position = self.position
        position.epoch, position.batch = position.epoch + 1, 0
        self.learner.schedule.epoch_done(position.epoch)
        if position.epoch % self.config.evaluate_every and position.epoch < self.config.epochs:
            return
        # The sums run over all epochs since the last evaluation.
        sums = self.learner.sums()
        self.learner.set_sums({})
        train = {
            "loss": sums["loss"] / (sums["weight"] or 1.0),
            "gradient_norm": sums["gradient_norm"] / max(sums["steps"], 1),
        }
        valid = self._evaluated("valid")
        self._keep_best(valid)
        self._tick()
        parts = {"train": train, "valid": valid}
        record = {"epoch": position.epoch, "step": position.step, **parts, "seconds": round(position.seconds, 3)}
        if self.accelerator.is_main_process:
            self.run.append_metrics(record)
        display.news(self.config.monitor, valid[self.config.monitor], position.best or 0.0)
        points = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
        for place in events:
            place.write(position.step, points)

    def _evaluated(self, part: str, *, final: bool = False) -> dict[str, float]:
        """The metrics of the current weights; if these are final, what else the task makes is stored too."""
        batch_size = self.config.evaluation_batch_size or self.config.batch_size
        kept, told = dict[str, str](), dict[str, Any]()
        data = getattr(self.splits, part), self.splits.info, batch_size
        model = self.learner.bare_model
        metrics = evaluate(model, self.task, *data, self.accelerator, final=final, kept=kept, told=told)
        for name, found in told.items() if final else ():
            self.told.setdefault(name, {})[part] = found
        bad = [name for name, value in metrics.items() if not math.isfinite(value)]
        if bad:
            raise diverged(f"{bad[0]} on held-out examples is {metrics[bad[0]]} after epoch {self.position.epoch}")
        if final and kept and self.accelerator.is_main_process:
            self.run.keep(part, kept)
        return metrics

    def _keep_best(self, valid: dict[str, float]) -> None:
        monitor = self.config.monitor
        if monitor not in valid:
            raise UsageError(f"training.monitor is {monitor!r}, but the metrics are {', '.join(valid)}")
        sign = 1.0 if self.config.goal == "max" else -1.0
        best = self.position.best
        is_best = best is None or sign * valid[monitor] > sign * best
        self.learner.schedule.evaluated(is_best)
        if is_best:
            self.position.best, self.position.best_epoch, self.position.stale = valid[monitor], self.position.epoch, 0
            self.best_weights = self.learner.weights()
        else:
            self.position.stale += 1

    # -- the end -------------------------------------------------------------------------------------------------------

    def tested(self, done: dict[str, Any]) -> dict[str, Any]:
        """The results of a run that is done, to which those of its best weights on the test examples are added."""
        self.learner.load_weights(read_checkpoint(self.run.weights).tensors)
        results = {**done, "test": self._evaluated("test", final=True)}
        results |= {name: {**done.get(name, {}), **parts} for name, parts in self.told.items()}
        if self.accelerator.is_main_process:
            self.run.write_results(results)
        self.accelerator.wait_for_everyone()
        return results

    def finish(self, test: bool, *, extendable: bool) -> dict[str, Any]:
        self.save()
        position = self.position
        self.learner.load_weights(self.best_weights)
        results: dict[str, Any] = {
            "task": self.task.name,
            "seed": self.recipe.seed,
            "valid": self._evaluated("valid", final=True),
            "test": self._evaluated("test", final=True) if test and len(self.splits.test) else None,
            "best_epoch": position.best_epoch,
            "epochs": position.epoch,
            "steps": position.step,
            "processes": self.accelerator.num_processes,
            "parameters": sum(p.numel() for p in self.learner.bare_model.parameters() if p.requires_grad),
            "examples": {name: len(getattr(self.splits, name)) for name in ("train", "valid", "test")},
            "timing": {
                "seconds": round(position.seconds, 3),
                "seconds_per_epoch": round(position.seconds / max(position.epoch, 1), 6),
            },
            "remarks": [*self.splits.info.get("remarks", ())],
            **self.told,
        }
        self.saver.wait()
        if self.accelerator.is_main_process:
            best = Checkpoint(self.best_weights, {"best_epoch": position.best_epoch})
            self.run.finish(best, results, extendable=extendable)
        self.accelerator.wait_for_everyone()
        return results
