"""Measure the best weights of a run again.

By default on the validation examples; with --test on the test examples: use it once, when all choices are made. If the
data has moved, say where it is now, e.g. --data.train /new/place/reviews.csv.
"""

import argparse
import json
from pathlib import Path

from contmax_lab.cli._options import add_task_option
from contmax_lab.errors import UsageError

TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN, --split, --test, --task, --json."""
    parser.add_argument("folder", metavar="RUN", nargs="?", type=Path, help="folder of a finished run")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--split", choices=["train", "valid"], default="valid", help="which examples (default: valid)")
    part.add_argument("--test", dest="split", action="store_const", const="test", help="measure on the test examples")
    add_task_option(parser)
    parser.add_argument("--json", action="store_true", help="print the metrics as JSON")


def run(options: argparse.Namespace) -> None:
    """Load, measure, print."""
    if options.folder is None or options.help:
        options.show_help()
        if not options.help:
            raise UsageError("pass the folder of a RUN, e.g. contmax evaluate runs/texts/continuous-sparsemax-seed-0")
        return
    from contmax_lab.cli._printing import on_main_process
    from contmax_lab.registry import open_trained
    from contmax_lab.training import evaluate_trained

    trained = open_trained(options.folder, options.overrides, named=options.task)
    metrics = evaluate_trained(trained, options.split)
    if not on_main_process():
        return
    if options.json:
        print(json.dumps(metrics))
    else:
        print(f"{options.split:6}" + "  ".join(f"{name} {value:.5g}" for name, value in metrics.items()))
