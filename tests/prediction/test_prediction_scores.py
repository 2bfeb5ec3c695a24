"""A prediction knows the score it was made of, so it is the prediction of a Fenchel–Young loss too."""

import math

import pytest
import torch
from torch.distributions import Normal, Uniform

import contmax
from contmax.densities import BetaGaussian, Empirical, Triangular
from contmax.domains import Box, Interval, Knots, Nodes
from contmax.losses import entmax_loss, fenchel_young

F64 = torch.float64


def t(*values):
    return torch.tensor(values if len(values) > 1 else values[0], dtype=F64)


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.5, 2.0, 3.0])
def test_scores_are_those_that_were_given(alpha):
    def wave(x):
        return torch.sin(3 * x) - x**2 / 4

    points = t(-1.9, -0.4, 0.3, 1.7)
    p = contmax.regularized_prediction(wave, Interval(t(-2.0), t(2.0)), alpha)
    torch.testing.assert_close(p.score(points), wave(points), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(p.score(t(-2.1, 2.1)), t(-math.inf, -math.inf))
    knots = contmax.regularized_prediction(t(0.0, 1.0, 0.5), Knots(t(0.0, 1.0, 3.0)), alpha)
    torch.testing.assert_close(knots.score(t(0.5, 2.0, 3.5)), t(0.5, 0.75, -math.inf))
    nodes = contmax.regularized_prediction(t(1.0, 2.0, 0.0), Nodes(t(0.0, 1.0, 2.0)), alpha)
    torch.testing.assert_close(nodes.score(t(2.0, 1.0, 0.5)), t(0.0, 2.0, -math.inf))
    plane = contmax.regularized_prediction(lambda x: -x.square().sum(-1), Box(t(-2.0, -2.0), t(2.0, 2.0)), alpha)
    torch.testing.assert_close(plane.score(t([[0.3, 0.2], [1.0, -1.0]])), t(-0.13, -2.0))
    for q, where in ((p, points), (knots, t(0.5, 2.0)), (nodes, t(0.0, 1.0)), (plane, t([[0.3, 0.2], [0.0, 0.1]]))):
        mapped = contmax.deformed.exp_beta(q.score(where) - q.normalizer, 2 - alpha)
        torch.testing.assert_close(mapped, q.density(where))


def test_losses_of_a_prediction_are_those_of_the_closed_form():
    scores = {2.0: (lambda x: -(x - 0.3).abs() / 0.5, Triangular(t(0.3), t(0.5)))}
    for alpha in (1.5, 2.0):
        scores[alpha, "parabola"] = lambda x: -((x - 0.3) ** 2) / 0.98, BetaGaussian(t(0.3), t(0.7), alpha)
    targets = (
        BetaGaussian(t(0.0), t(0.5), 2.0),
        Normal(t(0.0), t(0.1)),
        Uniform(t(-1.0), t(0.5)),
        t(0.9, -0.2),
        Empirical(t(0.1, 0.2, 1.5)),
    )
    for key, (score, closed) in scores.items():
        alpha = key if isinstance(key, float) else key[0]
        p = contmax.regularized_prediction(score, Interval(t(-6.0), t(6.0)), alpha)
        for target in targets:
            torch.testing.assert_close(fenchel_young(p, target), fenchel_young(closed, target), rtol=1e-8, atol=1e-9)
        assert fenchel_young(p, p).abs() < 1e-9


def test_a_target_beyond_the_domain_is_infinitely_far():
    p = contmax.regularized_prediction(lambda x: -(x**2), Interval(t(-1.0), t(1.0)))
    assert fenchel_young(p, Normal(t(0.0), t(1.0))) == math.inf
    assert fenchel_young(p, t(1.5)) == math.inf
    knots = contmax.regularized_prediction(t(0.0, 1.0, 0.5), Knots(t(0.0, 1.0, 3.0)))
    assert fenchel_young(knots, knots).abs() < 1e-9


def test_on_nodes_the_loss_is_the_finite_one():
    scores = torch.randn(4, dtype=F64)
    nodes = contmax.regularized_prediction(scores, Nodes(torch.arange(4, dtype=F64)), 1.5)
    for label in range(4):
        # The finite loss counts Ω of the target too, which is 0 for a class.
        ours = fenchel_young(nodes, t(float(label)))
        torch.testing.assert_close(ours, entmax_loss(scores[None], torch.tensor([label]), 1.5))
