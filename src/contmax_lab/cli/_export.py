"""Export a trained run as a small self-contained model folder.

For runs of the tasks texts, series, images and documents. The folder holds the weights as float16, what the model needs
to know about its training data (classes, words, scales), and its results on the validation examples. contmax predict
--model FOLDER uses it; the training data is no longer needed.
"""

import argparse
from pathlib import Path

from contmax_lab.cli._options import add_task_option
from contmax_lab.errors import UsageError

TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN, --task, --into."""
    parser.add_argument("folder", metavar="RUN", nargs="?", type=Path, help="folder of a finished run")
    add_task_option(parser)
    parser.add_argument("--into", type=Path, default=Path("model"), help="folder to write (default: model)")


def run(options: argparse.Namespace) -> None:
    """Export; keys such as --data.path may be changed where the data has moved."""
    if options.folder is None or options.help:
        options.show_help()
        if not options.help:
            raise UsageError("pass the folder of a RUN, e.g. contmax export runs/texts/continuous-sparsemax-seed-0")
        return
    from contmax_lab.registry import open_trained
    from contmax_lab.training import evaluate_trained

    trained = open_trained(options.folder, options.overrides, named=options.task)
    size = trained.task.export(trained, options.into, lambda model, part: evaluate_trained(trained, part, model))
    print(f"{size / 1e6:.2f} MB in {options.into}")
