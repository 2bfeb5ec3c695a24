"""Which loss is chosen for a pair of types, and what is said where there is none."""

import math

import pytest
import torch
from torch.distributions import (
    Categorical,
    Cauchy,
    Dirichlet,
    Gamma,
    Independent,
    MultivariateNormal,
    Normal,
    Poisson,
    Uniform,
    VonMises,
)

from contmax.densities import BetaGaussian, Empirical, Mixture, MultivariateBetaGaussian
from contmax.losses import fenchel_young, register_fenchel_young


class Wave(Cauchy):
    """A family of the user's own."""


class Ripple(Wave):
    """A special case of it."""


def test_registry_takes_the_most_specific_pair():
    @register_fenchel_young(Wave, torch.Tensor)
    def of_waves(prediction, target):
        return torch.ones(())

    assert fenchel_young(Ripple(0.0, 1.0), torch.zeros(3)).tolist() == [1, 1, 1]

    @register_fenchel_young(Ripple, torch.Tensor)
    def of_ripples(prediction, target):
        return torch.full((), 2.0)

    assert fenchel_young(Ripple(0.0, 1.0), torch.zeros(())) == 2
    assert fenchel_young(Wave(0.0, 1.0), torch.nn.Parameter(torch.zeros(()))) == 1


def test_registry_warns_of_ambiguous_pairs_until_they_are_settled():
    register_fenchel_young(Wave, Ripple)(lambda prediction, target: torch.ones(()))
    register_fenchel_young(Ripple, Wave)(lambda prediction, target: torch.full((), 2.0))
    ripple = Ripple(0.0, 1.0)
    with pytest.warns(RuntimeWarning, match=r"Ripple, Ripple"):
        assert fenchel_young(ripple, ripple) == 2
    register_fenchel_young(Ripple, Ripple)(lambda prediction, target: torch.full((), 3.0))
    assert fenchel_young(ripple, ripple) == 3


def test_registry_refuses_what_is_not_a_type_of_distribution():
    for pair in ((torch.Tensor, Normal), (Normal, int), (Normal(0.0, 1.0), Normal), (BetaGaussian, "Normal")):
        with pytest.raises(TypeError):
            register_fenchel_young(*pair)


P1, P2 = BetaGaussian(torch.zeros(3), 1.0), MultivariateBetaGaussian(torch.zeros(2), torch.eye(2))


@pytest.mark.parametrize(
    ("prediction", "target", "message"),
    [
        (P1, torch.zeros(4), "does not broadcast"),
        (P1, BetaGaussian(torch.zeros(4), 1.0), "does not broadcast"),
        (P2, torch.zeros(3), "2 coordinates"),
        (P2, torch.zeros(()), "2 coordinates"),
        (P2, P1, "same space"),
        (P2, Uniform(torch.zeros(2), torch.ones(2)), "Independent"),
        (P1, MultivariateNormal(torch.zeros(2), torch.eye(2)), "same space"),
        (P2, Empirical(torch.zeros(5, 3)), "same space"),
        (P1, torch.tensor([0.0, math.nan, 1.0]), "1 NaN or infinite of 3"),
        (P1, torch.tensor(math.inf), "finite"),
        (P1, VonMises(torch.tensor(0.0), torch.tensor(1.0)), "integrate to one"),
    ],
)
def test_refuses_shapes_and_values_that_do_not_fit(prediction, target, message):
    with pytest.raises(ValueError, match=message):
        fenchel_young(prediction, target)


@pytest.mark.parametrize(
    ("prediction", "target", "message"),
    [
        (Cauchy(0.0, 1.0), Normal(0.0, 1.0), "register_fenchel_young"),
        (Mixture(Categorical(torch.ones(3)), P1), torch.zeros(()), "score"),
        (Empirical(torch.zeros(3)), Normal(0.0, 1.0), "score"),
        (Independent(BetaGaussian(torch.zeros(2), 1.0), 1), torch.zeros(2), "scale_diag"),
        (P2, Independent(Gamma(torch.ones(2), 1.0), 1), "closed form"),
        (P2, Dirichlet(torch.ones(2)), "Empirical"),
        (P2, Mixture(Categorical(torch.ones(1)), P2.expand((1,))), "2 dimensions"),
        (P1, Poisson(1.0), "discrete"),
    ],
)
def test_says_what_to_do_where_there_is_no_loss(prediction, target, message):
    with pytest.raises(NotImplementedError, match=message):
        fenchel_young(prediction, target)


def test_refuses_other_types():
    for prediction, target in ((torch.zeros(3), P1), (P1, 0.5), (P1, [0.5]), (P1, torch.zeros(3, dtype=torch.long))):
        with pytest.raises(TypeError):
            fenchel_young(prediction, target)
    with pytest.raises(ValueError, match="reduction"):
        fenchel_young(P1, P1, reduction="avg")
