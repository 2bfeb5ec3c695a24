"""Tangents of gradients: in a dual level a backward pass is differentiated by forward mode, without create_graph."""

import pytest
import torch
from torch.autograd import forward_ad

import contmax
from attention_checks import _as_if_long  # noqa: F401 a fixture
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.losses import entmax_loss

BASIS, PLANE = GaussianBasis.linspace(5, scale=0.2), MultivariateGaussianBasis.grid(2, scale=0.3)
ATTEND = contmax.nn.ContinuousAttention(BASIS)
VALUES = torch.linspace(-1, 2, 126).view(3, 6, 7)
MASK = torch.tensor([True, True, False, True, True, True])
TARGET = torch.tensor([1, 0, 2])
KEYS = torch.linspace(-1, 1, 1120).view(1, 1, 70, 16).sin()

CASES = {
    "map": (lambda x: contmax.entmax(x, 1.5), torch.randn(3, 9)),
    "map, an alpha for each row": (lambda x: contmax.entmax(x, torch.tensor([[1.2], [1.5], [2.0]])), torch.randn(3, 9)),
    "class loss": (lambda x: entmax_loss(x, TARGET, reduction="none"), torch.randn(3, 9)),
    "soft loss": (lambda x: entmax_loss(x, x.detach().softmax(1), reduction="none"), torch.randn(3, 9)),
    "line": (lambda x: contmax.expectation(BetaGaussian(x, 0.3, 2.0, validate_args=False), BASIS), torch.rand(3)),
    "line, any alpha": (
        lambda x: contmax.expectation(BetaGaussian(x, 0.3, 1.3, validate_args=False), BASIS),
        torch.rand(3),
    ),
    "line, learned alpha": (
        lambda x: contmax.expectation(BetaGaussian(x, 0.3, torch.tensor(1.6), validate_args=False), BASIS),
        torch.rand(3),
    ),
    "plane": (
        lambda x: contmax.expectation(MultivariateBetaGaussian(x, 0.1 * torch.eye(2), 2.0, validate_args=False), PLANE),
        torch.rand(3, 2),
    ),
    "context": (lambda x: ATTEND(VALUES, (x, 0.1 + 0 * x), need_density=False)[0], torch.rand(3)),
    "masked context": (lambda x: ATTEND(VALUES, (x, 0.1 + 0 * x), mask=MASK, need_density=False)[0], torch.rand(3)),
    "gates": (lambda x: contmax.nn.GateHead(7).eval()(x, alpha=2.0).loc, VALUES),
    "attention": (lambda x: contmax.entmax_attention(x, KEYS, KEYS.cos()), torch.randn(1, 1, 5, 16)),
}


@pytest.fixture(params=["CPU", "GPU"])
def _compiler(request):
    """Kernels of numba, or of Triton in its interpreter."""
    if request.param == "GPU":
        request.getfixturevalue("triton_takes_cpu_tensors")
        request.getfixturevalue("_as_if_long")


@pytest.mark.usefixtures("_compiler")
@pytest.mark.parametrize("case", CASES)
def test_gradients_along_a_dual_cotangent(case):
    function, x = CASES[case]
    x = x.detach().requires_grad_()
    y = function(x)
    g, move = torch.randn(2, *y.shape, dtype=y.dtype)
    (along,) = torch.autograd.grad(y, x, move, retain_graph=True)
    with forward_ad.dual_level():
        (gradient,) = torch.autograd.grad(y, x, forward_ad.make_dual(g, move))
        tangent = forward_ad.unpack_dual(gradient).tangent
    assert tangent is not None
    torch.testing.assert_close(tangent, along, rtol=1e-4, atol=1e-5)
