"""Expectations on the plane and in space against quadrature that knows nothing of scales or paths."""

import math

import numpy as np
import pytest
import torch
from scipy.special import roots_jacobi
from torch.distributions import (
    Categorical,
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Uniform,
    constraints,
)

import contmax
from contmax.basis import MultivariateGaussianBasis
from contmax.densities import Mixture, MultivariateBetaGaussian, TruncatedParaboloid

F64 = torch.float64


def rotation(dim, generator):
    return torch.linalg.qr(torch.randn(dim, dim, dtype=F64, generator=generator))[0]


def matrix(axes, generator):
    turn = rotation(len(axes), generator)
    return turn @ torch.diag(torch.as_tensor(axes, dtype=F64).square()) @ turn.mT


def unit_ball_rule(dim, k, radial, angular):
    """Points u and weights for the law ∝ (1 − |u|²)ᵏ on the unit ball: Gauss–Jacobi in u², a product rule of angles."""
    x, w = roots_jacobi(radial, k, dim / 2 - 1)
    r = np.sqrt((x + 1) / 2)
    angle = 2 * np.pi * np.arange(angular) / angular
    circle = np.stack([np.cos(angle), np.sin(angle)], -1)
    if dim == 2:
        directions, share = circle, np.full(angular, 1 / angular)
    else:
        z, weight = np.polynomial.legendre.leggauss(angular // 2)
        ring = np.sqrt(1 - z**2)
        flat = circle[None] * ring[:, None, None]
        tall = np.broadcast_to(z[:, None, None], (*flat.shape[:2], 1))
        directions = np.concatenate([flat, tall], -1).reshape(-1, 3)
        share = np.repeat(weight / 2, angular) / angular
    points = (r[:, None, None] * directions).reshape(-1, dim)
    return torch.from_numpy(points), torch.from_numpy(np.outer(w / w.sum(), share).ravel())


def by_ball(density, basis, radial, angular):
    k = 1 / (density.alpha - 1)
    u, weights = unit_ball_rule(basis.event_dim, k, radial, angular)
    t = density.loc + density.radius * (u @ density.scale_tril.mT)
    return weights @ basis(t)


def draw(dim, alpha, aspect, ratio, generator):
    """A density, and functions that are `ratio` as wide as its support: at its centre, inside, at the edge, outside."""
    axes = 0.1 * aspect ** torch.linspace(-0.5, 0.5, dim, dtype=F64)
    density = MultivariateBetaGaussian(torch.rand(dim, dtype=F64, generator=generator), matrix(axes, generator), alpha)
    half_axes = density.radius * axes
    width = ratio * half_axes.prod() ** (1 / dim)
    direction = torch.nn.functional.normalize(torch.randn(5, dim, dtype=F64, generator=generator), dim=-1)
    places = torch.tensor([0.0, 0.5, 0.97, 1.03, 1.5], dtype=F64)[:, None] * direction
    loc = density.loc + density.radius * (places @ density.scale_tril.mT)
    shapes = [matrix(width * 3.0 ** torch.linspace(-0.5, 0.5, dim, dtype=F64), generator) for _ in range(5)]
    return density, MultivariateGaussianBasis(loc, torch.stack(shapes))


@pytest.mark.parametrize("alpha", [1.1, 4 / 3, 1.5, 1.7, 2.0, 3.0, math.inf])
@pytest.mark.parametrize(("aspect", "ratio"), [(1, 0.1), (3, 0.3), (3, 3.0), (30, 1.0)])
def test_the_plane_against_a_rule_on_the_disk(alpha, aspect, ratio):
    generator = torch.Generator().manual_seed(aspect)
    density, basis = draw(2, alpha, aspect, ratio, generator)
    expected = by_ball(density, basis, 120, 400)
    top = by_ball(density, MultivariateGaussianBasis(density.loc[None], basis.covariance_matrix[:1]), 120, 400)
    torch.testing.assert_close(contmax.expectation(density, basis), expected, rtol=1e-10, atol=1e-12 * top.item())


@pytest.mark.parametrize("alpha", [1.5, 1.7, 2.0, math.inf])
@pytest.mark.parametrize(("aspect", "ratio"), [(1, 0.4), (5, 1.0)])
def test_space_against_a_rule_on_the_ball(alpha, aspect, ratio):
    density, basis = draw(3, alpha, aspect, ratio, torch.Generator().manual_seed(1))
    expected = by_ball(density, basis, 40, 80)
    torch.testing.assert_close(
        contmax.expectation(density, basis), expected, rtol=1e-10, atol=1e-12 * expected.max().item()
    )


def test_functions_of_unequal_widths_along_the_axes():
    density, _ = draw(3, 1.7, 3, 1.0, torch.Generator().manual_seed(5))
    widths = density.radius * 0.1 * torch.tensor([[0.5, 1.0, 2.0], [2.0, 0.5, 1.0]], dtype=F64)
    basis = MultivariateGaussianBasis(density.loc.expand(2, 3), torch.diag_embed(widths**2))
    expected = by_ball(density, basis, 40, 80)
    torch.testing.assert_close(contmax.expectation(density, basis), expected, rtol=1e-9, atol=0)


LINE = np.polynomial.legendre.leggauss(160)


def narrow_on_the_disk(k, ratio, place):
    """E[N(t; c, s²I)] on the unit disk, |c| = place, s = ratio: coordinates are sines on the window that counts."""
    x, w = LINE
    reach = 9 * ratio

    def window(low, high):
        return (low + high)[..., None] / 2 + (high - low)[..., None] / 2 * x, (high - low)[..., None] / 2 * w

    outer, outer_weight = window(*(np.arcsin(np.clip(np.array(place + d), -1, 1)) for d in (-reach, reach)))
    first, chord = np.sin(outer), np.cos(outer)
    end = np.arcsin(np.clip(reach / chord, 0, 1))
    inner, inner_weight = window(-end, end)
    second, room = chord[:, None] * np.sin(inner), chord[:, None] * np.cos(inner)
    density = (k + 1) / np.pi * room ** (2 * k)
    distance = (first[:, None] - place) ** 2 + second**2
    gaussian = np.exp(-0.5 * distance / ratio**2) / (2 * np.pi * ratio**2)
    return (outer_weight[:, None] * chord[:, None] * inner_weight * room * density * gaussian).sum()


def narrow_in_the_ball(k, ratio, place):
    """The same in three dimensions, where it is (1/|c|) ∫ t p(|t|) N(t; |c|, s²) dt on the line."""
    x, w = LINE
    low, high = (np.arcsin(np.clip(place + d, -1, 1)) for d in (-9 * ratio, 9 * ratio))
    angle, weight = (low + high) / 2 + (high - low) / 2 * x, (high - low) / 2 * w
    t, room = np.sin(angle), np.cos(angle)
    height = math.exp(math.lgamma(k + 2.5) - math.lgamma(k + 1)) / math.pi**1.5
    gaussian = np.exp(-0.5 * ((t - place) / ratio) ** 2) / (math.sqrt(2 * math.pi) * ratio)
    return (weight * room * t * height * room ** (2 * k) * gaussian).sum() / place


@pytest.mark.parametrize(("dim", "oracle"), [(2, narrow_on_the_disk), (3, narrow_in_the_ball)])
@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.7, 2.0, 3.0])
@pytest.mark.parametrize("ratio", [0.003, 0.01, 0.1])
def test_narrow_functions_about_the_edge_of_the_support(ratio, alpha, dim, oracle):
    places = [0.3, 0.9, 1 - 3 * ratio, 1 - ratio, 1.0, 1 + ratio, 1 + 4 * ratio]
    eye = torch.eye(dim, dtype=F64)
    density = MultivariateBetaGaussian.from_support(torch.zeros(dim, dtype=F64), eye, alpha)
    loc = torch.tensor(places, dtype=F64)[:, None] * torch.nn.functional.normalize(torch.ones(dim, dtype=F64), dim=0)
    r = contmax.expectation(density, MultivariateGaussianBasis(loc, ratio**2 * eye))
    expected = torch.tensor([oracle(1 / (alpha - 1), ratio, place) for place in places], dtype=F64)
    torch.testing.assert_close(r, expected, rtol=1e-10, atol=1e-12 * density.density(density.loc).item())


@pytest.mark.parametrize("alpha", [0.7, 0.9])
def test_heavy_tails_against_a_mixture_of_gaussians(alpha):
    """A Student-t is the mean of N(μ, c²Σ/g) over g ~ χ²."""
    density, basis = draw_heavy(alpha)
    freedom = 2 / (1 - alpha) - 2
    squared = density.covariance_matrix * (freedom - 2)
    x, w = np.polynomial.legendre.leggauss(400)
    log_g = torch.from_numpy(math.log(freedom) + 1 + 13 * x)
    log_weight = freedom / 2 * log_g - log_g.exp() / 2 - freedom / 2 * math.log(2) - math.lgamma(freedom / 2)
    total = squared / log_g.exp()[:, None, None, None] + basis.covariance_matrix
    values = MultivariateNormal(basis.loc, total).log_prob(density.loc).exp()
    expected = torch.from_numpy(13 * w) @ (log_weight.exp()[:, None] * values)
    torch.testing.assert_close(contmax.expectation(density, basis), expected, rtol=1e-9, atol=1e-11)


def draw_heavy(alpha):
    generator = torch.Generator().manual_seed(3)
    density = MultivariateBetaGaussian(torch.tensor([0.3, 0.6], dtype=F64), matrix([0.1, 0.3], generator), alpha)
    shapes = torch.stack([matrix([0.05, 0.2], generator) for _ in range(4)])
    return density, MultivariateGaussianBasis(torch.rand(4, 2, dtype=F64, generator=generator) * 3 - 1, shapes)


def test_a_tensor_of_indices_is_each_index_by_itself():
    density, basis = draw_heavy(0.9)
    alphas = [0.8, 0.9, 1 - 1e-7, 1.0, 1 + 1e-7, 1.0002, 1.2, 2.0, 5.0]
    together = MultivariateBetaGaussian(density.loc, density.scale_matrix, torch.tensor(alphas, dtype=F64))
    alone = [contmax.expectation(MultivariateBetaGaussian(density.loc, density.scale_matrix, a), basis) for a in alphas]
    torch.testing.assert_close(contmax.expectation(together, basis), torch.stack(alone), rtol=1e-9, atol=1e-11)


def test_towards_index_one_it_becomes_the_gaussian():
    density, basis = draw_heavy(1.0)
    gaussian = contmax.expectation(density, basis)
    gaps = []
    for step in (1e-2, -1e-2, 1e-4, -1e-4, 1e-6, -1e-6):
        near = MultivariateBetaGaussian(density.loc, density.scale_matrix, 1 + step)
        gaps.append(((contmax.expectation(near, basis) - gaussian).abs().max() / abs(step)).item())
    assert max(gaps) < 3 * min(gaps)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_float32_against_float64(alpha):
    generator = torch.Generator().manual_seed(7)
    for ratio in (0.01, 0.1, 1.0, 3.0):
        density, basis = draw(2, alpha, 30, ratio, generator)
        loc, scale_matrix = density.loc.float(), density.scale_matrix.float()
        single = MultivariateGaussianBasis(basis.loc.float(), basis.covariance_matrix.float())
        r = contmax.expectation(MultivariateBetaGaussian(loc, scale_matrix, alpha), single)
        exact = MultivariateBetaGaussian(loc.double(), scale_matrix.double(), alpha)
        truth = contmax.expectation(
            exact, MultivariateGaussianBasis(single.loc.double(), single.covariance_matrix.double())
        )
        torch.testing.assert_close(r.double(), truth, rtol=2e-5, atol=2e-6 * truth.max().item())


def test_angles_are_not_counted_twice():
    """On a ring of directions 0 and 2π are one: counted twice they favour functions to the right of the centre."""
    loc = torch.tensor([[0.2, 0.0], [0.0, 0.2], [-0.2, 0.0], [0.0, -0.2]], dtype=F64)
    basis = MultivariateGaussianBasis(loc, 0.001 * torch.eye(2, dtype=F64))
    r = contmax.expectation(TruncatedParaboloid(torch.zeros(2, dtype=F64), 0.01 * torch.eye(2, dtype=F64)), basis)
    torch.testing.assert_close(r, r[:1].expand(4), rtol=1e-13, atol=0)


def product_oracle(density, basis, low, high):
    """Gauss–Legendre on many cells of a rectangle."""
    x, w = np.polynomial.legendre.leggauss(12)
    cells = np.linspace(low, high, 61)
    half = np.diff(cells)[:, None] / 2
    line = torch.from_numpy(((cells[:-1] + cells[1:])[:, None] / 2 + half * x).ravel())
    weight = torch.from_numpy((half * w).ravel())
    t = torch.cartesian_prod(line, line)
    mass = torch.cartesian_prod(weight, weight).prod(-1) * density.log_prob(t).exp()
    return mass @ basis(t)


GRID = MultivariateGaussianBasis.grid(3, 0.2).double()
FULL = MultivariateGaussianBasis(
    torch.tensor([[0.3, 0.4], [0.9, 0.1]], dtype=F64), torch.tensor([[0.05, 0.02], [0.02, 0.04]], dtype=F64)
)
PAIR = torch.tensor([0.4, 0.6], dtype=F64)


@pytest.mark.parametrize("basis", [GRID, FULL], ids=["grid", "full"])
def test_independent_coordinates(basis):
    normal = Independent(Normal(PAIR, torch.tensor([0.1, 0.3], dtype=F64)), 1)
    torch.testing.assert_close(
        contmax.expectation(normal, basis), product_oracle(normal, basis, -3, 4), rtol=1e-9, atol=1e-11
    )
    box = Independent(Uniform(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64)), 1)
    torch.testing.assert_close(contmax.expectation(box, basis), product_oracle(box, basis, 0, 1), rtol=1e-9, atol=1e-11)


def test_sharp_coordinates_multiply():
    density = Independent(Laplace(PAIR.expand(5, 2), 0.1), 1)
    line = contmax.basis.GaussianBasis.linspace(3, 0.2).double()
    first, second = (contmax.expectation(Laplace(PAIR[i], 0.1), line) for i in range(2))
    expected = (first[:, None] * second).reshape(-1).expand(5, 9)
    torch.testing.assert_close(contmax.expectation(density, GRID), expected, rtol=1e-9, atol=1e-12)


def test_low_rank_and_mixtures():
    factor = torch.tensor([[0.2], [0.1]], dtype=F64)
    low_rank = LowRankMultivariateNormal(PAIR, factor, torch.tensor([0.01, 0.02], dtype=F64))
    full = MultivariateNormal(PAIR, low_rank.covariance_matrix)
    torch.testing.assert_close(contmax.expectation(low_rank, FULL), contmax.expectation(full, FULL))
    weights = Categorical(torch.tensor([0.3, 0.7], dtype=F64))
    locs, matrices = torch.rand(2, 2, dtype=F64), 0.01 * torch.eye(2, dtype=F64)
    parts = MultivariateBetaGaussian(locs, matrices, 1.5)
    expected = weights.probs @ contmax.expectation(parts, GRID)
    for kind in (Mixture, MixtureSameFamily):
        torch.testing.assert_close(contmax.expectation(kind(weights, parts), GRID), expected)


class Ridge(torch.distributions.Distribution):
    """A density that no rule knows: a Gaussian under another name."""

    support = constraints.real_vector

    def __init__(self):
        self.inner = MultivariateNormal(PAIR, torch.tensor([[0.04, 0.01], [0.01, 0.02]], dtype=F64))
        super().__init__(event_shape=torch.Size([2]), validate_args=False)

    @property
    def mean(self):
        return self.inner.mean

    @property
    def variance(self):
        return self.inner.variance

    def log_prob(self, value):
        return self.inner.log_prob(value)


@pytest.mark.parametrize("basis", [GRID, FULL], ids=["grid", "full"])
def test_any_smooth_density(basis):
    torch.testing.assert_close(
        contmax.expectation(Ridge(), basis), contmax.expectation(Ridge().inner, basis), rtol=1e-6, atol=1e-7
    )


def test_predictions_on_a_box_and_on_points():
    sigma = torch.tensor([[0.02, 0.005], [0.005, 0.01]], dtype=F64)
    inverse = torch.linalg.inv(sigma)

    def score(t):
        return -0.5 * ((t - PAIR) @ inverse * (t - PAIR)).sum(-1)

    box = contmax.domains.Box(torch.full((2,), -0.5, dtype=F64), torch.full((2,), 1.5, dtype=F64), resolution=6)
    predicted = contmax.expectation(contmax.regularized_prediction(score, box, 2.0), GRID)
    exact = contmax.expectation(TruncatedParaboloid(PAIR, sigma), GRID)
    torch.testing.assert_close(predicted, exact, rtol=1e-5, atol=1e-6)

    points = torch.rand(7, 2, dtype=F64)
    on_points = contmax.regularized_prediction(score, contmax.domains.Nodes(points), 1.5)
    torch.testing.assert_close(
        contmax.expectation(on_points, GRID), contmax.entmax(score(points), 1.5) @ GRID(points), rtol=1e-12, atol=0
    )


def test_attention_to_points_on_the_line_is_discrete_attention():
    basis = contmax.basis.GaussianBasis.linspace(4, 0.2).double()
    points, scores = torch.rand(6, dtype=F64), torch.randn(3, 6, dtype=F64)
    density = contmax.regularized_prediction(scores, contmax.domains.Nodes(points), 2.0)
    torch.testing.assert_close(
        contmax.expectation(density, basis), contmax.sparsemax(scores) @ basis(points), rtol=1e-12, atol=1e-14
    )
