"""A default device is for new tensors: what is computed of others stays where they are."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.domains import Box, Interval
from contmax.nn import CombinedAttention, ContinuousAttention, DiscreteAttention, MultiheadContinuousAttention

BASIS = GaussianBasis.linspace(6, scale=0.2)
INDEX = torch.tensor(1.6)
UNIT = Interval(torch.tensor(0.0), torch.tensor(1.0))
SQUARE = Box(torch.zeros(2), torch.ones(2))
KEYS, VALUES = torch.randn(2, 1, 1, 300, 16)
SEEN = torch.arange(300) > 7
CONTINUOUS = ContinuousAttention(BASIS, embed_dim=4, alpha=1.6, learnable=True).eval()
COMBINED = CombinedAttention(DiscreteAttention(4), BASIS, alpha=1.6, learnable=True).eval()
HEADS = MultiheadContinuousAttention(4, 2, BASIS, alpha=1.6, learnable=True)
CALLS = {
    "entmax": lambda x: contmax.entmax(x, INDEX, mask=x < 1),
    "expectation": lambda x: contmax.expectation(BetaGaussian(x, x.exp(), INDEX), BASIS),
    "entropy": lambda x: MultivariateBetaGaussian(x, torch.diag_embed(x.exp()), INDEX).entropy(),
    "attention by lists": lambda x: contmax.entmax_attention(4 * x.view(1, 1, 2, 16), KEYS, VALUES, mask=SEEN),
    "continuous attention": lambda x: CONTINUOUS(x.view(1, 8, 4))[0],
    "combined attention": lambda x: COMBINED(x.view(1, 8, 4))[0],
    "heads": lambda x: HEADS(x.view(1, 8, 4), x.view(1, 8, 4))[0],
    "prediction": lambda x: contmax.regularized_prediction(lambda t: (90 * t).sin() * x[0, 0], UNIT, 1.5).mean,
    "prediction on a box": lambda x: (
        contmax.regularized_prediction(lambda t: (9 * t).sin().sum(-1) * x[0, 0], SQUARE, 1.5).mean
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_stay(name):
    x = torch.randn(2, 16, requires_grad=True)
    expected = CALLS[name](x)
    with torch.device("meta"):
        value = CALLS[name](x)
        (gradient,) = torch.autograd.grad(value, x, torch.ones_like(value))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, x, torch.ones_like(expected))[0])
