"""What tests of attention by triton's kernels share: inputs, and the comparison with the reference in float64."""

import pytest
import torch

from contmax import entmax_attention
from contmax.attention import _fused
from contmax.kernels.triton import _attention_tuning

F64, F32, F16 = torch.float64, torch.float32, torch.float16


@pytest.fixture
def _few_queries_too(monkeypatch):
    """Few queries go to the kernels too."""
    monkeypatch.setattr(_fused, "_FEWEST_QUERIES", 1)


@pytest.fixture
def _as_if_long(monkeypatch):
    """Few queries go to the kernels too, and few keys are listed, as many are."""
    monkeypatch.setattr(_fused, "_FEWEST_QUERIES", 1)
    monkeypatch.setattr(_attention_tuning, "_FEW_KEYS", 0)


def drawn(queries=5, keys=19, heads=1, groups=None, channels=16, values=16, dtype=F32, sharp=2.0):
    groups = heads if groups is None else groups
    query = sharp * torch.randn(1, heads, queries, channels)
    key, value = torch.randn(1, groups, keys, channels), torch.randn(1, groups, keys, values)
    return [x.to(dtype) for x in (query, key, value)]


def apart(given):
    """The same numbers with all heads of a place side by side, and others between: rows are not next to each other."""
    return [torch.cat([x, x], -1).transpose(1, 2).contiguous().transpose(1, 2)[..., : x.shape[-1]] for x in given]


def compared(given, alpha=1.5, **options):
    """Output and gradients by the kernels and by the reference, in float64."""
    results = []
    for dtype in (given[0].dtype, F64):
        inputs = [x.detach().to(dtype).requires_grad_() for x in given]
        index = alpha
        if isinstance(alpha, torch.Tensor):
            index = alpha.detach().to(torch.promote_types(dtype, F32)).requires_grad_()
            inputs.append(index)
        moved = {k: v.to(dtype) if k == "bias" else v for k, v in options.items()}
        output = entmax_attention(*inputs[:3], alpha=index, **moved)
        generator = torch.Generator().manual_seed(1)
        g = torch.randn(output.shape, generator=generator, dtype=F32).to(given[0].dtype).to(dtype)
        results.append([x.double() for x in (output, *torch.autograd.grad(output, inputs, g))])
    return list(zip(*results, strict=True))


def assert_same(given, alpha=1.5, **options):
    tolerance = 5e-6 if given[0].dtype == F32 else 3e-3
    for i, (ours, exact) in enumerate(compared(given, alpha, **options)):
        tolerance = tolerance if i < 4 else 1e-4  # what rows give to α cancels
        largest = exact.abs().max().clamp(min=0.1)
        assert ((ours - exact).abs().max() / largest) < tolerance
