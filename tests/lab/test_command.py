"""The command as a user meets it: help, errors in one line, exit codes."""

import json
import shlex
import sys
import tarfile
import zipfile

import pytest
from weather import HEADER, lines, tiny_recipe, write_weather

from contmax_lab import recipes
from contmax_lab.registry import find_task
from contmax_lab.runs import Run


def test_train_evaluate_report(contmax, config, tmp_path):
    run = tmp_path / "run"
    code, printed, errors = contmax("train", config, "--folder", run, "--model.hidden_dim", "4", "--seed=3")
    assert (code, errors) == (0, [])
    assert "valid loss" in printed
    assert "test  loss" not in printed
    assert Run(run).results()["test"] is None
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "provenance.json", "metrics.jsonl", "model.safetensors", "results.json"} <= names
    assert Run(run).recipe(find_task("intervals")).model.hidden_dim == 4
    assert json.loads((run / "provenance.json").read_text())["versions"]["torch"]
    code, printed, _ = contmax("evaluate", run, "--json")
    assert code == 0
    assert json.loads(printed) == pytest.approx(Run(run).results()["valid"], rel=1e-12)
    code, printed, _ = contmax("report", run, "--output", tmp_path / "out" / "r.html")
    assert code == 0
    page = (tmp_path / "out" / "r.html").read_text()
    assert page.count("<img") == len(list((tmp_path / "out").glob("*.png"))) == 3
    assert "http" not in page
    code, _, errors = contmax("report", run, "--examples", "100000", "--output", tmp_path / "out" / "r.html")
    assert code == 2
    assert errors[-1].startswith("contmax: --examples must be from 1 to ")
    code, _, errors = contmax("report")
    assert (code, errors[-1]) == (2, "contmax: pass the folders of RUNs, e.g. contmax report runs/*")


def test_a_stored_config_is_a_recipe(contmax, config, tmp_path):
    contmax("train", config, "--folder", tmp_path / "1")
    code, _, _ = contmax("train", tmp_path / "1" / "config.yaml", "--folder", tmp_path / "2")
    assert code == 0
    assert Run(tmp_path / "1").results()["valid"] == Run(tmp_path / "2").results()["valid"]


def test_the_test_examples_are_looked_at_only_where_somebody_says_so(contmax, config, tmp_path, monkeypatch):
    from contmax_lab.training import _evaluation, _loop

    measured = []

    def watched(model, task, split, *rest, **keywords):
        measured.append(len(split))  # 9 validation days, 7 test days
        return evaluate(model, task, split, *rest, **keywords)

    evaluate, run = _loop.evaluate, tmp_path / "run"
    monkeypatch.setattr(_loop, "evaluate", watched)
    monkeypatch.setattr(_evaluation, "evaluate", watched)
    contmax("train", config, "--folder", run)
    contmax("evaluate", run)
    assert 7 not in measured
    code, printed, _ = contmax("evaluate", run, "--test", "--json")
    assert (code, measured.count(7)) == (0, 1)
    weights = Run(run).weights.read_bytes()
    code, shown, _ = contmax("train", config, "--folder", run, "--resume", "--test")
    assert (code, measured.count(7)) == (0, 2)
    assert "test  loss" in shown
    assert Run(run).weights.read_bytes() == weights
    assert Run(run).results()["test"] == pytest.approx(json.loads(printed), rel=1e-12)
    contmax("train", config, "--folder", run, "--resume", "--test")
    assert measured.count(7) == 2
    assert contmax("evaluate", run, "--test", "--split", "train")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--modl.hidden_dim", "4"], "modl.hidden_dim"),
        (["--model.hiden_dim", "4"], "model.hiden_dim"),
        (["--model.hidden_dim", "many"], "model.hidden_dim"),
        (["--model.hidden_dim", "-1"], "model.hidden_dim"),
        (["--model.family", "cauchy"], "model.family"),
        (["--training.epochs", "0"], "training.epochs"),
        (["--training.learning_rate", "nan"], "training.learning_rate"),
        (["stray"], "stray"),
        (["--training.monitor", "bleu"], "the metrics are loss, mse"),
    ],
)
def test_what_is_not_understood_is_one_line_and_exit_code_2(contmax, config, tmp_path, arguments, says):
    code, printed, errors = contmax("train", config, "--folder", tmp_path / "run", *arguments)
    assert code == 2
    assert printed == ""
    assert len(errors) == 1
    assert says in errors[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("task: intervals\nmodle: {}\n", "modle"),
        ("task: intervals\nmodel: {hiden: 3}\n", "hiden"),
        ("task: intervals\nmodel: [1, 2]\n", "model"),
        ("task: nothing\n", "there is no task 'nothing'"),
        ("model: {}\n", "the key task"),
        ("- 1\n", "must be a mapping"),
        ("", "must be a mapping"),
        ("task: [unclosed\n", "cannot be read as YAML"),
        ("task: !!python/object/apply:os.system [echo]\n", "cannot be read as YAML"),
        (b"task: intervals # \xe9\n", "cannot be read as YAML"),
    ],
)
def test_a_bad_recipe_is_one_line(contmax, tmp_path, text, says):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    code, _, errors = contmax("train", path, "--folder", tmp_path / "run")
    assert code == 2
    assert len(errors) == 1
    assert says in errors[0]
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_does_not_exist(contmax):
    for name in ("nothing", "nothing.yaml", "../secret"):
        code, _, errors = contmax("train", name)
        assert (code, len(errors)) == (2, 1)
        assert "a task (bags, digits, documents, images, intervals, " in errors[0]
        assert "contmax data list shows all" in errors[0]


def changed(number, text):
    rows = lines()
    rows[number - 1] = text
    return rows


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (changed(1, "date,tmin_c,n_hours"), "line 1: no column tmax_c"),
        (changed(7, "2015-01-06,1.0,2.0"), "line 7: 3 fields where the header has 4"),
        (changed(8, "2015-01-07,cold,2.0,24"), "line 8: tmin_c is 'cold', which is not a number"),
        (changed(9, "2015-01-08,nan,2.0,24"), "line 9: tmin_c is 'nan'; it must be finite"),
        (changed(10, "2015-13-09,1.0,2.0,24"), "line 10: '2015-13-09' is not a date"),
        (changed(11, "2015-01-10,5.0,2.0,24"), "line 11: the lowest temperature, 5.0, is above the highest"),
        (changed(12, '2015-01-11,"1.0,2.0,24'), "line 12"),
        ([HEADER], "has no rows"),
        (lines(15), "cannot be split"),
        (lines(40), "windows that do not overlap fit"),
    ],
)
def test_bad_data_is_one_line_with_its_number(contmax, tmp_path, rows, says):
    config = tmp_path / "tiny.yaml"
    write_weather(tmp_path, rows)
    config.write_text(recipes.as_yaml(tiny_recipe(tmp_path)))
    code, _, errors = contmax("train", config, "--folder", tmp_path / "run")
    assert code == 1
    assert len(errors) == 1
    assert "weather.csv" in errors[0] or "windows" in errors[0]
    assert says in errors[0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        ("\n".join(changed(5, "2015-01-04,1.0,2.0,24 \u00b0")).encode("latin1"), "line 5: byte 0xb0 is not UTF-8"),
        ("\n".join(lines()).encode("utf-16"), "line 1"),
        (bytes(range(256)) * 40, "not UTF-8"),
    ],
)
def test_files_that_are_no_text(contmax, config, tmp_path, content, says):
    (tmp_path / "weather.csv").write_bytes(content)
    code, _, errors = contmax("data", "check", config)
    assert (code, len(errors)) == (1, 1)
    assert says in errors[0]


def test_the_loader_takes_what_spreadsheets_write(contmax, config, tmp_path):
    (tmp_path / "weather.csv").write_bytes("\r\n".join([*lines(), "", ""]).encode("utf-8-sig"))
    code, printed, _ = contmax("data", "check", config)
    assert code == 0
    assert "valid 9, test 7 examples" in printed


@pytest.mark.parametrize("path", ["nowhere.csv", "."])
def test_a_path_that_is_no_file(contmax, config, tmp_path, path):
    code, _, errors = contmax("data", "check", config, "--data.path", tmp_path / path)
    assert (code, len(errors)) == (1, 1)
    assert "ncei.noaa.gov" in errors[0]


# -- archives ----------------------------------------------------------------------------------------------------------


def test_archives_are_unpacked_within_their_folder(contmax, tmp_path):
    weather = write_weather(tmp_path)
    with tarfile.open(tmp_path / "a.tar.xz", "w:xz") as tar:
        tar.add(weather, "inner/weather.csv")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.write(weather, "inner/weather.csv")
    for name in ("a.tar.xz", "a.zip"):
        code, printed, _ = contmax("data", "prepare", tmp_path / name, "--into", tmp_path / name[:-3])
        assert code == 0
        assert (tmp_path / name[:-3] / "inner" / "weather.csv").read_bytes() == weather.read_bytes()
        assert "inner/weather.csv" in printed


def test_archives_that_are_hostile_or_broken(contmax, tmp_path):
    weather = write_weather(tmp_path)
    with tarfile.open(tmp_path / "outside.tar", "w") as tar:
        tar.add(weather, "../outside.csv")
    (tmp_path / "cut.tar.xz").write_bytes(b"\xfd7zXZ\x00\x00")
    (tmp_path / "text.tar").write_text("no archive")
    for name in ("outside.tar", "cut.tar.xz", "text.tar", "missing.tar"):
        code, _, errors = contmax("data", "prepare", tmp_path / name, "--into", tmp_path / "into")
        assert (code, len(errors)) == (1, 1), name
    assert not (tmp_path / "outside.csv").exists()


# -- other subcommands -------------------------------------------------------------------------------------------------


def test_data_list_shows_tasks_recipes_and_tables(contmax):
    code, printed, _ = contmax("data", "list")
    assert code == 0
    assert "intervals/parabola" in printed
    assert "table intervals" in printed


def test_doctor_says_what_to_install(contmax, monkeypatch):
    from contmax_lab import packages

    version = packages.version
    monkeypatch.setattr(packages, "version", lambda name: None if name == "sklearn" else version(name))
    code, printed, _ = contmax("doctor")
    assert code == 0
    assert "pip install" in printed
    assert "scikit-learn" in printed.split("pip install")[-1]
    monkeypatch.setattr(packages, "version", lambda name: None if name == "accelerate" else version(name))
    code, _, errors = contmax("doctor")
    assert (code, len(errors)) == (1, 1)
    assert "pip install 'contmax[lab]'" in errors[0]


def backend_lines(printed):
    return {line.split()[1]: line.split(maxsplit=2)[2] for line in printed.splitlines() if line.startswith("backend")}


def test_doctor_says_which_kernels_run_and_why_not(contmax, monkeypatch):
    from contmax_lab import packages

    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.version.cuda", None)
    assert "built without CUDA" in backend_lines(contmax("doctor")[1])["gpu"]
    monkeypatch.setattr("torch.version.cuda", "12.8")
    assert "finds no CUDA device" in backend_lines(contmax("doctor")[1])["gpu"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda i: "a GPU")
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)
    assert backend_lines(contmax("doctor")[1])["gpu"] == "yes"
    version = packages.version
    monkeypatch.setattr(packages, "version", lambda name: None if name == "triton" else version(name))
    assert "pip install 'contmax[gpu]'" in backend_lines(contmax("doctor")[1])["gpu"]
    monkeypatch.setenv("CONTMAX_BACKEND", "torch")
    lines = backend_lines(contmax("doctor")[1])
    assert all("CONTMAX_BACKEND=torch is set" in lines[kind] for kind in ("cpu", "gpu"))


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("optuna", ["search", "intervals/parabola"]),
        ("vega_datasets", ["data", "check", "intervals/seattle-parabola"]),
        ("tensorboard", ["train", "{config}", "--folder", "{run}", "--training.tensorboard=true"]),
        ("wandb", ["train", "{config}", "--folder", "{run}", "--training.wandb=project"]),
        ("matplotlib", ["report", "{run}", "--output", "{run}/r.html"]),
    ],
)
def test_a_missing_package_is_one_line_where_it_is_used(contmax, config, tmp_path, monkeypatch, module, arguments):
    run = tmp_path / "run"
    if module == "matplotlib":
        contmax("train", config, "--folder", run)
    monkeypatch.setitem(sys.modules, module, None)
    code, _, errors = contmax(*(word.format(config=config, run=run) for word in arguments))
    assert (code, len(errors)) == (1, 1)
    assert f"needs {module}, which is not installed: pip install {module}" in errors[0]


def test_runs_that_are_none_or_not_done(contmax, tmp_path):
    (tmp_path / "empty").mkdir()
    for command in ("evaluate", "report"):
        code, _, errors = contmax(command, tmp_path / "empty")
        assert (code, len(errors)) == (1, 1)
        assert "is not a run" in errors[0]


def test_the_command_that_continues_a_run_can_be_pasted(contmax, config, tmp_path):
    run = tmp_path / "a b"
    run.mkdir()
    (run / "config.yaml").write_bytes(config.read_bytes())
    _, _, (complaint,) = contmax("evaluate", run)
    words = shlex.split(complaint.partition("continue it: contmax ")[2])
    assert words == ["train", str(run / "config.yaml"), "--folder", str(run), "--resume"]


def test_a_folder_that_cannot_be_made(contmax, config, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, errors = contmax("train", config, "--folder", tmp_path / "file" / "run")
    assert (code, len(errors)) == (1, 1)
    assert "cannot make" in errors[0]
