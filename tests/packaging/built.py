"""The wheel and the sdist, and an environment that has torch, numpy and what these two need, nothing else."""

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(folder: Path) -> tuple[Path, Path]:
    """(wheel, sdist), the wheel made from the sdist."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def sources() -> set[str]:
    """Every file of the two packages, as a wheel names them."""
    files = (path for name in ("contmax", "contmax_lab") for path in (ROOT / "src" / name).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT / "src")) for path in files if "__pycache__" not in path.parts}


def needed_by(*names: str) -> set[str]:
    """Distributions that are installed with these, without any extra."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            needed, _, marker = line.partition(";")
            needed = re.match(r"[\w.-]+", needed)[0]
            if "extra" not in marker and _is_installed(needed):
                waiting.append(needed)
    return found


def _is_installed(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


class BareEnvironment:
    """A virtual environment with links to the needs of torch and numpy, into which a wheel is installed.

    Args:
        folder: where it is made.
        wheel: installed without its dependencies.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        links = folder / "links"
        links.mkdir(parents=True)
        for name in needed_by("torch", "numpy"):
            _link(name, links)
        venv.create(folder / "venv", symlinks=True)
        self.bin = folder / "venv" / "bin"
        (site,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
        (site / "links.pth").write_text(f"{links}\n")
        install = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.bin / "python"),
            "install",
            "--no-deps",
            "--no-index",
        ]
        quiet = ["--quiet", "--no-compile", "--disable-pip-version-check"]
        subprocess.run([*install, *quiet, str(wheel)], check=True, timeout=120, env=_environment())

    def run(self, *command: str) -> subprocess.CompletedProcess:
        """A program of the environment, in a folder of no meaning."""
        line = [str(self.bin / command[0]), *command[1:]]
        options = {"capture_output": True, "text": True, "check": False, "timeout": 120}
        return subprocess.run(line, cwd=self.bin, env=_environment(), **options)


def _environment() -> dict[str, str]:
    """This process's, without what would show the packages of its own."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "CONTMAX"))}


def _link(name: str, folder: Path) -> None:
    files = importlib.metadata.files(name)
    for top in {file.parts[0] for file in files or []} - {"..", "bin", "__pycache__"}:
        target, link = Path(str(importlib.metadata.distribution(name).locate_file(top))), folder / top
        if not link.exists():
            link.symlink_to(target.resolve())
