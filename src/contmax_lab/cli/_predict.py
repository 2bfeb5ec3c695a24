"""Say whether an English text is positive or negative, and which of its words say so.

Uses the small model that comes with the package, or one that contmax export has made.
"""

import argparse
import sys
from pathlib import Path

from contmax_lab.errors import UsageError

TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TEXT, --model, --figure."""
    parser.add_argument(
        "text", metavar="TEXT", nargs="*", help='what to read, e.g. "A film to remember."; - = standard input'
    )
    parser.add_argument("--model", type=Path, help="folder of a model (default: the one in the package)")
    parser.add_argument("--figure", type=Path, help="draw where the model looks into this PNG file")


def run(options: argparse.Namespace) -> None:
    """Print the verdict."""
    if not options.text:
        raise UsageError('pass a TEXT, e.g. contmax predict "A film to remember.", or - to read standard input')
    if options.figure and options.figure.suffix != ".png":
        raise UsageError(f"--figure {options.figure}: the picture is a PNG file; pass a name that ends in .png")
    text = sys.stdin.read() if options.text == ["-"] else " ".join(options.text)
    from contmax_lab.pretrained import PretrainedReader, verdict_figure
    from contmax_lab.runs import write_atomically

    reader = PretrainedReader.load(options.model) if options.model else PretrainedReader.load()
    verdict = reader.read(text)
    positive = verdict.probability >= 0.5
    sure = verdict.probability if positive else 1 - verdict.probability
    print(f"{'positive' if positive else 'negative'} ({sure:.0%})")
    print(verdict.marked())
    if options.figure:
        write_atomically(options.figure, verdict_figure(verdict, "Attention").png)
        print(f"drawn into {options.figure}")
