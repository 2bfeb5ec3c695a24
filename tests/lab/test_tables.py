"""Tables: cells side by side, in slices, skipped when done; search; every recipe for one step."""

import copy
import dataclasses
import json
import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from processes import say_at_a_terminal
from reviews import write_table, write_text_vectors
from weather import tiny_recipe, write_weather

from contmax_lab import recipes
from contmax_lab.cli import main
from contmax_lab.contract import Cell, Metric, Repetition, Row, Table
from contmax_lab.errors import Interrupted, LabError, UsageError
from contmax_lab.registry import find_task, load_recipe, open_trained, shipped_recipes, task_names
from contmax_lab.runs import Run
from contmax_lab.tables import Reproduction, as_text, cell_recipe, reproduce, summary
from contmax_lab.training import train
from contmax_lab.workers import LocalProcesses
from forked import process_server


def small_table(seeds=2, rows=("parabola", "midpoint")):
    return Table(
        name="small",
        title="A small table",
        rows=tuple(Row(name.capitalize(), "", (f"--model.family={name}",), {"test.mse": 0.5}) for name in rows),
        repetitions=tuple(Repetition(f"seed-{seed}", (f"--seed={seed}",)) for seed in range(seeds)),
        metrics=(Metric("test.mse", "MSE"), Metric("test.jaccard", "Jaccard, %", scale=100, digits=1)),
        notes=("a note",),
    )


@pytest.fixture
def task(config):
    """Intervals, with another recipe."""
    copied = copy.copy(find_task("intervals"))
    copied.recipe_file = config
    return copied


def test_a_table_is_trained_once(tmp_path, task):
    table, output = small_table(), tmp_path / "results" / "small.json"
    overrides = [f"--data.path={tmp_path / 'weather.csv'}", "--model.hidden_dim=4"]
    job = Reproduction(task, table, tmp_path / "runs", output, overrides, LocalProcesses(2))
    text = reproduce(job)
    stored = json.loads(output.read_text())
    assert stored["complete"]
    assert stored["notes"] == ["a note"]
    assert stored["text"] == text
    assert stored["command"] == "contmax reproduce small --data PATH --model.hidden_dim=4"
    assert len(stored["cells"]) == 4
    assert stored["versions"]["torch"]
    first = Run(tmp_path / "runs" / "parabola" / "seed-0")
    assert first.recipe(task).model.hidden_dim == 4
    values = [Run(tmp_path / "runs" / "parabola" / f"seed-{s}").results()["test"]["mse"] for s in (0, 1)]
    assert stored["rows"][0]["groups"]["seeds"]["test.mse"]["mean"] == pytest.approx(sum(values) / 2)
    stamp = first.weights.stat().st_mtime_ns
    assert reproduce(job) == text
    assert first.weights.stat().st_mtime_ns == stamp


def test_a_table_is_made_in_slices(tmp_path, task, monkeypatch):
    from contmax_lab.tables import _reproduce
    from contmax_lab.workers import _crew

    table = small_table(seeds=1, rows=("parabola",))
    run = Run(tmp_path / "runs" / "parabola" / "seed-0")
    asked = []

    def monotonic():
        """Ten minutes have passed as soon as there is a checkpoint, on a machine however slow; not before."""
        asked.append(bool(list(run.checkpoints.glob("step-*.safetensors"))))
        return 601.0 if any(asked) else 599.0 if len(asked) > 1 else 0.0

    for module in (_reproduce, _crew):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
    slow = ["--training.epochs=100000", "--training.checkpoint_seconds=0.2"]
    job = Reproduction(task, table, tmp_path / "runs", tmp_path / "small.json", slow, budget_minutes=10)
    with pytest.raises(Interrupted, match="time is up with 0 of 1 trainings done, everything is saved"):
        reproduce(job)
    assert any(asked)
    assert not json.loads((tmp_path / "small.json").read_text())["complete"]
    assert run.last_checkpoint().state["position"]["step"] > 0


def test_ctrl_c_at_a_terminal_stops_a_table_cleanly(tmp_path):
    run = Run(tmp_path / "runs" / "baseline" / "seed-0")
    slow = ["--training.epochs=100000", "--training.patience=0", "--training.checkpoint_seconds=1000"]
    pytest.importorskip("vega_datasets")
    places = ["--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "table.json")]
    process = process_server().Process(
        target=say_at_a_terminal, args=(tmp_path, "reproduce", "seattle", *slow, *places)
    )
    process.start()
    while process.is_alive() and not run.history():
        time.sleep(0.05)
    # A terminal sends it to all processes of the group at once, workers included.
    os.killpg(process.pid, signal.SIGINT)
    process.join(300)
    assert process.exitcode == 130
    complaints = (tmp_path / "stderr").read_text()
    assert complaints.splitlines()[-1] == (
        "contmax: stopped with 0 of 15 trainings done, everything is saved; the same command continues"
    )
    assert "Traceback" not in complaints
    assert run.last_checkpoint().state["position"]["step"] > 0


@pytest.mark.usefixtures("trained_here")
def test_a_cell_that_fails_is_named_and_the_others_are_kept(tmp_path, task):
    good, bad = small_table(seeds=1).rows
    broken = Row("Broken", bad.variant, ("--data.path=/nowhere.csv",))
    # More than a processor can address: less is promised by machines that give out memory they do not have.
    huge = Row("Huge", bad.variant, ("--model.hidden_dim=1000000000000000",))
    rows, parts = (broken, huge, good), small_table(seeds=1)
    table = Table("small", "", rows, parts.repetitions, parts.metrics)
    says = r"broken/seed-0: /nowhere.csv: no such file.* \(2 of 3 trainings failed; the others are kept\)"
    with pytest.raises(LabError, match=says):
        reproduce(Reproduction(task, table, tmp_path / "runs", tmp_path / "small.json"))
    assert [cell["row"] for cell in json.loads((tmp_path / "small.json").read_text())["cells"]] == ["Parabola"]


def test_means_deviations_and_text():
    table = small_table()
    cells = list(table.cells())
    results = [{"test": {"mse": value, "jaccard": value / 2}} for value in (0.1, 0.5, 0.3)]
    rows = summary(table, list(zip(cells, results, strict=False)))
    assert rows[0]["groups"]["seeds"]["test.mse"] == {
        "mean": pytest.approx(0.2),
        "std": pytest.approx(0.02**0.5),
        "count": 2,
    }
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in as_text(table, rows).splitlines()]
    assert lines[0] == ["", "MSE", "Jaccard, %", "paper: MSE"]
    assert lines[2] == ["Parabola", "0.2000 ± 0.1414", "10.0 ± 7.1", "0.5000"]
    assert lines[3] == ["Midpoint", "0.5000", "25.0", "0.5000"]


def test_groups_scales_and_zeros():
    plain = small_table()
    repetitions = (
        Repetition("a", (), ("seeds", "splits")),
        Repetition("b", (), ("seeds",)),
        Repetition("c", (), ("splits",)),
    )
    metrics = (Metric("test.mse", "MSE", digits=2), Metric("parameters", "size", digits=0, spread=False))
    table = Table("t", "", plain.rows[:1], repetitions, metrics)
    values = [(0.0, 1000), (2.0, 1000), (4.0, 3000)]
    results = [{"test": {"mse": mse}, "parameters": size} for mse, size in values]
    rows = summary(table, list(zip(table.cells(), results, strict=True)))
    means = {group: entry["test.mse"]["mean"] for group, entry in rows[0]["groups"].items()}
    assert means == {"seeds": 1.0, "splits": 2.0}
    assert as_text(table, rows).splitlines()[2].split("|")[2:6] == [
        " 1.00 ± 1.41 ",
        " 1,000        ",
        " 2.00 ± 2.83  ",
        " 2,000         ",
    ]
    # Zero is a figure; what was not measured is a dash.
    alone = summary(table, [(next(table.cells()), {"test": {"mse": 0.0}})])
    assert [cell.strip() for cell in as_text(table, alone).splitlines()[2].split("|")[2:4]] == ["0.00", "–"]


def test_what_is_nearer_to_the_training_wins_and_first_repetitions_come_first(task, tmp_path, monkeypatch):
    from contmax_lab.tables import _reproduce

    given = {}

    def noted(workers, trainings, deadline):
        given.update({training.folder: training.recipe for training in trainings}, workers=workers)
        assert all(training.test for training in trainings)
        return []

    monkeypatch.setattr(_reproduce, "train_all", noted)
    row = Row("Row", "", ("--model.hidden_dim=3", "--seed=9"))
    repetitions = (Repetition("one", ("--seed=5",)), Repetition("two", ("--seed=6",)))
    table = Table("t", "", (row, dataclasses.replace(row, label="Other")), repetitions, ())
    assert [cell.folder for cell in table.cells()] == ["row/one", "other/one", "row/two", "other/two"]
    # The user's keys are for all rows, so that a row keeps what makes it this row.
    keys = ["--model.hidden_dim=7", "--training.epochs=2"]
    reproduce(Reproduction(task, table, tmp_path, tmp_path / "o.json", keys, LocalProcesses(3)))
    assert given.pop("workers") == LocalProcesses(3)
    assert list(given) == [tmp_path / cell.folder for cell in table.cells()]
    recipe = given[tmp_path / "other" / "two"]
    assert (recipe.seed, recipe.model.hidden_dim, recipe.training.epochs) == (6, 3, 2)
    assert not json.loads((tmp_path / "o.json").read_text())["complete"]


def test_a_table_that_is_unknown_or_lacks_its_data(capsys):
    for arguments, says in ((["nothing"], "there is no table 'nothing'"), (["intervals"], "needs --data PATH")):
        with pytest.raises(SystemExit) as leaving:
            main(["reproduce", *arguments])
        assert leaving.value.code == 2
        assert says in capsys.readouterr().err


def test_every_table_names_recipes_and_keys_that_exist():
    for task in map(find_task, task_names()):
        for table in task.tables():
            words = {}
            for cell in table.cells():
                words.setdefault(cell.row.variant, {}).update(dict.fromkeys(cell.overrides))
            # Every word is checked when it is read, even if a later one says something else: all at once.
            for variant, overrides in words.items():
                cell_recipe(task, Cell(Row("all", variant, tuple(overrides)), Repetition("any", ())))
            folders = [cell.folder for cell in table.cells()]
            assert len(set(folders)) == len(folders)


def test_a_recipe_knows_nothing_of_how_others_were_changed():
    first = load_recipe("intervals/parabola")
    choices = copy.deepcopy(first.search)
    assert load_recipe("intervals/parabola", ["--model.hidden_dim=3"]).model.hidden_dim == 3
    for values in first.search.values():
        values.clear()
    again = load_recipe("intervals/parabola")
    assert (again.model, again.search) == (first.model, choices)
    assert choices


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if name.startswith("intervals/")])
def test_every_recipe_takes_a_step(tmp_path, name):
    quick = ["--training.epochs=1", "--model.hidden_dim=4"]
    if "seattle" not in name:
        quick += [f"--data.path={write_weather(tmp_path)}", "--data.valid=9", "--data.test=9"]
    recipe = load_recipe(name, quick)
    assert load_recipe(name, [*quick, "--seed=0"]) == recipe
    results = train(recipe, Run(tmp_path / "run"), test=True)
    assert results["steps"] == 1
    assert results["test"]["jaccard"] == pytest.approx(counted_jaccard(open_trained(tmp_path / "run")), abs=1e-3)


@torch.no_grad()
def counted_jaccard(trained):
    """The mean overlap of forecast and observed interval on the test days, by counting points of a fine grid."""
    batch = trained.task.batch(trained.splits.test, range(len(trained.splits.test)))
    forecast = trained.model(batch)
    points = torch.linspace(-4, 4, 80_001)[:, None]
    predicted = (points - forecast.loc).abs() <= forecast.half_width
    observed = (batch["low"] <= points) & (points <= batch["high"])
    return float(((predicted & observed).sum(0) / (predicted | observed).sum(0)).mean())


# -- search ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("trained_here")
def test_search_goes_on_where_it_stopped_and_never_sees_the_test(tmp_path, capsys):
    recipe = tiny_recipe(tmp_path)
    config = tmp_path / "tiny.yaml"
    space = "search: {model.hidden_dim: [2, 4], training.learning_rate: {low: 0.001, high: 0.1, log: true}}"
    config.write_text(recipes.as_yaml(recipe).partition("search:")[0] + space)
    arguments = ["search", str(config), "--runs", str(tmp_path / "s")]
    main([*arguments, "--trials", "2"])
    main([*arguments, "--trials", "3"])
    printed = capsys.readouterr().out.splitlines()
    assert f"contmax train {config} --model.hidden_dim " in printed[-1]
    trials = sorted((tmp_path / "s").glob("trial-*"))
    assert len(trials) == 3
    assert all(Run(trial).results()["test"] is None for trial in trials)
    assert len({Run(trial).recipe(find_task("intervals")).training.learning_rate for trial in trials}) == 3
    assert (tmp_path / "s" / "search.db").exists()
    best = min(Run(trial).results()["valid"]["loss"] for trial in trials)
    assert f"loss {best:.6g}" in printed[-2]


@pytest.mark.usefixtures("trained_here")
def test_search_judges_by_the_mean_over_splits(tmp_path, capsys):
    config = tmp_path / "tiny.yaml"
    text = recipes.as_yaml(tiny_recipe(tmp_path)).partition("search:")[0]
    config.write_text(text + "search: {model.hidden_dim: [4]}")
    main(["search", str(config), "--runs", str(tmp_path / "s"), "--trials", "1", "--over", "data.split=3,4"])
    runs = [Run(tmp_path / "s" / "trial-0000" / f"data.split={split}") for split in (3, 4)]
    assert [run.recipe(find_task("intervals")).data.split for run in runs] == [3, 4]
    losses = [run.results()["valid"]["loss"] for run in runs]
    assert losses[0] != losses[1]
    assert f"number 0: loss {sum(losses) / 2:.6g}" in capsys.readouterr().out


@pytest.mark.usefixtures("trained_here")
def test_trials_of_another_search_are_not_compared(tmp_path, config, capsys):
    pytest.importorskip("optuna")
    text = config.read_text().partition("search:")[0] + "search: {model.hidden_dim: [2, 4]}"
    config.write_text(text)
    arguments = ["search", str(config), "--runs", str(tmp_path / "s"), "--trials", "1"]
    main(arguments)
    config.write_text(text.replace("[2, 4]", "[2, 3]"))
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    config.write_text(text)
    for changed in ([*arguments, "--training.epochs=1"], [*arguments, "--over", "data.split=3,4"]):
        with pytest.raises(SystemExit, match="2"):
            main(changed)
        assert "with other keys, repetitions or choices; pass another --runs" in capsys.readouterr().err


@pytest.mark.usefixtures("trained_here")
def test_a_search_that_cannot_train_blames_no_trial(tmp_path, capsys):
    pytest.importorskip("optuna")
    folder = write_text_vectors(write_table(tmp_path / "imdb")).parent
    arguments = ["search", "documents/imdb", f"--data.path={folder}", "--model.start=/nowhere", "--trials", "2"]
    with pytest.raises(SystemExit, match="1"):
        main([*arguments, "--runs", str(tmp_path / "s")])
    assert "/nowhere holds no trained model" in capsys.readouterr().err


@pytest.mark.parametrize("over", ["data.split", "=1,2", "data.split=", "data.split=1,,2"])
def test_search_over_what_is_no_list_of_values(tmp_path, capsys, over):
    with pytest.raises(SystemExit) as leaving:
        main(["search", "intervals/parabola", "--runs", str(tmp_path), "--over", over])
    assert leaving.value.code == 2
    assert f"--over {over} is not KEY=VALUE" in capsys.readouterr().err


@pytest.mark.usefixtures("trained_here")
def test_a_table_never_mixes_recipes(tmp_path, task):
    table, output = small_table(seeds=1, rows=("parabola",)), tmp_path / "small.json"
    quick = Reproduction(task, table, tmp_path / "runs", output, ["--training.epochs=1"])
    reproduce(quick)
    assert json.loads(output.read_text())["command"] == "contmax reproduce small --data PATH --training.epochs=1"
    before = output.read_bytes()
    with pytest.raises(UsageError, match=r"another recipe \(training.epochs: 1, now 2\); delete it") as error:
        reproduce(Reproduction(task, table, tmp_path / "runs", output, ["--training.epochs=2"]))
    assert "\n" not in str(error.value)
    assert output.read_bytes() == before
    # Data may move between slices.
    (tmp_path / "elsewhere").mkdir()
    moved = f"--data.path={write_weather(tmp_path / 'elsewhere')}"
    reproduce(dataclasses.replace(quick, overrides=[*quick.overrides, moved]))
