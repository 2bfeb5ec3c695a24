"""Modes of torch, which trace or watch operations: they see what is computed, though tensors hold numbers there."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import contmax
from contmax import losses
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian

BASIS = GaussianBasis.covering(8)
WEIGHT = torch.linspace(-1, 1, 45).reshape(5, 9)
IDS = torch.tensor([1, 0, 3])
CALLS = {
    "sparsemax": lambda x: contmax.sparsemax(x),
    "entmax": lambda x: contmax.entmax(x, 1.3),
    "entmax of a large α": lambda x: contmax.entmax(x, 2.5),
    "entmax_loss": lambda x: losses.entmax_loss(x, IDS),
    "linear_entmax_loss": lambda x: losses.linear_entmax_loss(x, WEIGHT, IDS),
    "linear_entmax_loss of a large α": lambda x: losses.linear_entmax_loss(x, WEIGHT, IDS, 3.0),
    "expectation": lambda x: contmax.expectation(BetaGaussian(x, x.exp(), 1.5), BASIS),
    "entmax_attention": lambda x: contmax.entmax_attention(x[None, None], x[None, None], x[None, None]),
}


def drawn(seed):
    return torch.randn(3, 9, generator=torch.Generator().manual_seed(seed))


class Watching(TorchDispatchMode):
    """Writes down operations."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.graph
@pytest.mark.parametrize("name", CALLS)
def test_a_trace_of_real_tensors_computes_the_same_of_others(name):
    function = CALLS[name]
    traced = make_fx(function)(drawn(0))
    torch.testing.assert_close(traced(drawn(1)), function(drawn(1)))


@pytest.mark.graph
@pytest.mark.parametrize("device", ["numba", "triton"])
def test_who_watches_sees_our_operators(device, request):
    if device == "triton":
        request.getfixturevalue("triton_takes_cpu_tensors")
    with Watching() as watching:
        p = contmax.entmax(drawn(0), 1.5)
    assert any("contmax" in name for name in watching.seen)
    torch.testing.assert_close(p, contmax.entmax(drawn(0), 1.5))
