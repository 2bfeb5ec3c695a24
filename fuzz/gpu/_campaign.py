"""Which case comes next, several processes side by side, and what all of them have found."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from fuzz.gpu._watchdog import STARTING, Outcome, Patience, Worker

# Findings of a target that are kept with their words; the others are counted.
_KEPT = 20
# Seconds for cases that run when the time is up.
_LONGEST_GRACE = 25.0
# Processes that did not get ready, one after the other, after which no more are started.
_VAIN_STARTS = 2
FINDINGS = ("hung", "died", "failed")


@dataclasses.dataclass
class Tally:
    """What a target has come to.

    Attributes:
        cases: that ended, by what came of them.
        rows: that were tried and compared, by kind.
        seconds: of all its cases.
        next_seed: of the case that comes next.
        running: how many of its cases run now.
    """

    next_seed: int
    cases: "collections.Counter[str]" = dataclasses.field(default_factory=collections.Counter)
    rows: "collections.Counter[str]" = dataclasses.field(default_factory=collections.Counter)
    seconds: float = 0.0
    running: int = 0


class Campaign:
    """Cases of several targets, by several processes, until the time is up.

    Args:
        shares: of the time, by target.
        command: of a child process.
        side: how many processes there are side by side.
        seed: of the first case of each target; the next has the next.
        cases: of each target, at most; None for no limit.
        patience: of the watchdogs.
        report: is told of every finding.
    """

    def __init__(
        self,
        shares: dict[str, float],
        command: Sequence[str],
        *,
        side: int,
        seed: int,
        cases: int | None = None,
        patience: Patience | None = None,
        report: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        self.tallies = {target: Tally(seed) for target in shares}
        self.findings: list[Outcome] = []
        self._shares, self._seed, self._cases, self._report = shares, seed, cases, report
        patience = Patience() if patience is None else patience
        self._grace = min(patience.case, _LONGEST_GRACE)
        self._workers = [Worker(command, patience) for _ in range(side)]
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._over = self._until = 0.0

    def start(self, seconds: float) -> None:
        """Begin; after so many seconds no case is begun, and those that run get as long as a case may take."""
        self._over = time.monotonic() + seconds
        self._until = self._over + self._grace
        self._threads = [threading.Thread(target=self._work, args=(worker,), daemon=True) for worker in self._workers]
        for thread in self._threads:
            thread.start()

    @property
    def is_running(self) -> bool:
        """Whether there is something to wait for."""
        return time.monotonic() < self._until + 2 and any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """End at once: all processes are killed."""
        self._over = self._until = time.monotonic()
        for worker in self._workers:
            worker.kill(0.2)

    def wait(self, seconds: float) -> None:
        """Until all is done, but no longer than that."""
        end = time.monotonic() + seconds
        while self.is_running and time.monotonic() < end:
            time.sleep(0.05)

    def results(self) -> dict[str, Any]:
        """Rows and cases of all targets, and the findings, as JSON takes them."""
        with self._lock:
            targets = {name: _summary([tally]) for name, tally in self.tallies.items() if tally.cases}
            findings = [dataclasses.asdict(outcome) for outcome in self.findings]
        return {"totals": _summary(list(self.tallies.values())), "targets": targets, "findings": findings}

    def _work(self, worker: Worker) -> None:
        vain = 0
        while vain < _VAIN_STARTS and (chosen := self._next_case()) is not None:
            outcome = worker.run(*chosen, self._until)
            vain = vain + 1 if outcome.circumstances == STARTING else 0
            self._record(outcome)
        worker.kill()

    def _next_case(self) -> tuple[str, int] | None:
        """Of the target that has had least of its share, with what runs now counted as one second each."""
        with self._lock:
            limit = float("inf") if self._cases is None else self._seed + self._cases
            open_targets = [name for name, tally in self.tallies.items() if tally.next_seed < limit]
            if not open_targets or time.monotonic() >= self._over:
                return None
            target = min(open_targets, key=self._share_had)
            tally = self.tallies[target]
            tally.next_seed, tally.running = tally.next_seed + 1, tally.running + 1
            return target, tally.next_seed - 1

    def _share_had(self, target: str) -> float:
        tally = self.tallies[target]
        return (tally.seconds + tally.running) / self._shares[target]

    def _record(self, outcome: Outcome) -> None:
        with self._lock:
            tally = self.tallies[outcome.target]
            tally.running -= 1
            tally.cases[outcome.state] += 1
            tally.seconds += outcome.seconds
            tally.rows.update(outcome.counts)
            if outcome.state in FINDINGS and tally.cases[outcome.state] <= _KEPT:
                self.findings.append(outcome)
                self._report(outcome)


def _summary(tallies: list[Tally]) -> dict[str, Any]:
    """Cases by outcome, rows by kind, seconds."""
    cases: collections.Counter[str] = collections.Counter()
    rows: collections.Counter[str] = collections.Counter()
    for tally in tallies:
        cases.update(tally.cases)
        rows.update(tally.rows)
    return {
        "cases": dict(sorted(cases.items())),
        **{kind: rows[kind] for kind in ("long", "long_compared", "short", "short_compared")},
        "seconds": round(sum(tally.seconds for tally in tallies), 1),
    }
