"""Draw trained runs into one HTML file that needs nothing else; the pictures also lie beside it."""

import argparse
from pathlib import Path

TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUNS, --output."""
    parser.add_argument("folders", metavar="RUN", nargs="+", type=Path, help="folders of runs that are done")
    parser.add_argument("--output", type=Path, default=Path("report/report.html"), help="default: %(default)s")


def run(options: argparse.Namespace) -> None:
    """One section per task."""
    from contmax_lab.report import distinct_labels, sections, write_page
    from contmax_lab.runs import open_trained

    labels = distinct_labels(options.folders)
    trained = [open_trained(folder, label=label) for folder, label in zip(options.folders, labels, strict=True)]
    files = write_page(options.output, "contmax report", f"{len(trained)} runs", sections(trained))
    print(f"{files[0]} and {len(files) - 1} pictures beside it")
