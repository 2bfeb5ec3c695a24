"""What tests of attention by triton's kernels share: inputs, and the comparison with the reference in float64."""

import math

import pytest
import torch

from contmax import entmax_attention, sparsemax
from contmax.attention import _compiled
from contmax.kernels.attention import _sizes as _attention_tuning

F64, F32, F16 = torch.float64, torch.float32, torch.float16


@pytest.fixture
def _few_queries_too(monkeypatch):
    """Few queries go to the kernels too."""
    monkeypatch.setattr(_compiled, "_FEWEST_QUERIES", 1)


@pytest.fixture
def _as_if_long(monkeypatch):
    """Few queries go to the kernels too, and few keys are listed, as many are."""
    monkeypatch.setattr(_compiled, "_FEWEST_QUERIES", 1)
    monkeypatch.setattr(_attention_tuning, "_FEW_KEYS", 0)


def drawn(queries=5, keys=19, heads=1, groups=None, channels=16, values=16, dtype=F32, sharp=2.0):
    groups = heads if groups is None else groups
    query = sharp * torch.randn(1, heads, queries, channels)
    key, value = torch.randn(1, groups, keys, channels), torch.randn(1, groups, keys, values)
    return [x.to(dtype) for x in (query, key, value)]


def apart(given):
    """The same numbers with all heads of a place side by side, and others between: rows are not next to each other."""
    return [torch.cat([x, x], -1).transpose(1, 2).contiguous().transpose(1, 2)[..., : x.shape[-1]] for x in given]


def compared(given, alpha=1.5, device="cpu", **options):
    """Output and gradients by the kernels, on a device, and by the reference, in float64."""
    results = []
    for place, dtype in ((device, given[0].dtype), ("cpu", F64)):
        inputs = [x.detach().to(place, dtype).requires_grad_() for x in given]
        index = alpha
        if isinstance(alpha, torch.Tensor):
            index = alpha.detach().to(place, torch.promote_types(dtype, F32)).requires_grad_()
            inputs.append(index)
        moved = {k: v.to(dtype) if k == "bias" else v for k, v in options.items()}
        output = entmax_attention(*inputs[:3], alpha=index, **moved)
        generator = torch.Generator().manual_seed(1)
        g = torch.randn(output.shape, generator=generator, dtype=F32).to(given[0].dtype).to(place, dtype)
        results.append([x.double().cpu() for x in (output, *torch.autograd.grad(output, inputs, g))])
    return list(zip(*results, strict=True))


def assert_same(given, alpha=1.5, **options):
    tolerance = 5e-6 if given[0].dtype == F32 else 3e-3
    for i, (ours, exact) in enumerate(compared(given, alpha, **options)):
        tolerance = tolerance if i < 4 else 1e-4  # what rows give to α cancels
        largest = exact.abs().max().clamp(min=0.1)
        assert ((ours - exact).abs().max() / largest) < tolerance


def check_whole_blocks_whose_scores_share_a_large_number(alpha, device="cpu"):
    """A block of 64 queries attends every key; its scores are so large that they are shifted first."""
    query, key, value = drawn(queries=64, keys=130, dtype=F16, sharp=0.5)
    root = math.ceil(math.sqrt(1100 / (alpha - 1)))  # scores of 1,024/(α − 1) are large
    query[..., 0], key[..., 0] = root, root
    output, *gradients = compared([query, key, value], alpha, device, scale=1.0)
    assert (output[0] - output[1]).abs().max() < 5e-3  # without the shift the output is off by 2
    for ours, exact in gradients:
        # Slopes of the scores add up to 0, and in the first channel their rounding is multiplied by a large number.
        assert (ours - exact)[..., 1:].abs().max() < 1e-2 * exact[..., 1:].abs().max()


def check_ties_of_all_keys(queries, keys, dtype, device="cpu"):
    """Without one of these keys the output would be off by 0.02."""
    query, key, value = drawn(queries, keys, dtype=dtype)
    for ours, exact in compared([query, key[:, :, :1].expand(1, 1, keys, 16), value], device=device):
        assert (ours - exact).abs().max() < (2e-5 if dtype == F32 else 5e-3)


def check_ties_at_the_threshold(keys, dtype, device="cpu"):
    """Numbers of few digits make scores that equal the threshold, where the gradient of sparsemax jumps: there a score
    that rounding leaves above the threshold changes the gradients by some per cent.
    """
    torch.manual_seed(0)
    query, key, value = drawn(64, keys, channels=8, dtype=dtype, sharp=1.0)
    given = [(2 * query).round() / 2, (2 * key).round() / 2, value]
    scores = torch.einsum("...id,...jd->...ij", given[0].double(), given[1].double()) / 8
    p = sparsemax(scores)
    thresholds = ((scores * (p > 0)).sum(-1, keepdim=True) - 1) / (p > 0).sum(-1, keepdim=True)
    assert ((scores - thresholds).abs() < 1e-12).any(-1).sum() > 3
    for ours, exact in compared(given, 2.0, device, scale=1 / 8):
        assert (ours - exact).norm() < (1e-6 if dtype == F32 else 2e-3) * exact.norm()


def check_slopes_that_half_precision_cannot_hold(small, device="cpu"):
    """The gradient of the queries fits where the keys are small, that of the keys where the queries are."""
    query, key, value = drawn(queries=32, keys=40, dtype=F16)
    sizes, place = ((10, 0.1), 1) if small == "keys" else ((0.1, 10), 2)
    results = compared([sizes[0] * query, sizes[1] * key, 2e4 * value.clamp(-3, 3)], device=device)
    assert all(ours.isfinite().all() for ours, _ in results)
    ours, exact = results[place]
    assert (ours - exact).norm() / exact.norm() < 0.2  # the largest are cut off


def with_keys_behind_the_last(queries, keys, dtype, device="cpu"):
    """Query, key and value whose memory goes on behind the last key with numbers that would have all the mass."""
    query, key, value = (x.to(device) for x in drawn(queries, 2 * keys, dtype=dtype))
    key[:, :, keys:], value[:, :, keys:] = 20 * query[:, :, :1], 1000.0
    return [query, key[:, :, :keys], value[:, :, :keys]]


def check_lengths_above_the_number_of_keys(queries, keys, dtype, device="cpu"):
    """A sequence that claims to be longer than its keys has all of these, and no more."""
    given, results = with_keys_behind_the_last(queries, keys, dtype, device), []
    for options in ({}, {"lengths": torch.tensor([keys + 9], device=device)}):
        inputs = [x.detach().requires_grad_() for x in given]
        output = entmax_attention(*inputs, **options)
        results.append([output, *torch.autograd.grad(output, inputs, torch.ones_like(output))])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
