"""Continuous Fenchel–Young losses: reference values, and the theorems about them."""

import math

import mpmath as mp
import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, Uniform, kl_divergence

import contmax
from contmax.densities import (
    BetaGaussian,
    Empirical,
    LocationScale,
    MultivariateBetaGaussian,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
)
from contmax.losses import fenchel_young

F64, F32 = torch.float64, torch.float32
ALPHAS = [0.8, 1.0, 1 + 1e-6, 1.5, 2.0, 3.0, 10.0, math.inf]


def tensor(value):
    return torch.tensor(_floats(value), dtype=F64)


def _floats(value):
    return [_floats(v) for v in value] if isinstance(value, list) else float(value)


def loss_and_gradients(function, *inputs):
    inputs = [x.detach().requires_grad_() for x in inputs]
    loss = function(*inputs)
    return loss.detach(), *torch.autograd.grad(loss, inputs)


def assert_near(got, expected, rtol):
    """Relative to the largest entry: the small ones of a gradient inherit the rounding of the large."""
    error = (got.double() - expected.double().reshape(got.shape)).abs().max()
    assert error <= rtol * expected.abs().max(), float(error / expected.abs().max())


def check_both_precisions(function, inputs, outputs):
    """Float64 against the reference, float32 against float64 of the rounded input."""
    for got, expected in zip(loss_and_gradients(function, *inputs), outputs, strict=False):
        assert_near(got, expected, 1e-10)
    rounded = [x.float() for x in inputs]
    single = loss_and_gradients(function, *rounded)
    double = loss_and_gradients(function, *(x.double() for x in rounded))
    for got, expected in zip(single, double, strict=True):
        assert got.dtype == F32
        assert_near(got, expected, 2e-5)


def test_golden_beta_gaussians(golden):
    for case in golden["fy_alpha_gaussian"]:
        given_, expected = case["inputs"], case["outputs"]
        alpha, loc, matrix, loc_p, matrix_p = (tensor(given_[k]) for k in ("alpha", "mu", "Sigma", "mu_p", "Sigma_p"))

        def of_matrices(loc, matrix, loc_p, matrix_p, alpha=float(alpha)):
            target = MultivariateBetaGaussian(loc_p, matrix_p, alpha)
            return fenchel_young(MultivariateBetaGaussian(loc, matrix, alpha), target)

        def of_factors(loc, factor, loc_p, factor_p, alpha=float(alpha)):
            target = MultivariateBetaGaussian(loc_p, scale_tril=factor_p, alpha=alpha)
            return fenchel_young(MultivariateBetaGaussian(loc, scale_tril=factor, alpha=alpha), target)

        outputs = [tensor(expected[k]) for k in ("loss", "d_mu", "d_Sigma")]
        results = loss_and_gradients(of_matrices, loc, matrix, loc_p, matrix_p)
        for got, reference in zip(results, outputs, strict=False):
            assert_near(got, reference, 1e-10)
        torch.testing.assert_close(results[2], results[2].mT, rtol=1e-13, atol=1e-20)
        factors = torch.linalg.cholesky(matrix), torch.linalg.cholesky(matrix_p)
        # A matrix is factored in its own precision, so float32 keeps a nearly equal pair apart only as factors.
        check_both_precisions(of_factors, (loc, factors[0], loc_p, factors[1]), outputs[:2])


def test_golden_beta_gaussians_on_the_line(golden):
    for case in golden["fy_alpha_gaussian"]:
        if len(case["inputs"]["mu"]) > 1:
            continue
        loc, matrix, loc_p, matrix_p = (tensor(case["inputs"][k]).flatten() for k in ("mu", "Sigma", "mu_p", "Sigma_p"))

        def loss(loc, scale, loc_p, scale_p, alpha=float(case["inputs"]["alpha"])):
            return fenchel_young(BetaGaussian(loc, scale, alpha), BetaGaussian(loc_p, scale_p, alpha))[0]

        expected = [tensor(case["outputs"][k]) for k in ("loss", "d_mu", "d_Sigma")]
        expected[2] = expected[2] * 2 * matrix.sqrt()
        check_both_precisions(loss, (loc, matrix.sqrt(), loc_p, matrix_p.sqrt()), expected)


def test_golden_triangular(golden):
    for case in golden["fy_triangular"]:
        inputs = [tensor(case["inputs"][k]) for k in ("mu", "b", "b_p")]
        outputs = [tensor(case["outputs"][k]) for k in ("loss", "d_mu", "d_b")]
        check_both_precisions(lambda m, b, b_p: fenchel_young(Triangular(m, b), Triangular(0.0, b_p)), inputs, outputs)


def test_golden_uniform(golden):
    for case in golden["fy_uniform"]:
        inputs = [tensor(case["inputs"][k]) for k in ("mu", "sigma2", "lo", "hi")]
        outputs = [tensor(case["outputs"][k]) for k in ("loss", "d_mu", "d_sigma2")]

        def loss(loc, variance, low, high, alpha=float(case["inputs"]["alpha"])):
            return fenchel_young(BetaGaussian(loc, variance.sqrt(), alpha), Uniform(low, high))

        check_both_precisions(loss, inputs, outputs)


def test_golden_cross(golden):
    for case in golden["fy_cross"]:
        inputs = [tensor(case["inputs"][k]) for k in ("mu", "Sigma", "mu_p", "Sigma_p")]
        alpha, alpha_p = float(case["inputs"]["alpha"]), float(case["inputs"]["alpha_p"])
        outputs = [tensor(case["outputs"]["loss"])]

        def loss(loc, matrix, loc_p, matrix_p, alpha=alpha, alpha_p=alpha_p):
            target = MultivariateBetaGaussian(loc_p, matrix_p, alpha_p)
            return fenchel_young(MultivariateBetaGaussian(loc, matrix, alpha), target)

        check_both_precisions(loss, inputs, outputs)
        power = MultivariateBetaGaussian(*inputs[2:], alpha_p).power_integral(alpha)
        negentropy = (power - 1) / (alpha * (alpha - 1)) if alpha != 1 else None
        if negentropy is not None:
            assert_near(negentropy, tensor(case["outputs"]["omega_p"]), 1e-9)
        # An index in a tensor means the same, and a Gaussian may be torch's own.
        tensors = loss(*inputs, alpha=torch.tensor(alpha, dtype=F64), alpha_p=torch.tensor(alpha_p, dtype=F64))
        assert_near(tensors, outputs[0], 1e-10)
        if alpha_p == 1:
            target = MultivariateNormal(inputs[2], inputs[3])
            assert_near(fenchel_young(MultivariateBetaGaussian(*inputs[:2], alpha), target), outputs[0], 1e-10)


def exact_loss(alpha, loc, factor, loc_p, factor_p):
    """The loss between two members in 60 digits, from the definition with traces and determinants."""
    n = len(loc)
    low, low_p = (mp.matrix([[mp.mpf(x) for x in row] for row in f.tolist()]) for f in (factor, factor_p))
    offset = mp.matrix([mp.mpf(a) - mp.mpf(b) for a, b in zip(loc.tolist(), loc_p.tolist(), strict=True)])
    sigma, sigma_p = low * low.T, low_p * low_p.T
    inverse = sigma**-1
    distance = (offset.T * inverse * offset)[0]
    trace = sum((inverse * sigma_p)[i, i] for i in range(n))
    if alpha == 1:
        return (distance + trace - n - mp.log(mp.det(sigma_p) / mp.det(sigma))) / 2
    e = mp.mpf(alpha) - 1
    k = 1 / e

    def radius_sq(matrix):
        log_rho = mp.loggamma(k + 1 + mp.mpf(n) / 2) - mp.loggamma(k + 1) - n * mp.log(2 * mp.pi * k) / 2
        return 2 * k * mp.exp((log_rho - mp.log(mp.det(matrix)) / 2) / (k + mp.mpf(n) / 2))

    r, r_p, d = radius_sq(sigma), radius_sq(sigma_p), e * n + 2 * (1 + e)
    return distance / 2 + (2 * r_p + e * r_p * trace - (e * n + 2) * r) / (2 * d)


@pytest.mark.parametrize("alpha", [1.0, 1.0625, 1.5, 2.0, 3.0, 8.0])
@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9])
def test_digits_survive_where_the_densities_nearly_agree(alpha, gap):
    with mp.workdps(60):
        for n in (1, 2, 4):
            loc, factor = torch.randn(n, dtype=F64), torch.randn(n, n, dtype=F64).tril(-1) + 2 * torch.eye(n, dtype=F64)
            loc_p = loc + gap * torch.randn(n, dtype=F64)
            factor_p = factor * (1 + gap * torch.randn(n, n, dtype=F64))
            expected = float(exact_loss(alpha, loc, factor, loc_p, factor_p))
            full = fenchel_young(
                MultivariateBetaGaussian(loc, scale_tril=factor, alpha=alpha),
                MultivariateBetaGaussian(loc_p, scale_tril=factor_p, alpha=alpha),
            )
            assert abs(full.item() / expected - 1) < 1e-12
            if n == 1:
                line = fenchel_young(
                    BetaGaussian(loc, factor[0], alpha), BetaGaussian(loc_p, factor_p[0], torch.tensor(alpha).double())
                )
                # An index in a tensor costs what its own rounding costs: a few 1e-16 of the scale.
                assert abs(line.item() / expected - 1) < 1e-12 + 4e-15 / gap


def line_densities(low, high):
    """One member of each family around an interval, for equality and inequality."""
    return {
        **{f"α={a:g}": BetaGaussian.from_support(low, high, a) for a in (1.25, 2.0, 3.0)},
        "α=1": BetaGaussian.from_moments(low, (high - low) ** 2, 1.0),
        "α=0.8": BetaGaussian.from_moments(low, (high - low) ** 2, 0.8),
        "triangular": Triangular.from_support(low, high),
        "cosh": LocationScale.from_support(low, high, "cosh"),
        "quartic": LocationScale.from_support(low, high, "quartic"),
    }


def test_not_negative_and_zero_only_for_the_prediction_itself():
    low, width = torch.randn(2, 50, dtype=F64), 3 * torch.rand(2, 50, dtype=F64) + 0.1
    predictions, targets = (line_densities(low[i], low[i] + width[i]) for i in (0, 1))
    for prediction in predictions.values():
        itself = fenchel_young(prediction, prediction)
        assert (itself.abs() <= 1e-12 * (1 + prediction.conjugate().abs())).all()
        for target in targets.values():
            assert (fenchel_young(prediction, target) > 1e-6).all()
    for name, prediction in predictions.items():
        for other, target in predictions.items():
            loss = fenchel_young(prediction, target)
            assert (loss >= 0).all()
            # The nearest of two families are cosh and quartic on one support.
            assert name == other or (loss > 1e-5).all()


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.5, 2.0, 3.0, 8.0])
def test_convex_in_the_canonical_parameters(alpha):
    targets = (Uniform(tensor("-0.3"), tensor("1.2")), Normal(tensor("0.4"), tensor("0.7")), tensor("0.9"))
    linear, quadratic = torch.randn(2, 200, dtype=F64), -torch.rand(2, 200, dtype=F64) * 4 - 0.02
    for target in targets:
        ends = fenchel_young(BetaGaussian.from_canonical(linear, quadratic, alpha), target)
        middle = fenchel_young(BetaGaussian.from_canonical(linear.mean(0), quadratic.mean(0), alpha), target)
        assert (middle <= ends.mean(0) + 1e-12).all()
        assert (middle < ends.mean(0) - 1e-6).float().mean() > 0.9
    factor = torch.randn(2, 100, 2, 2, dtype=F64)
    matrix = -(factor @ factor.mT) - 0.05 * torch.eye(2, dtype=F64)
    linear = torch.randn(2, 100, 2, dtype=F64)
    target = Independent(Uniform(-torch.ones(2, dtype=F64), torch.ones(2, dtype=F64)), 1)
    ends = fenchel_young(MultivariateBetaGaussian.from_canonical(linear, matrix, alpha), target)
    middle = fenchel_young(MultivariateBetaGaussian.from_canonical(linear.mean(0), matrix.mean(0), alpha), target)
    assert (middle <= ends.mean(0) + 1e-12).all()


def test_triangular_loss_is_convex_in_the_inverse_scale():
    slope = -torch.rand(2, 500, dtype=F64) * 5 - 0.01
    loc = torch.randn(500, dtype=F64)
    for target in (Triangular(0.3, tensor("0.8")), Normal(tensor("0"), tensor("1")), tensor("0.2")):
        ends = fenchel_young(Triangular.from_canonical(loc, slope), target)
        middle = fenchel_young(Triangular.from_canonical(loc, slope.mean(0)), target)
        assert (middle <= ends.mean(0) + 1e-12).all()


def test_the_normaliser_alone_is_not_convex_beyond_index_two():
    # On S = {1, 2} with scores (0, d): p = √(2(f − A + ½)), hence A = d/2 + 3/8 − d²/2. The loss stays convex.
    d = torch.linspace(-0.4, 0.4, 9, dtype=F64)
    p = contmax.entmax(torch.stack([torch.zeros_like(d), d], -1), 3.0)
    normaliser = 0.5 - p[:, 0].square() / 2
    torch.testing.assert_close(normaliser, d / 2 + 3 / 8 - d.square() / 2)
    assert torch.allclose(normaliser.diff(n=2) / (d[1] - d[0]) ** 2, -torch.ones(7, dtype=F64))
    scores = torch.stack([torch.zeros_like(d), d], -1)
    losses = contmax.losses.entmax_loss(scores, torch.zeros(9, dtype=torch.long), 3.0, reduction="none")
    assert (losses.diff(n=2) > 0).all()


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.5, 2.0, 3.0])
def test_gradient_is_the_difference_of_expected_statistics(alpha):
    linear, quadratic = tensor(["0.4"]).requires_grad_(), tensor(["-1.3"]).requires_grad_()
    prediction = BetaGaussian.from_canonical(linear, quadratic, alpha)
    for target in (Uniform(tensor("0"), tensor("2")), TruncatedParabola(0.3, tensor("0.5")), Normal(0.0, tensor("1"))):
        # The score without its constant: the centred one is smaller by μ²/2σ², which does not depend on t.
        gradients = torch.autograd.grad(fenchel_young(prediction, target), (linear, quadratic), retain_graph=True)
        mean, mean_p = prediction.mean, target.mean
        second = prediction.variance + mean.square() - target.variance - mean_p.square()
        torch.testing.assert_close(gradients, (mean - mean_p, second), rtol=1e-10, atol=1e-12)
    matrix = torch.tensor([[-1.0, 0.3], [0.3, -0.6]], dtype=F64, requires_grad=True)
    vector = torch.tensor([0.4, -0.2], dtype=F64, requires_grad=True)
    prediction = MultivariateBetaGaussian.from_canonical(vector, matrix, alpha)
    target = TruncatedParaboloid(torch.ones(2, dtype=F64), torch.tensor([[1.0, 0.2], [0.2, 0.4]], dtype=F64))
    gradients = torch.autograd.grad(fenchel_young(prediction, target), (vector, matrix))

    def second_moment(p):
        return p.covariance_matrix + p.mean[:, None] * p.mean

    expected = prediction.mean - target.mean, second_moment(prediction) - second_moment(target)
    torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.5, 2.0, 3.0])
def test_fit_minimises_the_loss_over_samples(alpha):
    samples = torch.randn(300, 4, dtype=F64).exp()
    for fitted, target in (
        (BetaGaussian.fit(samples, alpha), Empirical(samples.mT, event_dim=0)),
        (BetaGaussian.fit(samples[:, 0], alpha), samples[:, 0]),
    ):
        loc, scale = fitted.loc.clone().requires_grad_(), fitted.scale.clone().requires_grad_()
        loss = fenchel_young(BetaGaussian(loc, scale, alpha), target, reduction="mean")
        for gradient in torch.autograd.grad(loss, (loc, scale)):
            assert gradient.abs().max() < 1e-11
    fitted = MultivariateBetaGaussian.fit(samples, alpha)
    matrix = fitted.scale_matrix.clone().requires_grad_()
    loss = fenchel_young(MultivariateBetaGaussian(fitted.loc, matrix, alpha), Empirical(samples))
    assert torch.autograd.grad(loss, matrix)[0].abs().max() < 1e-10


def test_fit_minimises_the_triangular_loss_over_samples():
    samples = torch.randn(301, dtype=F64)
    fitted = Triangular.fit(samples)
    least = fenchel_young(fitted, Empirical(samples))
    others = Triangular(fitted.loc + 0.2 * torch.randn(500).double(), fitted.scale * (0.3 * torch.randn(500)).exp())
    assert (fenchel_young(others, Empirical(samples)) > least).all()


def test_index_one_is_the_kullback_leibler_divergence():
    loc, scale, factor = (
        torch.randn(2, 5, dtype=F64),
        torch.rand(2, 5, dtype=F64) + 0.1,
        torch.rand(2, 5, 3, 3).double(),
    )
    factor = factor.tril() + torch.eye(3, dtype=F64)
    p, q = (Normal(loc[i], scale[i]) for i in (0, 1))
    ours, theirs = (BetaGaussian(d.loc, d.scale, 1.0) for d in (p, q))
    for prediction in (p, ours):
        for target in (q, theirs):
            torch.testing.assert_close(fenchel_young(prediction, target), kl_divergence(q, p))
    wide = torch.randn(2, 5, 3, dtype=F64)
    p, q = (MultivariateNormal(wide[i], scale_tril=factor[i]) for i in (0, 1))
    ours = MultivariateBetaGaussian(p.loc, scale_tril=p.scale_tril, alpha=1.0)
    torch.testing.assert_close(fenchel_young(ours, q), kl_divergence(q, p))
    torch.testing.assert_close(fenchel_young(p, q), kl_divergence(q, p))
    p, q = (Independent(Normal(loc[i], scale[i]), 1) for i in (0, 1))
    torch.testing.assert_close(fenchel_young(p, q), kl_divergence(q, p))
    uniform = Uniform(torch.zeros(5, dtype=F64), torch.ones(5, dtype=F64))
    normal = Normal(loc[0], scale[0])
    torch.testing.assert_close(fenchel_young(normal, uniform), kl_divergence(uniform, normal))


def test_observations_and_samples_drop_the_constant_and_may_be_negative():
    sharp = BetaGaussian(0.0, tensor("0.01"), 1.5)
    assert fenchel_young(sharp, tensor("0")) < 0
    assert fenchel_young(Triangular(0.0, tensor("0.01")), tensor("0")) < 0
    points, weights = torch.randn(6, dtype=F64), torch.rand(6, dtype=F64)
    for prediction in (
        BetaGaussian(0.1, tensor("0.4")),
        Triangular(0.1, tensor("0.4")),
        LocationScale(0.1, tensor("0.4"), "cosh"),
    ):
        each = fenchel_young(prediction, points)
        torch.testing.assert_close(fenchel_young(prediction, Empirical(points)), each.mean())
        expected = (weights * each).sum() / weights.sum()
        torch.testing.assert_close(fenchel_young(prediction, Empirical(points, weights)), expected)
        torch.testing.assert_close(each, prediction.conjugate() - score(prediction, points))


def score(prediction, t):
    """f up to its constant, from the density inside a support wide enough to hold the points."""
    depth = (t - prediction.loc).abs() / prediction.scale
    if isinstance(prediction, BetaGaussian):
        return -0.5 * depth.square()
    return -depth if isinstance(prediction, Triangular) else -depth.sinh() / prediction.scale
