"""Train small models on data that is already installed, and draw a report.

Needs no data of yours and no network; takes a few minutes on two cores. The runs are kept in OUTPUT/runs; after an
interruption, the same command continues. Settings can be changed for all models, e.g. --training.epochs 1.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from contmax_lab.errors import UsageError

TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--output, --jobs, --seeds."""
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for the report (default: demo)")
    parser.add_argument("--jobs", type=int, default=2, help="how many models to train at the same time (default: 2)")
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        choices=(1, 2, 3),
        help="how often to train each model, with different seeds (default: 1)",
    )


def run(options: argparse.Namespace) -> None:
    """Every table that needs no data becomes a section."""
    if options.help:
        options.show_help()
        return
    if options.jobs < 1:
        raise UsageError(f"--jobs must be at least 1; got {options.jobs}")
    # Small models gain nothing from a second thread, and trainings side by side would fight for the cores. The setting
    # is for the processes that train, which read it when they import torch.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from rich.console import Console

    from contmax_lab.demo import DemoJob, make_demo

    # A table in a file or a pipe is not cut to the width of no terminal.
    console = Console(width=None if os.isatty(1) else 120, highlight=False)
    job = DemoJob(options.output, options.jobs, options.seeds, options.overrides)
    page = make_demo(job, lambda section: _show(section, console))
    console.print(f"\nopen [bold]{page.resolve()}[/bold]; the pictures are beside it", soft_wrap=True)


def _show(section: Any, console: Any) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=section.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    head, *body = section.table or [[""]]
    for index, name in enumerate(head):
        shown.add_column(name, justify="right" if index else "left")
    for line in body:
        # Brackets in a text are brackets, not markup.
        shown.add_row(*map(Text, line))
    console.print()
    if body:
        console.print(shown)
    else:
        console.print(section.title, style="bold")
        console.print(section.text)
