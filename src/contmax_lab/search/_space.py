"""What a search chooses from."""

from typing import Any

import optuna

from contmax_lab.errors import UsageError


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
