"""Make a model that can travel out of a run of the task documents: float16 weights, words, a card with its figures."""

import argparse
from pathlib import Path

TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN, --into."""
    parser.add_argument("folder", metavar="RUN", nargs="?", type=Path, help="folder of a run that is done")
    parser.add_argument("--into", type=Path, default=Path("model"), help="folder to write (default: model)")


def run(options: argparse.Namespace) -> None:
    """Export; keys such as --data.path may be changed where the data has moved."""
    if options.folder is None or options.help:
        options.show_help()
        if not options.help:
            from contmax_lab.errors import UsageError

            raise UsageError("pass the folder of a RUN, e.g. contmax export runs/documents/small-seed-0")
        return
    from contmax_lab.pretrained import export
    from contmax_lab.runs import open_trained

    size = export(open_trained(options.folder, tuple(options.overrides)), options.into)
    print(f"{size / 1e6:.2f} MB in {options.into}")
