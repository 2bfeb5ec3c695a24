"""A rare class, from the table to the report: metrics that see it, weights that make it count, the confusion matrix."""

import json
import random
import re

import pytest
import torch
from torch.nn import functional as F
from weather import tiny_recipe

from contmax_lab.errors import UsageError
from contmax_lab.labelled import class_metrics, confusion
from contmax_lab.registry import find_task, load_recipe, open_trained
from contmax_lab.runs import Run
from contmax_lab.training import evaluate_trained, train

SHORT = ("--training.epochs=3", "--model.hidden_dim=8", "--model.functions=4")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Of 120 series, 12 have a high level and are faulty."""
    path, draw = tmp_path_factory.mktemp("rare") / "sensors.csv", random.Random(0)
    lines = ["id,time,level,state"]
    for number in range(120):
        state, level = ("faulty", 3) if number % 10 == 0 else ("sound", 0)
        lines += [f"{number},{time},{draw.gauss(level, 1)},{state}" for time in range(6)]
    path.write_text("\n".join(lines))
    return path


def recipe(data, *overrides):
    return load_recipe("series", [f"--data.train={data}", *SHORT, *overrides])


@pytest.fixture(scope="module")
def folder(data):
    folder = data.parent / "run"
    tested = ("--data.held_out=0.5", f"--data.test={data}", "--training.monitor=auprc", "--training.goal=max")
    train(recipe(data, *tested), Run(folder), test=True)
    return folder


def test_results_have_metrics_of_rare_classes_and_the_matrix(folder):
    trained = open_trained(folder)
    valid = trained.splits.valid
    with torch.no_grad():
        scores = trained.model(trained.task.batch(valid, range(len(valid)))).scores
    stored = trained.results["valid"]
    assert list(stored) == ["loss", "accuracy", "balanced_accuracy", "f1", "auroc", "auprc", "attended"]
    # The classes are faulty, sound: the first one is rare.
    wanted = class_metrics(scores, valid.target, rarest=0)
    assert {name: stored[name] for name in wanted} == pytest.approx(wanted, abs=1e-6)
    matrix = {"classes": ["faulty", "sound"], "counts": confusion(scores, valid.target).tolist()}
    assert trained.results["confusion"]["valid"] == matrix
    assert sum(map(sum, trained.results["confusion"]["test"]["counts"])) == 120
    assert evaluate_trained(trained, "valid") == pytest.approx(stored)
    best = max(Run(folder).history(), key=lambda record: record["valid"]["auprc"])
    assert trained.results["best_epoch"] == best["epoch"]


def test_a_test_that_comes_later_adds_its_matrix(data, tmp_path):
    run, of = Run(tmp_path / "run"), recipe(data, f"--data.test={data}")
    train(of, run)
    assert run.results()["confusion"].keys() == {"valid"}
    assert train(of, run, resume=True, test=True)["confusion"].keys() == {"valid", "test"}


def test_the_report_shows_it(folder, contmax, tmp_path):
    code, _, errors = contmax("report", folder, "--output", tmp_path / "report.html", "--examples", 1)
    assert (code, errors) == (0, [])
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"Confusion matrix\.</strong> Counts of test examples", page)
    assert "test auprc" in page
    assert (tmp_path / "confusion-matrix.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_of_older_runs_and_of_many_classes_is_drawn(folder, contmax, tmp_path, monkeypatch):
    results = Run(folder).results()
    many = {"classes": [f"a long name of class {number}" for number in range(60)], "counts": [[1] * 60] * 60}
    for confusions in (None, {"valid": many}):
        stored = {name: value for name, value in results.items() if name != "confusion"}
        monkeypatch.setattr(Run, "results", lambda run: stored | ({"confusion": confusions} if confusions else {}))  # noqa: B023
        code, _, errors = contmax("report", folder, "--output", tmp_path / "report.html", "--examples", 1)
        assert (code, errors) == (0, [])


def test_a_metric_that_grows_is_not_made_small(data, tmp_path):
    with pytest.raises(UsageError, match=r"monitor f1 is best where it is largest, .* pass --training\.goal max"):
        train(recipe(data, "--training.monitor=f1"), Run(tmp_path / "run"))


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "weights"), [("balanced", (108 * 0.8 / 9, 0.0)), ("[3,0.5]", (3.0, 0.5))])
def test_the_loss_is_the_weighted_cross_entropy_of_torch(data, wanted, weights):
    of = recipe(data, f"--training.class_weights={wanted}")
    splits = of.load()
    counts = torch.bincount(splits.train.target)
    balanced = tuple((len(splits.train) / 2 / counts).tolist())
    weights = balanced if wanted == "balanced" else weights
    assert splits.info["targets"].weights == pytest.approx(weights)
    assert (len(recipe(data).load().info["remarks"]), splits.info["remarks"]) == (1, [])
    network, batch = of.task.build(of.model, splits), of.task.batch(splits.train, range(len(splits.train)))
    output = network(batch)
    losses, weight = of.task.loss(output, batch)
    expected = F.cross_entropy(output.scores, batch["target"], weight=torch.tensor(weights))
    torch.testing.assert_close(losses.sum() / weight.sum(), expected)
    if wanted == "balanced":
        shares = [weight[batch["target"] == label].sum().item() for label in (0, 1)]
        assert shares[0] == pytest.approx(shares[1], rel=1e-5)


def test_weights_make_a_rare_class_count(data, tmp_path, monkeypatch):
    """A network that sees nothing answers with the frequencies; where classes weigh alike, with one half each."""
    shares = {}
    for wanted in ("none", "balanced"):
        of = recipe(data, f"--training.class_weights={wanted}", "--training.epochs=25", "--training.learning_rate=0.05")
        splits = of.load()
        for part in (splits.train, splits.valid):
            for values in part.values:
                values.zero_()
        with monkeypatch.context() as patch:
            patch.setattr(type(of.task), "load", lambda task, config, seed, splits=splits: splits)
            train(of, Run(tmp_path / wanted))
            trained = open_trained(tmp_path / wanted)
        scores = trained.model(of.task.batch(splits.valid, [0])).scores
        shares[wanted] = scores.softmax(-1)[0, 0].item()
    assert shares["none"] == pytest.approx(0.1, abs=0.07)
    assert shares["balanced"] == pytest.approx(0.5, abs=0.12)


def test_weighted_runs_are_measured_with_their_weights_and_exported(data, tmp_path, contmax):
    train(recipe(data, "--training.class_weights=balanced"), Run(tmp_path / "run"))
    trained = open_trained(tmp_path / "run")
    assert evaluate_trained(trained, "valid") == pytest.approx(trained.results["valid"])
    assert contmax("export", tmp_path / "run", "--into", tmp_path / "model")[0] == 0
    card = json.loads((tmp_path / "model" / "config.json").read_text())
    assert card["figures"]["valid"]["loss"] == pytest.approx(trained.results["valid"]["loss"], rel=1e-2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--training.class_weights=[1,2,3]"], "has 3 numbers for 2 classes; pass one for each of faulty, sound"),
        (["--training.class_weights=[1,-2]"], "must be none or balanced, or a list, each a number above 0; got [1"),
        (["--training.class_weights=even"], "must be none or balanced, or a list, each a number above 0; got even"),
        (["--training.class_weights=balanced", "--data.target=number", "--data.label=level"], "labels are numbers"),
    ],
)
def test_weights_that_cannot_be_are_one_line(data, tmp_path, contmax, words, says):
    if "--data.target=number" in words:
        lines = [line.replace("sound", "1").replace("faulty", "2") for line in data.read_text().splitlines()]
        data, words = tmp_path / "numbers.csv", words[:-1]
        data.write_text("\n".join(lines))
    code, _, (complaint,) = contmax("train", "series", "--data.train", data, *words, "--folder", tmp_path / "run")
    assert code == 2
    assert says in complaint


def test_a_task_without_classes_refuses_weights(tmp_path):
    with pytest.raises(UsageError, match="the task intervals has no classes to be weighed"):
        tiny_recipe(tmp_path, "--training.class_weights=balanced").load()
    assert "auroc" in find_task("documents").rising
