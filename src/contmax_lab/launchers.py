"""Several processes where ``accelerate launch --cpu`` has started one.

Without MPI, ``accelerate launch --cpu --num_processes N`` starts one process, whatever N is, and does not tell it N.
That process reads N from the command line of the launcher, and lets torchrun start N processes in its place.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def start_missing_processes(words: Sequence[str]) -> None:
    """Start what the launcher has not started, in place of this process; nothing, where nothing is missing.

    Args:
        words: of the command line, after ``contmax``.
    """
    if not is_one_of_several():
        return
    count = _processes_wanted(_command_of_launcher())
    if count > 1:
        _become_several(count, words)


def is_one_of_several() -> bool:
    """Whether accelerate was to start several processes on the CPU, and has started this one alone."""
    # A process of a group has WORLD_SIZE set.
    return "ACCELERATE_USE_CPU" in os.environ and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ


def _command_of_launcher() -> list[str]:
    # psutil comes with accelerate, without which this is never called.
    import psutil

    try:
        return list(psutil.Process().parent().cmdline())
    except (psutil.Error, AttributeError):  # it has gone, or belongs to somebody else
        return []


def _processes_wanted(command: Sequence[str]) -> int:
    """N of ``accelerate launch --num_processes N`` on one machine; 0 where the command does not say.

    Example:
        >>> _processes_wanted(["python", "/bin/accelerate", "launch", "--cpu", "--num_processes", "2", "-m", "it"])
        2
        >>> _processes_wanted(["bash", "-c", "it"])
        0
    """
    # A parser of our own: that of accelerate takes as long to import as torch.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, default in (("processes", 0), ("machines", 1)):
        parser.add_argument(f"--num_{name}", f"--num-{name}", type=int, default=default)
    launchers = ("accelerate.commands.launch", "accelerate-launch")
    begins = [place for place, word in enumerate(command) if word == "launch" or word.endswith(launchers)]
    if not begins:
        return 0
    options, _ = parser.parse_known_args(command[begins[0] + 1 :])
    return int(options.num_processes) if options.num_machines == 1 else 0


def _become_several(count: int, words: Sequence[str]) -> NoReturn:
    """Replace this process by torchrun, which passes signals on."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    sys.stdout.flush()
    os.execv(sys.executable, [*torchrun, "-m", "contmax_lab", *words])
