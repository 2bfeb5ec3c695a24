"""Derivatives of predictions on every domain: reverse and forward mode, second order, torch.func, draws that move."""

from functools import partial

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import contmax
from contmax.domains import Box
from predicted_domains import ALL, F64, KNOTS, LINE, LINES, NODES

SMALL, FINER = (Box(torch.full((2,), -1.0, dtype=F64), torch.ones(2, dtype=F64), resolution=n) for n in (2, 3))


class Quadratic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.tensor([0.4, -1.7], dtype=F64))

    def forward(self, t):
        x = t if t.dim() == 1 else t.sum(-1)
        return self.theta[0] * x + self.theta[1] * x.square()


@pytest.mark.parametrize("domain", ALL, ids=lambda d: type(d).__name__)
def test_gradients_reach_the_parameters_of_a_module(domain):
    module = Quadratic()
    contmax.regularized_prediction(module, domain, 1.5).conjugate().backward()
    # ∇Ω* = E_p[φ].
    p = contmax.regularized_prediction(Quadratic().requires_grad_(False), domain, 1.5)
    expected = p.expectation(lambda t: torch.stack([_sum(t, p), _sum(t, p).square()], -1))
    if domain is not KNOTS:
        torch.testing.assert_close(module.theta.grad, expected, rtol=1e-6, atol=1e-6)
    assert module.theta.grad.isfinite().all()
    assert (module.theta.grad != 0).any()


def _sum(t, p):
    return t.sum(-1) if p.event_shape else t


def summary(domain):
    def values(theta, alpha):
        a, b, c = theta[..., None].unbind(-2)
        p = contmax.regularized_prediction(lambda t: a * t + b * t * t + c * t**3, domain, alpha)
        level, at = torch.tensor(0.3, dtype=F64), torch.tensor(0.15, dtype=F64)
        return torch.stack(
            [p.mean, p.variance, p.entropy(), p.conjugate(), p.normalizer, p.cdf(at), p.log_prob(at), p.icdf(level)]
        )

    return values


@pytest.mark.parametrize("domain", LINES, ids=lambda d: type(d).__name__)
def test_first_derivatives(domain):
    # One batch for all indices, along random directions: gradcheck makes a prediction for every number it moves.
    index = torch.tensor([0.8, 1.0, 1.5, 2.5], dtype=F64, requires_grad=True)
    theta = torch.tensor([0.3, -1.4, 0.2], dtype=F64).repeat(4, 1).requires_grad_()
    assert gradcheck(summary(domain), (theta, index), rtol=1e-6, atol=1e-8, fast_mode=True)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_second_derivatives_on_knots(alpha):
    theta = torch.tensor([0.3, -1.4, 0.2], dtype=F64, requires_grad=True)
    index = torch.tensor(alpha, dtype=F64, requires_grad=True)
    assert gradgradcheck(summary(KNOTS), (theta, index), rtol=1e-3, atol=1e-5, fast_mode=True)


def test_derivatives_on_nodes_and_in_a_plane():
    def on(domain):
        def mean(theta):
            p = contmax.regularized_prediction(
                lambda t: theta[0] * _line(t) - theta[1] * _line(t).square(), domain, 1.5
            )
            return p.mean.sum() + p.entropy() + p.normalizer

        return mean

    theta = torch.tensor([0.3, 1.4], dtype=F64, requires_grad=True)
    assert gradcheck(on(NODES), (theta,))
    assert gradgradcheck(on(NODES), (theta,), fast_mode=True)
    assert gradcheck(on(SMALL), (theta,), rtol=1e-4, atol=1e-5, fast_mode=True)


def _line(t):
    return t if t.dim() == 1 else (t * torch.tensor([1.0, 0.4], dtype=F64)).sum(-1) + t[:, 1].square()


@pytest.mark.parametrize("domain", [LINE, KNOTS, NODES], ids=lambda d: type(d).__name__)
def test_transforms(domain):
    def moments(theta, alpha):
        p = contmax.regularized_prediction(lambda t: theta[0] * t - theta[1] * t.square(), domain, alpha)
        return torch.stack([p.mean, p.variance, p.conjugate()])

    # A number stands for all rows, a tensor has one for each.
    theta, index = torch.tensor([[0.3, 1.4], [-0.2, 0.9], [0.0, 2.0]], dtype=F64), torch.tensor([1.0, 1.5, 2.0])
    one_by_one = torch.stack([moments(row, alpha) for row, alpha in zip(theta, index.tolist(), strict=True)])
    torch.testing.assert_close(torch.func.vmap(moments)(theta, index.double()), one_by_one, rtol=1e-8, atol=1e-8)
    at_one_index = partial(moments, alpha=1.5)
    jacobian = torch.func.vmap(torch.func.jacrev(at_one_index))(theta[:2])
    expected = torch.stack([torch.autograd.functional.jacobian(at_one_index, row) for row in theta[:2]])
    torch.testing.assert_close(jacobian, expected, rtol=1e-6, atol=1e-7)


def test_quantiles_and_points_inside_vmap():
    def values(shift):
        found = []
        for domain in (LINE, KNOTS, NODES):
            p = contmax.regularized_prediction(lambda t: -(t - shift).square(), domain, 2.0)
            found += [p.icdf(torch.tensor(0.3, dtype=F64)), p.cdf(torch.tensor(0.1, dtype=F64)), p.mode]
        return torch.stack(found)

    shift = torch.tensor([0.0, 0.3, -0.4], dtype=F64)
    torch.testing.assert_close(
        torch.func.vmap(values)(shift), torch.stack([values(s) for s in shift]), rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("domain", LINES, ids=lambda d: type(d).__name__)
def test_reparametrised_draws_move_with_the_score(domain):
    shift = torch.tensor(0.1, dtype=F64, requires_grad=True)
    torch.manual_seed(5)
    p = contmax.regularized_prediction(lambda t: -2 * (t - shift).square(), domain, 2.0)
    draws = p.rsample((4000,))
    (pathwise,) = torch.autograd.grad(draws.mean(), shift, retain_graph=True)
    (exact,) = torch.autograd.grad(p.mean, shift)
    assert pathwise.item() == pytest.approx(exact.item(), abs=0.05)
    assert not p.sample((2,)).requires_grad


def moments_on(domain):
    def moments(theta, alpha):
        a, b = theta[..., 0, None], theta[..., 1, None]
        p = contmax.regularized_prediction(lambda t: a * _line(t) - b * _line(t).square(), domain, alpha)
        mean, variance = (value.sum(-1) if p.event_shape else value for value in (p.mean, p.variance))
        return torch.stack([mean, variance, p.entropy(), p.conjugate(), p.normalizer])

    return moments


@pytest.mark.parametrize("domain", [LINE, KNOTS, NODES, FINER], ids=lambda d: type(d).__name__)
def test_forward_mode_agrees_with_reverse_mode(domain):
    # One prediction of a batch for all indices: making it takes seconds in forward mode, however many scores there are.
    moments = moments_on(domain)
    index = torch.tensor([0.8, 1.0, 1.5, 2.0, 3.0], dtype=F64)
    theta = torch.tensor([0.3, 1.4], dtype=F64) + 0.01 * torch.arange(5, dtype=F64)[:, None]
    change = torch.tensor([0.7, -0.2], dtype=F64).expand(5, 2), torch.full((5,), 0.5, dtype=F64)
    value, pushed = torch.func.jvp(moments, (theta, index), change)
    inputs = theta.clone().requires_grad_(), index.clone().requires_grad_()
    found = moments(*inputs)
    torch.testing.assert_close(value, found, rtol=1e-6, atol=1e-7)
    rows = [torch.autograd.grad(moment.sum(), inputs, retain_graph=True) for moment in found]
    expected = torch.stack([(change[0] * d_theta).sum(-1) + change[1] * d_index for d_theta, d_index in rows])
    torch.testing.assert_close(pushed, expected, rtol=1e-5, atol=1e-6)
    with torch.autograd.forward_ad.dual_level():
        dual = [torch.autograd.forward_ad.make_dual(*pair) for pair in zip((theta, index), change, strict=True)]
        tangent = torch.autograd.forward_ad.unpack_dual(moments(*dual)).tangent
    torch.testing.assert_close(tangent, expected, rtol=1e-5, atol=1e-6)


def test_transforms_in_a_plane():
    moments, index = moments_on(SMALL), torch.tensor([1.0, 2.0], dtype=F64)
    theta = torch.tensor([[0.3, 1.4], [-0.2, 0.9]], dtype=F64)
    rows = [row.clone().requires_grad_() for row in theta]
    alone = [moments(row, a) for row, a in zip(rows, index, strict=True)]
    torch.testing.assert_close(torch.func.vmap(moments)(theta, index), torch.stack(alone), rtol=1e-6, atol=1e-7)
    jacobian = torch.func.vmap(torch.func.jacrev(moments))(theta, index)
    expected = torch.stack(
        [
            torch.stack([torch.autograd.grad(moment, row, retain_graph=True)[0] for moment in found])
            for row, found in zip(rows, alone, strict=True)
        ]
    )
    torch.testing.assert_close(jacobian, expected, rtol=1e-5, atol=1e-6)
    forward = torch.func.vmap(torch.func.jacfwd(moments))(theta, index)
    torch.testing.assert_close(forward, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.5])
def test_forward_mode_through_weighted_nodes(alpha):
    # The tangent of a density relative to weights: J = diag(s) − s sᵀW/Σws with s = p^{2−α}.
    f, change = (torch.tensor(values, dtype=F64) for values in ([0.4, 0.1, 0.3, -0.2], [1.0, -0.5, 0.2, 0.4]))

    def density(f):
        return contmax.regularized_prediction(f, NODES, alpha).density(NODES.points)

    p, pushed = torch.func.jvp(density, (f,), (change,))
    escort = torch.where(p > 0, p, 1) ** (2 - alpha) * (p > 0)
    share = NODES.weights * escort / (NODES.weights * escort).sum()
    torch.testing.assert_close(pushed, escort * (change - share @ change), rtol=1e-8, atol=1e-10)
