"""What a subcommand is, options that several of them share, and how results look in a terminal."""

import argparse
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from contmax_lab.errors import LabError, UsageError, nearest

if TYPE_CHECKING:
    from contmax_lab.workers import Workers


class Argument:
    """An argument of a subcommand, as ``ArgumentParser.add_argument`` takes it."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.names, self.options = names, options


class Command(NamedTuple):
    """A subcommand.

    Args:
        summary: its line in the list of subcommands.
        examples: command lines.
        arguments: of its parser; of a tuple of arguments only one may be passed.
        run: does it; its docstring is the help text.
        needed: the argument without which it shows its help and fails.
        hint: how to pass that argument.
        takes_overrides: whether settings of recipes, such as ``--training.epochs 1``, are allowed.
    """

    summary: str
    examples: tuple[str, ...]
    arguments: Sequence[Argument | tuple[Argument, ...]]
    run: Callable[[argparse.Namespace], None]
    needed: str = ""
    hint: str = ""
    takes_overrides: bool = True

    @property
    def name(self) -> str:
        """What the user types: the name of the function, such as ``new-task``."""
        return self.run.__name__.replace("_", "-")


def command(
    summary: str, examples: tuple[str, ...], arguments: Sequence[Argument | tuple[Argument, ...]] = (), **options: Any
) -> Callable[[Callable[[argparse.Namespace], None]], Command]:
    """Make a function of the parsed options a subcommand; arguments as of `Command`."""
    return lambda run: Command(summary, examples, arguments, run, **options)


_ELSEWHERE = "where to find a task that is not installed, e.g. my_module:TASK (can be repeated)"
_JOBS = "how many models to train at the same time (default: 1; with --ray, as many as the cluster has room for)"
_RAY = "train on this Ray cluster: HOST:PORT, or auto on one of its machines (docs/many-machines.md)"
_GPUS = "with --ray: GPUs for each training, or a fraction of one, e.g. 0.25 (default: 1 if the cluster has any)"
_RETRIES = "with --ray: how often to move a training whose machine was lost to another one (default: 3)"

TASK = Argument("--task", action="append", default=[], metavar="MODULE:NAME", help=_ELSEWHERE)
VARIANT = Argument("--variant", default="", help="which variant of the recipe; the same as TASK/VARIANT")
# Where trainings run, and how many at a time.
WORKERS = (
    Argument("--jobs", type=int, help=_JOBS),
    Argument("--ray", metavar="ADDRESS", help=_RAY),
    Argument("--gpus-per-cell", type=float, metavar="N", help=_GPUS),
    Argument("--retries", type=int, metavar="N", help=_RETRIES),
)


def at_least(options: argparse.Namespace, **least: int) -> None:
    """Raise a UsageError if an option that was passed is smaller than its least value."""
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


def require_files(data: Any) -> None:
    """Raise an error if a file that the settings name is not there.

    It is said before anything else, such as that a folder holds a run already.

    Args:
        data: the section data of a recipe.
    """
    for name in ("train", "validation", "valid", "test", "labels", "vectors"):
        path = getattr(data, name, None)
        if not isinstance(path, Path) or path.exists():
            continue
        with contextlib.suppress(OSError, ValueError):
            others = [other.name for other in path.parent.iterdir()]
            # A pair of files for translation is named by what their names have in common.
            if any(other.startswith(f"{path.name}.") for other in others):
                continue
            raise LabError(f"--data.{name} {path}: there is no such file or folder{nearest(path.name, others)}")
        raise LabError(f"--data.{name} {path}: there is no such file or folder")


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
