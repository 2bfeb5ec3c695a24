"""``python -m contmax_lab.tasks.lengths``: train cells of the table with nothing but torch and contmax installed."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from contmax_lab.errors import LabError
from contmax_lab.tasks.lengths._problems import PROBLEMS
from contmax_lab.tasks.lengths._slices import FILE, SHARE, SIDE_BY_SIDE, train_slice


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is left, or as much of it as there is time for; the same command continues."""
    parser = argparse.ArgumentParser(prog="python -m contmax_lab.tasks.lengths", description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce/lengths"), help=f"folder of {FILE}")
    parser.add_argument("--budget-minutes", type=float, default=0.0, help="stop cleanly after so long; 0 = no limit")
    parser.add_argument("--share", type=int, default=SHARE, help="steps are 1/SHARE of those of the authors")
    parser.add_argument("--side-by-side", type=int, default=SIDE_BY_SIDE, help="models that learn at a time")
    parser.add_argument("--problem", action="append", choices=list(PROBLEMS), help="only this one (can be repeated)")
    options = parser.parse_args(arguments)
    for name, least in (("share", 1), ("side_by_side", 1), ("budget_minutes", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} has to be {least} or more; got {getattr(options, name):g}")
    try:
        done = train_slice(
            options.runs,
            budget_minutes=options.budget_minutes,
            share=options.share,
            side_by_side=options.side_by_side,
            problems=options.problem or list(PROBLEMS),
        )
    except LabError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"all {len(done)} cells are done, in {options.runs / FILE}")


if __name__ == "__main__":
    main()
