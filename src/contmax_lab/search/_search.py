"""The trials of a search: what is drawn, trained and judged."""

import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna

from contmax_lab.contract import Recipe
from contmax_lab.errors import Interrupted, LabError, UsageError
from contmax_lab.files import make_folder
from contmax_lab.recipes import RecipeSource
from contmax_lab.runs import Run
from contmax_lab.search._study import SharedStudy, open_study, origin, unusable
from contmax_lab.workers import LocalProcesses, Outcome, Training, Workers, train_all


@dataclasses.dataclass(frozen=True)
class Search:
    """What to search.

    Args:
        source: the recipe.
        overrides: dotted, for every trial.
        runs: folder for the trials.
        storage: address of the database, as optuna takes it; several processes, on any machines, may share it.
        trials: in all, earlier ones included, and those of other processes.
        repetitions: dotted overrides; a trial is trained once with each and judged by the mean. Where validation
            examples are few, several splits say more than one.
        workers: where the trainings run.
    """

    source: RecipeSource
    overrides: tuple[str, ...]
    runs: Path
    storage: str
    trials: int
    repetitions: tuple[str, ...] = ()
    workers: Workers = dataclasses.field(default_factory=LocalProcesses)


def search(job: Search) -> optuna.trial.FrozenTrial:
    """Run the trials that are left and return the best of all.

    Raises:
        UsageError: if the recipe has nothing to choose from.
        LabError: if the data cannot be read, the database cannot be used, or every trial failed.
        Interrupted: after Ctrl-C; trials under way have saved, and the next search goes on with them.
    """
    recipe = job.source.recipe(job.overrides)
    if not recipe.search:
        raise UsageError(
            f"{job.source.origin} has no section search; add e.g. search: {{training.learning_rate: [0.001, 0.002]}}"
        )
    for key, space in recipe.search.items():
        check_space(key, space)
    # Data that cannot be read is no fault of the hyper-parameters, which every trial would be blamed for.
    recipe.task.load(recipe.data, recipe.seed)
    make_folder(job.runs)
    goal = recipe.training.goal
    study = open_study(job.source.origin, job.storage, "maximize" if goal == "max" else "minimize")
    _check_same_search(study, job, recipe.search)
    try:
        _Trials(job, recipe, SharedStudy(study, job.trials, recipe.seed)).run()
    except optuna.exceptions.StorageInternalError as error:
        raise unusable(job.storage, error) from None
    try:
        return study.best_trial
    except ValueError:
        raise LabError("no trial succeeded; check the ranges in the section search") from None


def trial_folder(runs: Path, trial: optuna.trial.FrozenTrial | optuna.Trial) -> Path:
    """Where a trial lies; one that goes on with another's training lies where that one does."""
    return runs / f"trial-{origin(trial):04d}"


@dataclasses.dataclass
class _Trial:
    """A trial under way: trainings to come, and what the ones that are done say."""

    number: int
    folder: Path
    left: list[Training]
    values: dict[Path, float] = dataclasses.field(default_factory=dict)
    under_way: int = 0
    diverged: str = ""


class _Trials:
    def __init__(self, job: Search, recipe: Recipe, shared: SharedStudy) -> None:
        self._job, self._recipe, self._shared = job, recipe, shared
        self._trials: dict[int, _Trial] = {}
        self._of: dict[Path, _Trial] = {}

    def run(self) -> None:
        """Until enough trials are done, here or elsewhere."""
        if self._shared.ended() >= self._job.trials:
            return
        try:
            with contextlib.closing(train_all(self._job.workers, self._trainings())) as outcomes:
                for outcome in outcomes:
                    self._shared.keep_alive()
                    if outcome is not None:
                        self._judge(outcome)
        except Interrupted as stopped:
            told = f"{stopped} in {self._job.runs}, everything is saved; the same command continues"
            raise Interrupted(told, stopped.exit_code) from None
        finally:
            self._shared.give_back()

    def _trainings(self) -> Iterator[Training | None]:
        """The next training of a trial that has begun, or of a new one; None while others do the last ones."""
        while True:
            trial = next((trial for trial in self._trials.values() if trial.left), None) or self._begun()
            if trial is not None:
                training = trial.left.pop(0)
                trial.under_way += 1
                self._of[training.folder] = trial
                yield training
            elif self._shared.is_complete:
                return
            else:
                yield None

    def _begun(self) -> _Trial | None:
        drawn = self._shared.take()
        if drawn is None:
            return None
        chosen = {key: suggest(drawn, key, space) for key, space in self._recipe.search.items()}
        overrides = [*self._job.overrides, *(f"--{key}={value}" for key, value in chosen.items())]
        folder = trial_folder(self._job.runs, drawn)
        recipe = self._job.source.recipe
        trainings = [
            Training(recipe([*overrides, repetition]), folder / repetition.removeprefix("--"), test=False)
            for repetition in self._job.repetitions
        ]
        trial = _Trial(drawn.number, folder, trainings or [Training(recipe(overrides), folder, test=False)])
        self._trials[drawn.number] = trial
        return trial

    def _judge(self, outcome: Outcome) -> None:
        """What one training says of its trial."""
        trial, folder = self._of.pop(outcome.training.folder), outcome.training.folder
        trial.under_way -= 1
        if outcome.diverged:
            # Hyper-parameters that diverge are a finding, not a failure of the search.
            trial.diverged, trial.left = outcome.problem or "", []
        elif outcome.problem is not None:
            self._shared.fail(trial.number)
            raise LabError(f"{folder}: {outcome.problem}")
        else:
            trial.values[folder] = _monitored(folder, self._recipe.training.monitor)
        if trial.left or trial.under_way:
            return
        del self._trials[trial.number]
        value = None if trial.diverged else statistics.fmean(trial.values.values())
        self._shared.tell(trial.number, value)
        told = f"{self._recipe.training.monitor} {value:.6g}" if value is not None else trial.diverged
        print(f"[{self._shared.ended()}/{self._job.trials}] {trial.folder}: {told}", file=sys.stderr, flush=True)


def _monitored(folder: Path, metric: str) -> float:
    """The metric by which a training is judged."""
    results = Run(folder).results()
    if results is None:
        raise LabError(f"{folder} is finished, but its results are missing")
    return float(results["valid"][metric])


def _check_same_search(study: optuna.Study, job: Search, choices: dict[str, Any]) -> None:
    """Trials of other keys, repetitions or choices cannot be compared with these."""
    of = {
        "overrides": [override for override in job.overrides if not override.startswith("--data.path=")],
        "over": list(job.repetitions),
        "choices": choices,
    }
    begun = study.user_attrs.get("of")
    if begun is None and not study.trials:
        study.set_user_attr("of", of)
    elif begun != of:
        raise UsageError(
            f"{job.storage} holds a search of {job.source.origin} with other keys, repetitions or choices; "
            "pass another --runs, or another --storage"
        )


def check_space(key: str, space: Any) -> None:
    """Complain of what is neither a list nor a range.

    Args:
        key: of the recipe.
        space: a list of values, or ``{low, high, log}``.

    Raises:
        UsageError: if it is neither.
    """
    if isinstance(space, list) and space:
        return
    numbers = isinstance(space, dict) and all(isinstance(space.get(end), int | float) for end in ("low", "high"))
    if not numbers or space["low"] > space["high"] or (space.get("log") and space["low"] <= 0):
        raise UsageError(
            f"search.{key} must be a list of values or {{low, high, log}} with low ≤ high, both positive if log; "
            f"got {space!r}"
        )


def suggest(trial: optuna.Trial, key: str, space: Any) -> Any:
    """Let a trial choose; a range with two whole ends is one of whole numbers."""
    if isinstance(space, list):
        return trial.suggest_categorical(key, space)
    low, high, log = space["low"], space["high"], bool(space.get("log", False))
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(key, low, high, log=log)
    return trial.suggest_float(key, float(low), float(high), log=log)
