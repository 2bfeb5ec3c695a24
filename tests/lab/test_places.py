"""Places: where the answer is, is known; what agrees with it, is measured; every row of the table takes a step."""

import dataclasses
import re

import pytest
import torch
from torch.distributions import Uniform

import contmax
from contmax.densities import TruncatedParabola
from contmax.losses import fenchel_young
from contmax_lab.errors import LabError
from contmax_lab.recipes import load_recipe
from contmax_lab.runs import Run
from contmax_lab.tasks import find_task
from contmax_lab.tasks.digits import Images
from contmax_lab.tasks.places import Finder, PlacesData, PlacesModel
from contmax_lab.tasks.places._attention import Place, Scene
from contmax_lab.tasks.places._canvas import digit_in_clutter
from contmax_lab.tasks.places._measures import agreement, looked
from contmax_lab.tasks.places._utterances import irregular, one_in_noise, resampled, two_in_noise, two_in_turn
from contmax_lab.tasks.vowels import Utterances
from contmax_lab.training import train

TASK = find_task("places")
TABLE = TASK.tables()[0]
LOUD = 100.0


def loud(count, sign=1.0, speaker=0):
    """Utterances whose frames nobody takes for noise: the k-th is ±(100 + k), in 5 to 9 frames."""
    series = [torch.full((5 + i % 5, 3), sign * (LOUD + i)) for i in range(count)]
    return Utterances(series, torch.full((count,), speaker))


def inside(batch):
    """Which observations lie in the true interval."""
    where = batch.get("positions", (torch.arange(batch["mask"].shape[1]) + 0.5) / batch["mask"].sum(-1, keepdim=True))
    return (where > batch["low"]) & (where < batch["high"]) & batch["mask"]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# -- data --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratios", [(4.0, 4.0), (16.0, 16.0), (1.5, 8.0), (1.0, 1.0)])
def test_an_utterance_lies_where_it_is_said_to(ratios):
    source = loud(60)
    batch = one_in_noise(source, ratios)
    is_loud = batch["frames"].abs().amin(-1) > LOUD / 2
    assert torch.equal(is_loud, inside(batch))
    for row, series in enumerate(source.series):
        torch.testing.assert_close(batch["frames"][row][is_loud[row]], series)
    length = torch.tensor([len(series) for series in source.series])
    ratio = batch["mask"].sum(-1) / length
    assert bool(((ratio >= ratios[0] - 0.1) & (ratio <= ratios[1] + 0.1)).all())
    assert bool((batch["frames"][~batch["mask"]] == 0).all())
    # Everywhere: from the very beginning to the very end.
    if ratios[0] > 1:
        assert float(batch["low"].min()) < 0.1
        assert float(batch["high"].max()) > 0.9


def test_noise_is_white_and_as_loud_as_speech():
    batch = one_in_noise(loud(200), (16.0, 16.0))
    noise = batch["frames"][batch["mask"] & ~inside(batch)]
    torch.testing.assert_close(noise.mean(0), torch.zeros(3), atol=0.03, rtol=0)
    torch.testing.assert_close(noise.T.cov(), torch.eye(3), atol=0.03, rtol=0)


def test_two_utterances_do_not_overlap_and_the_query_names_the_one_that_is_asked_for():
    rising = [torch.arange(8.0).unsqueeze(-1).expand(8, 3) + LOUD for _ in range(200)]
    asked = Utterances(rising, torch.arange(200) % 4)
    batch = two_in_noise(asked, loud(200, sign=-1), 9)
    frames = batch["frames"][..., 0]
    own = frames > LOUD / 2
    assert torch.equal(own, inside(batch))
    other = {**batch, "low": batch["other_low"], "high": batch["other_high"]}
    assert torch.equal(frames < -LOUD / 2, inside(other))
    assert torch.equal(batch["query"].argmax(-1), asked.speaker)
    for row in range(200):
        falls = bool(frames[row][own[row]].diff().lt(0).all())
        assert falls == bool(batch["label"][row])
    assert 0.3 < float(batch["label"].float().mean()) < 0.7
    assert 0.3 < float((batch["low"] < batch["other_low"]).float().mean()) < 0.7


def test_of_two_in_turn_the_first_takes_longer_and_frames_do_not_tell():
    batch = two_in_turn(loud(300, speaker=3), loud(300, sign=-1))
    frames = batch["frames"][..., 0]
    longer, shorter = (frames > LOUD / 2).sum(-1), (frames < -LOUD / 2).sum(-1)
    share = longer / (longer + shorter)
    assert bool((batch["label"] == 3).all())
    assert 0.58 < float(share.min()) < float(share.max()) < 0.72
    assert torch.equal(frames.abs() > LOUD / 2, inside(batch))
    # Half of the time the longer one comes second.
    first = frames.gather(1, (frames.abs() > LOUD / 2).float().argmax(-1, keepdim=True)) > 0
    assert 0.4 < float(first.float().mean()) < 0.6


@pytest.mark.parametrize("dropped", [0.3, 0.5, 0.7])
def test_irregular_series_keep_their_times_and_lose_the_share_they_should(dropped):
    whole = two_in_turn(loud(300), loud(300, sign=-1))
    seen = irregular(whole, dropped)
    share = seen["mask"].sum() / whole["mask"].sum()
    assert float(share) == pytest.approx(1 - dropped, abs=0.03)
    assert bool((seen["positions"].diff(dim=-1) >= 0).all())
    index = (seen["positions"] * whole["mask"].shape[1]).long()
    for row in range(20):
        kept = seen["mask"][row]
        torch.testing.assert_close(seen["frames"][row][kept], whole["frames"][row][index[row][kept]])
    is_loud = (seen["frames"][..., 0].abs() > LOUD / 2) & seen["mask"]
    assert torch.equal(is_loud, inside(seen))
    # There are long gaps: independent frames would leave one of this length in hardly any series.
    gap = torch.where(seen["mask"][:, 1:], seen["positions"].diff(dim=-1), 0).amax(-1)
    assert float(gap.median()) > 0.08


def test_digits_lie_in_their_box_and_fragments_around():
    bright = Images(torch.full((50, 8, 8), 5.0), torch.arange(50) % 10)
    dim = Images(torch.full((30, 8, 8), 0.5), torch.zeros(30, dtype=torch.long))
    batch = digit_in_clutter(bright, dim)
    rows = (torch.arange(24) + 0.5) / 24
    within = [(rows > batch["low"][:, i, None]) & (rows < batch["high"][:, i, None]) for i in range(2)]
    box = within[0].unsqueeze(2) & within[1].unsqueeze(1)
    assert torch.equal(batch["pixels"] > 3, box)
    assert torch.equal(batch["label"], bright.digit)
    clutter = batch["pixels"][~box] > 0.25
    assert 0.05 < float(clutter.float().mean()) < 0.25


def test_other_frame_rates_keep_the_duration():
    slow = Utterances([torch.linspace(0, 1, 12).unsqueeze(-1).expand(12, 3)], torch.zeros(1))
    fast = resampled(slow, 2.0)
    assert len(fast.series[0]) == 24
    assert bool((fast.series[0][:, 0].diff() >= 0).all())


def test_seeds_reproduce_splits_share_nothing_and_training_moves():
    data = PlacesData()
    one, two = TASK.load(data, seed=0), TASK.load(data, seed=1)
    torch.testing.assert_close(one.test.batch, two.test.batch)
    assert not torch.equal(one.train.placed([0])["low"], one.train.placed([0])["low"])
    assert (len(one.train), len(one.valid), len(one.test)) == (216, 54 * 4, 370)
    assert "background" in one.test.batch
    assert "background" not in one.valid.batch
    known = {tuple(series[0].tolist()) for series in one.train.source.series}
    for part in (one.valid.batch, one.test.batch):
        first = part["frames"][torch.arange(len(part["label"])), inside(part).float().argmax(-1)]
        assert not known & {tuple(frame.tolist()) for frame in first}


@pytest.mark.parametrize("labelled", [0.0, 0.1, 1.0])
def test_so_many_spans_are_known(labelled):
    splits = TASK.load(PlacesData(labelled=labelled), seed=0)
    assert int(splits.train.spans.sum()) == round(216 * labelled)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (PlacesData(shortest=5.0, longest=2.0), "5 to 2 times as long"),
        (PlacesData(shortest=0.5), "1 <= --data.shortest"),
        (PlacesData(kind="turns", dropped=1.0), "--data.dropped below 1"),
    ],
)
def test_impossible_data_is_one_line(data, says):
    with pytest.raises(LabError, match=re.escape(says)):
        TASK.load(data, seed=0)


# -- measures ----------------------------------------------------------------------------------------------------------


def line(count, **known):
    where = (torch.arange(count) + 0.5).div(count).reshape(1, count, 1)
    return Scene(
        torch.zeros(1, count, 2), torch.zeros(1, count, 2), where, torch.ones(1, count, dtype=torch.bool), **known
    )


def measured(scene, place, low, high):
    found = agreement(looked(scene, place), torch.tensor([low]), torch.tensor([high]))
    return {name: float(value) for name, value in found.items()}


def test_agreement_of_weights():
    # Eighths 2 and 5 are attended to; the truth is [1/4, 1/2], eighths 2 and 3.
    weights = torch.tensor([[0, 0, 0.75, 0, 0, 0.25, 0, 0]])
    found = measured(line(8), Place(torch.zeros(1, 2), weights), [0.25], [0.5])
    expected = {"iou": 1 / 3, "hull_iou": 2 / 4, "inside": 0.75, "coverage": 0.5, "size": 0.25, "true_size": 0.25}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=2e-3)
    # The mean is 0.75 · 5/16 + 0.25 · 11/16 = 0.40625.
    assert found["centre"] == 1


def test_agreement_of_a_density_and_of_both():
    density = TruncatedParabola.from_support(torch.tensor([0.2]), torch.tensor([0.6]))
    nothing = torch.zeros(1, 2)
    alone = measured(line(10), Place(nothing, density=density), [0.4], [0.8])
    expected = {"iou": 0.2 / 0.6, "hull_iou": 0.2 / 0.6, "inside": 0.5, "coverage": 0.5, "size": 0.4}
    assert {name: alone[name] for name in expected} == pytest.approx(expected, abs=3e-3)
    weights = torch.zeros(1, 10)
    weights[0, 9] = 1.0
    both = measured(line(10), Place(nothing, weights, density), [0.4], [0.8])
    expected = {"iou": 0.2 / 0.7, "hull_iou": 0.4 / 0.8, "inside": 0.25, "coverage": 0.5, "size": 0.5}
    assert {name: both[name] for name in expected} == pytest.approx(expected, abs=3e-3)


def test_what_is_never_zero_counts_where_it_holds_most_of_the_mass():
    weights = torch.tensor([[0.48, 0.48, 0.01, 0.01, 0.01, 0.01]])
    found = measured(line(6), Place(torch.zeros(1, 2), weights), [0.0], [1 / 3])
    assert found["iou"] == pytest.approx(1, abs=0.02)


def test_an_observation_stands_for_what_is_nearest_to_it():
    where = torch.tensor([0.1, 0.2, 0.8]).reshape(1, 3, 1)
    scene = dataclasses.replace(line(3), where=where, irregular=True)
    found = measured(scene, Place(torch.zeros(1, 2), torch.tensor([[0.0, 1.0, 0.0]])), [0.15], [0.5])
    assert found["iou"] == pytest.approx(1, abs=5e-3)


def test_agreement_on_the_plane():
    weights = torch.zeros(1, 16)
    weights[0, [5, 6]] = 0.5  # row 1, columns 1 and 2
    scene = dataclasses.replace(line(16), where=torch.zeros(1, 16, 2), grid=(4, 4))
    found = measured(scene, Place(torch.zeros(1, 2), weights), [0.25, 0.25], [0.75, 0.5])
    expected = {"iou": 1 / 3, "inside": 0.5, "coverage": 0.5, "size": 2 / 16, "true_size": 2 / 16}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=5e-3)


# -- the model ---------------------------------------------------------------------------------------------------------


class _Spy(torch.nn.Module):
    """Attends to given weights and remembers nothing: stands in for what was learned."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def forward(self, scene):
        return Place((self.weights.unsqueeze(1) @ scene.values).squeeze(1), self.weights)


def test_deletion_replaces_what_was_seen_and_nothing_else(monkeypatch):
    finder = Finder(PlacesModel(attention="mean", hidden_dim=4), channels=3, classes=2, query_dim=0, dim=1).eval()
    weights = torch.zeros(1, 20)
    weights[0, 8:10] = 0.5
    finder.attend = _Spy(weights)
    asked = []
    answer = finder._answer
    monkeypatch.setattr(finder, "_answer", lambda batch, given: asked.append(given) or answer(batch, given))
    frames, background = torch.ones(1, 20, 3), torch.zeros(1, 20, 3)
    finder({"frames": frames, "background": background, "mask": torch.ones(1, 20, dtype=torch.bool)})
    # Values 8 and 9 depend on frames 6 to 11, those two and two more on either side.
    expected = torch.zeros(20)
    expected[6:12] = 1
    assert torch.equal(asked[1][0, :, 0], expected)
    assert torch.equal(asked[2][0, :, 0], 1 - expected)
    # And on no others: their gradient says so.
    frames.requires_grad_()
    answer({"mask": torch.ones(1, 20, dtype=torch.bool)}, frames).logits.sum().backward()
    assert torch.equal(frames.grad[0].abs().sum(-1) > 0, expected > 0)


def test_on_the_plane_a_value_depends_on_what_is_kept_and_on_nothing_else(monkeypatch):
    finder = Finder(PlacesModel(attention="mean", hidden_dim=4), channels=1, classes=2, query_dim=0, dim=2).eval()
    weights = torch.zeros(2, 12 * 12)
    weights[:, 7 * 12 + 5] = 1.0
    finder.attend = _Spy(weights)
    asked = []
    answer = finder._answer
    monkeypatch.setattr(finder, "_answer", lambda batch, given: asked.append(given) or answer(batch, given))
    pixels = torch.randn(2, 24, 24)
    finder({"pixels": pixels, "background": torch.full_like(pixels, 50.0)})
    kept = asked[1] != 50
    assert torch.equal(asked[2] != 50, ~kept)
    pixels.requires_grad_()
    answer({}, pixels).logits.sum().backward()
    matters = pixels.grad != 0
    assert bool((kept | ~matters).all())
    assert int(kept.sum()) <= 1.4 * int(matters.sum())


def test_the_share_of_dropped_gates_falls():
    model = PlacesModel(hidden_dim=4, functions=4, drop_first=0.9, drop_last=0.3, drop_steps=4)
    finder = Finder(model, channels=3, classes=2, query_dim=0, dim=1)
    batch = {"frames": torch.randn(2, 12, 3), "mask": torch.ones(2, 12, dtype=torch.bool)}
    head = next(part for part in finder.modules() if isinstance(part, contmax.nn.GateHead))
    shares = []
    for _ in range(6):
        finder.train()(batch)
        shares.append(float(head.drop_rate))
        # An evaluation between two steps is no step.
        finder.eval()(batch)
    assert shares == pytest.approx([0.9, 0.75, 0.6, 0.45, 0.3, 0.3])


def test_the_schedule_ends_when_seven_tenths_of_the_steps_are_done():
    for name in {row.recipe for row in TABLE.rows}:
        recipe = load_recipe(name)
        count = 1197 if recipe.data.kind == "digit" else 216
        steps = recipe.training.epochs * -(-count // recipe.training.batch_size)
        assert recipe.model.drop_steps == pytest.approx(0.7 * steps, rel=0.05), name


# Settings that differ only in how long or how sparse the series are need not take every step.
ALIKE = ("(a) 16×", "(a) 1.5×", "(d) 30", "(d) 50")
ROWS = [row for row in TABLE.rows if not row.label.startswith(ALIKE) or "Continuous sparsemax" in row.label]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_every_row_takes_a_step(row):
    """Without the loop, which every other task tests: a batch forwards and backwards, and its measures."""
    quick = ["--model.hidden_dim=8", "--model.functions=4", "--data.valid_places=1"]
    recipe = load_recipe(row.recipe, [*row.overrides, *quick])
    splits = _loaded(recipe.data)
    network = TASK.build(recipe.model, splits)
    batch = TASK.batch(splits.train, range(4))
    TASK.losses(network.train()(batch), batch).mean().backward()
    assert all(bool(p.grad.isfinite().all()) for p in network.parameters() if p.grad is not None)
    assert any(bool((p.grad != 0).any()) for p in network.parameters() if p.grad is not None)
    tests = TASK.batch(splits.test, range(3))
    with torch.no_grad():
        metrics = TASK.summarise(TASK.measures(network.eval()(tests), tests))
    if recipe.model.attention == "query":
        assert set(metrics) == {"accuracy"}
        return
    expected = {metric.key.partition(".")[2] for metric in TABLE.metrics if metric.key.startswith("test.")}
    assert expected - {"chosen"} <= set(metrics)
    assert ("chosen" in metrics) == (recipe.data.kind == "pair")
    assert all(-1 <= metrics[name] <= 1 for name in expected & set(metrics))


_LOADED = {}


def _loaded(data):
    if data not in _LOADED:
        _LOADED[data] = TASK.load(data, 0)
    return _LOADED[data]


def test_a_known_span_adds_the_loss_of_the_density_to_it():
    splits = _loaded(PlacesData(labelled=1.0, valid_places=1))
    network = TASK.build(PlacesModel(hidden_dim=8, functions=4, span_weight=0.5), splits).eval()
    batch = TASK.batch(splits.train, range(6))
    output = network(batch)
    unknown = {**batch, "span_known": torch.tensor([True, False] * 3)}
    added = TASK.losses(output, unknown) - TASK.losses(
        output, {**batch, "span_known": torch.zeros(6, dtype=torch.bool)}
    )
    truth = Uniform(batch["low"].squeeze(-1), batch["high"].squeeze(-1))
    expected = 0.5 * fenchel_young(output.place.density, truth) * unknown["span_known"]
    torch.testing.assert_close(added, expected)
    assert bool((added[::2] > 0).all())


def test_deletion_is_measured_on_test_examples_only(tmp_path):
    quick = ["--training.epochs=1", "--training.batch_size=0", "--data.valid_places=1", "--model.functions=4"]
    results = train(load_recipe("places/utterance", quick), Run(tmp_path / "run"))
    assert {"accuracy", "iou", "kept_accuracy", "deleted_accuracy"} <= set(results["test"])
    assert "iou" in results["valid"]
    assert "kept_accuracy" not in results["valid"]
