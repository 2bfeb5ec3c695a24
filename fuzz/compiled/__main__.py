"""`python -m fuzz.compiled --arch 80 90`: compile every kernel, read its machine code, exit with 1 on a finding."""

import argparse
import itertools
import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor

import triton
from triton import knobs

from fuzz.compiled import _calls
from fuzz.compiled._check import Outcome, check


def main(arguments: list[str] | None = None) -> int:
    """Check the launches of the library; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.compiled", description=__doc__)
    parser.add_argument(
        "--arch", type=int, nargs="+", default=[80, 90], help="chips (default: 80 90, for sm_80, sm_90)"
    )
    parser.add_argument("--each", action="store_true", help="one launch of each kernel, in place of all forms")
    parser.add_argument("--only", default="", help="kernels whose name begins so, e.g. forward_rows")
    parser.add_argument("--fused", action="store_true", help="with contraction, to see that the check finds it")
    parser.add_argument("--workers", type=int, default=2, help="processes that compile (default: 2)")
    options = parser.parse_args(arguments)
    outcomes = []
    for arch in options.arch:
        # A process for each: what was recorded for one chip is not forgotten.
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
            outcomes += process.submit(checked, arch, options).result()
    print(summary(outcomes))
    return 0 if outcomes and all(outcome.is_sound for outcome in outcomes) else 1


def checked(arch: int, options: argparse.Namespace) -> list[Outcome]:
    """What was found for one chip; it is printed as it is found."""
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        if not options.each:
            knobs.cache.dir = folder  # gigabytes, which are not wanted again
        calls, wanted = _calls.few if options.each else _calls.many, ("only", "fused", "workers")
        for outcome in check(calls, arch, one_each=options.each, **{name: getattr(options, name) for name in wanted}):
            outcomes.append(outcome)
            if not outcome.is_sound:
                print(outcome, flush=True)
    return outcomes


def summary(outcomes: list[Outcome]) -> str:
    """How many launches of how many kernels were read, and how many are not sound."""
    lines = [f"Triton {triton.__version__}"]
    for arch, group in itertools.groupby(outcomes, key=lambda outcome: outcome.arch):
        of_arch = list(group)
        kernels, wrong = len({outcome.kernel for outcome in of_arch}), sum(not outcome.is_sound for outcome in of_arch)
        counts = [sum(outcome.counts[i] for outcome in of_arch if outcome.counts) for i in range(4)]
        lines.append(f"sm_{arch}: {len(of_arch)} launches of {kernels} kernels, {wrong} not sound")
        lines += [
            f"  {language}: {shuffles:,} butterfly shuffles, {fused:,} fused multiply-adds"
            for language, shuffles, fused in (("PTX", *counts[:2]), ("SASS", *counts[2:]))
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
