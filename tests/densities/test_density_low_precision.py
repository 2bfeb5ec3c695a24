"""float16 and bfloat16: every result is the float64 result of the rounded parameters, rounded once."""

import math

import pytest
import torch
from density_families import ALL, LINE, SEVERAL, Family, each, inner_points
from torch import Tensor
from torch.distributions import Categorical, Normal, Uniform, kl_divergence

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, Density, Mixture, MultivariateBetaGaussian, TruncatedParabola

D = torch.float64
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
NUMBERS = ("mean", "variance", "covariance_matrix", "half_width", "radius", "threshold", "normalizer")
METHODS = ("entropy", "tsallis_negentropy", "conjugate")


def rounded_and_exact(family: Family, dtype: torch.dtype) -> tuple[Density, Density]:
    """The density in half precision, and in float64 with the same parameters."""
    given = {name: value.to(dtype) for name, value in family.tensors().items()}
    p = family.build(**given)
    if isinstance(p, Mixture):
        # Torch rounds the logits when it normalises them.
        given["logits"] = p.mixture_distribution.logits
    return p, family.build(**{name: value.double() for name, value in given.items()})


def assert_rounded_once(got: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    exact = torch.where(exact.abs() > torch.finfo(dtype).max, exact.sign() * math.inf, exact)
    # Half a unit in the last place, and what float32 may add to it.
    torch.testing.assert_close(got.double(), exact, rtol=0.51 * torch.finfo(dtype).eps, atol=1e-7)


@HALF
@each(ALL)
def test_functions_of_points(family, dtype):
    p, exact = rounded_and_exact(family, dtype)
    t = inner_points(exact).to(dtype)
    assert_rounded_once(p.density(t), exact.density(t.double()), dtype)
    assert_rounded_once(p.log_prob(t), exact.log_prob(t.double()), dtype)
    if not p.event_shape:
        assert_rounded_once(p.cdf(t), exact.cdf(t.double()), dtype)
        q = torch.tensor([0.0, 0.01, 0.3, 0.5, 0.9, 1.0], dtype=dtype).reshape(-1, *[1] * len(p.batch_shape))
        assert_rounded_once(p.icdf(q), exact.icdf(q.double()), dtype)


@HALF
@each(ALL)
def test_numbers(family, dtype):
    p, exact = rounded_and_exact(family, dtype)
    for name in NUMBERS:
        if hasattr(exact, name):
            assert_rounded_once(getattr(p, name), getattr(exact, name), dtype)
    for name in ("entropy",) if isinstance(p, Mixture) else METHODS:
        if not (isinstance(p, Mixture) and p.event_shape):
            assert_rounded_once(getattr(p, name)(), getattr(exact, name)(), dtype)


@HALF
@each(LINE)
def test_support_and_draws_on_the_line(family, dtype):
    """The ends of the support are not rounded, and no draw is rounded across them."""
    p, exact = rounded_and_exact(family, dtype)
    if hasattr(exact.support, "upper_bound"):
        torch.testing.assert_close(p.support.upper_bound.double(), exact.support.upper_bound, rtol=1e-6, atol=1e-7)
    draws = p.sample((4000,))
    assert draws.dtype == dtype
    assert p.support.check(draws).all()
    assert torch.isfinite(p.log_prob(draws)).all()


@HALF
@each([family for family in ALL if family in LINE or family.name.endswith("2d") or family.name == "paraboloid"])
def test_expectations(family, dtype):
    """A basis in float32 sees the density as if its parameters had been float32 from the start."""
    p, exact = rounded_and_exact(family, dtype)

    def basis(dtype: torch.dtype) -> GaussianBasis | MultivariateGaussianBasis:
        if family in LINE:
            return GaussianBasis(torch.tensor([0.0, 0.5], dtype=dtype), torch.tensor([0.125, 0.25], dtype=dtype))
        return MultivariateGaussianBasis(
            torch.tensor([[0.0, 0.5]], dtype=dtype), 0.25 * torch.eye(2, dtype=dtype)[None]
        )

    got, wanted = contmax.expectation(p, basis(torch.float32)), contmax.expectation(exact, basis(D))
    assert float((got.double() - wanted).abs().max()) < 2e-6 * float(wanted.abs().max())


def test_expectation_of_torchs_uniform():
    p = Uniform(torch.tensor(0.1).bfloat16(), torch.tensor(0.9).bfloat16())
    exact = Uniform(p.low.double(), p.high.double())
    got = contmax.expectation(p, GaussianBasis(torch.tensor([0.3]), torch.tensor([0.05])))
    wanted = contmax.expectation(exact, GaussianBasis(torch.tensor([0.3], dtype=D), torch.tensor([0.05], dtype=D)))
    torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=0)


@each([family for family in SEVERAL if "mixture" not in family.name])
def test_mass_inside_a_radius(family):
    p, exact = rounded_and_exact(family, torch.bfloat16)
    radius = torch.tensor(0.5)
    assert_rounded_once(p.radial_cdf(radius.bfloat16()), exact.radial_cdf(radius.double()), torch.bfloat16)


def test_components_of_a_mixture_may_be_torchs():
    loc, scale = torch.tensor([0.3, 1.7]).bfloat16(), torch.tensor([0.7, 0.1]).bfloat16()
    weights = Categorical(torch.tensor([0.25, 0.75]).bfloat16())
    p = Mixture(weights, Normal(loc, scale))
    exact = Mixture(Categorical(weights.probs.double()), Normal(loc.double(), scale.double()))
    t = torch.linspace(-1, 2, 9).bfloat16()
    assert_rounded_once(p.log_prob(t), exact.log_prob(t.double()), torch.bfloat16)
    assert_rounded_once(p.variance, exact.variance, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, D], ids=str)
def test_draws_far_from_zero_stay_in_the_support(dtype):
    """A support of a few units in the last place of its centre."""
    p = TruncatedParabola.from_support(
        torch.tensor(100.0, dtype=D), torch.tensor(100 * (1 + 5.3 * torch.finfo(dtype).eps), dtype=D)
    )
    p = TruncatedParabola(p.loc.to(dtype), p.scale.to(dtype))
    draws = p.sample((5000,))
    assert p.support.check(draws).all()
    assert torch.isfinite(p.log_prob(draws)).all()
    assert len(torch.unique(draws)) > 1


@HALF
def test_divergences_of_gaussians(dtype):
    loc, scale = torch.tensor([0.3, -1.2], dtype=dtype), torch.tensor([0.7, 1.4], dtype=dtype)
    p, q = BetaGaussian(loc, scale, 1.0), BetaGaussian(-loc, scale.flip(0), 1.0)
    exact = kl_divergence(Normal(loc.double(), scale.double()), Normal(-loc.double(), scale.flip(0).double()))
    assert_rounded_once(kl_divergence(p, q), exact, dtype)
    vectors = [MultivariateBetaGaussian(d.loc, scale_diag=d.scale, alpha=1.0) for d in (p, q)]
    assert_rounded_once(kl_divergence(*vectors), exact.sum(), dtype)


@HALF
def test_divergence_of_supports_in_the_plane(dtype):
    p, q = (MultivariateBetaGaussian(torch.full((2,), loc, dtype=dtype), torch.eye(2, dtype=dtype)) for loc in (0, 5))
    assert kl_divergence(p, q) == math.inf


def test_divergence_of_densities_of_two_dtypes():
    p, q = (MultivariateBetaGaussian(torch.zeros(2, dtype=dtype), torch.eye(2), 1.0) for dtype in (torch.float32, D))
    for first, second in ((p, q), (q, p)):
        assert kl_divergence(first, second).dtype == D
    sparse = MultivariateBetaGaussian(torch.zeros(2, dtype=D), torch.eye(2))
    assert kl_divergence(p, sparse).dtype == D
