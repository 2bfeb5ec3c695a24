"""Train small models on data that comes with the package's dependencies, and draw a report.

Needs no data and no network. The trainings go into OUTPUT/runs; the same command goes on after an interruption.
"""

import argparse
from pathlib import Path

TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--output, --jobs."""
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for the report (default: demo)")
    parser.add_argument("--jobs", type=int, default=2, help="trainings side by side (default: 2)")


def run(options: argparse.Namespace) -> None:
    """Every table that needs no data becomes a section."""
    from contmax_lab.demo import make_demo

    for line in make_demo(options.output, options.jobs):
        print(line, flush=True)
