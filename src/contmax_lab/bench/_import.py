"""What ``import contmax`` adds to the time that torch takes, each import in a process of its own."""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from contmax_lab.bench._figure import Figure
from contmax_lab.bench._suite import Suite
from contmax_lab.bench._timing import Effort, interleaved

_TABLE = "import: seconds of processor time beyond import torch"
_SOURCES = Path(__file__).parents[2]
_ALL = (
    "attention, basis, deformed, densities, domains, expectations, integrations, losses, maps, nn, prediction, signal"
)
# What is imported after torch → most seconds; parts are loaded when they are first used.
_PROGRAMS = {
    "import contmax": ("import contmax", 0.1),
    "contmax.sparsemax": ("import contmax; contmax.sparsemax", 0.1),
    "contmax.nn": ("import contmax.nn", None),
    "every part": (f"from contmax import {_ALL}", None),
}


def _figures(effort: Effort) -> Iterator[Figure]:
    alone = "import torch"
    programs = {alone: alone, **{name: f"{alone}; {program}" for name, (program, _) in _PROGRAMS.items()}}
    times = interleaved({name: partial(_run, program) for name, program in programs.items()}, effort, _children_seconds)
    torch_seconds = statistics.median(times[alone])
    yield Figure(_TABLE, alone, "torch alone", torch_seconds)
    for name, (_, most) in _PROGRAMS.items():
        extra = [ours - theirs for ours, theirs in zip(times[name], times[alone], strict=True)]
        details = {"minimum": min(extra), "rounds": len(extra)}
        yield Figure(_TABLE, name, "beyond torch", statistics.median(extra), at_most=most, details=details)


def _run(program: str) -> None:
    """A fresh interpreter that finds this package; compiled Python is kept, as it is where a package is installed."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = os.pathsep.join([str(_SOURCES), *filter(None, [environment.get("PYTHONPATH")])])
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def _children_seconds() -> float:
    """Processor time of the processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


IMPORT = Suite("import", _figures)
