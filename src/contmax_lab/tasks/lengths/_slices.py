"""Which cells are left, their order, and `train_slice`, which trains as many of them as a time limit allows."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from contmax_lab.errors import Interrupted, LabError
from contmax_lab.provenance import provenance
from contmax_lab.tasks.lengths._problems import FIRST_SEED, MAIN, MORE, PROBLEMS, RATES, SEEDS, Cell, Problem
from contmax_lab.tasks.lengths._training import VALIDATIONS, Training

# A training takes 1/SHARE of the steps of the authors.
SHARE = 20
# The number of models that are trained side by side on a GPU.
SIDE_BY_SIDE = 4
FILE = "cells.jsonl"
Done = Mapping[Cell, dict[str, Any]]


def steps_of(problem: str, share: int) -> int:
    """The steps of a training that takes one `share`-th of those of the authors.

    Example:
        >>> steps_of("sort", 20)
        15625
    """
    return PROBLEMS[problem].steps // share


def read_cells(runs: Path) -> dict[Cell, dict[str, Any]]:
    """The cells that are done, from the file in the folder.

    Raises:
        LabError: if a line is damaged.
    """
    path = runs / FILE
    if not path.is_file():
        return {}
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), start=1):
        if not line:
            continue
        try:
            results = json.loads(line)
            found[Cell(*(results[field] for field in Cell._fields))] = results
        except (ValueError, KeyError, TypeError):
            raise LabError(
                f"{path}:{number} is not a line of results; delete it, and its cell is trained again"
            ) from None
    return found


def store(runs: Path, results: Mapping[str, Any]) -> None:
    """Add the results of a cell to the file, which is replaced as a whole: an interruption leaves the old file."""
    path, aside = runs / FILE, runs / f".{FILE}.partial"
    runs.mkdir(parents=True, exist_ok=True)
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    # A line that somebody has added by hand may have no end.
    end = "\n" if before and not before.endswith("\n") else ""
    with aside.open("w", encoding="utf-8") as file:
        file.write(before + end + json.dumps(results, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def chosen_rate(done: Done, problem: str, kind: str, steps: int) -> float | None:
    """The multiple of the learning rate that is best for a row, by validation at length 64 with the first seed.

    The result is None if not all rates have been tried.
    """
    tried = {rate: done.get(Cell(problem, kind, FIRST_SEED, rate, steps)) for rate in RATES}
    scores = {}
    for rate, results in tried.items():
        if results is None:
            return None
        point = next(p for p in results["curve"] if p["step"] == results["chosen"]["short"]["step"])
        scores[rate] = (point["short"], -point["short_loss"])
    return max(scores, key=lambda rate: scores[rate])


def cells_left(done: Done, problems: Sequence[str], share: int) -> Iterator[list[Cell]]:
    """Groups of cells that may be trained now, in the order in which they should be.

    The main rows of all problems come before the other rows. Within a problem, trainings with the first seed try all
    learning rates; then the other seeds follow, with the better rate.
    """
    for kinds in (MAIN, MORE):
        for problem in problems:
            steps = steps_of(problem, share)
            tries = [Cell(problem, kind, FIRST_SEED, rate, steps) for rate in RATES for kind in kinds]
            rates = {kind: chosen_rate(done, problem, kind, steps) for kind in kinds}
            rest = [
                Cell(problem, kind, seed, rate, steps)
                for seed in SEEDS
                for kind, rate in rates.items()
                if seed != FIRST_SEED and rate is not None
            ]
            left = [cell for cell in [*tries, *rest] if cell not in done]
            if left:
                yield left


def train_slice(
    runs: Path,
    *,
    budget_minutes: float = 0.0,
    share: int = SHARE,
    side_by_side: int = SIDE_BY_SIDE,
    problems: Sequence[str] = tuple(PROBLEMS),
    sizes: Mapping[str, Problem] = PROBLEMS,
    device: torch.device | None = None,
) -> dict[Cell, dict[str, Any]]:
    """Train cells that are left, several side by side, until all are done or time is up.

    Args:
        runs: folder of the file of results, which gets a line whenever a cell is done.
        budget_minutes: time limit; a group of cells that would exceed it is not begun, or stopped; 0 = no limit.
        share: steps are one `share`-th of those of the authors.
        side_by_side: cells at a time.
        problems: their names, in order.
        sizes: of the problems.
        device: by default the GPU if there is one.

    Returns:
        All cells that are done.

    Raises:
        Interrupted: if time was up; what is done is stored.
    """
    begun = time.monotonic()
    deadline = begun + 60 * budget_minutes if budget_minutes else None
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    origin = provenance(("contmax", "torch", "triton", "numpy"))
    while True:
        done = read_cells(runs)
        left = next(cells_left(done, problems, share), [])
        if not left:
            return done
        group = left[:side_by_side]
        expected = _expected_seconds(done, group, device)
        if deadline is not None and time.monotonic() + expected > deadline:
            raise _out_of_time(len(done), f"the next cells take {expected:.0f} s")
        for results in _trained(group, sizes[group[0].problem], device, deadline, len(done)):
            store(runs, {**results, "provenance": origin})


def _expected_seconds(done: Done, group: Sequence[Cell], device: torch.device) -> float:
    """How long a group of cells takes, estimated from similar cells that ran on this type of device; 0 without any."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    like = [
        results["steps_per_second"]
        for cell, results in done.items()
        if (cell.problem, cell.kind in MAIN) == (group[0].problem, group[0].kind in MAIN) and results["device"] == gpu
    ]
    tests = [results["test_seconds"] for cell, results in done.items() if cell.problem == group[0].problem]
    if not like:
        return 0.0
    return float(sum(cell.steps for cell in group) / min(like) + len(group) * max(tests))


def _trained(
    group: Sequence[Cell], problem: Problem, device: torch.device, deadline: float | None, done: int
) -> Iterator[dict[str, Any]]:
    """The results of cells of one problem that learn side by side."""
    steps = group[0].steps
    lanes = [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in group]
    trainings = []
    for cell, lane in zip(group, lanes, strict=True):
        with _on(lane):
            trainings.append(Training(cell, problem, device))
    _say(f"{problem.name}: {', '.join(f'{c.kind} seed {c.seed} rate {c.rate:g}' for c in group)}; {steps} steps")
    places = sorted({max(1, round(steps * number / VALIDATIONS)) for number in range(1, VALIDATIONS + 1)})
    begun = last = time.monotonic()
    taken, rates = 0, list[float]()
    for place in places:
        for _ in range(taken, place):
            for training, lane in zip(trainings, lanes, strict=True):
                with _on(lane):
                    training.advance()
        for training, lane in zip(trainings, lanes, strict=True):
            with _on(lane):
                training.validate()
        now = time.monotonic()
        rates.append(len(group) * (place - taken) / (now - last))
        _say(f"  step {place}, {rates[-1]:.0f} steps/s of all; " + "; ".join(_shown(t) for t in trainings))
        # Steps that compile kernels (the first, and the first after α has risen) are slow: estimate the rest from the
        # fastest.
        ahead = now + len(group) * (steps - place) / max(rates)
        if deadline is not None and len(rates) > 2 and ahead > deadline:
            raise _out_of_time(done, f"these cells would take {ahead - now:.0f} s more, and are begun again")
        taken, last = place, now
    seconds = time.monotonic() - begun
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    for training, lane in zip(trainings, lanes, strict=True):
        with _on(lane):
            results = training.results(seconds, len(group))
        tests = {name: found["exact"] for name, found in results["chosen"]["short"]["tests"].items()}
        _say(f"  {training.cell.kind}, rate {training.cell.rate:g}, seed {training.cell.seed}: {tests}")
        yield {**results, "device": gpu}


def _on(lane: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if lane is None else torch.cuda.stream(lane)


def _shown(training: Training) -> str:
    point = training.curve[-1]
    return f"{training.cell.kind} loss {point['loss']:.4f} exact {point['short']:.3f} longer {point['longer']:.3f}"


def _out_of_time(done: int, why: str) -> Interrupted:
    return Interrupted(f"time is up ({why}) with {done} cells done, which are stored; the same command continues", 0)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
