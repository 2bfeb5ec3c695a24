"""Programs in interpreters of their own, without the seconds that each would need to import torch."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

# A process that has imported torch and what is named, nothing else, is copied for each program. It starts no thread.
_COPY_FOR_EACH = """
import contextlib, importlib, io, json, os, sys, traceback, warnings

job = json.load(sys.stdin)
for name in job["imports"]:
    importlib.import_module(name)
exec(job["before"], {})
for name, source, folder, arguments, strict in job["programs"]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        warnings.simplefilter("error" if strict else "default")
        sys.argv, code, said, printed = [name, *arguments], 0, "", io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(source, name, "exec"), {"__name__": "__main__", "__file__": name})
            except BaseException:
                code, said = 1, traceback.format_exc()
        with os.fdopen(writing, "w") as answer:
            json.dump([code, printed.getvalue(), said], answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    print(text or json.dumps([1, "", "the process ended without an answer"]), flush=True)
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
    """What came of it; `complaint` is the traceback, empty if there was none."""

    code: int
    printed: str
    complaint: str


def run_each(programs: list[Program], *, imports: tuple[str, ...] = ("torch",), before: str = "") -> list[Done]:
    """Run programs one after the other, each in a copy of one process that has imported and done something before."""
    job = {
        "imports": imports,
        "before": before,
        "programs": [(p.name, p.source, str(p.folder.resolve()), p.arguments, p.strict) for p in programs],
    }
    command = [sys.executable, "-c", _COPY_FOR_EACH]
    run = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stderr
    return [Done(*json.loads(line)) for line in run.stdout.splitlines()]
