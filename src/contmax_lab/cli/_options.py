"""What a subcommand is, options that several of them share, and how results look in a terminal."""

import argparse
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from contmax_lab.errors import UsageError

if TYPE_CHECKING:
    from contmax_lab.workers import Workers


class Command(NamedTuple):
    """A subcommand.

    Args:
        summary: its line in the list of subcommands.
        examples: command lines.
        add_arguments: declares its options.
        run: does it; its docstring is the help text.
        needed: the argument without which it shows its help and fails.
        hint: how to pass that argument.
        takes_overrides: whether settings of recipes, such as ``--training.epochs 1``, are allowed.
    """

    summary: str
    examples: tuple[str, ...]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    needed: str = ""
    hint: str = ""
    takes_overrides: bool = True


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


def at_least(options: argparse.Namespace, **least: int) -> None:
    """Check numbers that were passed.

    Raises:
        UsageError: if one is smaller than its least value.
    """
    for name, bound in least.items():
        if (value := getattr(options, name)) is not None and value < bound:
            raise UsageError(f"--{name} must be at least {bound}; got {value}")


def chosen_workers(options: argparse.Namespace) -> "Workers":
    """The workers that the options describe.

    Raises:
        UsageError: if the options contradict each other.
    """
    from contmax_lab.workers import LocalProcesses, RayCluster

    at_least(options, jobs=1)
    if options.ray is not None:
        retries = 3 if options.retries is None else options.retries
        return RayCluster(options.ray, options.jobs or 0, options.gpus_per_cell, retries)
    for name in ("gpus_per_cell", "retries"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} works only with --ray ADDRESS; pass that too")
    return LocalProcesses(options.jobs or 1)


def on_main_process() -> bool:
    """Whether this is the first of the processes that torchrun started, the only one that prints."""
    return os.environ.get("RANK", "0") == "0"


def metrics_line(split: str, metrics: Mapping[str, Any]) -> str:
    """The metrics of a split in one line.

    Example:
        >>> metrics_line("valid", {"loss": 0.25, "accuracy": 0.5})
        'valid loss 0.25  accuracy 0.5'
    """
    return f"{split:6}" + "  ".join(f"{name} {value:.5g}" for name, value in metrics.items())


def aligned(lines: list[list[str]]) -> str:
    """Cells in columns.

    Example:
        >>> print(aligned([["a", "1"], ["long", "22"]]))
        a     1
        long  22
    """
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
