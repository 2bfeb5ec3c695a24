"""A process under watch: it is given cases one by one, and killed when one of them does not end."""

import collections
import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
# Seconds until a process that was killed is left to the system.
_UNTIL_DEAD = 20.0
# The circumstances of a case whose process did not get ready.
STARTING = "while the process started"


@dataclasses.dataclass(frozen=True)
class Patience:
    """Seconds without a sign of life after which a process is killed."""

    start: float = 180.0
    case: float = 25.0
    compilation: float = 120.0


@dataclasses.dataclass
class Outcome:
    """What came of a case.

    Attributes:
        target: its target,
        seed: and its seed.
        state: "ok", "failed", "skipped" (no memory left), "hung", "died" (the process did), or "unfinished" (the
            campaign was over).
        text: what was wrong.
        circumstances: the last that was said before.
        seconds: how long it took.
        counts: rows, by kind; empty if the case did not end.
    """

    target: str
    seed: int
    state: str
    text: str = ""
    circumstances: str = ""
    seconds: float = 0.0
    counts: dict[str, int] = dataclasses.field(default_factory=dict)


class Worker:
    """A child process, started when it is needed and again after it was killed.

    Args:
        command: that runs `fuzz.gpu._child`, or another program that speaks as it does.
        patience: how long it may be silent.
    """

    def __init__(self, command: Sequence[str], patience: Patience) -> None:
        self._command, self._patience = list(command), patience
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[list[str] | None] = queue.Queue()
        self._complaints: collections.deque[str] = collections.deque(maxlen=4)
        self._keeper: threading.Thread | None = None

    def run(self, target: str, seed: int, until: float) -> Outcome:
        """Run a case; `until` (of time.monotonic) nothing is waited for any more."""
        outcome, circumstances = Outcome(target, seed, "unfinished"), ""
        if self._process is None and not self._start(until, outcome):
            return outcome
        began = time.monotonic()
        with contextlib.suppress(OSError):  # a process that has ended is noticed by its silence
            self._input.write(f"{target} {seed}\n")
            self._input.flush()
        compiling = 0  # threads may compile at the same time
        while True:
            allowed = self._patience.compilation if compiling else self._patience.case
            words = self._next(allowed, until, outcome)
            if words is None:
                outcome.circumstances, outcome.seconds = circumstances, time.monotonic() - began
                return outcome
            if words[0] == "WITH":
                circumstances = words[1]
            elif words[0] in ("COMPILES", "COMPILED"):
                compiling += 1 if words[0] == "COMPILES" else -1
            elif words[0] == "DONE":
                if words[2:] == ["LAST"]:
                    self.kill()
                return Outcome(target, seed, circumstances=circumstances, **json.loads(words[1]))

    def kill(self, seconds: float = _UNTIL_DEAD) -> None:
        """End the process with all that it has started; one inside of a driver may outlive the seconds for a while."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # what was not read is lost
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)

    @property
    def _input(self) -> Any:
        assert self._process is not None
        return self._process.stdin

    def _start(self, until: float, outcome: Outcome) -> bool:
        """Start a process and wait until it is ready; False if that does not happen, with the reason in `outcome`."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True, cwd=_ROOT
        )
        self._process, self._lines = process, queue.Queue()
        self._complaints.clear()
        threading.Thread(target=_read, args=(process.stdout, self._lines), daemon=True).start()
        self._keeper = threading.Thread(target=_keep, args=(process.stderr, self._complaints), daemon=True)
        self._keeper.start()
        while True:
            words = self._next(self._patience.start, until, outcome)
            if words is None:
                outcome.circumstances = STARTING
                return False
            if words[0] == "READY":
                return True

    def _next(self, allowed: float, until: float, outcome: Outcome) -> list[str] | None:
        """The next words of the process; None if it is silent for too long or ends, with the state in `outcome`."""
        over = time.monotonic() + allowed > until
        try:
            words = self._lines.get(timeout=max(0.05, min(allowed, until - time.monotonic())))
        except queue.Empty:
            outcome.state, outcome.text = ("unfinished", "") if over else ("hung", f"silent for {allowed:g} s")
            self.kill()
            return None
        process = self._process
        if words is None and process is not None:  # else it was killed because the campaign is over
            outcome.state = "died"
            if self._keeper is not None:
                self._keeper.join(1.0)  # for the last words
            outcome.text = f"exit code {_exit_code(process)}: " + " | ".join(list(self._complaints))[-300:]
            self.kill()
        return words


def _exit_code(process: "subprocess.Popen[str]") -> int | None:
    """None for one whose output has ended but that has not."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(5)
    return None


def _read(stream: Any, lines: "queue.Queue[list[str] | None]") -> None:
    """Hand on all lines, then None."""
    with stream:
        for line in stream:
            words = line.rstrip("\n").split("\t")
            if words[0] in ("READY", "WITH", "COMPILES", "COMPILED", "DONE"):
                lines.put(words)
    lines.put(None)


def _keep(stream: Any, complaints: "collections.deque[str]") -> None:
    with stream:
        complaints.extend(line.strip() for line in stream if line.strip())
