"""``python -m contmax_lab.bench [SUITE …]``: measure, print the tables, store the figures."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contmax_lab.bench import QUICK, SUITES, THOROUGH, Effort, Figure, Suite, one_thread, record, tables
from contmax_lab.bench._memory import METHOD as MEMORY_METHOD
from contmax_lab.bench._table import MISSED

_STANDARD_OUTPUT = Path("results/bench")
_METHOD = (
    "times: processor time on one thread, in one process; contenders take turns in every round; a figure is the median "
    "of the rounds' ratios, `minimum` the smallest of them; gradients are cleared before a pass, cotangents are given"
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suites that were named, or all of them."""
    options = _parser().parse_args(arguments)
    known = {suite.name: suite for suite in SUITES}
    unknown = [name for name in options.suites if name not in known]
    if unknown:
        _parser().error(f"there is no suite {', '.join(unknown)}; choose from {', '.join(known)}")
    output = options.output or (None if options.quick else _STANDARD_OUTPUT)
    with one_thread():
        provenance = record()
        for name in options.suites or known:
            _run(known[name], QUICK if options.quick else THOROUGH, provenance, output)


def _parser() -> argparse.ArgumentParser:
    names = ", ".join(suite.name for suite in SUITES)
    parser = argparse.ArgumentParser(prog="python -m contmax_lab.bench", description="Measure contmax and its peers.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"one of: {names} (default: all)")
    parser.add_argument("--output", type=Path, help=f"folder for SUITE.json (default: {_STANDARD_OUTPUT})")
    parser.add_argument("--quick", action="store_true", help="small inputs, few repeats; stores only where told to")
    return parser


def _run(suite: Suite, effort: Effort, provenance: dict[str, Any], output: Path | None) -> None:
    missing = suite.missing_peers()
    figures: list[Figure] = []
    for figure in suite.figures(effort):
        if all(figure.table != earlier.table for earlier in figures):
            print(f"{suite.name}: {figure.table} …", file=sys.stderr, flush=True)
        figures.append(figure)
    print(_report(suite, effort, figures, missing, provenance))
    if output is not None:
        path = _stored(_results(suite, effort, figures, missing, provenance), output / f"{suite.name}.json")
        print(f"stored in {path}")


def _report(
    suite: Suite, effort: Effort, figures: Sequence[Figure], missing: Sequence[str], provenance: dict[str, Any]
) -> str:
    machine, versions = provenance["machine"], provenance["versions"]
    commit = provenance["commit"][:12] if provenance["commit"] else "not a checkout"
    if provenance["dirty"]:
        commit += " with uncommitted changes"
    head = f"{suite.name} · {machine['cpu']}, {machine['cores_used']} of {machine['cores']} cores · {commit}"
    packages = " · ".join(f"{name} {version}" for name, version in versions.items() if version)
    targeted = [f for f in figures if f.reached is not None]
    missed = sum(not f.reached for f in targeted)
    summary = f"{len(targeted) - missed} of {len(targeted)} targets reached; {MISSED} marks the others"
    notes = [f"{name} is not installed: pip install {name}" for name in missing]
    if effort.small:
        notes.append("a quick run: few repeats on small inputs, where targets are only a hint")
    how = "ratios are medians of interleaved rounds of processor time"
    return "\n".join([head, packages, how, "", tables(figures), "", summary, *notes])


def _results(
    suite: Suite, effort: Effort, figures: Sequence[Figure], missing: Sequence[str], provenance: dict[str, Any]
) -> dict[str, Any]:
    return {
        "suite": suite.name,
        "command": f"python -m contmax_lab.bench {suite.name}" + (" --quick" if effort.small else ""),
        **provenance,
        "method": [_METHOD, MEMORY_METHOD],
        "missing_peers": list(missing),
        "figures": [figure.as_json() for figure in figures],
    }


def _stored(results: dict[str, Any], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
