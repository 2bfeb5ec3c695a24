"""Gates to moments in one launch: Triton's kernels, in its interpreter, against torch in float64."""

import pytest
import torch

from contmax import nn
from contmax.basis import GaussianBasis
from contmax.nn import _gates

SHUT = -2.0


def case(shape, masked, sharpness=1.0):
    logits = sharpness * torch.randn(shape, dtype=torch.float64)
    mask = None
    if masked:
        mask = torch.rand(shape[0], shape[-1]) > 0.4
        mask[0] = False  # nothing to attend
        mask[-1, 1:] = False
    return logits, mask


def found(logits, mask, cotangents):
    leaf = logits.clone().requires_grad_()
    results = _gates.default_gate_moments(leaf, mask, SHUT, 0.01)
    asked = [(r * c.to(r.dtype)).sum() for r, c in zip(results, cotangents, strict=True) if c is not None]
    return *(r.detach() for r in results), *torch.autograd.grad(sum(asked), leaf)


@pytest.mark.parametrize("shape", [(3, 7), (2, 3, 5), (4, 1), (1, 33)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_kernel_against_reference(shape, masked, request):
    logits, mask = case(shape, masked)
    cotangents = torch.randn(shape), torch.randn(shape[:-1]), torch.randn(shape[:-1])
    expected = found(logits, mask, cotangents)
    without = found(logits, mask, (None, *cotangents[1:]))
    request.getfixturevalue("triton_takes_cpu_tensors")
    for asked, true in ((cotangents, expected), ((None, *cotangents[1:]), without)):
        ours = found(logits.float(), mask, asked)
        for one, other in zip(ours, true, strict=True):
            torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1e-3, 50.0, 1e4])
def test_kernel_over_the_whole_range(size, request):
    logits, mask = case((4, 19), True, size)
    cotangents = torch.randn(4, 19), torch.randn(4), torch.randn(4)
    expected = found(logits, mask, cotangents)
    request.getfixturevalue("triton_takes_cpu_tensors")
    for ours, true in zip(found(logits.float(), mask, cotangents), expected, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, true.float(), rtol=1e-4, atol=1e-5)


def test_second_derivatives_and_tangents(request):
    logits, mask = case((3, 6), True)

    def curvature(dtype):
        leaf = logits.to(dtype).requires_grad_()
        _, mean, variance = _gates.default_gate_moments(leaf, mask, SHUT, 0.0)
        slope = torch.autograd.grad((mean + variance).sum(), leaf, create_graph=True)[0]
        return torch.autograd.grad(slope.square().sum(), leaf)[0]

    def along(dtype):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(logits.to(dtype), torch.ones_like(logits, dtype=dtype))
            results = _gates.default_gate_moments(dual, mask, SHUT, 0.0)
            return [torch.autograd.forward_ad.unpack_dual(r).tangent for r in results]

    expected = [curvature(torch.float64), *along(torch.float64)]
    request.getfixturevalue("triton_takes_cpu_tensors")
    for ours, true in zip([curvature(torch.float32), *along(torch.float32)], expected, strict=True):
        torch.testing.assert_close(ours, true.float(), rtol=1e-4, atol=1e-5)


def test_a_head_by_the_kernel(request):
    head = nn.GateHead(4, query_dim=3)
    attend = nn.ContinuousAttention(GaussianBasis.linspace(6, 0.2), head=head)
    values, query = torch.randn(2, 9, 4, requires_grad=True), torch.randn(2, 5, 3)
    mask = torch.arange(9) < torch.tensor([[9], [4]])

    def step():
        torch.manual_seed(3)
        context, density = attend(values, query=query, mask=mask)
        return context, density.half_width, *torch.autograd.grad(context.square().sum(), tuple(head.parameters()))

    expected = step()
    request.getfixturevalue("triton_takes_cpu_tensors")
    for ours, true in zip(step(), expected, strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cotangent", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("by", ["torch", "triton"])
def test_a_cotangent_of_what_may_not_be_attended_does_not_matter(cotangent, asked, by, request):
    if by == "triton":
        request.getfixturevalue("triton_takes_cpu_tensors")
    head = nn.GateHead(4, query_dim=3 if asked else None).eval()
    values, query = torch.randn(2, 9, 4, requires_grad=True), torch.randn(2, 5, 3) if asked else None
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    weights = head.attend(values, alpha=2.0, query=query, mask=mask).weights
    may = mask.unsqueeze(1).expand_as(weights) if asked else mask
    live = (values, *head.parameters())
    plain = torch.linspace(-1, 2, weights.numel()).reshape(weights.shape)
    found = [
        torch.autograd.grad(weights, live, torch.where(may, plain, g), retain_graph=True) for g in (0.0, cotangent)
    ]
    torch.testing.assert_close(found[1], found[0])
    assert not found[1][0][~mask].any()
