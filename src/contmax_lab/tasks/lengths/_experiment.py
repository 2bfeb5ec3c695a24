"""The experiment: its table, its outcomes, and a picture of accuracy by length."""

import collections
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contmax_lab.contract import Cell as TableCell
from contmax_lab.contract import Experiment, Metric, Repetition, Row, Table
from contmax_lab.tasks.lengths._problems import KINDS, MORE, PROBLEMS, SEEDS, Cell
from contmax_lab.tasks.lengths._slices import Done, chosen_rate, read_cells, train_slice

_LONGER = ", chosen at a longer length"
_BASELINE = KINDS["softmax"].label
_FACTORS = sorted({factor for problem in PROBLEMS.values() for factor in problem.factors})
# Vasylenko et al. 2025, table 1: exact match in per cent by multiple of the training length, with the positions that we
# use. The figures are quoted from others who print them beside their own; we could not read the paper itself.
_QUOTED = "published, quoted"
_PUBLISHED: dict[str, dict[str, dict[float, float]]] = {
    "Softmax": {
        "sort": {1: 100, 2: 0, 4: 0, 8: 0},
        "reverse": {1: 100, 1.5: 36, 2: 0, 4: 0, 8: 0},
        "copy": {1: 100, 2: 100, 4: 99.9, 8: 99.9, 16: 99.4, 32: 96.1, 64: 85.5},
        "recall": {1: 100, 2: 100, 4: 100, 16: 99.5, 64: 97.8},
    },
    "ASEntmax": {
        "sort": {1: 100, 2: 100, 4: 79.7, 8: 0},
        "reverse": {1: 100, 1.5: 100, 2: 99.8, 4: 96.4, 8: 56.7},
        "copy": {1: 100, 2: 100, 4: 99.9, 8: 99.7, 16: 99.4, 32: 96.3, 64: 86.6},
        "recall": {1: 100, 2: 100, 4: 100, 16: 99.7, 64: 99.6},
    },
}


def _key(factor: float) -> str:
    """The name of a multiple in results. It has no dot, because a dot separates names.

    Example:
        >>> _key(1.5)
        'x1_5'
    """
    return f"x{factor:g}".replace(".", "_")


def _rows() -> tuple[Row, ...]:
    found = []
    for longer in ("", _LONGER):
        for name, kind in KINDS.items():
            base = KINDS["asentmax"].label if name in MORE else _BASELINE
            found.append(Row(kind.label + longer, name, against=(base + longer,)))
    return tuple(found)


LENGTHS = Table(
    name="lengths",
    title="Exact match at multiples of the training length, 64 symbols",
    rows=_rows(),
    repetitions=tuple(Repetition(f"{problem}-{seed}", (), (problem,)) for seed in SEEDS for problem in PROBLEMS),
    metrics=(
        *(Metric(f"test.{_key(f)}", f"{f:g}×", scale=100, digits=1, compared=f > 1) for f in _FACTORS),
        Metric("steps", "steps", digits=0, spread=False),
        Metric("learning_rate", "learning rate", digits=4, spread=False),
        Metric("skipped", "steps not finite", digits=0, spread=False),
    ),
    notes=(
        "Sort, reverse, copy, and recall the values of four words among pairs of words and values (multi-query "
        "multi-token associative recall). Models, batches and data as in the code of Vasylenko et al. 2025, with a "
        "twentieth of their steps: half of the heads have a penalty for distance (ALiBi) and half have no positions. "
        "Length 64 is the longest of the training.",
        "Exact match: the share of test sequences of which every symbol and the end are right, each predicted from the "
        "right symbols before it, which is the case exactly if greedy decoding makes the right sequence. 1,000 "
        "sequences of each length, fewer beyond 2,048 symbols: 512 of 4,096, 128 of 16,384, 32 of 65,536. Mean ± "
        "standard deviation over three seeds; 1024× with the first seed only.",
        "Every row tries the learning rate of the authors and 2.5 times as much with the first seed, and takes the one "
        "with more exact matches, then less loss, on validation sequences of length 64. Weights are chosen in the same "
        "way among 20 points of the training, after α has risen. Chosen at a longer length: by exact matches at 256 "
        "symbols (sort, reverse), 512 (copy) or 1,024 (recall) instead, as the authors choose.",
        "In rows with entmax α rises from 1.05 to 1.5 during the warm-up of the learning rate, in one row over half of "
        "the training; learned: each head learns its own between 1 and 2. Softmax scaled by log n (SSMax) and ASEntmax "
        "scale the queries of heads without positions. A step whose gradient is not finite is left out and counted.",
        "Published: as quoted by others, who trained again with one seed. It is there for orientation: twenty times "
        "as many steps, in bfloat16, chosen at a longer length.",
    ),
    needs_data=False,
    baseline=_BASELINE,
    shown=tuple(PROBLEMS),
    published={
        f"{label}, {_QUOTED}": {
            problem: {f"test.{_key(factor)}": figure for factor, figure in figures.items()}
            for problem, figures in by_problem.items()
        }
        for label, by_problem in _PUBLISHED.items()
    },
)


def outcomes(runs: Path) -> list[tuple[TableCell, dict[str, Any]]]:
    """The finished cells of the table: for each row, problem and seed, the training with the chosen learning rate."""
    done = read_cells(runs)
    steps = {problem: _steps(done, problem) for problem in PROBLEMS}
    found = []
    for cell in LENGTHS.cells():
        problem, _, seed = cell.repetition.name.partition("-")
        kind = cell.row.variant
        rate = chosen_rate(done, problem, kind, steps[problem])
        results = done.get(Cell(problem, kind, int(seed), rate or 0.0, steps[problem]))
        if results is not None:
            way = "longer" if cell.row.label.endswith(_LONGER) else "short"
            tests = {_key(float(name[:-1])): test["exact"] for name, test in results["chosen"][way]["tests"].items()}
            found.append((cell, {"test": tests, **results}))
    return found


def _steps(done: Done, problem: str) -> int:
    """The number of steps that most trainings of a problem have; among equally frequent numbers the largest.

    A table must not mix trainings of different numbers of steps.
    """
    counts = collections.Counter(cell.steps for cell in done if cell.problem == problem)
    return max(counts, key=lambda steps: (counts[steps], steps), default=0)


def draw(results: dict[str, Any], path: Path) -> None:
    """Accuracy by length, a panel for each problem, with the range over the seeds and the published figures.

    Args:
        results: content of the file of results.
        path: of the picture.
    """
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(12, 4.6), layout="constrained")
    ours = [row.label for row in LENGTHS.rows if not row.label.endswith(_LONGER)]
    for axes, problem in zip(picture.subplots(1, len(PROBLEMS)), PROBLEMS.values(), strict=True):
        for number, label in enumerate(ours):
            cells = [c for c in results["cells"] if c["row"] == label and c["variant"].startswith(f"{problem.name}-")]
            _draw_row(axes, problem.factors, cells, label, f"C{number}")
            published = _PUBLISHED.get(label, {}).get(problem.name)
            if published:
                style = {"mfc": "none", "color": f"C{number}", "clip_on": False, "zorder": 3}
                axes.plot(list(published), list(published.values()), "o", **style)
        axes.set_xscale("log", base=2)
        axes.set_ylim(-2, 102)
        axes.set_title(problem.name, fontsize="medium", loc="left")
        axes.set_xlabel("length / 64")
        axes.grid(alpha=0.3)
    picture.axes[0].set_ylabel("exact match, %")
    picture.axes[0].plot([], [], "o", mfc="none", color="grey", label="published, quoted")
    picture.legend(*picture.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    picture.savefig(path, dpi=150)


def _draw_row(axes: Any, factors: Sequence[float], cells: Sequence[dict[str, Any]], label: str, colour: str) -> None:
    """Mean and range over the seeds of one row; a label without a line if nothing was measured."""
    shown = [(f, [100 * c[_key(f)] for c in cells if _key(f) in c]) for f in factors]
    shown = [(factor, values) for factor, values in shown if values]
    places = [factor for factor, _ in shown]
    axes.plot(places, [sum(values) / len(values) for _, values in shown], label=label, color=colour)
    if places:
        low, high = ([extreme(values) for _, values in shown] for extreme in (min, max))
        axes.fill_between(places, low, high, color=colour, alpha=0.2)


EXPERIMENT = Experiment(
    LENGTHS, train=lambda runs, minutes: train_slice(runs, budget_minutes=minutes), outcomes=outcomes, draw=draw
)
