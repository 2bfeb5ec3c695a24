"""Search over a recipe with optuna: a trial is a training, or several, that never see the test examples."""

import dataclasses
import statistics
from pathlib import Path
from typing import Any

import optuna

from contmax_lab.errors import Diverged, Interrupted, LabError, UsageError
from contmax_lab.files import make_folder
from contmax_lab.recipes import RecipeSource
from contmax_lab.runs import Run
from contmax_lab.training import train


@dataclasses.dataclass(frozen=True)
class Search:
    """What to search.

    Args:
        source: the recipe.
        overrides: dotted, for every trial.
        runs: folder for the trials.
        storage: address of the database.
        trials: in all, earlier ones included.
        repetitions: dotted overrides; a trial is trained once with each and judged by the mean. Where validation
            examples are few, several splits say more than one.
    """

    source: RecipeSource
    overrides: tuple[str, ...]
    runs: Path
    storage: str
    trials: int
    repetitions: tuple[str, ...] = ()


def search(job: Search) -> optuna.trial.FrozenTrial:
    """Run the trials that are left and return the best of all.

    Raises:
        UsageError: if the recipe has nothing to choose from.
        LabError: if the data cannot be read, the database cannot be used, or every trial failed.
    """
    recipe = job.source.recipe(job.overrides)
    if not recipe.search:
        raise UsageError(
            f"{job.source.origin} has no section search; add e.g. search: {{training.learning_rate: [0.001, 0.002]}}"
        )
    for key, space in recipe.search.items():
        _check_space(key, space)
    # Data that cannot be read is no fault of the hyper-parameters, which every trial would be blamed for.
    recipe.task.load(recipe.data, recipe.seed)
    # What goes wrong in a trial is told by us, in one line, not by optuna with a traceback.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    make_folder(job.runs)
    try:
        study = optuna.create_study(
            study_name=job.source.origin,
            storage=job.storage,
            direction="maximize" if recipe.training.goal == "max" else "minimize",
            load_if_exists=True,
        )
        # Seeded by what is there already, or a search that goes on would draw its first trials again.
        study.sampler = optuna.samplers.TPESampler(seed=recipe.seed + len(study.trials))
    except Exception as error:  # every database has errors of its own
        raise _unusable(job, error) from None
    _check_same_search(study, job, recipe.search)
    finished = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    left = job.trials - len(study.get_trials(states=finished))
    try:
        study.optimize(lambda trial: _objective(job, recipe.search, trial), n_trials=max(left, 0))
    except optuna.exceptions.StorageInternalError as error:
        raise _unusable(job, error) from None
    try:
        return study.best_trial
    except ValueError:
        raise LabError("no trial succeeded; look at the ranges in the section search") from None


def _objective(job: Search, choices: dict[str, Any], trial: optuna.Trial) -> float:
    chosen = {key: _suggest(trial, key, space) for key, space in choices.items()}
    overrides = [*job.overrides, *(f"--{key}={value}" for key, value in chosen.items())]
    folder = job.runs / f"trial-{trial.number:04d}"
    if not job.repetitions:
        return _judged(job.source, overrides, folder)
    return statistics.fmean(
        _judged(job.source, [*overrides, repetition], folder / repetition.removeprefix("--"))
        for repetition in job.repetitions
    )


def _judged(source: RecipeSource, overrides: list[str], folder: Path) -> float:
    """The monitored metric of one training."""
    recipe = source.recipe(overrides)
    try:
        results = train(recipe, Run(folder), resume=True, test=False)
    except Interrupted as stopped:
        error = Interrupted(f"stopped in {folder}; the same command goes on with the trials that are left")
        error.exit_code = stopped.exit_code
        raise error from None
    except Diverged as error:
        # Hyper-parameters that diverge are a finding, not a failure of the search.
        raise optuna.TrialPruned(str(error)) from None
    return float(results["valid"][recipe.training.monitor])


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
            "pass another --runs"
        )


def _unusable(job: Search, error: Exception) -> LabError:
    return LabError(f"cannot use the database {job.storage}: {' '.join(str(error).split())[:200]}")


def _check_space(key: str, space: Any) -> None:
    if isinstance(space, list) and space:
        return
    numbers = isinstance(space, dict) and all(isinstance(space.get(end), int | float) for end in ("low", "high"))
    if not numbers or space["low"] > space["high"] or (space.get("log") and space["low"] <= 0):
        raise UsageError(
            f"search.{key} must be a list of values or {{low, high, log}} with low ≤ high, both positive if log; "
            f"got {space!r}"
        )


def _suggest(trial: optuna.Trial, key: str, space: Any) -> Any:
    if isinstance(space, list):
        return trial.suggest_categorical(key, space)
    low, high, log = space["low"], space["high"], bool(space.get("log", False))
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(key, low, high, log=log)
    return trial.suggest_float(key, float(low), float(high), log=log)
