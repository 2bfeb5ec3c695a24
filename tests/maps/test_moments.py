"""Moments of weights over positions: against sums written out, with the spread of a cell."""

import math

import pytest
import torch

import contmax
from contmax.maps import moments

F64 = torch.float64


def centres(n: int) -> torch.Tensor:
    return (torch.arange(n, dtype=F64) + 0.5) / n


def test_the_moments_of_a_histogram_are_those_of_its_piecewise_constant_density():
    p = torch.rand(7, dtype=F64)
    p = p / p.sum()
    t = torch.linspace(0, 1, 700_001, dtype=F64)
    height = 7 * p[(t * 7).long().clamp(max=6)]
    mean = torch.trapezoid(t * height, t)
    variance = torch.trapezoid((t - mean).square() * height, t)
    torch.testing.assert_close(moments(p, centres(7)), (mean, variance), rtol=1e-5, atol=1e-6)


def test_one_position_and_one_hot_weights_have_the_spread_of_a_cell():
    mean, variance = moments(torch.ones(3, 1), torch.tensor([0.5]))
    assert torch.equal(mean, torch.full((3,), 0.5))
    torch.testing.assert_close(variance, torch.full((3,), 1 / 12))
    mean, variance = moments(torch.eye(5, dtype=F64), centres(5))
    torch.testing.assert_close(mean, centres(5))
    torch.testing.assert_close(variance, torch.full((5,), 1 / 300, dtype=F64))


def test_positions_of_each_example_and_of_each_query():
    p = torch.softmax(torch.randn(2, 3, 6, dtype=F64), -1)
    t = torch.rand(2, 1, 6, dtype=F64)
    mean, variance = moments(p, t)
    assert mean.shape == variance.shape == (2, 3)
    one = (p[1, 2] * t[1, 0]).sum()
    torch.testing.assert_close(mean[1, 2], one)
    torch.testing.assert_close(variance[1, 2], (p[1, 2] * (t[1, 0] - one).square()).sum() + 1 / (12 * 36))


def test_on_a_grid_every_axis_has_its_own_cell():
    rows, columns = torch.meshgrid(centres(3), centres(4), indexing="ij")
    points = torch.stack([rows, columns], -1).reshape(-1, 2)
    p = torch.softmax(torch.randn(5, 12, dtype=F64), -1)
    mean, covariance = moments(p, points, grid=(3, 4))
    expected = torch.stack([torch.cov(points.T, aweights=w, correction=0) for w in p])
    cell = torch.diag(torch.tensor([1 / (12 * 9), 1 / (12 * 16)], dtype=F64))
    torch.testing.assert_close(mean, p @ points)
    torch.testing.assert_close(covariance, expected + cell)
    square = moments(p, points)[1]
    torch.testing.assert_close(square, expected + torch.eye(2, dtype=F64) / (12 * 12))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_as_many_positions_as_axes_are_told_apart_by_their_axes(dim):
    points = torch.rand(4, dim, dim, dtype=F64)
    p = torch.softmax(torch.randn(4, dim, dtype=F64), -1)
    mean, covariance = moments(p, points)
    assert mean.shape == (4, dim)
    assert covariance.shape == (4, dim, dim)
    torch.testing.assert_close(mean, torch.einsum("bl,bln->bn", p, points))


def test_masked_positions_do_not_count_as_cells():
    mask = torch.tensor([[True, True, True, False, False], [False] * 5])
    p = contmax.softmax(torch.randn(2, 5, dtype=F64), mask=mask)
    t = torch.tensor([1 / 6, 1 / 2, 5 / 6, 0.0, 0.0], dtype=F64)
    mean, variance = moments(p, t, mask=mask)
    short = moments(p[0, :3], centres(3))
    torch.testing.assert_close((mean[0], variance[0]), short)
    torch.testing.assert_close((mean[1], variance[1]), (torch.zeros((), dtype=F64), torch.tensor(1 / 12, dtype=F64)))


def test_half_precision_is_computed_in_full_and_rounded_once():
    p = torch.softmax(torch.randn(4, 300), -1)
    t = centres(300).float()
    exact = moments(p.bfloat16().double(), t.bfloat16().double())
    for got, expected in zip(moments(p.bfloat16(), t.bfloat16()), exact, strict=True):
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.double(), expected, rtol=2**-8, atol=0)
    exact = moments(p.double(), t.double())
    with torch.autocast("cpu", torch.bfloat16):
        for got, expected in zip(moments(p, t), exact, strict=True):
            torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=0)


def test_derivatives_and_transforms():
    scores = torch.randn(3, 5, dtype=F64, requires_grad=True)
    t = torch.rand(5, 2, dtype=F64, requires_grad=True)

    def by(z, t):
        return moments(torch.softmax(z, -1), t)

    assert torch.autograd.gradcheck(by, (scores, t))
    assert torch.autograd.gradgradcheck(by, (scores, t), fast_mode=True)
    torch.testing.assert_close(torch.vmap(by, (0, None))(scores, t), by(scores, t))


@pytest.mark.parametrize(
    ("positions", "grid"),
    [(torch.rand(4), None), (torch.rand(4, 2), None), (torch.rand(5, 2), (5,)), (torch.rand(5), (5, 1))],
)
def test_positions_that_do_not_fit_are_refused(positions, grid):
    with pytest.raises(ValueError, match=r"positions of shape .* do not fit"):
        moments(torch.full((3, 5), 0.2), positions, grid=grid)


def test_narrow_attention_far_away_keeps_its_digits():
    t = 1e3 + centres(100).float()
    p = torch.zeros(100)
    p[40:42] = 0.5
    _, variance = moments(p, t)
    assert math.isclose(variance.item(), 0.005**2 + 1 / 120_000, rel_tol=0.02)


def test_masked_cells_of_a_plane_without_a_grid():
    mask = torch.tensor([True, True, True, True, False, False])
    p = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0], dtype=F64)
    _, covariance = moments(p, torch.rand(6, 2, dtype=F64), mask=mask)
    # Four cells of the unit square have sides of ½.
    torch.testing.assert_close(covariance, torch.eye(2, dtype=F64) / (12 * 2**2))


def test_cells_may_have_sides_in_the_unit_of_the_positions():
    p = torch.softmax(torch.randn(3, 5, dtype=F64), -1)
    mean, variance = moments(p, centres(5))
    day = moments(p, 86400 * centres(5), sides=torch.tensor([86400 / 5], dtype=F64))
    torch.testing.assert_close(day, (86400 * mean, 86400**2 * variance))
    points, sides = torch.rand(3, 5, 2, dtype=F64), torch.tensor([[0.3, 2.0]], dtype=F64)
    cell = moments(p, points, sides=sides)[1] - moments(p, points, sides=torch.zeros_like(sides))[1]
    torch.testing.assert_close(cell, torch.diag(sides[0].square() / 12).expand(3, 2, 2))
