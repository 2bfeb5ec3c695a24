"""Bags: files of MATLAB, folds, tuning that never sees the test bags, the table of all rows."""

import dataclasses
import json

import pytest
import torch
from here import Here
from sklearn.metrics import roc_auc_score

from contmax_lab.cli import main
from contmax_lab.errors import LabError
from contmax_lab.files import read_checkpoint
from contmax_lab.labelled import rank_areas
from contmax_lab.registry import find_table, load_recipe, open_trained
from contmax_lab.runs import Run
from contmax_lab.tables import Reproduction, cell_recipe, reproduce
from contmax_lab.tasks.bags import BagsData, _data
from contmax_lab.tasks.bags._data import divided, load
from contmax_lab.training import train, train_together

scipy_io = pytest.importorskip("scipy.io")
sparse = pytest.importorskip("scipy.sparse")
TASK, TABLE = find_table("bags")
BAGS, LONGEST, FEATURES, FOLDS = 24, 4, 5, 4
SMALL = [f"--data.folds={FOLDS}", "--model.hidden_dim=4", "--training.epochs=2", "--training.evaluate_every=1"]


def written(folder, name="elephant", **changed):
    """A file in the format of the originals: sparse features and labels, each instance with the label of its bag."""
    draw = torch.Generator().manual_seed(len(name))
    lengths = [1 + place % LONGEST for place in range(BAGS)]
    ids = torch.repeat_interleave(torch.arange(1, BAGS + 1), torch.tensor(lengths))
    labels = torch.where(ids % 2 == 0, 1.0, -1.0)
    features = torch.randn(len(ids), FEATURES, generator=draw, dtype=torch.float64)
    # One feature tells, one never varies.
    features[:, 0] += labels
    features[:, 1] = 0.0
    content = {"features": features, "bag_ids": ids[None].byte(), "labels": labels[None].double(), **changed}
    arrays = {key: value.numpy() for key, value in content.items() if value is not None}
    for key in {"features", "labels"} & set(arrays):
        arrays[key] = sparse.csc_matrix(arrays[key])
    scipy_io.savemat(folder / f"{name}.mat", arrays)
    return content


def data(folder, **options):
    return BagsData(path=folder, **{"folds": FOLDS, **options})


def test_bags_are_read_padded_and_normalised_by_the_training_bags_alone(tmp_path):
    content = written(tmp_path)
    splits = load(data(tmp_path, fold=1))
    assert [len(part) for part in (splits.train, splits.valid, splits.test)] == [14, 4, 6]
    assert splits.train.features.shape == (14, LONGEST, FEATURES)
    places = divided([(place + 1) % 2 == 0 for place in range(BAGS)], data(tmp_path, fold=1))
    chosen = torch.cat([content["features"][content["bag_ids"][0] == place + 1] for place in places[0]])
    deviation = chosen.std(0).clamp(min=1e-9)
    for part, own in zip((splits.train, splits.valid, splits.test), places, strict=True):
        assert part.labels.tolist() == [place % 2 for place in own]
        for bag, place in enumerate(own):
            instances = content["features"][content["bag_ids"][0] == place + 1]
            expected = ((instances - chosen.mean(0)) / deviation).clamp(-3, 3).float()
            torch.testing.assert_close(part.features[bag][part.mask[bag]], expected)
            assert not part.features[bag][~part.mask[bag]].any()


@pytest.mark.parametrize(
    ("changed", "options", "says"),
    [
        ({}, {"name": "wolf"}, "wolf.mat: no such file; pass the path of a MATLAB file of bags"),
        ({}, {"folds": 1}, "--data.folds=1 leaves no bags to learn from; pass 2 or more"),
        ({}, {"fold": FOLDS}, "--data.fold=4, but there are 4 folds, numbered from 0; pass a smaller one"),
        ({"labels": None}, {}, "has no labels; a file of bags has features, bag_ids, labels"),
        ({"bag_ids": torch.ones(1, 3)}, {}, r"features, bag_ids and labels have sizes \(60, 5\), 3 and 60"),
        ({"features": torch.full((60, 5), torch.nan)}, {}, "a feature is not finite; replace it"),
        ({"labels": torch.tensor([[1.0, -1.0] * 30])}, {}, "instances of bag 2 differ in their label"),
        (
            {"labels": torch.ones(1, 60)},
            {},
            "0 bags have the label 0, too few for 4 folds; take more bags",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_one_line(tmp_path, changed, options, says):
    written(tmp_path, **changed)
    with pytest.raises(LabError, match=says) as raised:
        load(data(tmp_path, **options))
    assert "\n" not in str(raised.value)


def test_other_files_and_a_missing_package(tmp_path, monkeypatch):
    (tmp_path / "elephant.mat").write_text("no arrays")
    with pytest.raises(LabError, match=r"elephant.mat is not a MATLAB file: "):
        load(data(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "scipy.io", None)
    with pytest.raises(LabError, match=r"pip install 'contmax\[lab\]'\) needs scipy"):
        load(data(tmp_path, name="elephant"))


def test_folds_are_stratified_and_disjoint():
    labels = [0] * 30 + [1] * 21
    divisions = []
    for repetition in range(2):
        parts = [divided(labels, BagsData(repetition=repetition, fold=fold)) for fold in range(10)]
        assert sorted(place for *_, test in parts for place in test) == list(range(51))
        for found in parts:
            assert sorted(place for part in found for place in part) == list(range(51))
            train, valid, test = ([sum(labels[p] == label for p in part) for label in (0, 1)] for part in found)
            assert test in ([3, 2], [3, 3])
            assert valid in ([5, 4],)
            assert train[0] == 22
        divisions.append([test for *_, test in parts])
    assert divisions[0] != divisions[1]


def test_every_row_has_the_same_folds_seeds_and_tries():
    by_repetition = {}
    for row in TABLE.rows:
        for repetition in (*TABLE.repetitions[:2], TABLE.repetitions[-1]):
            recipe = cell_recipe(TASK, next(c for c in TABLE.cells() if (c.row, c.repetition) == (row, repetition)))
            by_repetition.setdefault(repetition.name, []).append((recipe.data, recipe.seed, recipe.training))
    for found in by_repetition.values():
        assert all(one == found[0] for one in found)
        assert len(found[0][-1].tries) == 4
    assert len(TABLE.repetitions) == 3 * 5 * 10
    assert len({repetition.overrides for repetition in TABLE.repetitions}) == 150


def tuned(folder, runs):
    """What tuning decides in the fold 1: the weights that are kept, their try, what was measured on validation bags."""
    tries = "--training.tries=[{learning_rate: 0.01, weight_decay: 0.0}, {learning_rate: 0.1, weight_decay: 0.5}]"
    run = Run(runs / "fold")
    recipe = load_recipe("bags", [f"--data.path={folder}", "--data.fold=1", *SMALL, tries])
    train_together([recipe], [run], runs / "ensemble.safetensors")
    results = run.results()
    weights = {name: tensor.tolist() for name, tensor in read_checkpoint(run.weights).tensors.items()}
    return results["valid"], results["try"], weights


@pytest.mark.parametrize("leak", ["none", "validation", "normalisation"])
def test_tuning_never_sees_a_test_bag(tmp_path, monkeypatch, leak):
    """Other instances in a test fold change nothing but the test; planted leaks show that the test would tell."""
    content, path = written(tmp_path), tmp_path / "elephant.mat"
    labels = [place % 2 for place in range(BAGS)]
    test = torch.tensor([place + 1 for place in divided(labels, data(tmp_path, fold=1))[2]])
    if leak == "validation":
        honest = divided

        def leaking(labels, data):
            train, valid, test = honest(labels, data)
            return train, [*valid, test[0]], test

        monkeypatch.setattr(_data, "divided", leaking)
    if leak == "normalisation":
        of_all = _data._location_and_scale
        monkeypatch.setattr(
            _data, "_location_and_scale", lambda train: of_all(_data._read(path, path.stat().st_mtime_ns))
        )
    before = tuned(tmp_path, tmp_path / "before")
    other = content["features"].clone()
    other[torch.isin(content["bag_ids"][0].long(), test)] *= -2.0
    written(tmp_path, features=other)
    after = tuned(tmp_path, tmp_path / "after")
    assert (before == after) == (leak == "none")


def small_job(folder, here):
    for name in ("elephant", "fox", "tiger"):
        written(folder, name)
    table = dataclasses.replace(TABLE, repetitions=TABLE.repetitions[:3])
    return Reproduction(TASK, table, folder / "runs", folder / "bags.json", [f"--data.path={folder}", *SMALL], here)


def test_the_table_of_all_rows(tmp_path):
    here = Here()
    job = small_job(tmp_path, here)
    text = reproduce(job)
    assert [len(work.runs) for work in here.begun] == [3] * 6
    stored = json.loads(job.output.read_text())
    assert stored["complete"]
    assert len(stored["cells"]) == 18
    assert stored["text"] in text
    assert text.count("| Hopfield pooling, published") == 3
    assert "| 64.1" in text
    assert "the corrected resampled t test of Nadeau and Bengio 2003" in stored["differences"]["method"]
    for cell in stored["cells"]:
        assert ("excluded" in cell) == (cell["row"] != "Max")
        assert ("alpha" in cell) == (cell["row"] not in ("Max", "Mean"))
        assert cell["results"]["steps"] == 2 * 4
        assert set(cell["results"]["try"]) == {"learning_rate", "weight_decay", "epochs"}
    (softmax,) = (row for row in stored["rows"] if row["label"] == TABLE.baseline)
    assert softmax["groups"]["fox"]["test.excluded"]["mean"] == 0
    # What is done is not trained again.
    again = Here()
    assert reproduce(dataclasses.replace(job, workers=again)) == text
    assert again.begun == []


def test_padding_does_not_matter_to_any_pooling(tmp_path):
    written(tmp_path)
    splits = load(data(tmp_path))
    whole = TASK.batch(splits.test, range(len(splits.test)))
    filled = {**whole, "features": torch.where(whole["mask"].unsqueeze(-1), whole["features"], 7.0)}
    for row in TABLE.rows:
        model = TASK.build(load_recipe(f"bags/{row.variant}", SMALL).model, splits)
        torch.testing.assert_close(model(filled).logits, model(whole).logits)


def test_one_training_by_itself_and_what_it_says(tmp_path, capsys):
    written(tmp_path)
    recipe = load_recipe("bags/sparsemax", [f"--data.path={tmp_path}", *SMALL])
    results = train(recipe, Run(tmp_path / "run"), test=True)
    assert 0 <= results["test"]["excluded"] < 1
    trained = open_trained(tmp_path / "run")
    batch = TASK.batch(trained.splits.test, range(len(trained.splits.test)))
    expected = roc_auc_score(batch["labels"], trained.model(batch).logits.detach())
    assert results["test"]["auc"] == pytest.approx(expected)
    main(["predict", str(tmp_path / "run"), "2"])
    assert "instances have weight" in capsys.readouterr().out


def test_ties_count_half():
    scores = torch.tensor([0.2, 0.2, 0.5, 0.5, 0.5, 0.9, 0.1])
    labels = torch.tensor([0, 1, 1, 0, 0, 1, 0])
    assert rank_areas(scores, labels > 0)[0] == pytest.approx(roc_auc_score(labels, scores))
