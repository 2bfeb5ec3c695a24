"""Predictions against golden values, the finite maps, the closed-form densities, and the theorem on the Jacobian."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import contmax
from contmax.domains import Box, Interval, Knots, Nodes

F64 = torch.float64


def numbers(texts, dtype=F64):
    return torch.tensor([float(v) for v in texts], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_golden_weighted_grid(golden, dtype):
    for case in golden["entmax_weighted_grid"]:
        inputs, outputs = case["inputs"], case["outputs"]
        alpha = float(inputs["alpha"])
        f, w, g = (numbers(inputs[name], dtype) for name in ("f", "w", "g"))
        f.requires_grad_()
        points = torch.arange(len(f), dtype=dtype)
        p = contmax.regularized_prediction(f, Nodes(points, w), alpha).density(points)
        (vjp,) = torch.autograd.grad(p, f, g)
        if dtype == F64:
            tolerance = 1e-9 if alpha > 2 else 1e-12
            expected_p, expected_vjp = numbers(outputs["p"]), numbers(outputs["vjp"])
        else:
            tolerance = 2e-5
            exact = f.detach().double().requires_grad_()
            expected_p = contmax.regularized_prediction(exact, Nodes(points.double(), w.double()), alpha).density(
                points.double()
            )
            (expected_vjp,) = torch.autograd.grad(expected_p, exact, g.double())
            expected_p = expected_p.detach()
        for got, expected in ((p.detach(), expected_p), (vjp, expected_vjp)):
            size = expected.abs().max().item()
            torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance * max(size, 1e-3))


def test_golden_piecewise_linear(golden):
    for case in golden["sparsemax_piecewise_linear"]:
        t, f = numbers(case["inputs"]["t"]), numbers(case["inputs"]["f"])
        prediction = contmax.regularized_prediction(f, Knots(t), 2.0)
        assert prediction.threshold.item() == pytest.approx(float(case["outputs"]["lambda"]), rel=1e-12)


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.3, 1.5, 2.0, 3.0])
def test_unit_weights_are_the_finite_map(alpha):
    f = 2 * torch.randn(3, 11, dtype=F64)
    points = torch.linspace(0, 1, 11, dtype=F64)
    prediction = contmax.regularized_prediction(f, Nodes(points, torch.ones(11, dtype=F64)), alpha)
    p = torch.stack([prediction.density(t.expand(3)) for t in points], -1)
    torch.testing.assert_close(p, contmax.entmax(f, alpha), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.7, 2.0, 2.5, 3.0])
def test_quadratic_scores_are_beta_gaussians(alpha):
    mu, sigma = torch.tensor(0.3, dtype=F64), torch.tensor(0.4, dtype=F64)
    known = contmax.densities.BetaGaussian(mu, sigma, alpha)
    found = contmax.regularized_prediction(
        lambda t: -0.5 * ((t - mu) / sigma) ** 2, Interval(torch.tensor(-9.0, dtype=F64), 9.0), alpha
    )
    t = torch.linspace(-1.5, 2.0, 50, dtype=F64)
    assert found.threshold.item() == pytest.approx(known.threshold.item(), rel=1e-10)
    torch.testing.assert_close(found.density(t), known.density(t), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.cdf(t), known.cdf(t), rtol=1e-8, atol=1e-9)
    for name in ("mean", "variance"):
        torch.testing.assert_close(getattr(found, name), getattr(known, name), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.entropy(), known.entropy(), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.tsallis_negentropy(), known.tsallis_negentropy(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("dim", "tolerance"), [(1, 1e-5), (2, 1e-5), (3, 1e-3)])
def test_boxes_hold_paraboloids(dim, tolerance):
    known = contmax.densities.TruncatedParaboloid(torch.full((dim,), 0.1, dtype=F64), 0.05 * torch.eye(dim, dtype=F64))
    low = torch.full((dim,), -2.0, dtype=F64)
    found = contmax.regularized_prediction(lambda t: -0.5 * (t - 0.1).square().sum(-1) / 0.05, Box(low, -low), 2.0)
    assert found.threshold.item() == pytest.approx(known.threshold.item(), rel=tolerance)
    torch.testing.assert_close(found.covariance_matrix, known.covariance_matrix, rtol=10 * tolerance, atol=tolerance)


def test_gradients_reach_the_score_and_the_index():
    theta = torch.tensor([0.7, -1.3], dtype=F64, requires_grad=True)
    index = torch.tensor([1.0, 1.5, 2.0], dtype=F64, requires_grad=True)

    def moments(theta, index):
        prediction = contmax.regularized_prediction(
            lambda t: theta[0] * t + theta[1] * t * t, Interval(torch.tensor(-5.0, dtype=F64), 5.0), index
        )
        return torch.stack([prediction.mean, prediction.variance])

    assert gradcheck(moments, (theta, index), rtol=1e-4, atol=1e-6, fast_mode=True)
    assert gradgradcheck(moments, (theta, index), rtol=1e-3, atol=1e-5, fast_mode=True)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, 2.5])
def test_the_jacobian_is_the_generalised_covariance(alpha):
    theta = torch.tensor([0.7, -1.3], dtype=F64, requires_grad=True)
    domain = Interval(torch.tensor(-5.0, dtype=F64), 5.0)
    prediction = contmax.regularized_prediction(lambda t: theta[0] * t + theta[1] * t * t, domain, alpha)
    (jacobian,) = torch.autograd.grad(prediction.mean, theta)
    fixed = contmax.regularized_prediction(lambda t: 0.7 * t - 1.3 * t * t, domain, alpha)
    # t = c + a·sin φ: the escort p^{2−α} may be infinite at the ends of the support, its integral is not.
    low, high = fixed.support.cells[0]
    phi = (torch.arange(200_000, dtype=F64) + 0.5) / 200_000 * torch.pi - torch.pi / 2
    t = (low + high) / 2 + (high - low) / 2 * phi.sin()
    escort = fixed.density(t) ** (2 - alpha) * phi.cos()
    escort = escort / escort.sum() * (escort.sum() * (high - low) / 2 * torch.pi / 200_000)
    features = torch.stack([t, t * t], -1)
    centred = features - (escort[:, None] * features).sum(0) / escort.sum()
    torch.testing.assert_close(jacobian, (escort[:, None] * centred * t[:, None]).sum(0), rtol=1e-5, atol=1e-7)
