"""What the command says of itself: at once, of every option, with examples that work."""

import re
import resource
import shlex
import subprocess
import sys

import pytest

from contmax_lab import recipes
from contmax_lab.cli._main import _COMMANDS, _joined, _parser
from contmax_lab.registry import find_recipe, find_table, find_task, settings_of, shipped_tasks

HEAVY = [
    "torch",
    "fastapi",
    "uvicorn",
    "accelerate",
    "jsonargparse",
    "optuna",
    "sklearn",
    "aeon",
    "matplotlib",
    "rich",
    "numpy",
    "yaml",
]


def alone(program):
    """What a program prints, which heavy packages it takes, and seconds of the processor: other work does not count."""
    program = f"import sys\n{program}\nprint(*[m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, done.stderr.split(), taken


def helped(*words):
    return alone(f"from contmax_lab.cli import main\ntry:\n    main({words})\nexcept SystemExit:\n    pass")


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["predict", "--help"], ["explore", "--help"]])
def test_help_comes_at_once_and_needs_nothing_heavy(words):
    printed, heavy, taken = helped(*words)
    assert heavy == []
    assert "contmax train texts --data.train reviews.csv" in printed or words[0] in ("predict", "explore")
    # An import of torch takes seconds.
    assert taken < 0.5


def test_the_settings_of_a_task_are_listed_without_torch():
    printed, heavy, taken = helped("train", "vqa/small", "--help")
    assert "--model.fused_dim" in printed
    assert heavy == ["jsonargparse", "yaml"]
    assert taken < 1.5
    every = "from contmax_lab.registry import settings_of, shipped_tasks\nprint(*map(settings_of, shipped_tasks()))"
    assert alone(every)[1] == ["jsonargparse", "yaml"]


@pytest.mark.parametrize("name", shipped_tasks())
def test_what_is_read_without_torch_is_what_the_task_says(name):
    task, settings = find_task(name), settings_of(name)
    assert (settings.name, settings.data_config, settings.model_config) == (name, task.data_config, task.model_config)
    assert task.name == name
    assert task.recipe_file == settings.recipe_file
    assert task.recipe_file.is_file()


def examples(printed):
    """The commands that a help text ends with, as words after ``contmax``."""
    lines = printed.partition("examples:\n")[2].splitlines()
    return [shlex.split(line.strip(), comments=True)[1:] for line in lines]


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_subcommand_teaches(contmax, command):
    code, printed, errors = contmax(command, "--help")
    assert (code, errors) == (0, [])
    assert _COMMANDS[command][0] in " ".join(contmax("--help")[1].split())
    shown = examples(printed)
    assert [command] in [words[:1] for words in shown]
    for words in shown:
        options, overrides = _parser().parse_known_args(_joined(words))
        if options.command in ("train", "search") and ":" not in options.recipe:
            find_recipe(options.recipe, options.variant).recipe(overrides)
        elif options.command == "data" and options.action == "check":
            find_recipe(options.what).recipe(overrides)
        elif options.command == "reproduce":
            assert find_table(options.table)[1].needs_data == (options.data is not None)
        else:
            assert not overrides or options.command == "demo"


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_option_is_explained(command):
    (children,) = (action.choices for action in _parser()._actions if isinstance(action.choices, dict))
    for action in children[command]._actions:
        assert len((action.help or "").split()) >= 3, action.dest


@pytest.mark.parametrize("name", shipped_tasks())
def test_every_setting_of_every_task_is_explained(name):
    task = find_task(name)
    parser = recipes._parser(task.data_config, task.model_config, "contmax")
    settings = [action for action in parser._actions if action.option_strings and "." in action.dest]
    assert {"data", "model", "training"} == {action.dest.partition(".")[0] for action in settings}
    unexplained = [action.dest for action in settings if not action.help or action.help.startswith("%")]
    assert unexplained == []


def test_a_task_lists_its_settings_with_meaning_and_default(contmax):
    code, printed, _ = contmax("train", "intervals/gaussian-95", "--help")
    assert code == 0
    shown = " ".join(printed.split())
    default = find_recipe("intervals/gaussian-95").recipe().model.hidden_dim
    assert re.search(
        rf"--model.hidden_dim HIDDEN_DIM width of the two hidden layers\.? \(.*?default: {default}\)", shown
    )
    assert "random seed (weights, data order, dropout)" in shown
