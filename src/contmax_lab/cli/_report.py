"""Draw trained runs into one HTML file: learning curves, and where the models look in validation examples.

The file contains all its pictures; they are also saved as PNG files beside it. If the data has moved, say where it is
now, e.g. --data.train /new/place/reviews.csv.
"""

import argparse
from pathlib import Path

from contmax_lab.cli._options import add_task_option
from contmax_lab.errors import UsageError

TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUNS, --examples, --task, --output."""
    parser.add_argument("folders", metavar="RUN", nargs="*", type=Path, help="folders of finished runs")
    which = "numbers of validation examples to draw, from 1 (default: a few, chosen by a fixed rule)"
    parser.add_argument("--examples", type=int, nargs="+", default=[], metavar="N", help=which)
    add_task_option(parser)
    parser.add_argument(
        "--output", type=Path, default=Path("report/report.html"), help="the HTML file (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> None:
    """One section per task."""
    if not options.folders or options.help:
        options.show_help()
        if not options.help:
            raise UsageError("pass the folders of RUNs, e.g. contmax report runs/*")
        return
    from contmax_lab.registry import open_trained
    from contmax_lab.report import distinct_labels, sections, write_page

    folders = list(dict.fromkeys(options.folders))
    labels = distinct_labels(folders)
    trained = [
        open_trained(folder, options.overrides, label, options.task)
        for folder, label in zip(folders, labels, strict=True)
    ]
    shortest = min(len(entry.splits.valid) for entry in trained)
    if not all(1 <= number <= shortest for number in options.examples):
        raise UsageError(f"--examples must be from 1 to {shortest}; got {' '.join(map(str, options.examples))}")
    examples = [number - 1 for number in options.examples]
    lead = f"{len(trained)} run{'s' if len(trained) > 1 else ''}"
    files = write_page(options.output, "contmax report", lead, sections(trained, examples))
    print(f"{files[0]} and {len(files) - 1} pictures beside it")
