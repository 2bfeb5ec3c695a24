"""`python -m fuzz --minutes 60`: attack every target, print what was tried, exit with 1 if something was found."""

import argparse
import secrets
import sys

from fuzz import attention, deformed, densities, dot_products, losses, maps, modules, package, predictions
from fuzz._campaign import TARGETS, as_table, campaign

LAYERS = (maps, deformed, losses, densities, attention, dot_products, predictions, modules, package)


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="for all targets together (default: 5)")
    parser.add_argument("--only", default="", help="targets whose name begins so, e.g. maps")
    parser.add_argument("--seed", type=int, help="of the first examples (default: another one each time)")
    parser.add_argument("--examples", type=int, help="at most so many for each target")
    options = parser.parse_args(arguments)
    aims = [aim for name, aim in TARGETS.items() if name.startswith(options.only)]
    if not aims:
        parser.error(f"no target begins with {options.only!r}; there are {', '.join(TARGETS)}")
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    outcomes = []
    for outcome in campaign(aims, 60 * options.minutes, seed, options.examples):
        outcomes.append(outcome)
        print(f"{outcome.target.name}: {outcome.finding or 'nothing'}", file=sys.stderr, flush=True)
    print(as_table(outcomes))
    found = [outcome for outcome in outcomes if outcome.finding]
    for outcome in found:
        again = f"python -m fuzz --only {outcome.target.name} --seed {outcome.seed}"
        print(f"\n{outcome.target.name} ({again}):\n{outcome.finding}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
