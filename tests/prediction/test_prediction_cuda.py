"""Predictions of arbitrary scores on a GPU: the numbers of the CPU, and nothing waits but draws from a box."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis
from contmax.domains import Box, Interval, Knots, Nodes
from cuda_checks import DEVICE, F32, F64, ON_GPU, assert_accurate, no_waiting

pytestmark = pytest.mark.gpu

POINTS = [-2.0, -1.0, 0.3, 0.8, 2.0]


def on(like, numbers):
    """Numbers as a tensor, once for each device: copying them there waits."""
    key = (like.device.type, like.dtype, tuple(numbers))
    if key not in _copied:
        _copied[key] = torch.tensor(numbers, device=like.device, dtype=like.dtype)
    return _copied[key]


_copied: dict = {}
DOMAINS = {
    "interval": lambda like: Interval(on(like, [-2.0])[0], on(like, [2.0])[0]),
    "knots": lambda like: Knots(on(like, POINTS)),
    "nodes": lambda like: Nodes(on(like, POINTS), on(like, [1.0, 0.5, 2.0, 0.3, 1.0])),
}


def wave(height, shift):
    return lambda t: height[:, None] * (3 * t + shift[:, None]).sin() - 0.3 * t.square()


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("domain", list(DOMAINS))
@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
def test_predictions(domain, alpha, dtype):
    def asked(height, shift):
        p = contmax.regularized_prediction(wave(height, shift), DOMAINS[domain](height), alpha)
        results = [p.density(DOMAINS[domain](height).nodes[1:2]), p.mean, p.variance, p.conjugate(), p.entropy()]
        return results if domain == "nodes" else [*results, p.cdf(on(height, [0.25])), p.icdf(on(height, [0.25]))]

    parameters = [torch.tensor([2.0, 0.5, 1.0]), torch.tensor([0.1, 0.9, -0.7])]
    assert_accurate(asked, parameters, dtype, tolerance=1e-8 if dtype == F64 else 1e-4)


def test_a_learned_alpha():
    def asked(height, shift, alpha):
        p = contmax.regularized_prediction(wave(height, shift), DOMAINS["interval"](height), alpha)
        return p.mean, p.variance

    parameters = [torch.tensor([2.0, 0.5, 1.0]), torch.tensor([0.1, 0.9, -0.7]), torch.tensor([1.2, 1.5, 2.0])]
    assert_accurate(asked, parameters, F64, tolerance=1e-8)


@pytest.mark.parametrize("domain", list(DOMAINS))
def test_expectations(domain):
    bases = {kind: GaussianBasis.linspace(8, 0.3, low=-2.0, high=2.0).to(kind, F64) for kind in {"cpu", DEVICE}}

    def asked(height, shift):
        p = contmax.regularized_prediction(wave(height, shift), DOMAINS[domain](height), 2.0)
        return contmax.expectation(p, bases[height.device.type])

    assert_accurate(asked, [torch.tensor([2.0, 0.5]), torch.tensor([0.1, 0.9])], F64, tolerance=1e-8)


def in_box(device):
    box = Box(torch.full((2,), -1.0, dtype=F64, device=device), torch.ones(2, dtype=F64, device=device), resolution=4)
    height = torch.tensor([2.0, 0.7], dtype=F64, device=device, requires_grad=True)
    p = contmax.regularized_prediction(lambda t: -height[:, None] * (t - 0.2).square().sum(-1), box, 2.0)
    return [p.mean, p.covariance_matrix, *torch.autograd.grad(p.covariance_matrix.sum(), height)], p


def test_a_box_has_the_same_numbers():
    for got, expected in zip(in_box(DEVICE)[0], in_box("cpu")[0], strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.skipif(not ON_GPU, reason="on a CPU nobody waits")
def test_draws_from_a_box_wait():
    """How often a proposal is refused is not known beforehand, so a draw looks at the device."""
    p = in_box(DEVICE)[1]
    p.sample((10,))
    with no_waiting(), pytest.raises(RuntimeError, match="synchroniz"):
        p.sample((10,))
