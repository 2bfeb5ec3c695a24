"""Look at densities, at scores, and at where models look, in your browser.

Starts a page on this machine, which nobody else can reach, and opens it: four rooms, for densities, texts, images and
scores. Models are the ones that come with the package, finished runs and exported models below RUNS, and the folders
that you name by --model. Ctrl-C ends it.

contmax explore --export FOLDER starts nothing: it writes the rooms that need no model, each as one HTML file.
"""

import argparse
from pathlib import Path

from contmax_lab.errors import LabError, UsageError

TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--port, --no-browser, --runs, --model, --export."""
    parser.add_argument("--port", type=int, default=8765, help="port on this machine (default: 8765)")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page, only print its address")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder with trained runs (default: runs)")
    parser.add_argument(
        "--model",
        type=Path,
        action="append",
        metavar="FOLDER",
        help="model folder made by contmax export (can be repeated; default: model, if there is one)",
    )
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write densities.html and scores.html, and end")


def run(options: argparse.Namespace) -> None:
    """Serve until somebody presses Ctrl-C, or write files."""
    if not 1 <= options.port <= 65535:
        raise UsageError(f"--port must be from 1 to 65535; got {options.port}")
    if options.export is not None:
        from contmax_lab.explorer import export

        for path in export(options.export):
            print(path)
        return
    from contmax_lab.packages import require

    for package in ("fastapi", "uvicorn"):
        require(package, "contmax explore")
    from contmax_lab.explorer import serve

    serve(options.runs, options.port, _models(options.model), open_browser=not options.no_browser)


def _models(named: list[Path] | None) -> list[Path]:
    """Folders of models: those that were named, after a check that each can be used, or what contmax export writes."""
    from contmax_lab.registry import task_of_model

    if named is None:
        return [Path("model")]
    for folder in named:
        task = task_of_model(folder)
        if task.looks_at is None:
            raise LabError(f"{folder} is a model of the task {task.name}; the page shows texts and images only")
    return named
