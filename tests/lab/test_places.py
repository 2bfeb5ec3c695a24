"""Places: what agrees with the truth is measured; every row of the table takes a step."""

import dataclasses

import pytest
import torch
from torch.distributions import Uniform

import contmax
from contmax.densities import BetaGaussian, TruncatedParabola
from contmax.losses import fenchel_young
from contmax_lab.attention import Attended
from contmax_lab.registry import find_task, load_recipe
from contmax_lab.runs import Run
from contmax_lab.tasks.places import PlacesData, PlacesModel
from contmax_lab.tasks.places._attention import PlaceAttention, Scene, agreement, looked
from contmax_lab.tasks.places._model import Finder
from contmax_lab.training import train

TASK = find_task("places")
TABLE = TASK.tables()[0]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


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
    found = measured(line(8), Attended(torch.zeros(1, 2), weights, sparse=True), [0.25], [0.5])
    expected = {"iou": 1 / 3, "hull_iou": 2 / 4, "inside": 0.75, "coverage": 0.5, "size": 0.25, "true_size": 0.25}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=2e-3)
    # The mean is 0.75 · 5/16 + 0.25 · 11/16 = 0.40625.
    assert found["centre"] == 1


def test_agreement_of_a_density_and_of_both():
    density = TruncatedParabola.from_support(torch.tensor([0.2]), torch.tensor([0.6]))
    nothing = torch.zeros(1, 2)
    alone = measured(line(10), Attended(nothing, density=density), [0.4], [0.8])
    expected = {"iou": 0.2 / 0.6, "hull_iou": 0.2 / 0.6, "inside": 0.5, "coverage": 0.5, "size": 0.4}
    assert {name: alone[name] for name in expected} == pytest.approx(expected, abs=3e-3)
    weights = torch.zeros(1, 10)
    weights[0, 9] = 1.0
    both = measured(line(10), Attended(nothing, weights, density, sparse=True), [0.4], [0.8])
    expected = {"iou": 0.2 / 0.7, "hull_iou": 0.4 / 0.8, "inside": 0.25, "coverage": 0.5, "size": 0.5}
    assert {name: both[name] for name in expected} == pytest.approx(expected, abs=3e-3)


def test_what_is_never_zero_counts_where_it_holds_most_of_the_mass():
    weights = torch.tensor([[0.48, 0.48, 0.01, 0.01, 0.01, 0.01]])
    found = measured(line(6), Attended(torch.zeros(1, 2), weights), [0.0], [1 / 3])
    assert found["iou"] == pytest.approx(1, abs=0.02)


def test_a_narrow_gaussian_counts_where_it_holds_most_of_the_mass():
    # So narrow that float32 has zeros within the interval, which are rounding and no support.
    density = BetaGaussian(torch.tensor([0.5]), torch.tensor([0.02]), alpha=1.0)
    assert float(density.log_prob(torch.tensor(0.9)).exp()) == 0
    low, high = 0.5 - 1.96 * 0.02, 0.5 + 1.96 * 0.02
    found = measured(line(10), Attended(torch.zeros(1, 2), density=density), [low], [high])
    assert found["size"] == pytest.approx(high - low, abs=2e-3)
    assert found["iou"] == pytest.approx(1, abs=0.03)


def test_what_lies_at_a_single_point_is_seen_there():
    # So narrow that one point holds more than 95 %: the smallest set is that point, and not empty.
    scene = line(10)
    points = looked(scene, Attended(torch.zeros(1, 2), torch.full((1, 10), 0.1))).points
    density = BetaGaussian(points[700], torch.tensor([1e-5]), alpha=1.0)
    found = looked(scene, Attended(torch.zeros(1, 2), density=density))
    assert found.seen.nonzero().tolist() == [[0, 700]]


def test_softmax_that_is_rounded_to_zero_counts_where_it_holds_most_of_the_mass():
    values = torch.eye(3)[[0, 0, 1, 1, 2, 2]].unsqueeze(0)
    scene = dataclasses.replace(line(6), values=values, keys=values)
    attend = PlaceAttention(PlacesModel(attention="discrete", hidden_dim=3, alpha=1.0), None, 1)
    with torch.no_grad():
        attend.attend.key.weight.copy_(torch.eye(3))
        attend.attend.key.bias.zero_()
        # Scores 200, 195 and 0: weights of 0.497, 0.003 and, rounded, zero.
        attend.attend.energy.weight.copy_(torch.tensor([[200.0, 195.0, 0.0]]) / torch.tensor(1.0).tanh())
        place = attend(scene)
    assert bool((place.weights[0, 4:] == 0).all())
    assert measured(scene, place, [0.0], [1 / 3])["iou"] == pytest.approx(0.95 / 0.9933, abs=5e-3)


@pytest.mark.parametrize(("alpha", "learnable"), [(2.0, False), (1.5, False), (1.5, True)])
def test_what_a_sparse_map_gives_any_weight_counts(alpha, learnable):
    # Scores that are all alike leave nothing out, and 95 % of the mass would.
    scene = line(6)
    model = PlacesModel(attention="discrete", hidden_dim=2, alpha=alpha, learn_alpha=learnable)
    place = PlaceAttention(model, None, 1)(scene)
    assert bool((place.weights > 0).all())
    assert measured(scene, place, [0.0], [1.0])["size"] == 1


def test_an_observation_stands_for_what_is_nearest_to_it():
    where = torch.tensor([0.1, 0.2, 0.8]).reshape(1, 3, 1)
    scene = dataclasses.replace(line(3), where=where, irregular=True)
    place = Attended(torch.zeros(1, 2), torch.tensor([[0.0, 1.0, 0.0]]), sparse=True)
    found = measured(scene, place, [0.15], [0.5])
    assert found["iou"] == pytest.approx(1, abs=5e-3)


def test_agreement_on_the_plane():
    weights = torch.zeros(1, 16)
    weights[0, [5, 6]] = 0.5  # row 1, columns 1 and 2
    scene = dataclasses.replace(line(16), where=torch.zeros(1, 16, 2), grid=(4, 4))
    found = measured(scene, Attended(torch.zeros(1, 2), weights, sparse=True), [0.25, 0.25], [0.75, 0.5])
    expected = {"iou": 1 / 3, "inside": 0.5, "coverage": 0.5, "size": 2 / 16, "true_size": 2 / 16}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=5e-3)


# -- the model ---------------------------------------------------------------------------------------------------------


class _Spy(torch.nn.Module):
    """Attends to given weights and remembers nothing: stands in for what was learned."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def forward(self, scene):
        return Attended((self.weights.unsqueeze(1) @ scene.values).squeeze(1), self.weights, sparse=True)


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
    answer({"mask": torch.ones(1, 20, dtype=torch.bool)}, frames)[0].sum().backward()
    assert torch.equal(frames.grad[0].abs().sum(-1) > 0, expected > 0)


def test_on_a_grid_what_is_kept_is_what_attended_cells_depend_on(monkeypatch):
    """The interpolation of a linear signal is the signal, and gradients find the observations that were used."""
    model = PlacesModel(attention="mean", hidden_dim=4, grid=16)
    finder = Finder(model, channels=3, classes=2, query_dim=0, dim=1).eval()
    weights = torch.zeros(1, 16)
    weights[0, 6:8] = 0.5
    finder.attend = _Spy(weights)
    asked, scenes = [], []
    answer, first = finder._answer, finder.first.forward
    monkeypatch.setattr(finder, "_answer", lambda batch, given: asked.append(given) or answer(batch, given))
    monkeypatch.setattr(finder.first, "forward", lambda x: scenes.append(x) or first(x))
    times = torch.tensor([[0.05, 0.1, 0.3, 0.37, 0.5, 0.52, 0.8, 0.9, 1.0, 1.0]])
    mask = torch.tensor([[True] * 8 + [False] * 2])
    frames = (1 + times.unsqueeze(-1) * torch.tensor([1.0, 2.0, -3.0])) * mask.unsqueeze(-1)
    background = torch.full((1, 10, 3), 50.0)
    batch = {"frames": frames, "positions": times, "mask": mask}
    finder({**batch, "background": background})
    cells = ((torch.arange(16) + 0.5) / 16).clamp(0.05, 0.9)
    expected = 1 + cells.unsqueeze(-1) * torch.tensor([1.0, 2.0, -3.0])
    torch.testing.assert_close(scenes[0][0].mT, expected)
    kept = (asked[1] != 50).all(-1)
    frames.requires_grad_()
    answer({**batch, "frames": frames}, frames)[0].sum().backward()
    used = frames.grad.abs().sum(-1) > 0
    assert used.any()
    assert not used.all()
    assert torch.equal(kept, used)


def test_discrete_weights_times_the_time_that_observations_stand_for():
    where = torch.tensor([[0.1, 0.2, 0.8, 1.0], [0.5, 1.0, 1.0, 1.0]]).unsqueeze(-1)
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    values = torch.eye(4).expand(2, 4, 4)
    scene = Scene(values, torch.zeros(2, 4, 4), where, mask, irregular=True)
    place = PlaceAttention(PlacesModel(attention="discrete", hidden_dim=4, alpha=1.0, by_time=True), None, 1)(scene)
    expected = torch.tensor([[0.15, 0.35, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(place.weights, expected)
    torch.testing.assert_close(place.context, expected)


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
    answer({}, pixels)[0].sum().backward()
    matters = pixels.grad != 0
    assert bool((kept | ~matters).all())
    assert int(kept.sum()) <= 1.4 * int(matters.sum())


def test_the_setting_of_hidden_values_is_that_of_the_head():
    for hide in (0.0, 0.4):
        finder = Finder(PlacesModel(hidden_dim=4, functions=4, hide=hide), channels=3, classes=2, query_dim=0, dim=1)
        heads = [part for part in finder.modules() if isinstance(part, contmax.nn.GateHead)]
        assert [head.hide for head in heads] == [hide]
    assert PlacesModel().hide == contmax.nn.GateHead(4).hide


# Settings that differ only in how long or how sparse the series are need not take every step.
ALIKE = ("(a) 16×", "(a) 1.5×", "(d) 30", "(d) 50")
ROWS = [row for row in TABLE.rows if not row.label.startswith(ALIKE) or "Continuous sparsemax" in row.label]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_every_row_takes_a_step(row):
    """Without the loop, which every other task tests: a batch forwards and backwards, and its measures."""
    quick = ["--model.hidden_dim=8", "--model.functions=4", "--data.valid_places=1"]
    recipe = load_recipe(f"places/{row.variant}", [*row.overrides, *quick])
    splits = _loaded(recipe.data)
    network = TASK.build(recipe.model, splits)
    batch = TASK.batch(splits.train, range(4))
    TASK.loss(network.train()(batch), batch)[0].mean().backward()
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
    nowhere = {**batch, "span_known": torch.zeros(6, dtype=torch.bool)}
    added = TASK.loss(output, unknown)[0] - TASK.loss(output, nowhere)[0]
    truth = Uniform(batch["low"].squeeze(-1), batch["high"].squeeze(-1))
    expected = 0.5 * fenchel_young(output.place.density, truth) * unknown["span_known"]
    torch.testing.assert_close(added, expected)
    assert bool((added[::2] > 0).all())


def test_deletion_is_measured_on_test_examples_only(tmp_path):
    quick = ["--training.epochs=1", "--training.batch_size=0", "--data.valid_places=1", "--model.functions=4"]
    results = train(load_recipe("places/utterance", quick), Run(tmp_path / "run"), test=True)
    assert {"accuracy", "iou", "kept_accuracy", "deleted_accuracy"} <= set(results["test"])
    assert "iou" in results["valid"]
    assert "kept_accuracy" not in results["valid"]
