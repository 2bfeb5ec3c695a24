"""Ask a trained model about a new input, and see where it looks.

contmax predict RUN INPUT uses a finished run. INPUT is a text for the tasks texts and documents, a sentence for
translation, a table with one series for series, an image file for images, an image file and a question for vqa (where
the model looked is drawn into IMAGE-overlay.png), and the number of a validation example, from 1, for all other tasks.
contmax predict --model FOLDER INPUT uses a model folder made by contmax export.

contmax predict TEXT uses the small model that comes with the package: is an English text positive or negative, and
which words show it?
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from contmax_lab.cli._options import add_task_option
from contmax_lab.errors import LabError, UsageError

if TYPE_CHECKING:
    from contmax_lab.contract import Prediction

TAKES_OVERRIDES = True
# Whose model comes with the package.
_READER = "documents"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """INPUT, --model, --task, --figure."""
    parser.add_argument(
        "words",
        metavar="INPUT",
        nargs="*",
        help="the folder of a run and an input for it, or a text; - reads the input from standard input",
    )
    parser.add_argument(
        "--model", type=Path, help="model folder made by contmax export (default: the one in the package)"
    )
    add_task_option(parser)
    parser.add_argument("--figure", type=Path, help="PNG file to draw where the model looks")


def run(options: argparse.Namespace) -> None:
    """Print the answer."""
    if options.help:
        options.show_help()
        return
    if not options.words:
        raise UsageError('pass a TEXT, e.g. contmax predict "A film to remember.", or - to read standard input')
    if options.figure and options.figure.suffix != ".png":
        raise UsageError(f"--figure {options.figure}: the picture is a PNG file; pass a name that ends in .png")
    prediction = _predicted(options)
    print(prediction.text)
    if options.figure or prediction.filename:
        _draw(prediction, options.figure or Path(prediction.filename))


def _predicted(options: argparse.Namespace) -> "Prediction":
    from contmax_lab.registry import installed_task, open_trained, task_of_model

    first, *rest = options.words
    if options.model is None and _is_run(first):
        trained = open_trained(first, options.overrides, named=options.task)
        return trained.task.predict(trained, _given(rest))
    if options.model is None and rest and "/" in first and " " not in first:
        raise UsageError(f"{first} is not a run; pass the folder of a finished run and an INPUT, or a TEXT in quotes")
    if options.overrides:
        raise UsageError(
            f"{' '.join(options.overrides)} changes a setting of a run, but no run was given; pass the folder of a RUN"
        )
    task = task_of_model(options.model, options.task) if options.model else installed_task(_READER)
    return task.predict_exported(options.model, _given(options.words))


def _is_run(word: str) -> bool:
    try:
        return (Path(word) / "config.yaml").is_file()
    except OSError:  # a text may be longer than any name of a file
        return False


def _given(words: list[str]) -> list[str]:
    try:
        return [sys.stdin.read()] if words == ["-"] else words
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UsageError(
            f"standard input, byte {byte:#04x} is not UTF-8; convert it, e.g. iconv -f latin1 -t utf-8"
        ) from None


def _draw(prediction: "Prediction", path: Path) -> None:
    from contmax_lab.drawing import LIGHT, rendered
    from contmax_lab.files import write_atomically

    if prediction.figure is None:
        raise LabError("this answer has nothing to draw; leave out --figure")
    write_atomically(path, rendered(prediction.figure.draw, LIGHT))
    print(f"drawn into {path}")
