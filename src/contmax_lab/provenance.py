"""Where and on what figures came about: commit, machine, versions. No host names, no paths."""

import datetime
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contmax_lab.packages import version

_ROOT = Path(__file__).parents[2]


def provenance(packages: Sequence[str]) -> dict[str, Any]:
    """Commit, date, machine and versions, for the head of a file of results.

    Args:
        packages: those that matter, beside Python itself.

    Returns:
        `commit` and `dirty` (uncommitted changes outside `results/`; both None outside a checkout), `date` (UTC),
        `machine` and `versions` (None for a package that is not installed).

    Example:
        >>> sorted(provenance(["torch"]))
        ['commit', 'date', 'dirty', 'machine', 'versions']
    """
    status = _git("status", "--porcelain", "--", ".", ":(exclude)results")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if status is None else status != "",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }


def _machine() -> dict[str, Any]:
    # Imported here, since the help of the command needs no torch.
    import torch

    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cores_used": torch.get_num_threads(),
        # Other processes do not count as processor time, but they slow caches and memory down.
        "load_at_start": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """What git says about the checkout this file lies in, or None where there is none."""
    if not (_ROOT / ".git").exists():
        return None
    # Without this option, `git status` would rewrite the index.
    command = ["git", "--no-optional-locks", "-C", str(_ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
