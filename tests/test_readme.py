"""The README tells the truth: every snippet runs as printed in an interpreter of its own, and cheap commands too."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from contmax_lab import cli
from contmax_lab.cli import main
from contmax_lab.recipes import shipped_recipes
from contmax_lab.tasks import find_task, task_names

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
COMMANDS = [shlex.split(line.partition("#")[0]) for line in README.splitlines() if line.startswith("contmax ")]

# A process that knows nothing but torch, and is copied for each snippet: as fresh as a new one, without its seconds.
RUN_EACH = """
import json, os, sys, traceback, warnings
import torch

for number, snippet in enumerate(json.load(sys.stdin)):
    child = os.fork()
    if child == 0:
        warnings.simplefilter("error")
        try:
            exec(compile(snippet, f"snippet {number}", "exec"), {"__name__": "__main__"})
        except BaseException:
            print(f"{traceback.format_exc()}\\nin this snippet:\\n\\n{snippet}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
"""


def run_each(snippets):
    command = [sys.executable, "-c", RUN_EACH]
    return subprocess.run(command, input=json.dumps(snippets), capture_output=True, text=True, check=False)


def test_every_snippet_runs_in_a_fresh_interpreter():
    assert len(SNIPPETS) >= 6
    done = run_each(SNIPPETS)
    assert done.returncode == 0, done.stderr


def test_a_snippet_that_fails_is_shown():
    done = run_each(["import contmax", "contmax.sparsemax  # not imported here"])
    assert done.returncode == 1
    assert "NameError" in done.stderr
    assert "contmax.sparsemax  # not imported here" in done.stderr


def command(name):
    return next(words for words in COMMANDS if words[1] == name)[1:]


@pytest.mark.parametrize("name", ["doctor", "predict"])
def test_cheap_commands_run_as_printed(name, capsys):
    main(command(name))
    assert capsys.readouterr().out.strip()


def test_longer_commands_name_what_exists():
    assert command("train")[1] in shipped_recipes()
    assert command("reproduce")[1] in {table.name for name in task_names() for table in find_task(name).tables()}
    assert {words[1] for words in COMMANDS} <= {
        path.stem.removeprefix("_") for path in Path(cli.__file__).parent.iterdir()
    }
