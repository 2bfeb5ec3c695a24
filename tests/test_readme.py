"""The commands of the README: cheap ones run as printed, longer ones name what exists. Its snippets: tests/docs."""

import contextlib
import shlex
from pathlib import Path

import pytest

from contmax_lab.cli import main
from contmax_lab.registry import find_task, shipped_recipes, task_names

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line.partition("#")[0]) for line in README.splitlines() if line.startswith("contmax ")]


def command(name):
    return next(words for words in COMMANDS if words[1] == name)[1:]


@pytest.mark.parametrize("name", ["doctor", "predict"])
def test_cheap_commands_run_as_printed(name, capsys):
    main(command(name))
    assert capsys.readouterr().out.strip()


def test_longer_commands_name_what_exists():
    assert command("train")[1] in shipped_recipes()
    assert command("reproduce")[1] in {table.name for name in task_names() for table in find_task(name).tables()}


@pytest.mark.parametrize("name", sorted({words[1] for words in COMMANDS}))
def test_every_command_exists(name, capsys):
    with contextlib.suppress(SystemExit):  # argparse prints its help and ends the process
        main([name, "--help"])
    assert f"contmax {name}" in capsys.readouterr().out
