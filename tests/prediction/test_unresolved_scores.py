"""Scores that no interpolation resolves: the answer is right, or a message says truthfully how far off it is."""

import re
import time

import pytest
import torch

import contmax
from contmax.domains import Box, Interval, Nodes
from contmax.prediction import _resolution

F64 = torch.float64
ONE = torch.ones(2, dtype=F64)
SQUARE = Box(-ONE, ONE, resolution=8)
LINE = Interval(torch.tensor(-1.0, dtype=F64), 1.0)


def step(t):
    return (t[:, 0] > 0.3).double()


def slanted_step(t):
    return (t[:, 0] + 0.7 * t[:, 1] > 0.1).double()


def disc(t):
    return 3 * (t.square().sum(-1) < 0.25).double()


def exact_density(score, alpha):
    """Density and A of a score with two values, from the areas on which it has them, by a dense grid of nodes."""
    count = 1500
    axis = (torch.arange(count, dtype=F64) + 0.5) * 2 / count - 1
    values = score(torch.cartesian_prod(axis, axis))
    levels, cells = values.unique(return_counts=True)
    nodes = Nodes(torch.arange(len(levels), dtype=F64), cells * 4.0 / count**2)
    return contmax.regularized_prediction(levels, nodes, alpha)


def stated_error(message):
    """The share of the mass that a message says is misplaced."""
    return float(re.search(r"about (\S+) % of its mass is misplaced", message).group(1)) / 100


@pytest.mark.parametrize("score", [step, slanted_step, disc])
def test_a_step_on_a_box_is_as_wrong_as_the_warning_says(score):
    known = exact_density(score, 2.0)
    with pytest.warns(RuntimeWarning, match=r"not resolved: .*raise resolution, now 16, .*domains\.Nodes") as seen:
        p = contmax.regularized_prediction(score, Box(-ONE, ONE), 2.0)
    assert len(seen) == 1
    # Far from the step the density errs with A alone; the mass that is said to be misplaced bounds that error.
    top = p.density(torch.tensor([0.45, 0.1], dtype=F64)).item() if score is not disc else p.density(0 * ONE).item()
    error = abs(top / known.density(known.mode).item() - 1)
    assert 1e-4 < error < 2 * stated_error(str(seen[0].message))


@pytest.mark.parametrize("alpha", [0.7, 1.0])
def test_a_bounded_peak_narrower_than_a_cell_is_not_said_to_have_no_density(alpha):
    def peak(t):
        return 50 * torch.exp(-0.5 * ((t - 0.123) / 2e-2).square().sum(-1))

    with pytest.raises(ValueError, match=r"the density is not resolved: .*raise resolution"):
        contmax.regularized_prediction(peak, SQUARE, alpha)
    # For α = 2 the peak holds little of the mass, and the density is of use.
    with pytest.warns(RuntimeWarning, match="not resolved"):
        contmax.regularized_prediction(peak, SQUARE, 2.0)


def test_a_narrow_density_of_a_smooth_score_is_integrated_or_owned_up_to():
    # The interpolant of a parabola is exact; what can fail is the quadrature, 0.004 wide on a box of width 2.
    def score(t):
        return -2e4 * (t - 0.123).square().sum(-1)

    known = contmax.densities.MultivariateBetaGaussian(0.123 * ONE, 2.5e-5 * torch.eye(2, dtype=F64), 1.0)
    with pytest.warns(RuntimeWarning, match="not resolved") as seen:
        p = contmax.regularized_prediction(score, SQUARE, 1.0)
    error = abs(p.density(known.loc).item() / known.density(known.loc).item() - 1)
    assert error < 2e-3
    assert error < 2 * stated_error(str(seen[0].message))


@pytest.mark.parametrize("alpha", [0.7, 2.0])
@pytest.mark.parametrize("domain", [SQUARE, LINE], ids=lambda d: type(d).__name__)
def test_what_oscillates_beyond_reach_is_refused_quickly(domain, alpha):
    def wild(t):
        return torch.sin(1e6 * (t if t.dim() == 1 else t.sum(-1)).square())

    start = time.process_time()
    with pytest.raises(ValueError, match=r"density is not resolved: .*of its mass would be misplaced"):
        contmax.regularized_prediction(wild, domain, alpha)
    # Two seconds on an idle machine; process time grows when others share the caches.
    assert time.process_time() - start < 8


def test_an_interval_out_of_cells_says_how_much_is_misplaced(monkeypatch):
    # As if there were thousands of scores: 40 cells for three.
    monkeypatch.setattr(_resolution, "_MOST_CELLS_OF_BATCH", 3 * 40)
    centre = torch.tensor([-0.312, 0.0, 0.1], dtype=F64)[:, None]
    with pytest.warns(RuntimeWarning, match="fewer scores at a time") as seen:
        p = contmax.regularized_prediction(lambda t: -3 * (t - centre).abs(), LINE, 2.0)
    # A tent of slope 3 has A = 1 − √3.
    assert (p.normalizer - (1 - 3**0.5)).abs().max().item() < 2 * stated_error(str(seen[0].message))


def test_a_score_that_turns_often_in_each_cell_is_not_trusted():
    # Gauss nodes resolve it, but live parts cannot be told apart in cells with several extrema.
    with pytest.raises(ValueError, match="of its mass would be misplaced"):
        contmax.regularized_prediction(lambda t: torch.sin(3e4 * t * t), LINE, 2.0)


def test_values_at_the_nodes_cannot_be_compared_and_are_taken_as_they_are():
    p = contmax.regularized_prediction(step(SQUARE.nodes), SQUARE, 2.0)
    assert p.density(torch.tensor([0.45, 0.1], dtype=F64)).item() == pytest.approx(1 / 1.4, rel=0.06)


def test_spiky_values_have_a_density_between_their_nodes():
    values = torch.where(torch.arange(512) % 5 == 0, 300.0, 0.0).double()
    p = contmax.regularized_prediction(values, LINE, 1.0)
    assert p.expectation(torch.ones_like).item() == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_rounding_is_not_taken_for_roughness(dtype):
    low = torch.tensor([1000.0, -1.0], dtype=dtype)
    box = Box(low, low + 2, resolution=4)
    p = contmax.regularized_prediction(lambda t: 1e3 - 4 * (t - box.low - 1).square().sum(-1), box, 2.0)
    assert p.mean.dtype == dtype


def test_each_score_of_a_batch_is_compared_where_its_own_mass_is():
    centre = torch.tensor([[-0.6, 0.2], [0.4, -0.5], [0.0, 0.0]], dtype=F64)[:, None]
    alpha = torch.tensor([[1.0], [2.0]], dtype=F64)
    p = contmax.regularized_prediction(lambda t: -30 * (t - centre).square().sum(-1), SQUARE, alpha)
    assert p.batch_shape == (2, 3)
    with pytest.raises(ValueError, match="not resolved"):
        # The second score alone has a peak too narrow for the cells.
        contmax.regularized_prediction(
            lambda t: torch.stack(
                [-t.square().sum(-1), 50 * torch.exp(-0.5 * ((t - 0.123) / 2e-2).square().sum(-1)), 0 * t[:, 0]]
            ),
            SQUARE,
            1.0,
        )
