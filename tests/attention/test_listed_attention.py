"""Attention on a CPU by lists: against plain steps in float64, outputs and all gradients; blocks, groups, flat rows."""

import pytest
import torch

import contmax
from contmax import entmax_attention
from contmax._backend import Backend
from contmax.attention import _compiled, _listed, _reference
from contmax.kernels.attention import _cpu_listed

F64 = torch.float64
FEW_KEYS = _compiled._FEW_KEYS_ON_CPU


@pytest.fixture(autouse=True)
def _few_keys_too(monkeypatch):
    """Few keys are listed too, in small blocks of queries."""
    monkeypatch.setattr(_compiled, "_FEW_KEYS_ON_CPU", 0)
    monkeypatch.setattr(_reference, "_WEIGHTS", 700)


@pytest.fixture
def blocks(monkeypatch):
    """Whether each block was listed."""
    seen = []
    list_weights = _cpu_listed.listed_weights

    def noted(p, longest):
        lists = list_weights(p, longest)
        seen.append(lists is not None)
        return lists

    monkeypatch.setattr(_cpu_listed, "listed_weights", noted)
    return seen


def by_reference(monkeypatch, call):
    """The same call in plain steps."""
    with monkeypatch.context() as patch:
        patch.setattr("contmax.attention._entmax_attention.backend_of_attention", lambda *given: Backend.TORCH)
        patch.setattr(_reference, "_WEIGHTS", 10**9)
        return call()


@pytest.mark.parametrize("sharp", [3.0, 0.05], ids=["sparse", "flat"])
@pytest.mark.parametrize("alpha", [1.25, 1.5, 1.7, 2.0, "per head", "one"])
def test_lists_are_the_reference(monkeypatch, blocks, alpha, sharp):
    query = (sharp * torch.randn(2, 4, 11, 6, dtype=F64)).requires_grad_()
    key, value = (torch.randn(2, 2, 30, n, dtype=F64, requires_grad=True) for n in (6, 5))
    inputs = [query, key, value]
    if not isinstance(alpha, float):
        alpha = torch.tensor([1.2, 1.5, 1.7, 2.0] if alpha == "per head" else 1.4, dtype=F64, requires_grad=True)
        inputs.append(alpha)
    mask, lengths = torch.rand(2, 1, 11, 30) > 0.2, torch.tensor([30, 22])
    options = {"mask": mask, "lengths": lengths, "is_causal": True, "enable_gqa": True, "bias": torch.randn(4, 1, 30)}

    def results():
        output = entmax_attention(query, key, value, alpha=alpha, **options)
        return [output, *torch.autograd.grad(output.sin().sum(), inputs)]

    ours, exact = results(), by_reference(monkeypatch, results)
    assert len(blocks) > 2
    assert any(blocks) or sharp < 1
    for a, b in zip(ours, exact, strict=True):
        assert torch.allclose(a, b, atol=1e-12), (a - b).abs().max()


def test_flat_and_sparse_blocks_together(monkeypatch, blocks):
    query, key, value = (torch.randn(1, 1, n, 8, requires_grad=True) for n in (40, 200, 200))
    query = (query * torch.logspace(1, -4, 40).view(-1, 1)).detach().requires_grad_()
    call = lambda: torch.autograd.grad(  # noqa: E731
        entmax_attention(query, key, value).square().sum(), (query, key, value)
    )
    ours = call()
    assert any(blocks)
    assert not all(blocks)
    for a, b in zip(ours, by_reference(monkeypatch, call), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_rows_of_nan_stay_apart():
    query, key, value = (torch.randn(1, 2, 9, 8) for _ in range(3))
    query[0, 1, 4] = torch.nan
    output = entmax_attention(query, key, value)
    assert output[0, 1, 4].isnan().all()
    assert output[0, 0].isfinite().all()
    assert output[0, 1, :4].isfinite().all()


def test_two_threads_do_the_same():
    torch.manual_seed(0)
    inputs = [torch.randn(2, 4, 100, 16, requires_grad=True) for _ in range(3)]
    call = lambda: torch.autograd.grad(entmax_attention(*inputs).square().sum(), inputs)  # noqa: E731
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = call()
        torch.set_num_threads(2)
        both = call()
    finally:
        torch.set_num_threads(before)
    for a, b in zip(alone, both, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_memory_of_weights_is_that_of_a_block(monkeypatch):
    monkeypatch.setattr(_reference, "_WEIGHTS", 64 * 300)
    largest = 0
    reference = _listed._block_means

    def watched(block):
        nonlocal largest
        largest = max(largest, block.query.shape[-2] * block.key.shape[-2])
        return reference(block)

    monkeypatch.setattr(_listed, "_block_means", watched)
    entmax_attention(*(torch.randn(1, 1, 300, 8) for _ in range(3)))
    assert largest <= 64 * 300


def test_few_keys_have_no_lists(monkeypatch, blocks):
    monkeypatch.setattr(_compiled, "_FEW_KEYS_ON_CPU", FEW_KEYS)
    query, key, value = (torch.randn(1, 2, FEW_KEYS + 1, 8, dtype=F64, requires_grad=True) for _ in range(3))
    entmax_attention(query, key, value)
    assert len(blocks) > 0
    blocks.clear()
    key, value = key[..., 1:, :], value[..., 1:, :]
    output = entmax_attention(query, key, value)
    assert not blocks
    assert (output - contmax.entmax(query @ key.mT / 8**0.5, 1.5) @ value).abs().max() < 1e-12
