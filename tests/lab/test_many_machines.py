"""The page about several machines: every command line is understood by the program that it is for."""

import shlex
from pathlib import Path

import pytest

from contmax_lab.cli import _main
from contmax_lab.cli._options import chosen_workers
from contmax_lab.registry import find_recipe, find_table
from contmax_lab.tables import cell_recipe
from contmax_lab.workers import LocalProcesses, RayCluster

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "many-machines.md").read_text(encoding="utf-8")
COMMANDS = [line for block in PAGE.split("```")[1::2] for line in block.strip().splitlines()]


def of(program):
    found = [shlex.split(line)[1:] for line in COMMANDS if line.startswith(f"{program} ")]
    assert found, f"the page has no command of {program}"
    return found


def understood(words):
    """The options of contmax; the keys are those of the recipe."""
    options, keys = _main._parser().parse_known_args(_main._joined(words))
    if options.command == "reproduce":
        task, table = find_table(options.table)
        cell_recipe(task, next(table.cells()), keys)
        assert table.needs_data == (options.data is not None)
    else:
        recipe = find_recipe(options.recipe).recipe(keys)
        assert options.command == "train" or recipe.search
    return options


def test_the_page_is_linked_and_every_command_is_checked_here():
    assert "](docs/many-machines.md)" in (DOCS.parent / "README.md").read_text(encoding="utf-8")
    programs = {line.split()[0] for line in COMMANDS}
    assert programs == {"contmax", "torchrun", "accelerate", "ray"}


def test_commands_of_contmax():
    workers = [chosen_workers(understood(words)) for words in of("contmax")]
    assert workers[:2] == [RayCluster("auto"), RayCluster("node-a:6379", gpus=0.25)]
    assert workers[3:] == [LocalProcesses(1), LocalProcesses(2)]


def test_commands_of_torchrun():
    from torch.distributed.run import get_args_parser

    for words in of("torchrun"):
        launch = get_args_parser().parse_args(words)
        assert (launch.module, launch.training_script, launch.nproc_per_node) == (True, "contmax_lab", "4")
        assert launch.nnodes == ("2" if launch.rdzv_endpoint else "1:1")
        assert understood(launch.training_script_args).command == "train"


def test_commands_of_accelerate():
    from accelerate.commands.launch import launch_command_parser

    configure, launch = of("accelerate")
    assert configure == ["config"]
    options = launch_command_parser().parse_args(launch[1:])
    assert (options.module, options.training_script) == (True, "contmax_lab")
    assert (options.num_machines, options.num_processes, options.machine_rank) == (2, 8, 0)
    assert understood(options.training_script_args).command == "train"


def test_commands_of_ray():
    scripts = pytest.importorskip("ray.scripts.scripts", reason="needs ray: pip install 'contmax[ray]'")
    head, other = [scripts.start.make_context("start", words[1:]).params for words in of("ray")]
    assert (head["head"], head["port"]) == (True, 6379)
    assert (other["head"], other["address"]) == (False, "node-a:6379")
