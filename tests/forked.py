"""Processes that start at once: copies of one that has imported what tests of several processes need."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path

from torch.multiprocessing import start_processes


def process_server() -> ForkServerContext:
    """Starts processes quickly. There is one server for all tests of a worker, so that all name the same modules."""
    context = multiprocessing.get_context("forkserver")
    # What is not installed is left out.
    context.set_forkserver_preload(
        [
            "torch._dynamo",
            "contmax.nn",
            "contmax_lab.training",
            "contmax_lab.tasks.intervals._task",
            "contmax_lab.search",
        ]
    )
    return context


def run_on_two(function: Callable[..., None], *arguments: object) -> None:
    """Call ``function(rank, *arguments)`` in two processes; what one of them raises is raised here."""
    process_server()
    start_processes(function, arguments, nprocs=2, start_method="forkserver")


def run_apart(source: str, folder: Path) -> None:
    """Run a program in a folder and in a process that has only what the server has; what it raises is raised here."""
    process_server()
    start_processes(_run, (source, str(folder)), nprocs=1, start_method="forkserver")


def _run(rank: int, source: str, folder: str) -> None:
    os.chdir(folder)
    exec(compile(source, "a program", "exec"), {"__name__": "__main__"})
