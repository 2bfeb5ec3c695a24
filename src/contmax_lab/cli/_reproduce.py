"""Train every cell of a table and write its results.

Finished trainings are not repeated, so a table can be made in several sittings: stop it with Ctrl-C or
--budget-minutes, and the same command continues. Settings of the recipes can be changed for all cells, e.g.
--training.epochs 1. Trainings that run at the same time on one GPU take turns, unless NVIDIA's service for sharing it
runs: nvidia-cuda-mps-control -d. To use several machines pass --ray ADDRESS; docs/many-machines.md shows how.
"""

import argparse
from pathlib import Path

from contmax_lab.cli._options import add_task_option, add_worker_options, chosen_workers
from contmax_lab.errors import UsageError

TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TABLE, --data, --runs, --output, --task, --budget-minutes, and where to train."""
    parser.add_argument("table", metavar="TABLE", nargs="?", help="name of a table (contmax data list shows them)")
    parser.add_argument("--data", type=Path, help="path of the data")
    parser.add_argument("--runs", type=Path, help="folder for the trainings (default: runs/reproduce/TABLE)")
    parser.add_argument("--output", type=Path, help="file of results (default: results/TABLE.json)")
    add_task_option(parser)
    add_worker_options(parser)
    parser.add_argument(
        "--budget-minutes", type=float, default=0.0, help="stop cleanly after this many minutes (default: no limit)"
    )


def run(options: argparse.Namespace) -> None:
    """Train what is missing, print the table."""
    if options.table is None or options.help:
        options.show_help()
        if not options.help:
            raise UsageError("pass the name of a TABLE, e.g. contmax reproduce intervals --data weather.csv")
        return
    from contmax_lab.registry import find_table
    from contmax_lab.tables import Reproduction, reproduce

    task, table = find_table(options.table, options.task)
    if table.needs_data and options.data is None:
        raise UsageError(f"the table {table.name} needs --data PATH")
    if options.data is not None and not options.data.exists():
        raise UsageError(f"--data {options.data}: no such file or folder")
    if options.budget_minutes < 0:
        raise UsageError(f"--budget-minutes must be at least 0 (no limit); got {options.budget_minutes:g}")
    workers = chosen_workers(options)
    overrides = [*([f"--data.path={options.data}"] if options.data else []), *options.overrides]
    output = options.output or Path("results") / f"{table.name}.json"
    runs = options.runs or Path("runs") / "reproduce" / table.name
    print(reproduce(Reproduction(task, table, runs, output, overrides, workers, options.budget_minutes)))
    print(f"stored in {output}")
