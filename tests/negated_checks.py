"""What tests of tensors share that torch negates only when it reads them."""

import torch


def put_off(x):
    """The same numbers, as a negation that is still to come."""
    y = torch._neg_view((-x).clone())
    assert y.is_neg()
    assert torch.equal(y, x)
    return y


def assert_same(function, *inputs):
    """Values and gradients of numbers as they are, and of the same as negations, of cotangents too."""
    found = []
    for given in (torch.clone, put_off):
        leaves = [x.detach().requires_grad_() for x in inputs]
        # Not leaves, which are negated when they are made.
        value = function(*(x + 0 if given is torch.clone else torch._neg_view(-x) for x in leaves))
        cotangent = torch.linspace(-1, 2, value.numel()).view(value.shape).to(value.dtype)
        found.append((value, *torch.autograd.grad(value, leaves, given(cotangent))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
