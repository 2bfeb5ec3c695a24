"""The one rule for integrals on the line, through what users call: every kind of density in every place."""

import math

import pytest
import torch
from line_quadrature import integral
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import (
    AffineTransform,
    Beta,
    Categorical,
    Cauchy,
    Distribution,
    ExpTransform,
    Gamma,
    Laplace,
    MixtureSameFamily,
    Normal,
    StudentT,
    TransformedDistribution,
    Uniform,
    constraints,
    kl_divergence,
)

import contmax
from contmax.densities import BetaGaussian, Empirical, LocationScale, Mixture, Triangular, TruncatedParabola
from contmax.losses import fenchel_young

F64 = torch.float64


def t(value):
    return torch.tensor(value, dtype=F64)


DENSITIES = {
    "normal": (lambda: Normal(t(0.4), t(0.1)), "0.4"),
    "student": (lambda: StudentT(t(2.5), t(0.4), t(0.1)), "0.4"),
    "cauchy": (lambda: Cauchy(t(0.4), t(0.1)), "0.4"),
    "laplace": (lambda: Laplace(t(0.4), t(0.1)), "0.4"),
    "gamma": (lambda: Gamma(t(2.5), t(3.0)), "0.5"),
    "beta": (lambda: Beta(t(1.5), t(3.0)), "0.2"),
    "log-normal": (
        lambda: TransformedDistribution(Normal(t(-1.0), t(0.5)), [ExpTransform(), AffineTransform(t(0.1), t(2.0))]),
        "0.7",
    ),
    "mixture": (
        lambda: MixtureSameFamily(Categorical(t([0.3, 0.7])), Laplace(t([0.2, 0.6]), t([0.05, 0.02]))),
        "0.6",
    ),
}
WIDTHS = (1e-3, 0.02, 0.3, 4.0)


def truth(density, centre, width):
    """E_p[N(t; c, w)] by double-exponential quadrature between points close enough for it."""
    low, high = contmax_ends(density)
    steps = [centre + s * width for s in (-9, -4, -1, 0, 1, 4, 9)] + [0.1, 0.2, 0.35, 0.4, 0.45, 0.6, 0.7, 1.0, 3.0]
    points = sorted({max(low, min(high, x)) for x in [*steps, centre - 9 * width, centre + 9 * width]})
    points = [x for x in points if abs(x - centre) <= 9.01 * width]

    def integrand(x):
        inside = (low < x) & (x < high)
        p = torch.where(inside, density.log_prob(torch.where(inside, x, 0.5)).exp(), 0.0)
        return p * torch.exp(-0.5 * ((x - centre) / width) ** 2) / (width * math.sqrt(2 * math.pi))

    return integral(integrand, points)


def contmax_ends(density):
    if isinstance(density, Beta):
        return 0.0, 1.0
    if isinstance(density, Gamma):
        return 0.0, 60.0
    return (0.1 + 1e-9, 60.0) if isinstance(density, TransformedDistribution) else (-60.0, 60.0)


@pytest.mark.parametrize("name", DENSITIES)
def test_any_density_against_gaussians_of_every_width(name):
    make, place = DENSITIES[name]
    density = make()
    basis = contmax.basis.GaussianBasis(torch.full((len(WIDTHS),), float(place), dtype=F64), t(WIDTHS))
    r = contmax.expectation(density, basis)
    exact = t([truth(density, float(place), width) for width in WIDTHS])
    torch.testing.assert_close(r, exact, rtol=0, atol=2e-10 * exact.max().item())


def test_samples_are_averaged():
    basis = contmax.basis.GaussianBasis.linspace(4, scale=0.2)
    samples, weights = torch.rand(3, 10), torch.rand(3, 10)
    r = contmax.expectation(Empirical(samples, weights, event_dim=0), basis)
    torch.testing.assert_close(r, (weights[..., None] * basis(samples)).sum(-2) / weights.sum(-1, keepdim=True))
    plane = contmax.basis.MultivariateGaussianBasis.grid(3, scale=0.3)
    points = torch.rand(5, 2)
    torch.testing.assert_close(contmax.expectation(Empirical(points), plane), plane(points).mean(0))


@pytest.mark.parametrize("basis", ["cosine", "spline"])
def test_autocast_leaves_expectations_in_full_precision(basis):
    make = {"cosine": contmax.basis.CosineBasis.harmonics, "spline": contmax.basis.BSplineBasis.clamped}[basis]
    density = Laplace(torch.tensor([0.4, 0.6]), 0.1)
    plain = contmax.expectation(density, make(6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = contmax.expectation(density, make(6))
    assert mixed.dtype == plain.dtype == torch.float32
    torch.testing.assert_close(mixed, plain)


class Tent(Distribution):
    """A kink at its mean and jumps at its ends, which only the general rule knows how to place."""

    arg_constraints = {}  # noqa: RUF012

    def __init__(self, middle):
        self.middle = middle
        super().__init__(middle.shape, validate_args=False)

    @property
    def support(self):
        return constraints.interval(self.middle - 1, self.middle + 1)

    @property
    def mean(self):
        return self.middle

    @property
    def variance(self):
        return torch.full_like(self.middle, 0.25)

    def log_prob(self, value):
        return torch.log((1.5 - (value - self.middle).abs()).clamp(min=1e-9)) - math.log(2.0)


@pytest.mark.parametrize("offset", [0.0, 0.3])
@pytest.mark.parametrize("prediction", ["triangular", "cosh", "laplace"])
def test_second_derivatives_against_a_kinked_target(prediction, offset):
    """Nodes move with the kink of the target and with that of the score, also where the two meet."""
    make = {
        "triangular": Triangular,
        "cosh": lambda m, s: LocationScale(m, s, "cosh"),
        "laplace": Laplace,
    }[prediction]

    def loss(m, s, middle):
        return fenchel_young(make(m, s), Tent(middle))

    inputs = [x.requires_grad_() for x in (t(0.2), t(1.7), t(0.2 + offset))]
    assert gradcheck(loss, inputs, fast_mode=True)
    assert gradgradcheck(loss, inputs, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("target", [lambda m: Normal(m, t(0.5)), lambda m: Gamma(t(4.0), 4.0 / m)])
def test_second_derivatives_where_the_target_is_cut_at_the_centre_of_the_score(target):
    def loss(m, s, at):
        return fenchel_young(Triangular(m, s), target(at))

    inputs = [x.requires_grad_() for x in (t(1.2), t(0.7), t(1.2))]
    assert gradcheck(loss, inputs, fast_mode=True)
    assert gradgradcheck(loss, inputs, atol=1e-4, fast_mode=True)


def test_a_target_that_grows_without_bound_has_an_infinite_loss_not_an_error():
    prediction = TruncatedParabola(0.0, 1.0)
    assert fenchel_young(prediction, Beta(0.3, 2.0)) == math.inf
    assert fenchel_young(prediction, Beta(0.9, 2.0)).isfinite()
    batch = fenchel_young(prediction, Beta(torch.tensor([0.3, 1.5]), 2.0))
    assert batch.isinf().tolist() == [True, False]


def test_divergence_from_a_heavy_tail_to_a_kink_far_away():
    student, wide = BetaGaussian(t(0.0), t(1.0), 0.5), Laplace(t(1e4), t(3.0))
    exact = integral(
        lambda x: student.density(x) * (student.log_prob(x) - wide.log_prob(x)),
        [-1e7, -1e5, -1e3, -30, -3, 0, 3, 30, 1e3, 1e4, 1e5, 1e7],
    )
    assert kl_divergence(student, wide).item() == pytest.approx(exact, rel=1e-5)


def test_entropy_of_mixtures_with_gaps_and_overlaps():
    p = Mixture(Categorical(t([0.2, 0.3, 0.5])), TruncatedParabola(t([0.0, 0.4, 9.0]), t([0.5, 0.1, 0.3])))
    ends = sorted(
        {x.item() for x in (p.component_distribution.loc - p.component_distribution.half_width)}
        | {x.item() for x in (p.component_distribution.loc + p.component_distribution.half_width)}
    )

    def integrand(x):
        return -torch.xlogy(p.density(x), p.density(x))

    assert p.entropy().item() == pytest.approx(integral(integrand, ends), rel=1e-9)
    one = Mixture(Categorical(t([1.0])), Uniform(t([1.0]), t([3.0])))
    assert one.entropy().item() == pytest.approx(math.log(2.0), rel=1e-12)
