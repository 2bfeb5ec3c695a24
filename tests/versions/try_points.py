"""Tries contmax on the versions of Python, torch, NumPy and numba of `points.toml`: ``make test-versions``.

    python tests/versions/try_points.py                 # every point of Linux, and a table at the end
    python tests/versions/try_points.py oldest newest   # these
    python tests/versions/try_points.py newest --python 3.14=/opt/python3.14/bin/python3.14
    python tests/versions/try_points.py --list          # their names and versions of Python, as JSON

A point gets an environment of its own below `build/versions`, into which pip installs contmax with the versions of the
point: this fails if they do not satisfy `pyproject.toml`. The environment is removed when its tests are done. On Linux
pip takes torch with CUDA, up to seven gigabytes; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids that.

This file needs nothing but Python's standard library.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "versions"
RESULTS = ROOT / "results" / "versions.json"
SHOWN = ("torch", "numpy", "numba", "triton", "transformers")
# What the tests need besides the point's own versions. The run-time type checker is missing on purpose: without it
# traced tests run beside the others.
TOOLS = ["pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100", "scipy>=1.14", "mpmath>=1.3", "entmax>=1.3"]


def main() -> int:
    """Try the points that the command line names; the exit status is 1 if a test failed."""
    stated = tomllib.loads(Path(__file__).with_name("points.toml").read_text(encoding="utf-8"))
    points = stated["points"] | {"elsewhere": stated["elsewhere"]}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="POINT", help="default: every point")
    parser.add_argument("--python", action="append", default=[], metavar="3.14=PATH", help="an interpreter")
    parser.add_argument("--keep", action="store_true", help="leave environments where they are")
    parser.add_argument("--list", action="store_true", help="print the points as JSON")
    asked = parser.parse_args()
    if asked.list:
        print(json.dumps([{"name": name, "python": point["python"]} for name, point in stated["points"].items()]))
        return 0
    unknown = set(asked.names) - set(points)
    if unknown:
        parser.error(f"there is no point {', '.join(sorted(unknown))}; choose from {', '.join(points)}")
    interpreters = dict(given.split("=", 1) for given in asked.python)
    done = []
    for name in asked.names or stated["points"]:
        point = points[name]
        core = point.get("core", stated["core"])
        done.append(tried(name, point, core, interpreters.get(point["python"]), asked.keep))
        print(table(done), *done[-1]["failures"], sep="\n", flush=True)
    store(done)
    return int(any(result["failed"] or result["error"] for result in done))


def tried(name: str, point: dict[str, Any], core: list[str], interpreter: str | None, keep: bool) -> dict[str, Any]:
    """What became of a point: its versions, and the numbers of tests."""
    result = {"point": name, "python": point["python"], "passed": 0, "failed": 0, "skipped": 0, "seconds": 0}
    result |= {"error": "", "versions": {}, "failures": [], "machine": platform.platform()}
    interpreter = interpreter or found(point["python"])
    if interpreter is None:
        return result | {"error": f"no Python {point['python']} here"}
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    try:
        python = environment(folder, interpreter, point)
        return result | tested(python, core)
    except subprocess.CalledProcessError as error:
        lines = [line for line in (error.stderr or "").splitlines() if line.startswith("ERROR")]
        return result | {"error": (lines or ["an environment could not be made"])[0]}
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def found(version: str) -> str | None:
    """An interpreter of this version, such as 3.12: this one, one on the PATH, or one of pyenv."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    of_pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    return shutil.which(f"python{version}") or (str(of_pyenv[-1]) if of_pyenv else None)


def environment(folder: Path, interpreter: str, point: dict[str, Any]) -> Path:
    """The interpreter of a new environment with the versions of the point."""
    subprocess.run([interpreter, "-m", "venv", str(folder)], check=True, capture_output=True, text=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    if "constraints" in point:
        install += ["-c", str(ROOT / point["constraints"])]
    subprocess.run([*install, "-e", str(ROOT), *point["packages"], *TOOLS], check=True, capture_output=True, text=True)
    return python


def tested(python: Path, core: list[str]) -> dict[str, Any]:
    """The versions of an environment, and what its tests say."""
    inside = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    options = ["-q", "--without-typechecker", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
    command = [str(python), "-m", "pytest", *options, *core]
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=os.environ | inside, capture_output=True, text=True, check=False)
    log = FOLDER / f"{python.parents[1].name}.log"
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return {
        "passed": counts.get("passed", 0),
        "failed": counts.get("failed", 0) + counts.get("error", 0),
        "skipped": counts.get("skipped", 0),
        "seconds": round(time.monotonic() - start),
        "versions": versions(python),
        "failures": failures,
        "error": "" if done.returncode in (0, 1) and counts else f"pytest ended with {done.returncode}: see {log}",
    }


def versions(python: Path) -> dict[str, str]:
    """The versions of Python and of the packages in the table; those that are not installed are missing."""
    program = (
        "import json, platform, importlib.metadata as m\n"
        f"found = {{d.metadata['Name'].lower(): d.version for d in m.distributions()}}\n"
        f"print(json.dumps({{'python': platform.python_version()}} | {{n: found[n] for n in {SHOWN!r} if n in found}}))"
    )
    done = subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def table(done: list[dict[str, Any]]) -> str:
    """The results as a table of Markdown."""
    rows = [["point", "python", *SHOWN, "passed", "failed", "skipped", "seconds"]]
    for result in done:
        shown = [result["versions"].get(name, "–") for name in ("python", *SHOWN)]
        counts = [str(result[name]) for name in ("passed", "failed", "skipped", "seconds")]
        rows.append([result["point"], *shown, *counts] if not result["error"] else [result["point"], result["error"]])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def store(done: list[dict[str, Any]]) -> None:
    """Write the results into `results/versions.json`, beside those of points that were tried before."""
    before = json.loads(RESULTS.read_text(encoding="utf-8"))["points"] if RESULTS.exists() else {}
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    commit = {"commit": git.stdout.strip()}
    now = {result["point"]: {k: v for k, v in result.items() if k != "point"} | commit for result in done}
    content = {"command": "make test-versions", "points": before | now}
    RESULTS.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
