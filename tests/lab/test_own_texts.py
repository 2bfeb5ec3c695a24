"""Texts of the user's own: from a table to a run, an answer and a report."""

import gzip
import re
from pathlib import Path

import pytest
from own_data import learns, padding_changes_nothing, reviews

from contmax_lab.cli import main
from contmax_lab.errors import LabError
from contmax_lab.registry import load_recipe, open_trained, shipped_recipes
from contmax_lab.tasks.texts import TextsData
from contmax_lab.tasks.texts._task import TASK

VARIANTS = [name for name in shipped_recipes() if name.startswith("texts/")]


KEYS = ("--data.text", "review", "--data.label", "stars")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Reviews and a run."""
    folder = tmp_path_factory.mktemp("texts")
    train = reviews(folder / "reviews.csv")
    short = ("--training.epochs=18", "--training.learning_rate=0.02", "--model.hidden_dim=16", "--model.functions=12")
    main(["train", "texts", "--data.train", str(train), *KEYS, *short, "--folder", str(folder / "run")])
    return folder


def test_reviews_are_learned_by_the_words_that_tell(folder):
    trained = open_trained(folder / "run")
    assert trained.results["valid"]["accuracy"] > 0.85
    assert trained.results["valid"]["attended"] < 0.7
    assert trained.splits.info["classes"] == ("1", "3", "5")


def test_predict_answers_a_text(folder, contmax, tmp_path):
    code, out, _ = contmax(
        "predict", folder / "run", "Then we went home: superb, wonderful. Zyx", "--figure", tmp_path / "a.png"
    )
    assert code == 0
    assert re.match(
        r"5 \(\d+%\), . \(\d+%\), . \(\d+%\)\nattended, \d+ of 10 words: .*superb.*\nnot in the voc", out
    ), out
    assert "zyx" in out.splitlines()[2]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert contmax("predict", folder / "run", "好看 $x$ \\frac \u202e ☃")[0] == 0
    code, _, complaint = contmax("predict", folder / "run", " ")
    assert (code, len(complaint)) == (2, 1)


@pytest.mark.usefixtures("sketched")
def test_report_shows_where_it_looks(folder, contmax, tmp_path):
    code, _, errors = contmax("report", folder / "run", "--output", tmp_path / "report.html", "--examples", 2)
    assert (code, errors) == (0, [])
    assert list(tmp_path.rglob("attention-over-text-2*.png"))


def test_test_examples_may_come_after_the_training(folder, contmax, tmp_path):
    data = ("--data.train", folder / "reviews.csv", *KEYS)
    code, out, _ = contmax("train", "texts", *data, "--training.epochs=1", "--test", "--folder", tmp_path / "run")
    assert (code, out.count("there are no test examples")) == (0, 1)
    code, _, complaint = contmax("evaluate", tmp_path / "run", "--test")
    assert (code, len(complaint)) == (1, 1)
    assert "no test examples; if you have some, name them, e.g. --data.test FILE" in complaint[0]
    later = reviews(tmp_path / "later.csv", 20)
    code, out, _ = contmax("evaluate", tmp_path / "run", "--test", "--data.test", later)
    assert (code, out.startswith("test  loss")) == (0, True)


def test_a_run_does_not_open_on_data_with_another_vocabulary(folder, tmp_path, contmax):
    changed = tmp_path / "reviews.csv"
    # The same number of words and classes: shapes alone would fit.
    changed.write_text((folder / "reviews.csv").read_text().replace("superb", "xuperb"))
    code, _, complaint = contmax("predict", folder / "run", "a film", "--data.train", changed)
    assert code == 1
    assert len(complaint) == 1
    assert "not what it was trained on" in complaint[0]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("target", ["class", "number"])
def test_every_variant_gives_finite_losses_and_gradients(folder, name, target):
    keys = [
        f"--data.train={folder / 'reviews.csv'}",
        "--data.text=review",
        "--data.label=stars",
        "--model.hidden_dim=4",
    ]
    recipe = load_recipe(name, [*keys, "--data.limit=40", f"--data.target={target}", "--model.functions=4"])
    network, output, batch = learns(recipe, 6)
    assert [p.grad.abs().sum() > 0 for n, p in network.named_parameters() if "alpha_logit" in n] == (
        [True] if name.endswith("learned-alpha") else []
    )
    measured = TASK.measures(output, batch)
    of_classes = {"accuracy", "scores", "target", "rarest", "attended"}
    assert set(measured) == (of_classes if target == "class" else {"absolute_error", "attended"})
    assert ((measured["attended"] > 0) & (measured["attended"] <= 1)).all()


def test_padding_changes_nothing(folder):
    padding_changes_nothing(folder / "run")


# -- data --------------------------------------------------------------------------------------------------------------


def table(folder, lines, name="a.csv"):
    path = folder / name
    path.write_text("\n".join(["text,label", *lines, ""]), encoding="utf-8")
    return path


GOOD = [f"word number{i % 3} here,{'yes' if i % 2 else 'no'}" for i in range(20)]


def test_the_vocabulary_is_of_the_training_texts_alone(tmp_path):
    train = table(tmp_path, GOOD)
    valid = table(tmp_path, ["strange strange words,yes"], "valid.csv")
    data = TextsData(train=train, validation=valid, test=valid)
    splits = TASK.load(data, 0)
    assert splits.info["words"] == ["here", "word", "number0", "number1", "number2"]
    assert splits.valid.tokens[0].tolist() == [1, 1, 1]
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (20, 1, 1)


def test_the_split_is_the_same_every_time_and_of_every_class(tmp_path):
    data = TextsData(train=table(tmp_path, GOOD), held_out=0.2)
    one, two = TASK.load(data, 0), TASK.load(data, 1)
    assert one.valid.target.tolist() == two.valid.target.tolist()
    assert sorted(one.valid.target.tolist()) == [0, 0, 1, 1]
    assert [t.tolist() for t in one.valid.tokens] == [t.tolist() for t in two.valid.tokens]


def test_any_whole_number_is_a_seed_of_the_split(tmp_path):
    path = table(tmp_path, GOOD)
    assert all(len(TASK.load(TextsData(train=path, split=seed), 0).valid) for seed in (-1, 10**20, -(10**20)))


def test_the_limit_draws_from_a_file_that_is_sorted_by_label(tmp_path):
    lines = [f"some words here,{label}" for label in ["a"] * 100 + ["b"] * 100]
    splits = TASK.load(TextsData(train=table(tmp_path, lines), limit=20), 0)
    assert len(splits.train) + len(splits.valid) == 20
    assert splits.info["classes"] == ("a", "b")


def test_numbers_and_gzip(tmp_path):
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"text\tlabel\n" + b"".join(b"some words\t%d.5\n" % i for i in range(30))))
    splits = TASK.load(TextsData(train=path, target="number"), 0)
    assert splits.info["classes"] == ()
    assert splits.info["targets"].mean == pytest.approx(splits.train.target.mean().item())
    assert splits.info["targets"].deviation == pytest.approx(splits.train.target.std(correction=0).item())


def test_classes_are_in_the_order_of_their_numbers_and_then_of_the_alphabet(tmp_path):
    lines = [f"some words here,{label}" for label in ("10", "b", "9", "-1", "a", "1.5") for _ in range(4)]
    splits = TASK.load(TextsData(train=table(tmp_path, lines)), 0)
    assert splits.info["classes"] == ("-1", "1.5", "9", "10", "a", "b")


HOSTILE = {
    "one class": (GOOD[1::2], {}, "every label is 'yes'"),
    "every label once": (["a b,1.5", "a b,2.5", "b b,3.5"], {}, "pass --data.target number"),
    "no label": ([*GOOD, "words,"], {}, r"line 22: nothing in the column label"),
    "no text": ([*GOOD, ",yes"], {}, r"line 22: nothing in the column text"),
    "no words": ([*GOOD, "\u200b,yes"], {"target": "class"}, None),
    "text as number": (GOOD, {"target": "number"}, r"line 2: the label is 'no', which is not a number"),
    "nan": (["a,1", "b,2", "c,nan"], {"target": "number"}, r"line 4: the label is 'nan'; it must be finite"),
    "one number": (["a,1", "b,1.0", "c,1.00"], {"target": "number"}, "nearly"),
    "huge numbers": (["a,1e300", "b,-1e300", "c,1"], {"target": "number"}, "rescale them"),
    "missing column": (GOOD, {"label": "stars"}, r"line 1: no column stars"),
    "limit and labels once": (GOOD, {"limit": 2, "split": 0}, r"--limit has left 2 of 20 examples; pass a larger one"),
    "limit": (GOOD, {"limit": 1}, r"--limit has left 1 of 20 examples; pass a larger one"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_texts_are_one_line(tmp_path, case):
    lines, keys, says = HOSTILE[case]
    data = TextsData(train=table(tmp_path, lines), **keys)
    if says is None:
        assert len(TASK.load(data, 0).train)
        return
    with pytest.raises(LabError, match=says) as caught:
        TASK.load(data, 0)
    assert "a.csv" in str(caught.value)


def test_a_label_unseen_in_training(tmp_path):
    data = TextsData(train=table(tmp_path, GOOD), test=table(tmp_path, ["a word,no", "a word,maybe"], "test.csv"))
    with pytest.raises(LabError, match=r"test\.csv, line 3: no training example has the label 'maybe'"):
        TASK.load(data, 0)


def test_the_command_says_what_is_missing(contmax, tmp_path):
    code, _, complaint = contmax("train", "texts", "--folder", tmp_path / "run")
    assert (code, len(complaint)) == (2, 1)
    assert "--data.train reviews.csv" in complaint[0]
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"text,label\nx,1\n\xff,2\n")
    code, _, complaint = contmax("train", "texts", "--data.train", bad, "--folder", tmp_path / "run")
    assert (code, len(complaint)) == (1, 1)
    assert "line 3" in complaint[0]
    out = contmax("train", "texts", "--help")[1]
    assert "name of the column with the labels" in out
    code, _, complaint = contmax("train", "texts", "--data.train", bad, "--limit", 0)
    assert (code, complaint) == (2, ["contmax: --limit must be at least 1; got 0"])
    code, _, complaint = contmax("train", "vowels", "--limit", 5, "--folder", tmp_path / "run")
    assert (code, len(complaint)) == (2, 1)
    assert "data.limit" in complaint[0]
    code, _, complaint = contmax(
        "train",
        "texts",
        "--data.train",
        table(tmp_path, GOOD),
        "--model.learn_alpha",
        "true",
        "--folder",
        Path(tmp_path) / "r",
    )
    assert (code, len(complaint)) == (2, 1)
    assert "--model.alpha 1.5" in complaint[0]
