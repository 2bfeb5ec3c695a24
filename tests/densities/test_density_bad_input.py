"""Bad input says what was got, what that means and what to pass."""

import math

import pytest
import torch
from torch.distributions import Categorical, Normal

from contmax.densities import (
    BetaGaussian,
    Empirical,
    LocationScale,
    Mixture,
    MultivariateBetaGaussian,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
)

EYE = torch.eye(2)
ZERO = torch.zeros(2)
NAN = math.nan
# Of rank two up to rounding; the last pivot that Cholesky finds is 1.5e-7 of the diagonal.
SINGULAR = torch.tensor(
    [
        [1.3110456466674805, 0.1782589554786682, -0.10265523195266724],
        [0.1782589554786682, 0.9176375269889832, -0.2755698561668396],
        [-0.10265523195266724, -0.2755698561668396, 0.08464516699314117],
    ]
)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BetaGaussian(0.0, -0.3), r"scale must be positive; got min -0\.3"),
        (lambda: BetaGaussian(0.0, torch.tensor([1.0, 0.0])), r"scale must be positive; got min 0 .*shape \(2,\)"),
        (lambda: BetaGaussian(NAN, 1.0), "loc must be finite"),
        (lambda: BetaGaussian(0.0, NAN), "scale must be finite"),
        (lambda: BetaGaussian(0.0, math.inf), "scale must be finite"),
        (lambda: BetaGaussian(0.0, 1.0, 0.0), r"alpha must exceed N/\(N\+2\)"),
        (lambda: BetaGaussian(0.0, 1.0, -1.0), "alpha must exceed"),
        (lambda: BetaGaussian(0.0, 1.0, 1 / 3), "variance and negentropy are infinite"),
        (lambda: BetaGaussian(0.0, 1.0, NAN), "alpha must be a number"),
        (lambda: BetaGaussian(0.0, 1.0, torch.tensor([2.0, 0.2])), r"alpha must exceed.*min 0\.2"),
        (lambda: BetaGaussian(0.0, 1.0, torch.tensor(math.inf)), "alpha must be finite in a tensor"),
        (lambda: BetaGaussian(torch.zeros(2), torch.ones(3)), r"do not broadcast: loc \(2,\), scale \(3,\)"),
        (lambda: MultivariateBetaGaussian(ZERO, EYE, 0.5), "alpha must exceed"),
        (lambda: MultivariateBetaGaussian(torch.zeros(3), torch.eye(3), 0.6), r"N/\(N\+2\) = 0\.6"),
        (lambda: MultivariateBetaGaussian(ZERO, -EYE), "positive definite; got smallest eigenvalue -1"),
        (lambda: MultivariateBetaGaussian(ZERO, torch.tensor([[1.0, 2.0], [2.0, 1.0]])), "degenerate or indefinite"),
        (lambda: MultivariateBetaGaussian(ZERO, torch.ones(2, 2)), "degenerate or indefinite"),
        # Singular matrices that rounding lets Cholesky factorise.
        (lambda: MultivariateBetaGaussian(ZERO, 0.3 * torch.tensor([[1.0, 0.1], [0.1, 0.01]])), "degenerate or indef"),
        (lambda: MultivariateBetaGaussian(torch.zeros(3), SINGULAR), "degenerate or indefinite"),
        (lambda: MultivariateBetaGaussian(ZERO, torch.tensor([[1.0, 0.5], [0.0, 1.0]])), "must be symmetric"),
        (lambda: MultivariateBetaGaussian(ZERO, torch.full((2, 2), NAN)), "scale_matrix must be finite"),
        (lambda: MultivariateBetaGaussian(ZERO, precision_matrix=-EYE), "precision_matrix must be positive definite"),
        (lambda: MultivariateBetaGaussian(ZERO, scale_tril=-EYE), "diagonal of scale_tril must be positive"),
        (lambda: MultivariateBetaGaussian(ZERO, scale_diag=-torch.ones(2)), "scale_diag must be positive"),
        (lambda: MultivariateBetaGaussian(ZERO), "exactly one of scale_matrix"),
        (lambda: MultivariateBetaGaussian(ZERO, EYE, scale_tril=EYE), "got scale_matrix and scale_tril"),
        (lambda: MultivariateBetaGaussian(ZERO, torch.eye(3)), r"must end in \(2, 2\)"),
        (lambda: MultivariateBetaGaussian(torch.tensor(0.0), EYE), "at least one-dimensional"),
        (lambda: MultivariateBetaGaussian(torch.zeros(3, 2), EYE.expand(4, 2, 2)), "do not broadcast"),
        (lambda: Triangular(0.0, 0.0), "scale must be positive"),
        (lambda: Triangular.from_support(1.0, 1.0), "high - low must be positive"),
        (lambda: BetaGaussian.from_support(2.0, 1.0), "Pass low < high"),
        (lambda: BetaGaussian.from_support(0.0, 1.0, 1.0), "support is unbounded"),
        (lambda: BetaGaussian.from_support(0.0, 1.0, math.inf), "fixes the volume"),
        (lambda: BetaGaussian.from_moments(0.0, 1.0, math.inf), "fixes the volume"),
        (lambda: BetaGaussian.from_moments(0.0, -1.0), "variance must be positive"),
        (lambda: BetaGaussian.from_canonical(0.0, 0.5), "-quadratic must be positive"),
        (lambda: BetaGaussian.fit(torch.zeros(5)), "samples must differ"),
        (lambda: TruncatedParabola.from_moments(0.0, 1.0, 1.5), "alpha is 2"),
        (lambda: TruncatedParaboloid.from_moments(ZERO, EYE, 1.5), "alpha is 2"),
        (lambda: MultivariateBetaGaussian.from_moments(torch.tensor([0.0, NAN]), EYE), "loc must be finite"),
        (lambda: MultivariateBetaGaussian.from_moments(ZERO, EYE, torch.tensor(0.1)), "alpha must exceed"),
        (lambda: BetaGaussian.from_support(0.0, 1.0, torch.tensor([2.0, 1.0])), "support is unbounded"),
        (lambda: BetaGaussian(0.0, 1.0, 0.5).power_integral(0.2), "diverges"),
        (lambda: BetaGaussian(0.0, 1.0, 2.0).power_integral(-1.0), "diverges"),
        (lambda: MultivariateBetaGaussian.fit(torch.zeros(5, 2)), "covariance must be positive definite"),
        (lambda: MultivariateBetaGaussian.from_moments(ZERO, torch.ones(2, 2)), "covariance must be positive definite"),
        (lambda: BetaGaussian(0.0, 1.0).escort(0.0), "uniform on the support"),
        (lambda: BetaGaussian(0.0, 1.0, 3.0).escort(-1.0), "beta must be a positive number"),
        (lambda: LocationScale(0.0, 1.0, "tan"), "cube, square, cosh, quartic, exp"),
        (lambda: LocationScale(0.0, 1.0, lambda x: x), "grows faster than linearly"),
        (lambda: LocationScale(0.0, 1.0, lambda x: torch.sin(3 * x) + x**2), "convex"),
        (lambda: LocationScale(0.0, -1.0, "cube"), "scale must be positive"),
        (lambda: Mixture(Categorical(torch.ones(3)), TruncatedParabola(torch.zeros(2), torch.ones(2))), "3 weights"),
        (lambda: Mixture(Categorical(torch.ones(5, 2)), TruncatedParabola(torch.zeros(3, 2), 1.0)), "broadcast"),
        (lambda: Empirical(torch.zeros(0)), "n > 0"),
        (lambda: Empirical(torch.tensor([0.0, NAN])), "samples must be finite"),
        (lambda: Empirical(torch.zeros(2), weights=torch.tensor([1.0, -1.0])), "non-negative"),
        (lambda: Empirical(torch.zeros(2), weights=torch.zeros(2)), "positive sum"),
        (lambda: Empirical(torch.zeros(3), weights=torch.ones(2)), "one number per sample"),
        (lambda: MultivariateBetaGaussian(ZERO, EYE).log_prob(torch.zeros(3)), "2 coordinates"),
        (lambda: MultivariateBetaGaussian(ZERO, EYE).log_prob(torch.tensor(0.0)), "2 coordinates"),
        (lambda: BetaGaussian(torch.zeros(2), 1.0).log_prob(torch.zeros(3)), "does not broadcast"),
        (lambda: BetaGaussian(torch.zeros(2), 1.0).cdf(torch.zeros(3)), "does not broadcast"),
    ],
)
def test_value_errors(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda: BetaGaussian(torch.zeros(2, dtype=torch.complex64), 1.0),
        lambda: Mixture(Normal(0.0, 1.0), TruncatedParabola(torch.zeros(2), 1.0)),
        lambda: Empirical(torch.zeros(3, dtype=torch.int64)),
    ],
)
def test_type_errors(build):
    with pytest.raises(TypeError):
        build()


def test_checks_can_be_switched_off_and_on():
    assert BetaGaussian(0.0, -1.0, validate_args=False).scale == -1
    with pytest.raises(ValueError, match="positive"):
        BetaGaussian(0.0, -1.0, validate_args=True)


def test_checks_do_not_follow_torchs_global_switch():
    """torch.compile switches torch's validation off for the whole process; ours stays."""
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        with pytest.raises(ValueError, match="positive"):
            BetaGaussian(0.0, -1.0)
    finally:
        torch.distributions.Distribution.set_default_validate_args(__debug__)


def test_no_checks_under_vmap():
    scale = torch.tensor([1.0, -1.0])
    values = torch.func.vmap(lambda s: BetaGaussian(0.0, s).log_prob(torch.tensor(0.1)))(scale)
    assert torch.isfinite(values[0])


def test_points_off_the_support_are_legal():
    p = TruncatedParabola(0.0, 1.0)
    assert p.log_prob(torch.tensor(9.0)) == -math.inf
    assert p.cdf(torch.tensor(-9.0)) == 0
    assert not p.support.check(torch.tensor(9.0))


def test_nan_points_stay_nan():
    for p in (TruncatedParabola(0.0, 1.0), BetaGaussian(0.0, 1.0, torch.tensor(1.5)), Triangular(0.0, 1.0)):
        assert p.log_prob(torch.tensor(NAN)).isnan()


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.5, 2.0, 5.0, math.inf, torch.tensor(1.2)], ids=str)
@pytest.mark.parametrize("size", [1e-18, 1e18, 1e30])
def test_no_nan_from_extreme_points(alpha, size):
    """float32: squares overflow, squares underflow."""
    t = torch.tensor([size, -size, 0.0], requires_grad=True)
    scale = torch.tensor(1.0, requires_grad=True)
    p = BetaGaussian(0.0, scale, alpha)
    for value in (p.log_prob(t), p.density(t), p.cdf(t)):
        finite = value[torch.isfinite(value)].sum() + 0 * scale
        for grad in torch.autograd.grad(finite, (t, scale)):
            assert not grad.isnan().any()
    q = MultivariateBetaGaussian(torch.zeros(2), scale * torch.eye(2), alpha)
    points = torch.stack((t, t), -1)
    value = q.log_prob(points)
    for grad in torch.autograd.grad(value[torch.isfinite(value)].sum() + 0 * scale, (t, scale)):
        assert not grad.isnan().any()


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.5, 2.0, 8.0])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_no_nan_from_extreme_scales(alpha, scale):
    for dtype in (torch.float32, torch.float64):
        p = BetaGaussian(torch.zeros((), dtype=dtype), torch.tensor(scale, dtype=dtype), alpha)
        for value in (p.entropy(), p.variance, p.threshold, p.tsallis_negentropy(), p.conjugate(), p.log_prob(p.loc)):
            assert not value.isnan().any()
        back = BetaGaussian.from_moments(p.mean, p.variance, alpha) if float(p.variance) not in (0.0, math.inf) else p
        assert float(back.scale) == pytest.approx(scale, rel=1e-3)


def test_empty_batches():
    p = BetaGaussian(torch.zeros(0), torch.ones(0))
    assert p.log_prob(torch.zeros(0)).shape == (0,)
    assert p.sample((3,)).shape == (3, 0)
    q = MultivariateBetaGaussian(torch.zeros(0, 2), torch.eye(2))
    assert q.log_prob(torch.zeros(0, 2)).shape == (0,)


@pytest.mark.parametrize("name", ["scale_matrix", "scale_tril", "precision_matrix", "scale_diag"])
def test_empty_batches_of_scales(name):
    scale = torch.ones(0, 2) if name == "scale_diag" else torch.eye(2).expand(0, 2, 2)
    p = MultivariateBetaGaussian(torch.zeros(0, 2), **{name: scale})
    assert p.log_prob(p.sample((3,))).shape == (3, 0)
    assert p.entropy().shape == p.area.shape == (0,)
