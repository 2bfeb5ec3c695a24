"""The README tells the truth: every snippet runs as printed in an interpreter of its own, and cheap commands too."""

import re
import shlex
from pathlib import Path

import pytest

from contmax_lab import cli
from contmax_lab.cli import main
from contmax_lab.registry import find_task, shipped_recipes, task_names
from fresh import Program, run_each

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
COMMANDS = [shlex.split(line.partition("#")[0]) for line in README.splitlines() if line.startswith("contmax ")]


def test_every_snippet_runs_in_a_fresh_interpreter():
    assert len(SNIPPETS) >= 6
    programs = [Program(f"snippet {number}", snippet) for number, snippet in enumerate(SNIPPETS)]
    programs.append(Program("a snippet that takes what it did not make", "contmax.sparsemax"))
    *runs, last = run_each(programs, strict=True)
    for snippet, run in zip(SNIPPETS, runs, strict=True):
        assert run.code == 0, f"{run.complaint}\nin this snippet:\n\n{snippet}"
    assert "NameError: name 'contmax' is not defined" in last.complaint


def command(name):
    return next(words for words in COMMANDS if words[1] == name)[1:]


@pytest.mark.parametrize("name", ["doctor", "predict"])
def test_cheap_commands_run_as_printed(name, capsys):
    main(command(name))
    assert capsys.readouterr().out.strip()


def test_longer_commands_name_what_exists():
    assert command("train")[1] in shipped_recipes()
    assert command("reproduce")[1] in {table.name for name in task_names() for table in find_task(name).tables()}
    known = {path.stem.removeprefix("_").replace("_", "-") for path in Path(cli.__file__).parent.glob("_*.py")}
    assert {words[1] for words in COMMANDS} <= known
