"""PhysioNet: the files of the challenge, what never leaks, eleven rows, tries, the deletion test."""

import dataclasses
import json
import math
import random

import numpy as np
import pytest
import torch
from here import Here

from contmax_lab.channels import (
    Intervals,
    Mtan,
    Sizes,
    basis_of,
    distinct_times,
    last_seen,
    logistic_regression,
    spans,
)
from contmax_lab.cli import main
from contmax_lab.errors import LabError
from contmax_lab.registry import find_table, load_recipe, open_trained
from contmax_lab.runs import Run
from contmax_lab.settings import ChannelsModel
from contmax_lab.tables import Reproduction, reproduce
from contmax_lab.tasks.physionet import PhysionetData
from contmax_lab.tasks.physionet._reading import VARIABLES, prepared, read
from contmax_lab.tasks.physionet._stays import Cohort, Scale, Stays, folds, load, mtan_split
from contmax_lab.training import train

TASK, TABLE = find_table("physionet")
HEAD = "Time,Parameter,Value"
HR, LACTATE = VARIABLES.index("HR"), VARIABLES.index("Lactate")
SMALL = ["--model.hidden_dim=4", "--training.epochs=1", "--training.batch_size=16", "--model.leaves=3"]


def stay(record, observations, static=("54", "0", "-1", "4")):
    """The file of a stay."""
    names = ("Age", "Gender", "Height", "ICUType")
    known = [f"00:00,{name},{value}" for name, value in zip(("RecordID", *names), (record, *static), strict=True)]
    return "\n".join([HEAD, *known, *observations]) + "\n"


def written(folder, sets="ab", each=30, change=lambda name, record, lines: lines):
    """Sets of stays whose hearts beat faster where the patient dies."""
    draw = random.Random(3)
    for place, name in enumerate(sets):
        (folder / f"set-{name}").mkdir(parents=True)
        outcomes = ["RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"]
        for record in range(1000 * (place + 1), 1000 * (place + 1) + each):
            died = record % 3 == 0
            minutes = sorted(draw.sample(range(2880), 6))
            lines = [f"{minute // 60:02}:{minute % 60:02},HR,{draw.gauss(90 + 20 * died, 8):.1f}" for minute in minutes]
            lines += [f"47:30,Lactate,{draw.expovariate(0.4) + died:.2f}"] * (record % 2)
            (folder / f"set-{name}" / f"{record}.txt").write_text(stay(record, change(name, record, lines)))
            outcomes.append(f"{record},6,1,5,-1,{int(died)}")
        (folder / f"Outcomes-{name}.txt").write_text("\n".join(outcomes) + "\n")
    return folder


def test_files_become_one_small_file_that_is_enough(tmp_path, capsys):
    lines = ["00:10,Weight,80", "00:05,HR,70", "01:00,HR,75", "00:20,Weight,-1", "00:30,,3.5", "00:05,HR,60"]
    source = written(tmp_path / "source", "a", 12, lambda _, record, own: lines if record == 1003 else own)
    main(["data", "features", "physionet", f"--data.path={source}"])
    assert "has all that a training needs, 0.0 MB" in capsys.readouterr().out
    folder = prepared(PhysionetData(path=source))
    records = read(folder)
    assert records.record.tolist() == list(range(1000, 1012))
    assert records.died.tolist() == [int(record % 3 == 0) for record in records.record]
    assert records.static[3].tolist() == pytest.approx([54, 0, math.nan, 4], nan_ok=True)
    cohort = Cohort.of(records)
    own, _ = cohort.part(torch.tensor([3]))
    # Sorted by variable, time and value; an unknown weight and a value without a name are left out.
    assert [VARIABLES[v] for v in own.variable] == ["HR", "HR", "HR", "Weight"]
    assert own.minutes.tolist() == [5, 5, 60, 10]
    assert own.values.tolist() == [60, 70, 75, 80]
    # The prepared folder alone gives what the original gives.
    copied = load(PhysionetData(path=folder, sets="a", split="mtan"))
    whole = load(PhysionetData(path=source, sets="a", split="mtan"))
    assert torch.equal(copied.train.signals, whole.train.signals)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "set-a/1001.txt",
            "Time,Value\n",
            "1001.txt:1: got 'Time,Value'; the first line has to be Time,Parameter,Value",
        ),
        ("set-a/1001.txt", stay(1001, ["1:5,HR,7"]), "1001.txt:7: got '1:5,HR,7'; a line has hh:mm"),
        ("set-a/1001.txt", stay(1001, ["01:05,HRV,7"]), "1001.txt:7: got '01:05,HRV,7'; a line has hh:mm, a variable"),
        ("set-a/1001.txt", stay(1001, ["49:00,HR,7"]), "1001.txt:7: got the time 49:00; stays have 48 hours"),
        ("set-a/1001.txt", stay(77, []), "Outcomes-a.txt has no line for the record 77"),
        ("set-a/1001.txt", HEAD + "\n", "1001.txt has no RecordID; its second line should be 00:00,RecordID,1001"),
        ("Outcomes-a.txt", "RecordID,Died\n", "Outcomes-a.txt:1: got RecordID,Died; the columns RecordID and In-hosp"),
        ("Outcomes-a.txt", "RecordID,In-hospital_death\n1,2\n", "Outcomes-a.txt:2: got '1,2'; a record, and 0 or 1"),
    ],
)
def test_files_that_are_not_of_the_challenge(tmp_path, name, content, told):
    source = written(tmp_path, "a", 3)
    (source / name).write_text(content)
    with pytest.raises(LabError, match="(?s)" + told.replace("(", r"\(")):
        prepared(PhysionetData(path=source))


def test_missing_files_and_sets(tmp_path):
    with pytest.raises(LabError, match=r"Outcomes-a\.txt: no such file; unpack"):
        prepared(PhysionetData(path=tmp_path))
    source = written(tmp_path, "a", 12)
    with pytest.raises(LabError, match=r"has no set b; unpack set-b\.tar\.gz"):
        load(PhysionetData(path=source))
    with pytest.raises(LabError, match=r"--data\.fold=5, but there are 5 folds"):
        load(PhysionetData(path=source, sets="a", fold=5))


def test_splits():
    from sklearn.model_selection import train_test_split

    rest, test = train_test_split(np.arange(4000), train_size=0.8, random_state=42)
    train_, valid = train_test_split(rest, train_size=0.8, random_state=11)
    for ours, theirs in zip(mtan_split(4000), (train_, valid, test), strict=True):
        assert ours.tolist() == theirs.tolist()
    died = [int(place % 7 == 0) for place in range(700)]
    tested = [folds(died, fold, 0.2) for fold in range(5)]
    assert sorted(place for _, _, test in tested for place in test) == list(range(700))
    for parts in tested:
        assert sorted(place for part in parts for place in part) == list(range(700))
        assert [sum(died[place] for place in part) for part in parts] == [64, 16, 20]


@pytest.mark.parametrize("leaks", [False, True])
def test_test_stays_change_nothing_of_the_training(tmp_path, monkeypatch, leaks):
    """Scales, cuts and logarithms are those of the training stays; a planted leak shows that the test would tell."""
    if leaks:
        of_training = Scale.of.__func__
        monkeypatch.setattr(Scale, "of", classmethod(lambda cls, _: of_training(cls, Cohort.of(read(folder)))))
    found = []
    for factor in (1.0, 7.0):
        places = folds([int(record % 3 == 0) for record in [*range(1000, 1030), *range(2000, 2030)]], 1, 0.2)[2]
        records = [(1000 if place < 30 else 1970) + place for place in places]

        def change(_, record, lines, factor=factor, records=records):
            numbered = [line.rsplit(",", 1) for line in lines]
            return [f"{head},{float(value) * (factor if record in records else 1)}" for head, value in numbered]

        source = written(tmp_path / str(factor), change=change)
        folder = prepared(PhysionetData(path=source))
        load.cache_clear()
        splits = load(PhysionetData(path=folder, fold=1))
        found.append([splits.train.signals, splits.train.summary, splits.valid.signals, splits.test.signals])
    for place, (before, after) in enumerate(zip(*found, strict=True)):
        assert torch.equal(before, after) == (place < 3 and not leaks)


def cohort_of(*sequences):
    """One stay: for each sequence the variable, minutes and values."""
    counts = torch.zeros(1, len(VARIABLES), dtype=torch.int64)
    for variable, minutes, _ in sequences:
        counts[0, variable] = len(minutes)
    minutes, values = (torch.tensor([x for one in sequences for x in one[place]]).float() for place in (1, 2))
    return Cohort(torch.zeros(1), torch.tensor([[60.0, 1, 170, 2]]), counts, minutes, values)


def test_times_are_before_the_last_observation_of_the_variable_itself():
    cohort = cohort_of((HR, [0, 60, 2820], [80, 90, 100]), (LACTATE, [600], [2]))
    hours = torch.expm1(cohort.before * math.log(49))
    torch.testing.assert_close(hours, torch.tensor([47.0, 46.0, 0.0, 0.0]), atol=1e-3, rtol=0)
    assert cohort.last(cohort.values, -1.0)[0, [HR, LACTATE, 0]].tolist() == [100, 2, -1]
    assert spans(cohort.before, cohort.group)[3] == 1
    left = cohort.without(torch.tensor([False, False, True, False]))
    assert left.before[1] == 0
    assert left.counts[0, HR] == 2


def test_logistic_regression_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    inputs = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, 0] + 0.5 > 0).float()
    weight, bias = logistic_regression(inputs, labels, 0.05)
    theirs = LogisticRegression(C=1 / (0.05 * 80), tol=1e-10).fit(inputs.numpy(), labels.numpy())
    assert weight[:, 0].tolist() == pytest.approx(theirs.coef_[0].tolist(), abs=1e-5)
    assert float(bias) == pytest.approx(float(theirs.intercept_[0]), abs=1e-5)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return prepared(PhysionetData(path=written(tmp_path_factory.mktemp("physionet"))))


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: row.variant)
def test_every_row_learns_and_ignores_what_is_masked(source, row):
    recipe = load_recipe(f"physionet/{row.variant}", [f"--data.path={source}", *SMALL])
    splits = recipe.load()
    torch.manual_seed(0)
    model = TASK.build(recipe.model, splits)
    TASK.initialise(model, recipe.data, recipe.model)
    model.eval()
    batch = TASK.batch(splits.test, range(len(splits.test)))
    whole = model(batch)
    losses, _ = TASK.loss(whole, batch)
    losses.mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
    if "mask" not in batch:
        # A summary alone has no padding.
        return
    broken = {"values": math.nan, "position": math.nan, "span": 0.5, "hours": 9.0, "channel": 3}
    filled = {**batch, **{key: torch.where(batch["mask"], batch[key], value) for key, value in broken.items()}}
    if row.variant in ("gru-d", "mtan"):
        filled["position"] = batch["position"]
    torch.testing.assert_close(model(filled), whole)
    # An observation that was not made: one column more of padding.
    wider = {key: torch.nn.functional.pad(batch[key], (0, 1)) for key in (*broken, "mask")}
    torch.testing.assert_close(model({**batch, **wider}), whole)
    assert 0 <= TASK.summarise(TASK.measures(whole.detach(), batch))["auroc"] <= 1


def test_signals_are_those_of_the_library_and_their_mean_is_near_the_weights(source):
    import contmax

    splits = load(PhysionetData(path=source))
    stays: Stays = splits.test
    own, places = stays.cohort.part(torch.tensor([2]))
    mine = own.variable == HR
    fitted = contmax.fit_signal(
        stays.values[places][mine][:, None],
        contmax.basis.GaussianBasis.linspace(8, scale=0.85 / 7),
        positions=own.before[mine],
        penalty=0.3,
    )
    torch.testing.assert_close(stays.signals[2, HR, :, 0], fitted.coefficients.squeeze(-1), atol=1e-5, rtol=1e-4)
    assert stays.signals[2, 0].abs().max() == 0


def test_mtan_attends_to_each_variable_by_itself():
    model = Mtan(ChannelsModel(kind="mtan", hidden_dim=8), Sizes(len(VARIABLES), 120, 9))
    hours = torch.tensor([[1.0, 1.0, 5.0, 0.0]])
    mask = torch.tensor([[True, True, True, False]])
    batch = {"hours": hours, "mask": mask, "values": torch.tensor([[2.0, 7.0, 4.0, math.nan]])}
    batch["channel"] = torch.tensor([[HR, LACTATE, HR, 0]])
    means = model.interpolated(batch)
    assert means.shape == (1, 48, 2 * len(VARIABLES))
    assert means.isfinite().all()
    # A variable that was seen once is everywhere what it was then; the mean of two lies between them.
    torch.testing.assert_close(means[0, :, LACTATE], torch.full((48,), 7.0))
    assert ((means[0, :, HR] > 2) & (means[0, :, HR] < 4)).all()
    # By hand, with a sum over times for each variable.
    query, key = model.query(model.embedded(model.reference)), model.key(model.embedded(hours[0, [0, 2]] / 48))
    weights = (query @ key.mT / math.sqrt(32)).softmax(-1)
    torch.testing.assert_close(means[0, :, HR], weights @ torch.tensor([2.0, 4.0]))
    torch.testing.assert_close(means[0, :, len(VARIABLES) + LACTATE], weights[:, 0])
    assert distinct_times(hours, mask)[2].tolist() == [2]


def test_what_was_last_seen():
    values = torch.tensor([0.0, 3.0, 0.0, 5.0]).view(1, 4, 1)
    filled, gap = last_seen(values, values != 0)
    assert filled.flatten().tolist() == [0, 3, 3, 5]
    assert gap.flatten().tolist() == [0, 0, 0.25, 0]


def test_weights_sum_to_one_and_looking_is_where_the_density_is(source):
    splits = load(PhysionetData(path=source))
    batch = TASK.batch(splits.test, [0, 1])
    for weighing in ("kernel", "kernel-dt", "scores"):
        model = Intervals(ChannelsModel(weighing=weighing), basis_of(8), splits.info["sizes"])
        weights, _, _ = model.weights(batch)
        of_heart = (batch["channel"][0] == HR) & batch["mask"][0]
        torch.testing.assert_close(weights[0][of_heart].sum(0), torch.ones(3))
    model = Intervals(ChannelsModel(alpha=2.0), basis_of(8), splits.info["sizes"])
    assert model.relevance(batch).max() == 0
    torch.nn.init.ones_(model.skip.weight)
    relevance = model.relevance(batch)
    low, high = model.interval_hours()[HR].unbind(-1)
    hours = torch.expm1(batch["position"] * math.log(49)).unsqueeze(-1)
    # An interval that begins before the last observation holds it too.
    inside = ((hours >= low) & (hours < high)).any(-1) & (batch["channel"] == HR)
    assert ((relevance > 0) == inside)[(batch["channel"] == HR) & batch["mask"]].all()


def job(folder, source, rows, here, more=()):
    table = dataclasses.replace(TABLE, rows=rows, repetitions=TABLE.repetitions[:2], shown=("B",), published={})
    options = [f"--data.path={source}", "--model.hidden_dim=4", "--training.batch_size=16", *more]
    return Reproduction(TASK, table, folder / "runs", folder / "physionet.json", options, here)


def test_the_best_try_on_validation_stays_counts(tmp_path, source):
    rows = tuple(row for row in TABLE.rows if row.variant in ("boosting", "kernel", "parabola"))
    rows = tuple(dataclasses.replace(row, tries=row.tries[:2]) for row in rows)
    here = Here()
    making = job(tmp_path, source, rows, here, ["--training.epochs=1"])
    text = reproduce(making)
    assert len(here.begun) == 3 * 2 * 2
    stored = json.loads(making.output.read_text())
    assert stored["complete"]
    for cell in stored["cells"]:
        words = "".join(c if c.isalnum() else " " for c in cell["row"].lower()).split()
        folders = [tmp_path / "runs" / "-".join(words) / cell["variant"] / f"try-{n}" for n in range(2)]
        tried = [Run(folder).results() for folder in folders]
        best = min(range(2), key=lambda n: tried[n]["valid"]["loss"])
        assert cell["results"]["try"] == {"number": best, "of": 2}
        assert cell["auroc"] == tried[best]["test"]["auroc"]
        assert ("moved_without_attended" in cell) == cell["row"].startswith("Intervals")
        assert cell["auroc"] > 0.5 or cell["row"] == TABLE.baseline
    compared = [(entry["label"], entry["against"]) for entry in stored["differences"]["rows"]]
    assert len(compared) == 3
    assert {against for label, against in compared if "continuous" in label} == {rows[0].label, rows[1].label}
    again = Here()
    assert reproduce(dataclasses.replace(making, workers=again)) == text
    assert again.begun == []
    # A cell whose tries are not all done is left out.
    (folders[0] / "results.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("contmax_lab.tables._reproduce._train_all", lambda *given: None)
        reproduce(making)
    assert len(json.loads(making.output.read_text())["cells"]) == 5


def test_every_row_tries_as_many_settings():
    assert {len(row.tries) for row in TABLE.rows} == {3}
    assert len({row.variant for row in TABLE.rows}) == 11
    networks = {row.tries for row in TABLE.rows if row.variant not in ("logistic", "boosting")}
    assert len(networks) == 1


def test_one_training_its_prediction_and_its_picture(tmp_path, source, capsys):
    recipe = load_recipe("physionet/learned-alpha", [f"--data.path={source}", *SMALL])
    results = train(recipe, Run(tmp_path / "run"), test=True)
    assert 0 <= results["test"]["moved_without_random"] <= 1
    assert 1 < results["test"]["alpha"] < 2
    assert "moved_without_random" not in results["valid"]
    main(["predict", str(tmp_path / "run"), "2"])
    assert "probability of death in hospital: " in capsys.readouterr().out
    trained = open_trained(tmp_path / "run")
    pytest.importorskip("matplotlib")
    from contmax_lab.drawing import LIGHT, rendered

    (figure,) = TASK.figures([trained])
    assert rendered(figure.draw, LIGHT).startswith(b"\x89PNG")
