"""Look at densities, at scores, and at where models look, in your browser.

Starts a page on this machine, which nobody else can reach, and opens it: four rooms, for densities, texts, images and
scores. Models are the ones that come with the package, and the finished runs below RUNS. Ctrl-C ends it.

contmax explore --export FOLDER starts nothing: it writes the rooms that need no model, each as one HTML file.
"""

import argparse
from pathlib import Path

from contmax_lab.errors import UsageError

TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--port, --no-browser, --runs, --export."""
    parser.add_argument("--port", type=int, default=8765, help="port on this machine (default: 8765)")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page, only print its address")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder with trained runs (default: runs)")
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

    serve(options.runs, options.port, open_browser=not options.no_browser)
