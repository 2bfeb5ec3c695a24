"""Options that several subcommands share."""

import argparse
from typing import TYPE_CHECKING

from contmax_lab.errors import UsageError

if TYPE_CHECKING:
    from contmax_lab.workers import Workers


def add_task_option(parser: argparse.ArgumentParser) -> None:
    """--task, for tasks that are not installed."""
    text = "where to find a task that is not installed, e.g. my_module:TASK (can be repeated)"
    parser.add_argument("--task", action="append", default=[], metavar="MODULE:NAME", help=text)


def add_variant_option(parser: argparse.ArgumentParser) -> None:
    """--variant, of a recipe."""
    parser.add_argument("--variant", default="", help="which variant of the recipe; the same as TASK/VARIANT")


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    """--jobs, --ray, --gpus-per-cell, --retries: where trainings run, and how many at a time."""
    text = "how many models to train at the same time (default: 1; with --ray, as many as the cluster has room for)"
    parser.add_argument("--jobs", type=int, help=text)
    text = "train on this Ray cluster: HOST:PORT, or auto on one of its machines (docs/many-machines.md)"
    parser.add_argument("--ray", metavar="ADDRESS", help=text)
    text = "with --ray: GPUs for each training, or a fraction of one, e.g. 0.25 (default: 1 if the cluster has any)"
    parser.add_argument("--gpus-per-cell", type=float, metavar="N", help=text)
    text = "with --ray: how often to move a training whose machine was lost to another one (default: 3)"
    parser.add_argument("--retries", type=int, metavar="N", help=text)


def chosen_workers(options: argparse.Namespace) -> "Workers":
    """The workers that the options describe.

    Raises:
        UsageError: if they make no sense.
    """
    from contmax_lab.workers import LocalProcesses, RayCluster

    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"--jobs must be at least 1; got {options.jobs}")
    if options.ray is not None:
        retries = 3 if options.retries is None else options.retries
        return RayCluster(options.ray, options.jobs or 0, options.gpus_per_cell, retries)
    for name in ("gpus_per_cell", "retries"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} works only with --ray ADDRESS; pass that too")
    return LocalProcesses(options.jobs or 1)
