"""The subcommands that show or pass on what was trained: report, explore, export."""

import argparse
from pathlib import Path

from contmax_lab.cli._options import TASK, Argument, command
from contmax_lab.errors import LabError, UsageError


@command(
    "draw trained runs into one HTML file",
    ("contmax report runs/texts/*", "contmax report runs/series/continuous-sparsemax-seed-0 --examples 3 7"),
    [
        Argument("folders", metavar="RUN", nargs="*", type=Path, help="folders of finished runs"),
        Argument(
            "--examples",
            type=int,
            nargs="+",
            default=[],
            metavar="N",
            help="numbers of validation examples to draw, from 1 (default: a few, chosen by a fixed rule)",
        ),
        TASK,
        Argument(
            "--output", type=Path, default=Path("report/report.html"), help="the HTML file (default: %(default)s)"
        ),
    ],
    needed="folders",
    hint="pass the folders of RUNs, e.g. contmax report runs/*",
)
def report(options: argparse.Namespace) -> None:
    """Draw trained runs into one HTML file: learning curves, and where the models look in validation examples.

    The file contains all its pictures; they are also saved as PNG files beside it. If the data has moved, say where it
    is now, e.g. --data.train /new/place/reviews.csv.
    """
    from contmax_lab.registry import open_trained
    from contmax_lab.report import distinct_labels, sections, write_page

    folders = list(dict.fromkeys(options.folders))
    trained = [
        open_trained(folder, options.overrides, label, options.task)
        for folder, label in zip(folders, distinct_labels(folders), strict=True)
    ]
    shortest = min(len(entry.splits.valid) for entry in trained)
    if not all(1 <= number <= shortest for number in options.examples):
        raise UsageError(f"--examples must be from 1 to {shortest}; got {' '.join(map(str, options.examples))}")
    examples = [number - 1 for number in options.examples]
    lead = f"{len(trained)} run{'s' if len(trained) > 1 else ''}"
    files = write_page(options.output, "contmax report", lead, sections(trained, examples))
    print(f"{files[0]} and {len(files) - 1} pictures beside it")


@command(
    "look at densities, scores and where models look, in your browser",
    (
        "contmax explore",
        "contmax explore --runs demo/runs --port 9000 --no-browser",
        "contmax explore --export pages         # two pages that need no server",
    ),
    [
        Argument("--port", type=int, default=8765, help="port on this machine (default: 8765)"),
        Argument("--no-browser", action="store_true", help="do not open the page, only print its address"),
        Argument("--runs", type=Path, default=Path("runs"), help="folder with trained runs (default: runs)"),
        Argument(
            "--model",
            type=Path,
            action="append",
            metavar="FOLDER",
            help="model folder made by contmax export (can be repeated; default: model, if there is one)",
        ),
        Argument("--export", type=Path, metavar="FOLDER", help="write densities.html and scores.html, and end"),
    ],
    takes_overrides=False,
)
def explore(options: argparse.Namespace) -> None:
    """Look at densities, at scores, and at where models look, in your browser.

    Starts a page on this machine, which nobody else can reach, and opens it: four rooms, for densities, texts, images
    and scores. Models are the ones that come with the package, finished runs and exported models below RUNS, and the
    folders that you name by --model. Ctrl-C ends it.

    contmax explore --export FOLDER starts nothing: it writes the rooms that need no model, each as one HTML file.
    """
    if not 1 <= options.port <= 65535:
        raise UsageError(f"--port must be from 1 to 65535; got {options.port}")
    from contmax_lab.explorer import export, serve

    if options.export is not None:
        print(*export(options.export), sep="\n")
        return
    from contmax_lab.packages import require

    for package in ("fastapi", "uvicorn"):
        require(package, "contmax explore")
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


@command(
    "export a trained run as a small self-contained model folder",
    ("contmax export runs/images/continuous-sparsemax-seed-0 --into model",),
    [
        Argument("folder", metavar="RUN", nargs="?", type=Path, help="folder of a finished run"),
        TASK,
        Argument("--into", type=Path, default=Path("model"), help="folder to write (default: model)"),
    ],
    needed="folder",
    hint="pass the folder of a RUN, e.g. contmax export runs/texts/continuous-sparsemax-seed-0",
)
def export(options: argparse.Namespace) -> None:
    """Export a trained run as a small self-contained model folder.

    For runs of the tasks texts, series, images and documents. The folder holds the weights as float16, what the model
    needs to know about its training data (classes, words, scales), and its results on the validation examples. contmax
    predict --model FOLDER uses it; the training data is no longer needed.
    """
    from contmax_lab.registry import open_trained
    from contmax_lab.training import evaluate_trained

    trained = open_trained(options.folder, options.overrides, named=options.task)
    size = trained.task.export(trained, options.into, lambda model, part: evaluate_trained(trained, part, model))
    print(f"{size / 1e6:.2f} MB in {options.into}")
