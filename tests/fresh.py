"""Programs in interpreters of their own, without the seconds that each would need to import torch."""

import atexit
import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

# Seconds that a program has.
_LIMIT = 600
# A process that has imported torch and what is named, nothing else, is copied for each program. It starts no thread.
_COPY_FOR_EACH = """
import contextlib, importlib, io, json, os, sys, traceback, warnings

job = json.loads(sys.stdin.readline())
for name in job["imports"]:
    importlib.import_module(name)
exec(job["before"], {})
for line in sys.stdin:
    name, source, folder, arguments, strict = json.loads(line)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        warnings.simplefilter("error" if strict else "default")
        sys.argv, code, raised = [name, *arguments], 0, ""
        printed, told = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
            try:
                exec(compile(source, name, "exec"), {"__name__": "__main__", "__file__": name})
            except BaseException:
                code, raised = 1, traceback.format_exc()
        with os.fdopen(writing, "w") as answer:
            json.dump([code, printed.getvalue(), told.getvalue(), raised], answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    print(text or json.dumps([1, "", "", "the process ended without an answer"]), flush=True)
"""


@dataclasses.dataclass(frozen=True)
class Program:
    """What to run: its name in a traceback, its text, the folder it runs in, what it is told, are warnings errors?"""

    name: str
    source: str
    folder: Path = Path()
    arguments: tuple[str, ...] = ()
    strict: bool = False


@dataclasses.dataclass(frozen=True)
class Done:
    """What came of it: what it printed, what it told on stderr; `complaint` is the traceback, empty if none."""

    code: int
    printed: str
    told: str
    complaint: str


def run_each(programs: list[Program], *, imports: tuple[str, ...] = ("torch",), before: str = "") -> list[Done]:
    """Run programs one after the other, each in a copy of one process that has imported and done something before."""
    copied = _copied(imports, before)
    return [copied.run(program) for program in programs]


class _Copied:
    """The process that is copied; it waits for programs until there is nobody left to send them."""

    def __init__(self, imports: tuple[str, ...], before: str) -> None:
        self._told = tempfile.TemporaryFile("w+")  # noqa: SIM115, it is read when the process has ended
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COPY_FOR_EACH],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._told,
            text=True,
            start_new_session=True,  # so that what it started can be ended with it
        )
        atexit.register(self._end)
        self._send({"imports": imports, "before": before})

    def run(self, program: Program) -> Done:
        # One that hangs does not keep the others waiting for ever.
        limit = threading.Timer(_LIMIT, os.killpg, (self._process.pid, signal.SIGKILL))
        limit.start()
        try:
            p = program
            self._send((p.name, p.source, str(p.folder.resolve()), p.arguments, p.strict))
            answer = self._process.stdout.readline()
        finally:
            limit.cancel()
        if not answer:
            _copied.cache_clear()  # the next ones need another process
            self._told.seek(0)
            raise AssertionError(f"there is no process to copy for {program.name}: {self._told.read()}")
        return Done(*json.loads(answer))

    def _send(self, message: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # that it has ended is said with what it said
            print(json.dumps(message), file=self._process.stdin, flush=True)

    def _end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._told.close()


# Files of tests that need the same imports share the process.
_copied = functools.cache(_Copied)
