"""What is attacked: each target is a function of a module of this package, with its share of the time."""

import importlib
from collections.abc import Callable
from typing import Any

# Nothing here imports torch: the process that hands out cases needs none of it.
SHARES: dict[str, float] = {
    "hunts.long_maps": 12,
    "hunts.long_hard": 12,
    "hunts.long_soft": 6,
    "hunts.short_maps": 2,
    "hunts.short_hard": 2,
    "hunts.short_soft": 1,
    "maps.fixed": 4,
    "maps.per_row": 3,
    "maps.masked": 3,
    "maps.huge": 1,
    "losses.hard": 4,
    "losses.smoothed": 2,
    "losses.masked": 2,
    "losses.any_alpha": 2,
    "losses.soft": 3,
    "losses.infinite_targets": 0.5,
    "linear_loss.linear": 3,
    "attention.short": 4,
    "attention.long": 4,
    "attention.sampled": 3,
    "attention.decoded": 4,
    "continuous.gates": 2,
    "continuous.line": 2,
    "continuous.plane": 2,
    "continuous.contexts": 2,
    "launches.streams": 1.5,
    "launches.threads": 1.5,
    "launches.graphs": 1.5,
    "launches.turns": 1,
}


def function_of(target: str) -> Callable[[Any], None]:
    """The function that runs a case of a target."""
    module, _, name = target.partition(".")
    function: Callable[[Any], None] = getattr(importlib.import_module(f"fuzz.gpu.{module}"), name)
    return function
