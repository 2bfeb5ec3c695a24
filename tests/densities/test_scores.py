"""A density carries the score of which it is the map: p = exp_{2−α}(f − A), on the support and off it."""

import math

import pytest
import torch
from density_families import ALL, each
from torch.distributions import Categorical

from contmax.deformed import exp_beta
from contmax.densities import BetaGaussian, Empirical, Mixture

WITH_SCORE = [family for family in ALL if not family.name.startswith("mixture")]
# exp_{2−α} has no value at α = ∞.
FINITE = [family for family in WITH_SCORE if not family.name.startswith("uniform")]
BOUNDED = [family for family in WITH_SCORE if not {"student", "gaussian", "tensor"} & set(family.name.split("-"))]


@each(FINITE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_density_is_the_map_of_its_score(family, dtype):
    p = family.make(dtype)
    points = torch.cat([p.sample((8,)), p.mean + 4 * (p.sample((8,)) - p.mean)])
    ours = exp_beta(p.score(points) - p.normalizer, 2 - p.alpha)
    tolerance = 2e-4 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(ours, p.density(points), rtol=tolerance, atol=tolerance * p.density(p.mode).max().item())
    assert p.score(points).dtype == dtype
    assert p.score(points).shape == points.shape[: points.dim() - len(p.event_shape)]


@each(BOUNDED)
def test_the_support_is_where_the_score_exceeds_the_threshold(family):
    p = family.make()
    points = p.mean + 3 * (p.sample((50,)) - p.mean)
    assert torch.equal(p.density(points) > 0, p.score(points) > p.threshold)


@each(WITH_SCORE)
def test_the_conjugate_is_what_the_map_attains(family):
    """Ω*(f) = E_p[f] − Ω(p), by draws: five standard errors."""
    torch.manual_seed(3)
    p = family.make()
    scores = p.score(p.sample((20_000,)))
    error = 5 * scores.std(0) / math.sqrt(20_000) + 1e-9
    assert ((p.conjugate() - (scores.mean(0) - p.tsallis_negentropy())).abs() <= error).all()


def test_what_is_not_the_map_of_a_score_says_so():
    parts = BetaGaussian(torch.zeros(2), torch.ones(2))
    for p in (Mixture(Categorical(torch.ones(2)), parts), Empirical(torch.zeros(3))):
        with pytest.raises(NotImplementedError, match="not the map of a score"):
            p.score(torch.zeros(()))
