"""Densities inside torch's own distributions of distributions."""

import math

import torch
from density_families import LINE, SEVERAL, each, inner_points
from torch.distributions import AffineTransform, Independent, TransformedDistribution


@each([family for family in LINE if "mixture" not in family.name])
def test_inside_torch_wrappers(family):
    p = family.make()
    t = inner_points(p, count=1)[0]
    joint = Independent(p, 1)
    torch.testing.assert_close(joint.log_prob(t), p.log_prob(t).sum(-1))
    torch.testing.assert_close(joint.entropy(), p.entropy().sum(-1))
    assert joint.rsample((5,)).shape == (5, *p.batch_shape)
    assert joint.expand((4,)).sample().shape == (4, *p.batch_shape)
    moved = TransformedDistribution(p, [AffineTransform(1.0, -2.0)])
    torch.testing.assert_close(moved.log_prob(1 - 2 * t), p.log_prob(t) - math.log(2))
    torch.testing.assert_close(moved.cdf(1 - 2 * t), 1 - p.cdf(t))
    assert moved.rsample((3,)).shape == (3, *p.batch_shape)


@each(SEVERAL)
def test_independent_of_vectors(family):
    p = family.make()
    if not p.batch_shape:
        p = p.expand((2,))
    t = inner_points(p, count=1)[0]
    torch.testing.assert_close(Independent(p, 1).log_prob(t), p.log_prob(t).sum(-1))
