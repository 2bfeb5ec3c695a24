"""Places of predictions that no other test reaches: each goes red under a fault that the others let pass."""

import warnings

import mpmath
import numpy as np
import pytest
import torch
from torch.func import vmap

import contmax
from contmax.domains import Box, Interval, Knots, Nodes

F64 = torch.float64
LINE = Interval(torch.tensor(-1.0, dtype=F64), 1.0)


def test_a_mass_that_stays_below_one_is_no_density_even_if_the_rule_finds_one():
    # With the pole at its peak the mass is 0.16; beside the pole a rule finds any mass it likes.
    with pytest.raises(ValueError, match="no density exists"):
        contmax.regularized_prediction(lambda t: -20 * (t - 0.123).abs().sqrt(), LINE, 0.3)


@pytest.mark.parametrize(("centre", "dtype"), [(0.0, torch.float32), (0.3, torch.float32), (0.3, F64)])
def test_a_peak_as_sharp_as_a_fourth_root_has_a_density_or_is_refused(centre, dtype):
    """p = 4/(c + h|t − centre|^¼)²: only for small h its mass reaches one; no short cell may hold the rest."""
    domain = Interval(torch.tensor(-1.0, dtype=dtype), 1.0, resolution=2)

    def prediction(height):
        return contmax.regularized_prediction(lambda t: -height * (t - centre).abs() ** 0.25, domain, 0.5)

    with pytest.raises(ValueError, match="no density exists"):
        prediction(4.05)

    def mass(c, height=3.8):
        # ∫ du of 4·4u³/(c + hu)² from 0 to the root of each side's length, u = |t − centre|^¼.
        return sum(
            mpmath.quad(lambda u: 16 * u**3 / (c + height * u) ** 2, [0, side**0.25])
            for side in (1 + centre, 1 - centre)
        )

    c = mpmath.findroot(lambda c: mass(c) - 1, (1e-3, 1.0), solver="anderson")
    t = torch.tensor([-0.9, 0.5], dtype=dtype)
    exact = [float(4 / (c + 3.8 * abs(float(x) - centre) ** 0.25) ** 2) for x in t]
    expected = torch.tensor(exact, dtype=dtype)
    torch.testing.assert_close(prediction(3.8).density(t), expected, rtol=1e-5 if dtype != F64 else 1e-8, atol=0)


def test_quantiles_of_rare_values_move_with_the_probability():
    p = contmax.regularized_prediction(lambda t: -(t**2) / 2, Interval(torch.tensor(-8.0, dtype=F64), 8.0), 1.0)
    q = torch.tensor([1e-6, 1e-3, 0.5], dtype=F64, requires_grad=True)
    t = p.icdf(q)
    torch.testing.assert_close(t.detach(), torch.special.ndtri(q.detach()), rtol=1e-7, atol=1e-9)
    (slope,) = torch.autograd.grad(t.sum(), q)
    torch.testing.assert_close(slope, 1 / p.density(t.detach()), rtol=1e-7, atol=0)


def test_the_mode_moves_with_the_score():
    centre = torch.tensor([0.3, -0.123], dtype=F64, requires_grad=True)
    p = contmax.regularized_prediction(lambda t: torch.cos(3 * (t - centre[:, None])), LINE, 1.5)
    torch.testing.assert_close(p.mode.detach(), centre.detach(), rtol=0, atol=1e-12)
    (slope,) = torch.autograd.grad(p.mode.sum(), centre)
    torch.testing.assert_close(slope, torch.ones(2, dtype=F64), rtol=1e-9, atol=0)


def test_the_mode_of_a_plane_to_six_digits_of_a_cell():
    box = Box(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64), resolution=4)
    peak = torch.tensor([0.31234, 0.81357], dtype=F64)
    p = contmax.regularized_prediction(lambda t: -(t - peak).square().sum(-1), box, 2.0)
    torch.testing.assert_close(p.mode, peak, rtol=0, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.5, 1 + 2**-20, 1.5, 3.0])
@pytest.mark.parametrize("drop", [0.3, 1e-3, 1e-5, 1e-8])
def test_nearly_flat_segments(alpha, drop):
    """∫₀¹ exp_{2−α}(−ht − A) dt = 1 on one segment, in 40 digits."""
    with mpmath.workdps(60):
        epsilon, h = mpmath.mpf(alpha) - 1, mpmath.mpf(drop)
        order = 1 / epsilon + 1

        def excess(a):
            high, low = 1 - epsilon * a, 1 - epsilon * (a + h)
            return (high**order - low**order) / (epsilon * h * order) - 1

        exact = float(mpmath.findroot(excess, -h / 2))
    knots = Knots(torch.tensor([0.0, 1.0], dtype=F64))
    p = contmax.regularized_prediction(torch.tensor([0.0, -drop], dtype=F64), knots, alpha)
    assert p.normalizer.item() == pytest.approx(exact, rel=1e-13, abs=1e-15)
    # To first order in h, half of the mass lies h/8 before the middle.
    assert p.cdf(torch.tensor(0.5, dtype=F64)).item() == pytest.approx(0.5 + drop / 8, abs=drop**2 + 1e-14)


@pytest.mark.parametrize("alpha", [1.0, 1.0001])
def test_the_last_quantile_of_a_segment_too_steep_for_float64_is_its_end(alpha):
    scores = torch.tensor([0.0, -800.0], dtype=F64, requires_grad=True)
    p = contmax.regularized_prediction(scores, Knots(torch.tensor([0.0, 1.0], dtype=F64)), alpha)
    last = p.icdf(torch.tensor(1.0, dtype=F64))
    assert last.item() == 1
    assert torch.autograd.grad(last, scores)[0].tolist() == [0, 0]


def test_a_point_that_is_listed_twice_has_its_density_once():
    domain = Nodes(torch.tensor([0.0, 1.0, 0.0], dtype=F64), torch.tensor([0.5, 1.0, 0.25], dtype=F64))
    p = contmax.regularized_prediction(lambda t: t / 4, domain, 2.0)
    once = Nodes(torch.tensor([0.0, 1.0], dtype=F64), torch.tensor([0.75, 1.0], dtype=F64))
    expected = contmax.regularized_prediction(lambda t: t / 4, once, 2.0)
    torch.testing.assert_close(p.density(once.points), expected.density(once.points))


def test_functions_are_asked_and_answer_in_the_dtype_of_the_prediction():
    p = contmax.regularized_prediction(lambda t: -(t**2), Interval(-1.0, 1.0), 2.0)
    asked = []
    found = p.expectation(lambda t: asked.append(t.dtype) or t.square())
    assert asked == [torch.float32]
    assert found.dtype == torch.float32
    assert p.expectation(lambda t: t.double()).dtype == F64


def test_a_float64_score_on_a_float32_domain_is_computed_in_float64():
    domain, rate = Nodes(torch.tensor([0.1, 0.7, 0.3]), torch.ones(3)), torch.tensor([3.0], dtype=F64)
    p = contmax.regularized_prediction(lambda t: rate * t.exp(), domain, 2.0)
    exact = 3 * domain.points.double().exp()
    torch.testing.assert_close(p.score(domain.points.double()), exact, rtol=1e-15, atol=0)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0])
def test_the_first_and_last_quantile_are_the_ends_of_the_support(alpha):
    p = contmax.regularized_prediction(lambda t: -9 * (t - 0.1).square(), LINE, alpha)
    ends = p.icdf(torch.tensor([0.0, 1.0], dtype=F64))
    torch.testing.assert_close(ends, p.support.cells[0], rtol=0, atol=1e-14)


def test_between_two_islands_vmap_and_the_eager_answer_agree():
    knots = Knots(torch.arange(5, dtype=F64))
    scores = torch.tensor([0.0, 0.0, -torch.inf, 0.0, 0.0], dtype=F64)
    p = contmax.regularized_prediction(scores, knots, 2.0)
    q = torch.tensor([0.25, 0.5, 0.75], dtype=F64)
    torch.testing.assert_close(p.icdf(q), torch.tensor([0.5, 3.0, 3.5], dtype=F64), rtol=0, atol=1e-12)
    torch.testing.assert_close(vmap(p.icdf)(q), p.icdf(q), rtol=0, atol=1e-12)


def test_ends_of_the_support_have_second_derivatives():
    """α = 2 and f = −k t²/2: the half-width is (3/(2k))^{1/3}, its second derivative 4/9 of it over k²."""
    k = torch.tensor(5.0, dtype=F64, requires_grad=True)
    p = contmax.regularized_prediction(lambda t: -k * t.square() / 2, LINE, 2.0)
    end = p.support.cells[0, 1]
    (slope,) = torch.autograd.grad(end, k, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, k)
    exact = (3 / (2 * 5.0)) ** (1 / 3)
    found = torch.stack([end, slope, curvature]).detach()
    expected = exact * torch.tensor([1, -1 / 3 / 5, 4 / 9 / 25], dtype=F64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


def test_two_jumps_leave_one_interval():
    p = contmax.regularized_prediction(lambda t: 1.0 * (t > 0.3123) + 0.2 * (t > 0.4123), LINE, 2.0)
    assert p.support.cells.shape == (1, 2)


def test_rounding_of_float32_scores_in_a_plane_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = contmax.regularized_prediction(
            lambda t: 3e4 - t.square().sum(-1), Box(torch.zeros(2), torch.ones(2), resolution=4), 2.0
        )
    assert p.mean.isfinite().all()


@pytest.mark.parametrize("alpha", [0.3, 0.7])
def test_planes_below_one_against_quadrature(alpha):
    """The density is smooth and nowhere zero: Gauss–Legendre on the square is exact to rounding."""
    box = Box(torch.full((2,), -1.0, dtype=F64), torch.ones(2, dtype=F64), resolution=5)

    def score(t):
        return 4 * torch.sin(2 * t[..., 0] + t[..., 1]) - 3 * (t[..., 1] - 0.2).square()

    p = contmax.regularized_prediction(score, box, alpha)
    axis, weight = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(80))
    nodes, weights = torch.cartesian_prod(axis, axis), torch.outer(weight, weight).flatten()
    mass = weights * (1 + (alpha - 1) * (score(nodes) - p.normalizer)) ** (1 / (alpha - 1))
    assert mass.sum().item() == pytest.approx(1, abs=1e-9)
    torch.testing.assert_close(mass @ nodes, p.mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(p.density(nodes[::97]), (mass / weights)[::97], rtol=1e-7, atol=0)
