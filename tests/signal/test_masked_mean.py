"""Means over what a mask leaves, by Triton's kernels in its interpreter, against torch in float64."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis
from contmax.signal._signal import masked_product

F64 = torch.float64


def case(batch, length, channels, dtype=torch.float32):
    weights, values = torch.randn(batch, 1, length), torch.randn(batch, length, channels).to(dtype)
    mask = torch.rand(batch, length) > 0.4
    mask[0] = False
    return weights, values, mask


def found(weights, values, mask):
    weights, values = (x.clone().requires_grad_() for x in (weights, values))
    result = masked_product(weights, values, mask)
    cotangent = torch.linspace(-1, 2, result.numel(), dtype=result.dtype).reshape(result.shape)
    return result.detach(), *torch.autograd.grad(result, (weights, values), cotangent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 7, 5), (3, 33, 3), (1, 1, 1), (2, 40, 130)], ids=str)
def test_kernel_against_torch(shape, dtype, request):
    weights, values, mask = case(*shape, dtype)
    expected = found(weights.double(), values.double(), mask)
    request.getfixturevalue("triton_takes_cpu_tensors")
    # What is masked may be anything, and only zeros come back to it.
    spoiled = torch.where(mask.unsqueeze(-1), values, torch.nan)
    wrong = torch.where(mask.unsqueeze(1), weights, torch.nan)
    for ours, true in zip(found(wrong, spoiled, mask), expected, strict=True):
        tolerance = 1e-5 if ours.dtype == torch.float32 else 1e-2
        torch.testing.assert_close(ours.double(), true, rtol=tolerance, atol=tolerance)
    assert not found(wrong, spoiled, mask)[2][~mask].any()


def test_infinite_cotangents_do_not_reach_what_is_masked(triton_takes_cpu_tensors):
    weights, values, mask = case(2, 7, 5)
    values.requires_grad_()
    (gradient,) = torch.autograd.grad(masked_product(weights, values, mask), values, torch.full((2, 1, 5), torch.inf))
    assert not gradient[~mask].any()


def test_second_derivatives_and_tangents(request):
    weights, values, mask = case(2, 6, 3)

    def both(dtype):
        w, h = (x.to(dtype).requires_grad_() for x in (weights, values))
        by_w, by_h = torch.autograd.grad(masked_product(w, h, mask).square().sum(), (w, h), create_graph=True)
        curvature = torch.autograd.grad(by_w.square().sum() + by_h.square().sum(), (w, h))
        with torch.autograd.forward_ad.dual_level():
            make = torch.autograd.forward_ad.make_dual
            dual = masked_product(make(w.detach(), torch.ones_like(w)), make(h.detach(), torch.ones_like(h)), mask)
            return *curvature, torch.autograd.forward_ad.unpack_dual(dual).tangent

    expected = both(F64)
    request.getfixturevalue("triton_takes_cpu_tensors")
    for ours, true in zip(both(torch.float32), expected, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-4)


def test_attention_to_ragged_sequences(request):
    basis, loc = GaussianBasis.linspace(6, 0.2), torch.rand(3, requires_grad=True)
    values = torch.randn(3, 11, 40, requires_grad=True)
    mask = torch.arange(11) < torch.tensor([[11], [5], [0]])

    def step():
        density = contmax.densities.TruncatedParabola(loc, 0.1)
        context = contmax.continuous_attention(values, density, basis, mask=mask)
        return context, *torch.autograd.grad(context.square().sum(), (values, loc))

    expected = step()
    request.getfixturevalue("triton_takes_cpu_tensors")
    for ours, true in zip(step(), expected, strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-4, atol=1e-4)
