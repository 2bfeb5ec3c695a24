"""What a user types, forgets or misspells: the command helps, and never takes one thing for another."""

import io
import os
import subprocess
import sys

import pytest

from contmax_lab.registry import find_recipe, find_task
from contmax_lab.runs import Run


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("intervals/parabol", "did you mean intervals/parabola"),
        ("imdb", "did you mean documents/imdb"),
        ("intervals/parabola.yaml", "did you mean intervals/parabola"),
        ("texst", "did you mean texts?"),
        ("vowels/contnuous", "did you mean vowels/continuous-softmax or vowels/continuous-sparsemax?"),
        ("qwert", "pass a YAML file, a task (bags, digits, "),
        ("qwert.yaml", "qwert.yaml: no such file"),
        ("", "a folder is no recipe: .; pass a YAML file"),
        ("/", "a folder is no recipe: /; pass a YAML file"),
    ],
)
def test_a_misspelt_recipe_is_answered_with_the_nearest(contmax, name, says):
    code, _, errors = contmax("train", name)
    assert (code, len(errors)) == (2, 1)
    assert says in errors[0]


def test_a_folder_is_no_recipe(contmax, tmp_path):
    (tmp_path / "runs.yaml").mkdir()
    code, _, errors = contmax("train", tmp_path / "runs.yaml")
    assert (code, len(errors)) == (2, 1)
    assert "a folder is no recipe" in errors[0]


def test_a_folder_with_the_name_of_a_task_hides_no_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "intervals" / "parabola").mkdir(parents=True)
    for name in ("intervals", "intervals/", "intervals/parabola"):
        assert find_recipe(name).task.name == "intervals"


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--training.epoch=1", "there is no key training.epoch; did you mean training.epochs?"),
        ("--model.hiden_dim=1", "did you mean model.hidden_dim?"),
        ("--learning_rate=1", "did you mean training.learning_rate?"),
        ("--data.x=1", "there is no key data.x; contmax train intervals/… --help lists all"),
    ],
)
def test_the_beginning_of_a_key_is_not_the_key(contmax, config, tmp_path, argument, says):
    code, _, errors = contmax("train", config, "--folder", tmp_path / "run", argument)
    assert (code, len(errors)) == (2, 1)
    assert says in errors[0]


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--training.epochs=many", "training.epochs must be a whole number above 0; got many"),
        ("--training.learning_rate=-1", "training.learning_rate must be a number above 0; got -1"),
        ("--training.compile=maybe", "training.compile must be true or false; got maybe"),
        ("--training.workers=-1", "training.workers must be 0 or a whole number above it; got -1"),
        ("--model.dropout=2", "model.dropout must be a number from 0 to 1; got 2"),
        ("--seed=x", "seed must be a whole number; got x"),
    ],
)
def test_a_wrong_value_is_answered_with_what_to_pass(contmax, config, argument, says):
    code, _, errors = contmax("train", config, argument)
    assert (code, errors) == (2, [f"contmax: {says}"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "pass a COMMAND, e.g. contmax doctor"),
        (["trian"], "there is no command 'trian'; did you mean train?"),
        (["reproduce", "digit"], "there is no table 'digit'; did you mean digits?"),
        (["predict", "runs/nothing", "3"], "runs/nothing is not a run; pass the folder of a finished run"),
        (["evaluate", "runs/nothing"], "runs/nothing is not a run: there is no such folder"),
    ],
)
def test_misspelt_commands_tables_and_runs(contmax, words, says):
    code, _, errors = contmax(*words)
    assert code in (1, 2)
    assert len(errors) == 1
    assert says in errors[0]


def test_keys_may_stand_before_the_recipe(contmax, config, tmp_path):
    code, _, errors = contmax("train", "--seed", "5", "--model.hidden_dim", "4", config, "--folder", tmp_path / "run")
    assert (code, errors) == (0, [])
    recipe = Run(tmp_path / "run").recipe(find_task("intervals"))
    assert (recipe.seed, recipe.model.hidden_dim) == (5, 4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("task: intervals\ntraining: {epoch: 3}\n", "did you mean training.epochs"),
        ("task: intervals\nsearch: {training.lerning_rate: [1]}\n", "did you mean training.learning_rate?"),
    ],
)
def test_a_misspelt_key_in_a_file_names_the_file(contmax, tmp_path, text, says):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    code, _, errors = contmax("train", path)
    assert (code, len(errors)) == (2, 1)
    assert str(path) in errors[0]
    assert says in errors[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["reproduce", "intervals", "--data", "nowhere.csv"], "--data nowhere.csv: no such file or folder"),
        (["reproduce", "seattle", "--jobs", "0"], "--jobs must be at least 1"),
        (["reproduce", "seattle", "--budget-minutes", "-1"], "--budget-minutes must be at least 0"),
        (
            ["reproduce", "seattle", "--gpus-per-cell", "0.5"],
            "--gpus-per-cell works only with --ray ADDRESS; pass that too",
        ),
        (["reproduce", "seattle", "--retries", "1"], "--retries works only with --ray ADDRESS; pass that too"),
        (["reproduce", "seattle", "--ray", "auto", "--retries", "-1"], "--retries must be at least 0; got -1"),
        (["reproduce", "seattle", "--ray", "auto", "--gpus-per-cell", "1.5"], "between 0 and 1, or a whole number"),
        (["reproduce", "seattle", "--ray", "auto", "--gpus-per-cell", "-1"], "between 0 and 1, or a whole number"),
        (["reproduce", "seattle", "--ray", "auto", "--gpus-per-cell", "nan"], "between 0 and 1, or a whole number"),
        (["demo", "--jobs", "0"], "--jobs must be at least 1"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_trained(contmax, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    code, printed, errors = contmax(*arguments)
    assert (code, printed, len(errors)) == (2, "", 1)
    assert says in errors[0]


def test_the_demo_says_at_once_which_package_is_missing(contmax, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, errors = contmax("demo", "--output", tmp_path / "demo")
    assert (code, errors) == (1, ["contmax: The demo needs matplotlib, which is not installed: pip install matplotlib"])
    assert not (tmp_path / "demo").exists()


def test_a_package_that_every_training_needs_is_named_too():
    program = "import sys; sys.modules['yaml'] = None; from contmax_lab.cli import main; main(['data', 'list'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "contmax: pyyaml is not installed: pip install 'contmax[lab]'; contmax doctor shows the rest"
    ]


# -- predict, report, evaluate, search ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "or - to read standard input"),
        ([""], "the text has no words"),
        (["zxqvv", "qqqwx"], "knows 20,000 English words, but none of this text"),
        (["\N{GRINNING FACE}"], "none of this text"),
        (["good", "--figure", "a.jpg"], "a name that ends in .png"),
    ],
)
def test_texts_that_say_nothing(contmax, arguments, says):
    code, printed, errors = contmax("predict", *arguments)
    assert (code, printed, len(errors)) == (2, "", 1)
    assert says in errors[0]


def test_a_text_may_come_without_quotes_or_by_a_pipe(contmax, monkeypatch):
    quoted = contmax("predict", "A wonderful film \N{GRINNING FACE}")
    assert quoted[0] == 0
    assert "positive" in quoted[1]
    assert contmax("predict", "A", "wonderful", "film", "\N{GRINNING FACE}") == quoted
    monkeypatch.setattr(sys, "stdin", io.StringIO("A wonderful film \N{GRINNING FACE}\n"))
    assert contmax("predict", "-") == quoted


def test_what_comes_by_a_pipe_must_be_utf_8(contmax, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A caf\xe9."), encoding="utf-8"))
    code, _, errors = contmax("predict", "-")
    assert (code, len(errors)) == (2, 1)
    assert "standard input, byte 0xe9 is not UTF-8; convert it, e.g. iconv -f latin1 -t utf-8" in errors[0]


def test_a_very_long_text_has_a_picture_of_bounded_size(contmax, tmp_path):
    picture = tmp_path / "long.png"
    code, printed, _ = contmax("predict", "good bad film " * 1000, "--figure", picture)
    assert code == 0
    assert printed.count("film") == 1000
    width = int.from_bytes(picture.read_bytes()[16:20])
    assert 2000 < width < 10000


@pytest.mark.usefixtures("sketched")
def test_runs_of_one_name_are_told_apart_and_their_data_may_move(contmax, config, tmp_path):
    runs = [tmp_path / row / "seed-0" for row in ("one", "other")]
    for run in runs:
        contmax("train", config, "--folder", run)
    (tmp_path / "weather.csv").rename(tmp_path / "moved.csv")
    page = tmp_path / "report.html"
    code, _, errors = contmax("report", *runs, "--output", page)
    assert (code, len(errors)) == (1, 1)
    code, _, errors = contmax("report", *runs, "--output", page, "--data.path", tmp_path / "moved.csv")
    assert (code, errors) == (0, [])
    assert ">one<" in page.read_text()
    assert ">other<" in page.read_text()


def test_only_one_of_several_processes_prints(contmax, config, tmp_path, monkeypatch):
    contmax("train", config, "--folder", tmp_path / "run")
    monkeypatch.setitem(os.environ, "RANK", "1")
    assert contmax("evaluate", tmp_path / "run") == (0, "", [])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--search", "{training.learning_rate: 3}"], 2, "search.training.learning_rate must be a list"),
        (["--search", "{training.learning_rate: {low: 2, high: 1}}"], 2, "with low ≤ high"),
        (["--search", "{training.learning_rate: {low: 0, high: 1, log: true}}"], 2, "both positive if log"),
        (["--trials", "0"], 2, "--trials must be at least 1"),
        (["--search", "{training.learning_rate: [1]}", "--data.path", "nowhere.csv"], 1, "nowhere.csv: no such file"),
    ],
)
def test_a_search_that_cannot_begin_is_one_line(contmax, config, tmp_path, arguments, code, says):
    found, printed, errors = contmax("search", config, "--runs", tmp_path / "search", *arguments)
    assert (found, printed, len(errors)) == (code, "", 1)
    assert says in errors[0]
    assert not (tmp_path / "search").exists()


def test_the_version(contmax):
    code, printed, _ = contmax("--version")
    assert code == 0
    assert printed.startswith("contmax 0.")


@pytest.mark.usefixtures("trained_here")
def test_a_search_that_cannot_write_blames_no_trial(contmax, config, tmp_path):
    runs = tmp_path / "search"
    arguments = ["search", config, "--runs", runs, "--trials", "1", "--search", "{model.hidden_dim: [2, 4]}"]
    runs.mkdir()
    (runs / "trial-0000").write_text("in the way")
    code, _, errors = contmax(*arguments)
    assert (code, len(errors)) == (1, 1)
    assert "cannot make" in errors[0]
    code, printed, _ = contmax(*arguments)
    assert code == 0
    assert "number 1" in printed
    # A training has no use for what was tried, and the value does not stand for the RECIPE.
    assert "--search" not in printed
    assert contmax("search", *arguments[2:], config)[0] == 0


def test_a_missing_file_is_named_before_the_run_that_is_there(contmax, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.csv").write_text("text,label\n" + "good film,yes\nbad film,no\n" * 20)
    code, out, _ = contmax("train", "texts", "--data.train", "reviews.csv", "--training.epochs", 1)
    # The only epoch was the best.
    advice = out.splitlines()[-1]
    assert code == 0
    assert advice.endswith("contmax train texts --data.train=reviews.csv --training.epochs 2 --resume")
    code, out, _ = contmax(*advice.partition("contmax ")[2].split())
    assert (code, "goes on after epoch 1, now up to epoch 2" in out) == (0, True)
    (tmp_path / "other.csv").write_text("body,label\ngood film,yes\n")
    for name, told in (("other.csv", "no column text"), ("reviews.csv", "already holds a run")):
        code, _, errors = contmax("train", "texts", "--data.train", name, "--training.epochs", 1)
        assert (code != 0, len(errors)) == (True, 1)
        assert told in errors[0]
    for command in (["train", "texts"], ["data", "check", "images"], ["search", "series"]):
        code, _, errors = contmax(*command, "--data.train", "review.csv")
        assert code == 1
        assert errors == [
            "contmax: --data.train review.csv: there is no such file or folder; did you mean reviews.csv?"
        ]
