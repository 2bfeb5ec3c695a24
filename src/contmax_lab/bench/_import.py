"""What ``import contmax`` adds to the time that torch takes, in fresh processes."""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from contmax_lab.bench._figure import Figure, Suite
from contmax_lab.bench._measuring import Effort

_TABLE = "processor time of imports in seconds"
_SOURCES = Path(__file__).parents[2]
_PARTS = "attention, basis, deformed, densities, domains, expectations, integrations, losses, maps, nn, prediction"
# Row → program, and target in seconds. Parts of contmax are loaded at their first use.
_PROGRAMS = {
    "import contmax": ("import contmax", 0.1),
    "first use of contmax.sparsemax": ("import contmax; contmax.sparsemax", 0.1),
    "import contmax.nn": ("import contmax.nn", None),
    "every part": (f"from contmax import {_PARTS}, signal", None),
}
_TIMED = """
import time
start = time.process_time()
import torch
between = time.process_time()
{program}
print(between - start, time.process_time() - between)
"""


def _figures(effort: Effort) -> Iterator[Figure]:
    for program, _ in _PROGRAMS.values():
        _seconds(program)  # compiles Python, fills the disk's cache
    by_torch: list[float] = []
    ours: dict[str, list[float]] = {name: [] for name in _PROGRAMS}
    for _ in range(effort.fewest_rounds):
        for name, (program, _) in _PROGRAMS.items():
            first, then = _seconds(program)
            by_torch.append(first)
            ours[name].append(then)
    yield Figure(_TABLE, "import torch", "alone", statistics.median(by_torch), details=_spread(by_torch))
    for name, (_, most) in _PROGRAMS.items():
        median = statistics.median(ours[name])
        yield Figure(_TABLE, name, "after import torch", median, at_most=most, details=_spread(ours[name]))


def _spread(seconds: list[float]) -> dict[str, float]:
    return {"minimum": min(seconds), "maximum": max(seconds), "rounds": len(seconds)}


def _seconds(program: str) -> tuple[float, float]:
    """Seconds of ``import torch`` and of the program after it, in a fresh interpreter with cached bytecode."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = os.pathsep.join([str(_SOURCES), *filter(None, [environment.get("PYTHONPATH")])])
    command = [sys.executable, "-c", _TIMED.format(program=program)]
    printed = subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout
    by_torch, then = map(float, printed.split())
    return by_torch, then


IMPORT = Suite("import", _figures)
