"""Supports as sets: their size and their semi-axes."""

import math

import pytest
import torch
from torch.distributions import Categorical, Uniform

import contmax
from contmax.densities import BetaGaussian, Mixture, MultivariateBetaGaussian, TruncatedParabola, TruncatedParaboloid

F64 = torch.float64


def t(*values):
    return torch.tensor(values, dtype=F64)


def rotation(angle):
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=F64)


def value(tensor):
    return float(tensor)


@pytest.mark.parametrize("alpha", [1.01, 1.5, 2.0, 5.0, math.inf])
def test_sizes_of_supports(alpha):
    on_line = BetaGaussian(t(0.0, 3.0), t(0.2, 4.0), alpha)
    torch.testing.assert_close(on_line.area, 2 * on_line.half_width)
    torch.testing.assert_close(on_line.semi_axes, on_line.half_width)
    tril = torch.tensor([[0.5, 0.0, 0.0], [0.1, 0.2, 0.0], [-0.4, 0.3, 0.9]], dtype=F64)
    for dim, ball_volume in ((1, 2.0), (2, math.pi), (3, 4 * math.pi / 3)):
        p = MultivariateBetaGaussian(torch.zeros(dim, dtype=F64), scale_tril=tril[:dim, :dim], alpha=alpha)
        factor = p.radius * tril[:dim, :dim]
        torch.testing.assert_close(p.area, ball_volume * torch.linalg.det(factor))
        torch.testing.assert_close(p.semi_axes, torch.linalg.svdvals(factor))


def test_semi_axes_of_needles_keep_their_digits():
    for angle in (0.0, 0.3, 1.2, math.pi / 2):
        tril = torch.linalg.qr((rotation(angle) @ torch.diag(t(1e5, 1e-6))).mT).R.mT
        tril = tril * tril.diagonal().sign()
        p = MultivariateBetaGaussian(torch.zeros(2, dtype=F64), scale_tril=tril)
        axes = p.semi_axes / p.radius
        assert axes[0] == pytest.approx(1e5, rel=1e-12)
        assert value(axes.prod()) == pytest.approx(value(tril.diagonal().prod()), rel=1e-12)
    diagonal = TruncatedParaboloid(torch.zeros(4, dtype=F64), scale_diag=t(1e-3, 2.0, 1e4, 1.0))
    torch.testing.assert_close(diagonal.semi_axes, diagonal.radius * t(1e4, 2.0, 1.0, 1e-3))


def test_sizes_have_gradients():
    scale = t(0.3).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: TruncatedParabola(0.0, s).area, scale)
    matrix = torch.tensor([[1.3, 0.4, 0.1], [0.4, 0.7, 0.0], [0.1, 0.0, 0.5]], dtype=F64, requires_grad=True)

    def sizes(matrix):
        p = MultivariateBetaGaussian(torch.zeros(3, dtype=F64), (matrix + matrix.mT) / 2, 1.5)
        return p.area, p.semi_axes

    assert torch.autograd.gradcheck(sizes, matrix)
    round_one = torch.eye(2, dtype=F64).requires_grad_()
    axes = MultivariateBetaGaussian(torch.zeros(2, dtype=F64), round_one).semi_axes
    assert torch.autograd.grad(axes.sum(), round_one)[0].isfinite().all()


def test_unbounded_supports_are_infinite_without_nan_gradients():
    alpha = t(0.9, 1.0, 1.5).requires_grad_()
    scale = t(1.0, 1.0, 1.0).requires_grad_()
    for p in (
        BetaGaussian(0.0, scale, alpha),
        MultivariateBetaGaussian(torch.zeros(2, dtype=F64), scale_diag=scale[:, None] * t(1.0, 1.0), alpha=alpha),
    ):
        assert p.area[:2].isinf().all()
        assert p.semi_axes[:2].isinf().all()
        assert p.area[2].isfinite()
        for size in (p.area, p.semi_axes):
            for gradient in torch.autograd.grad(size[2].sum(), (alpha, scale), retain_graph=True):
                assert gradient.isfinite().all()
    assert BetaGaussian(0.0, 1.0, 1.0).area.isinf()
    assert MultivariateBetaGaussian(torch.zeros(2), torch.eye(2), 1.0).semi_axes.isinf().all()


def test_the_size_of_a_mixture_is_that_of_the_union():
    starts, ends = t(0.0, 1.0, 5.0, 20.0), t(2.0, 3.0, 6.0, 30.0)
    weights = Categorical(t(0.2, 0.3, 0.5, 0.0))
    p = Mixture(weights, TruncatedParabola.from_support(starts, ends))
    assert value(p.area) == pytest.approx(4.0, rel=1e-12)
    assert value(p.iou(Uniform(t(2.5)[0], t(5.5)[0]))) == pytest.approx(1.0 / 6.0, rel=1e-12)
    torch.testing.assert_close(p.iou(p), torch.ones((), dtype=F64))
    assert Mixture(weights, BetaGaussian(starts, 1.0, 1.0)).area.isinf()
    assert value(Mixture(Categorical(t(0.5, 0.5)), Uniform(t(0.0, 1.0), t(2.0, 3.0))).area) == pytest.approx(3.0)


def test_a_prediction_on_an_interval_has_intervals():
    p = contmax.regularized_prediction(lambda x: torch.cos(4 * math.pi * x), contmax.domains.Interval(0.0, 1.0))
    cells = p.support.cells
    length = (cells[..., 1] - cells[..., 0]).nansum()
    torch.testing.assert_close(p.area, length)
    torch.testing.assert_close(p.iou(contmax.domains.Interval(0.0, 1.0)), length)
