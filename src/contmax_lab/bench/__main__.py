"""``python -m contmax_lab.bench [SUITE …] [--device cuda]``: measure, print the tables, store the figures."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from contmax_lab.bench import GPU_SUITES, QUICK, SUITES, THOROUGH, Effort, Figure, Suite, one_thread, record, tables
from contmax_lab.bench._figure import MISSED
from contmax_lab.bench._measuring import GPU_METHOD, GPU_THOROUGH, MEMORY_METHOD, METHOD
from contmax_lab.packages import version

_STANDARD_OUTPUT = Path("results/bench")


@dataclasses.dataclass(frozen=True)
class _Session:
    """What all suites of one command share."""

    on_gpu: bool
    effort: Effort
    provenance: dict[str, Any]
    output: Path | None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suites that were named, or all of them."""
    names, gpu_names = (", ".join(suite.name for suite in suites) for suites in (SUITES, GPU_SUITES))
    parser = argparse.ArgumentParser(prog="python -m contmax_lab.bench", description="Measure contmax and its peers.")
    help_ = f"one of: {names}; with --device cuda: {gpu_names} (default: all)"
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=help_)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to measure (default: cpu)")
    where = f"folder for SUITE.json, or gpu-SUITE.json (default: {_STANDARD_OUTPUT})"
    parser.add_argument("--output", type=Path, help=where)
    parser.add_argument("--quick", action="store_true", help="small inputs, few repeats; stores only where told to")
    options = parser.parse_args(arguments)
    on_gpu = options.device == "cuda"
    known = {suite.name: suite for suite in (GPU_SUITES if on_gpu else SUITES)}
    unknown = [name for name in options.suites if name not in known]
    if unknown:
        parser.error(f"there is no suite {', '.join(unknown)}; choose from {', '.join(known)}")
    if on_gpu and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU, and torch finds none; leave it out to measure on the CPU")
    output = options.output or (None if options.quick else _STANDARD_OUTPUT)
    with one_thread():
        thorough = GPU_THOROUGH if on_gpu else THOROUGH
        session = _Session(on_gpu, QUICK if options.quick else thorough, record(), output)
        for name in options.suites or known:
            _run(known[name], session)


def _run(suite: Suite, session: _Session) -> None:
    path = None
    if session.output is not None:
        session.output.mkdir(parents=True, exist_ok=True)
        path = session.output / f"{'gpu-' if session.on_gpu else ''}{suite.name}.json"
    missing, figures = suite.missing_peers(), list[Figure]()
    for figure in suite.figures(session.effort):
        if all(figure.table != earlier.table for earlier in figures):
            print(f"{suite.name}: {figure.table} …", file=sys.stderr, flush=True)
        figures.append(figure)
        if path is not None:
            # After each figure, so that nothing is lost when a later one fails or takes too long.
            results = _results(suite, figures, missing, session)
            text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
            path.write_text(text + "\n", encoding="utf-8")
    print(_report(suite, figures, missing, session))
    if path is not None:
        print(f"stored in {path}")


def _report(suite: Suite, figures: Sequence[Figure], missing: Sequence[str], session: _Session) -> str:
    machine, versions = session.provenance["machine"], session.provenance["versions"]
    commit = session.provenance["commit"][:12] if session.provenance["commit"] else "not a checkout"
    if session.provenance["dirty"]:
        commit += " with uncommitted changes"
    where = f"{machine['cpu']}, {machine['cores_used']} of {machine['cores']} cores"
    how = "ratios are medians of interleaved rounds of processor time"
    if session.on_gpu:
        where, how = ", ".join(machine["gpus"]), "device times are replays of CUDA graphs with a cold L2 cache"
    packages = " · ".join(f"{name} {version}" for name, version in versions.items() if version)
    targeted = [f for f in figures if f.reached is not None]
    missed = sum(not f.reached for f in targeted)
    summary = f"{len(targeted) - missed} of {len(targeted)} targets reached; {MISSED} marks the others"
    notes = [f"{name} is not installed: pip install {name}" for name in missing]
    notes += [f"{f.row}, {f.column}: {f.details['failed']}" for f in figures if "failed" in f.details]
    if session.effort.small:
        notes.append("a quick run: few repeats on small inputs, where targets are only a hint")
    head = f"{suite.name} · {where} · {commit}"
    return "\n".join([head, packages, how, "", tables(figures), "", summary, *notes])


def _results(suite: Suite, figures: Sequence[Figure], missing: Sequence[str], session: _Session) -> dict[str, Any]:
    command = f"python -m contmax_lab.bench {suite.name}" + (" --device cuda" if session.on_gpu else "")
    return {
        "suite": suite.name,
        "command": command + (" --quick" if session.effort.small else ""),
        **session.provenance,
        "versions": {**session.provenance["versions"], **{name: version(name) for name in suite.peers}},
        "method": [GPU_METHOD] if session.on_gpu else [METHOD, MEMORY_METHOD],
        "missing_peers": list(missing),
        "figures": [figure.as_json() for figure in figures],
    }


if __name__ == "__main__":
    main()
