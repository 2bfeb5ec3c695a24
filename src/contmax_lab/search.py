"""Search over a recipe with optuna: a trial is a training, or several, that never see the test examples."""

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from contmax_lab.contract import Recipe
from contmax_lab.errors import Interrupted, LabError, UsageError
from contmax_lab.files import make_folder
from contmax_lab.recipes import RecipeSource
from contmax_lab.runs import Run
from contmax_lab.training import seed_for
from contmax_lab.workers import LocalProcesses, Outcome, Training, Workers, train_all

# Trials that count: finished ones, diverged ones (PRUNED), and those under way.
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
_COUNTED = (*_ENDED, TrialState.RUNNING)
# Attributes of a trial: a sign of life that its process renews, and the number of the trial that it continues.
_ALIVE, _ORIGIN = "alive", "goes on with"
# Seconds between two signs of life, between two queries of the database, and after which a process counts as dead.
_SIGN, _LOOK, _DEAD = 10.0, 2.0, 60.0


class SharedStudy:
    """A study that several processes share: it starts trials until `trials` are done by any of them.

    A process renews a sign of life of each of its trials. The other processes check by their own clocks whether the
    sign changes, so that the clocks of machines need not agree; they continue the trials of a process that has died.
    All this is stored in attributes of trials, which every storage of optuna has. `is_complete` is set when `take`
    finds that enough trials are done.
    """

    def __init__(self, study: optuna.Study, trials: int, seed: int) -> None:
        self.study = study
        self.is_complete = False
        self._wanted, self._seed = trials, seed
        self._signs: dict[int, tuple[str, float]] = {}
        self._own: dict[int, optuna.Trial] = {}
        self._signed = self._looked = -float("inf")

    def ended(self) -> int:
        """How many trials are done, diverged ones included."""
        return len(self.study.get_trials(deepcopy=False, states=_ENDED))

    def take(self) -> optuna.Trial | None:
        """A trial to work on, or None if enough trials are done or under way, here or in other processes."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return None
        if self._counted() >= self._wanted:
            self._looked = now
            self.is_complete = self.ended() >= self._wanted
            self._release_dead(now)
            return None
        trial = self.study.ask()
        # Another process may have asked at this moment; of surplus trials the last ones give way.
        if self._counted(below=trial.number) >= self._wanted:
            self.study.tell(trial, state=TrialState.FAIL)
            return None
        # Seeded by the number, so that neither another process nor a resumed search repeats a draw.
        seed = seed_for(self._seed, "trial", trial.number) % 2**32
        self.study.sampler = optuna.samplers.TPESampler(seed=seed)
        self._own[trial.number] = trial
        self._sign(trial)
        return trial

    def keep_alive(self) -> None:
        """Give a sign of life of the trials under way, if it is time for one."""
        if time.monotonic() - self._signed > _SIGN:
            self._signed = time.monotonic()
            self._sign(*self._own.values())

    def tell(self, number: int, value: float | None) -> None:
        """Record that a trial is over, with its value, or None if it diverged."""
        trial = self._own.pop(number)
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        self.study.tell(trial, value, state=state, skip_if_finished=True)
        self._looked = -float("inf")

    def fail(self, number: int) -> None:
        """Record that a trial cannot be trained; it does not count."""
        self.study.tell(self._own.pop(number), state=TrialState.FAIL, skip_if_finished=True)

    def give_back(self) -> None:
        """Leave the trials under way, which were stopped and have saved their state, to the next process."""
        for number in list(self._own):
            del self._own[number]
            self._release(self.study.get_trials(deepcopy=False)[number])

    def _counted(self, below: float = float("inf")) -> int:
        counted = self.study.get_trials(deepcopy=False, states=_COUNTED)
        return sum(trial.number < below for trial in counted)

    def _sign(self, *trials: optuna.Trial) -> None:
        for trial in trials:
            trial.set_user_attr(_ALIVE, f"{time.time():.1f}")

    def _release_dead(self, now: float) -> None:
        """Release the trials of other processes that have given no sign of life for too long."""
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number in self._own:
                continue
            sign = str(trial.user_attrs.get(_ALIVE))
            seen, since = self._signs.get(trial.number, (None, now))
            if seen != sign:
                self._signs[trial.number] = sign, now
            elif now - since > _DEAD:
                self._release(trial)

    def _release(self, trial: FrozenTrial) -> None:
        """Fail a trial and queue its choices; the process that takes them continues in the folder of the trial."""
        try:
            self.study.tell(trial.number, state=TrialState.FAIL)
        except ValueError:
            return  # somebody else was quicker
        self.study.enqueue_trial(trial.params, user_attrs={_ORIGIN: origin(trial)})


def origin(trial: FrozenTrial | optuna.Trial) -> int:
    """The number in the name of the folder of a trial: that of the trial which it continues, or its own."""
    return int(trial.user_attrs.get(_ORIGIN, trial.number))


def open_study(name: str, storage: str, direction: Literal["minimize", "maximize"]) -> optuna.Study:
    """The study of that name, which is made if there is none; a LabError if the database cannot be used."""
    # We report the problems of a trial in one line; optuna would print a traceback.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    problem = Exception()
    # Two processes that begin together both create the tables, and one of them fails.
    for pause in (0.5, 0.5, 0.0):
        try:
            return optuna.create_study(study_name=name, storage=storage, direction=direction, load_if_exists=True)
        except Exception as error:  # every database has errors of its own
            problem = error
            time.sleep(pause)
    raise unusable(storage, problem)


def unusable(storage: str, error: Exception) -> LabError:
    """The error for a database that cannot be used."""
    scheme, separator, rest = storage.partition("://")
    access, at, place = rest.rpartition("@")
    # The password of an address is not shown.
    shown = f"{scheme}{separator}{access.partition(':')[0]}{at}{place}"
    return LabError(f"cannot use the database {shown}: {' '.join(str(error).split())[:200]}")


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
            f"{job.source.origin} has no section search, which says what to try; pass e.g. "
            """--search '{"training.learning_rate": [0.001, 0.002]}'"""
        )
    for key, space in recipe.search.items():
        _check_space(key, space)
    # Unreadable data ends the search here; otherwise every trial would fail for it.
    recipe.load()
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
    """The folder of a trial; a trial that continues the training of another has the folder of that other trial."""
    return runs / f"trial-{origin(trial):04d}"


@dataclasses.dataclass
class _Trial:
    """A trial under way: the trainings that are left, and the values of the trainings that are done."""

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
        """Train until enough trials are done, here or in other processes."""
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
        """The next training of a trial under way, or of a new one; None while other processes do the last trials."""
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
        chosen = {key: _suggest(drawn, key, space) for key, space in self._recipe.search.items()}
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
        """Record the outcome of one training of a trial."""
        trial, folder = self._of.pop(outcome.training.folder), outcome.training.folder
        trial.under_way -= 1
        if outcome.diverged:
            # Hyper-parameters that diverge are a finding, not a failure of the search.
            trial.diverged, trial.left = outcome.problem or "", []
        elif outcome.problem is not None:
            self._shared.fail(trial.number)
            raise LabError(f"{folder}: {outcome.problem}")
        else:
            results = Run(folder).results()
            if results is None:
                raise LabError(f"{folder} is finished, but its results are missing")
            trial.values[folder] = float(results["valid"][self._recipe.training.monitor])
        if trial.left or trial.under_way:
            return
        del self._trials[trial.number]
        value = None if trial.diverged else statistics.fmean(trial.values.values())
        self._shared.tell(trial.number, value)
        told = f"{self._recipe.training.monitor} {value:.6g}" if value is not None else trial.diverged
        print(f"[{self._shared.ended()}/{self._job.trials}] {trial.folder}: {told}", file=sys.stderr, flush=True)


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


def _check_space(key: str, space: Any) -> None:
    """Raise a UsageError if the choices of a setting are neither a list of values nor ``{low, high, log}``."""
    is_range = isinstance(space, dict) and all(isinstance(space.get(end), int | float) for end in ("low", "high"))
    if is_range:
        is_range = space["low"] <= space["high"] and not (space.get("log") and space["low"] <= 0)
    if not is_range and not (isinstance(space, list) and space):
        raise UsageError(
            f"search.{key} must be a list of values or {{low, high, log}} with low ≤ high, both positive if log; "
            f"got {space!r}"
        )


def _suggest(trial: optuna.Trial, key: str, space: Any) -> Any:
    """Let a trial choose; a range between two integers contains integers only."""
    if isinstance(space, list):
        return trial.suggest_categorical(key, space)
    low, high, log = space["low"], space["high"], bool(space.get("log", False))
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(key, low, high, log=log)
    return trial.suggest_float(key, float(low), float(high), log=log)
