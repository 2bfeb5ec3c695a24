"""Tasks of users: by a module, from the current folder, by an entry point; and runs of tasks that nobody knows."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import contmax_lab
from contmax_lab.errors import LabError, UsageError
from contmax_lab.registry import find_task, load_recipe, open_trained, task_names
from contmax_lab.runs import Run

PAGE = (Path(__file__).parents[2] / "docs" / "write-your-own-task.md").read_text(encoding="utf-8")
SOURCE = re.search(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)[1]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    # Processes that are started from here import the same package, however this one has found it.
    monkeypatch.setenv("PYTHONPATH", str(Path(contmax_lab.__file__).parents[1]))
    known, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if not name.startswith(("contmax", "torch", "_pytest")):
            own = getattr(sys.modules[name], "__file__", None) or ""
            if own.startswith(str(tmp_path)):
                del sys.modules[name]


@pytest.fixture(scope="module")
def tides(tmp_path_factory):
    """The folder of the page's task and of a run of it, trained by the command of the page."""
    from contmax_lab.cli import main

    folder = tmp_path_factory.mktemp("tides")
    (folder / "tides.py").write_text(SOURCE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        command = re.search(r"^contmax (train tides:TASK --training.+)$", PAGE, flags=re.MULTILINE)[1]
        main(command.split())
        del sys.modules["tides"]
    return folder


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_task_of_the_page_is_short_and_learns(tides):
    assert len(SOURCE.splitlines()) <= 80
    results = Run(tides / "runs" / "tides" / "tides-seed-0").results()
    assert results["task"] == "tides"
    assert results["valid"]["accuracy"] > 0.85


def test_the_commands_of_the_page(tides, here, contmax):
    shutil.copytree(tides, here, dirs_exist_ok=True)
    commands = re.findall(r"^contmax (.+)$", PAGE, flags=re.MULTILINE)
    printed = [contmax(*command.split()) for command in commands[1:]]
    assert [code for code, _, _ in printed] == [0, 0, 0], printed
    assert "examples: " in printed[0][1] or "in each of the three parts" in printed[0][1]
    assert Path("report/report.html").is_file()
    assert "accuracy" in printed[2][1]


def test_variants_of_the_page_by_name_and_in_a_file(here):
    recipe = re.search(r"^```yaml\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)[1]
    Path("recipe.yaml").write_text(recipe)
    with_recipe = 'import pathlib\nTides.recipe_file = pathlib.Path("recipe.yaml")\n'
    Path("tides.py").write_text(SOURCE + with_recipe)
    for gaussian in (load_recipe("tides:TASK/gaussian"), load_recipe("recipe.yaml", variant="gaussian")):
        assert (gaussian.model.alpha, gaussian.training.epochs, gaussian.training.learning_rate) == (1.0, 30, 0.01)
    assert load_recipe("tides:TASK").model.alpha == 2.0
    for name, variant in (("tides:TASK/gausian", ""), ("recipe.yaml", "gausian"), ("tides:TASK", "gausian")):
        with pytest.raises(UsageError, match=r"did you mean (tides:TASK/)?gaussian"):
            load_recipe(name, variant=variant)
    with pytest.raises(UsageError, match="--variant names parabola; pass only one of them"):
        load_recipe("tides:TASK/gaussian", variant="parabola")


# -- where a task is looked for ----------------------------------------------------------------------------------------


def test_a_recipe_of_the_current_folder_names_a_module(here, contmax):
    Path("tides.py").write_text(SOURCE)
    Path("mine.yaml").write_text("task: tides:TASK\ntraining: {epochs: 1}\n")
    code, printed, errors = contmax("data", "check", "mine.yaml", "--data.examples", "7")
    assert (code, errors) == (0, [])
    assert printed.startswith("train 7, valid 7, test 7 examples")


def test_an_entry_point_makes_a_task_known_by_its_name(here, contmax, monkeypatch, tides):
    package, info = here / "site" / "shore", here / "site" / "shore-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text(SOURCE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shore\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[contmax_lab.tasks]\ntides = shore:TASK\nbroken = shore:NOTHING\n")
    assert "tides" not in task_names()
    monkeypatch.syspath_prepend(here / "site")
    assert {"tides", "broken", "vowels"} <= {*task_names()}
    assert find_task("tides").name == load_recipe("tides").task.name == "tides"
    # Now the run of the page can be opened by anybody.
    trained = open_trained(tides / "runs" / "tides" / "tides-seed-0")
    assert type(trained.task).__module__ == "shore"
    with pytest.raises(LabError, match="the task broken, shore:NOTHING, cannot be imported"):
        find_task("broken")
    (here / "tides.py").write_text(SOURCE)
    with pytest.raises(UsageError, match="an installed task with the name 'tides'; give yours another name"):
        find_task("tides:TASK")


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nowhere:TASK", "there is no module nowhere, neither installed nor in "),
        ("own:NOTHING", "has no 'NOTHING'"),
        ("own:", "has no ''"),
        (":TASK", "is not MODULE:NAME"),
        ("own:Task", "is a class; export an instance of it"),
        ("own:VALUE", "own:VALUE is of type int; it must be a contmax_lab.contract.Task"),
        ("own:NAMELESS", "has no name, summary, data_config, model_config"),
        ("needy:TASK", "needy needs no_such_package, which is not installed"),
        ("json:TASK", "which hides .*json.py; rename yours"),
        ("tide", "there is no task 'tide'"),
    ],
)
def test_what_is_no_task_is_one_line(here, reference, says):
    Path("own.py").write_text(
        "from contmax_lab.contract import Task\nVALUE = 3\n"
        "class Nameless(Task):\n    load = build = batch = loss = None\nNAMELESS = Nameless()\n"
    )
    Path("needy.py").write_text("import no_such_package\n")
    Path("json.py").write_text(SOURCE)
    with pytest.raises(LabError, match=says) as error:
        find_task(reference)
    assert "\n" not in str(error.value)


# -- runs of somebody else ---------------------------------------------------------------------------------------------


def test_nothing_is_imported_because_a_run_says_so(tides, here, contmax):
    run = shutil.copytree(tides / "runs" / "tides" / "tides-seed-0", here / "run")
    trap = "raise AssertionError('the folder of a run was imported')\n"
    for place in (here, run):
        (place / "tides.py").write_text(trap)
    for command in (["evaluate", run], ["report", run], ["predict", run, 1], ["export", run]):
        code, printed, errors = contmax(*command)
        assert (code, printed, len(errors)) == (1, "", 1)
        assert "is a run of the task 'tides' (tides:Tides where it was trained), which is not installed" in errors[0]
        assert "--task tides:TASK" in errors[0]
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("task: tides", "task: tides:TASK"))
    code, _, errors = contmax("evaluate", run)
    assert (code, len(errors)) == (1, 1)
    assert "which is not installed" in errors[0]


def test_a_task_that_is_named_opens_the_run_and_goes_on_with_it(tides, here, contmax):
    shutil.copy(tides / "tides.py", here / "elsewhere.py")
    run = shutil.copytree(tides / "runs" / "tides" / "tides-seed-0", here / "run")
    code, printed, _ = contmax("evaluate", run, "--task", "elsewhere:TASK", "--split", "valid", "--json")
    assert code == 0
    assert json.loads(printed) == pytest.approx(Run(run).results()["valid"])
    code, printed, _ = contmax("train", run / "config.yaml", "--task", "elsewhere:TASK", "--folder", run, "--resume")
    assert code == 0
    assert "best epoch" in printed
    with pytest.raises(UsageError, match="is a run of the task tides, not of vowels"):
        Run(run).recipe(find_task("vowels"))


def test_processes_beside_this_one_train_the_cells_of_its_table(here, contmax):
    table = (
        "from contmax_lab.contract import Metric, Repetition, Row, Table\n"
        "METRICS = (Metric('test.accuracy', 'accuracy', digits=2),)\n"
        "TABLE = Table('tide-table', 'Tides', (Row('Tides'),), (Repetition('once', ()),), METRICS, needs_data=False)\n"
        "Tides.tables = lambda self: (TABLE,)\n"
    )
    Path("tides.py").write_text(SOURCE + table)
    code, printed, _ = contmax("reproduce", "tide-table", "--task", "tides:TASK", "--training.epochs", 1)
    assert code == 0
    assert re.search(r"Tides +\| [01]\.\d\d", printed)


# -- contmax new-task --------------------------------------------------------------------------------------------------


def test_a_new_task_trains_and_its_test_passes(here, contmax, monkeypatch):
    code, printed, errors = contmax("new-task", "my_bumps")
    assert (code, errors) == (0, [])
    assert "contmax train my_bumps:TASK" in printed
    names = {path.name for path in Path("my_bumps").iterdir()}
    assert names == {"__init__.py", "data.py", "model.py", "task.py", "recipe.yaml", "test_my_bumps.py"}
    monkeypatch.syspath_prepend(here)
    code, _, errors = contmax(
        "train", "my_bumps/recipe.yaml", "--variant", "gaussian", "--training.epochs", "1", "--data.examples", "20"
    )
    assert (code, errors) == (0, [])
    trained = open_trained("runs/my_bumps/recipe-gaussian-seed-0", named=["my_bumps:TASK"])
    assert trained.recipe.model.alpha == 1.0
    assert len(trained.task.figures([trained])[0].draw(_theme()).axes) == 6
    from my_bumps import test_my_bumps

    for name, test in vars(test_my_bumps).items():
        if name.startswith("test_"):
            (here / name).mkdir()
            test(here / name)


def _theme():
    from contmax_lab.drawing import LIGHT

    return LIGHT


@pytest.mark.parametrize("name", ["My-task", "class", "vowels", "json", "_x", "there"])
def test_names_that_a_new_task_cannot_have(here, contmax, name):
    (here / "there").mkdir()
    code, printed, errors = contmax("new-task", name)
    assert (code, printed, len(errors)) == (2, "", 1)
    assert "pass " in errors[0]
