"""`python -m fuzz.gpu --minutes 10`: attack every target on a GPU, print what was tried, exit with 1 on a finding."""

import argparse
import json
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

from contmax_lab.provenance import provenance
from fuzz.gpu._campaign import FINDINGS, Campaign
from fuzz.gpu._targets import SHARES
from fuzz.gpu._watchdog import Outcome, Patience

# Seconds between two lines of progress, with each of which the results so far are written.
_PROGRESS = 15.0
# Of the device's memory: each process also needs some of it for CUDA itself.
_SHARED_MEMORY = 0.9
_COLUMNS = ("long", "long_compared", "short", "short_compared")


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign; the exit code."""
    began, options = time.monotonic(), _options(arguments)
    shares = {name: share for name, share in SHARES.items() if name.startswith(options.only)}
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    command, patience = child_command(options.device, options.side), Patience(case=options.limit)
    campaign = Campaign(
        shares, command, side=options.side, seed=seed, cases=options.cases, patience=patience, report=_report
    )
    before = signal.signal(signal.SIGTERM, _interrupt)
    head: dict[str, Any] = {"suite": "fuzz-gpu", "command": _command(options, seed)}
    try:
        campaign.start(60 * options.minutes - (time.monotonic() - began))
        # While the processes start: torch takes seconds to import.
        head |= provenance(("contmax", "torch", "numpy", "triton"))
        while campaign.is_running:
            campaign.wait(_PROGRESS)
            _progress(campaign, time.monotonic() - began)
            _write(options.output, head, campaign, began)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)
        campaign.stop()
        _write(options.output, head, campaign, began)
    results = campaign.results()
    print(as_table(results), flush=True)
    return 1 if any(results["totals"]["cases"].get(state) for state in FINDINGS) else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="after which no case is begun (default: 10)")
    parser.add_argument("--only", default="", help="targets whose name begins so, e.g. losses.hard")
    parser.add_argument("--seed", type=int, help="of the first case of each target (default: another one each time)")
    parser.add_argument("--cases", type=int, help="at most so many of each target")
    parser.add_argument("--side", type=int, default=6, help="processes side by side on one device (default: 6)")
    parser.add_argument("--limit", type=float, default=25.0, help="seconds of silence after which a case hangs")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: small sizes, to try it")
    parser.add_argument("--output", type=Path, help="a JSON file for counts and findings")
    options = parser.parse_args(arguments)
    if not any(name.startswith(options.only) for name in SHARES):
        parser.error(f"no target begins with {options.only!r}; there are {', '.join(SHARES)}")
    return options


def child_command(device: str, side: int) -> list[str]:
    """What starts a process that runs cases; so many of them share the memory."""
    memory = f"{_SHARED_MEMORY / side:.4f}"
    return [sys.executable, "-m", "fuzz.gpu._child", "--device", device, "--memory", memory]


def _command(options: argparse.Namespace, seed: int) -> str:
    """What runs the same campaign again."""
    words = [f"python -m fuzz.gpu --minutes {options.minutes:g} --seed {seed} --side {options.side}"]
    words += [f"--only {options.only}"] if options.only else []
    words += [f"--cases {options.cases}"] if options.cases is not None else []
    return " ".join(words)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _report(outcome: Outcome) -> None:
    """A finding, in one line, with the command that repeats it."""
    again = f"python -m fuzz.gpu --only {outcome.target} --seed {outcome.seed} --cases 1 --side 1"
    print(
        f"{outcome.state.upper()} {outcome.target} ({outcome.circumstances}) {outcome.text} [{again}]",
        flush=True,
    )


def _progress(campaign: Campaign, seconds: float) -> None:
    totals = campaign.results()["totals"]
    rows = ", ".join(f"{totals[name]:.3g} {name.replace('_', ' ')}" for name in _COLUMNS)
    print(f"{seconds:.0f} s: {totals['cases']}; rows: {rows}", flush=True)


def _write(path: Path | None, head: dict[str, Any], campaign: Campaign, began: float) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**head, "wall_seconds": round(time.monotonic() - began, 1), **campaign.results()}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def as_table(results: dict[str, Any]) -> str:
    """Target · cases · rows tried and compared · findings, with a line of sums."""
    lines = [("target", "cases", "ok", "no memory", *(name.replace("_", " ") for name in _COLUMNS), "findings")]
    for name, entry in (*results["targets"].items(), ("all", results["totals"])):
        cases = entry["cases"]
        found = ", ".join(f"{cases[state]} {state}" for state in FINDINGS if cases.get(state)) or "–"
        counts = (sum(cases.values()), cases.get("ok", 0), cases.get("skipped", 0), *(entry[c] for c in _COLUMNS))
        lines.append((name, *(f"{count:,}" for count in counts), found))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        " · ".join([line[0].ljust(widths[0]), *(text.rjust(w) for text, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


if __name__ == "__main__":
    sys.exit(main())
