"""Gradients of any order, blocks of queries, and torch's transforms and graphs."""

import pytest
import torch

from contmax import entmax_attention
from contmax.attention import _reference

F64 = torch.float64


def triple(queries=5, keys=6, dtype=F64):
    return [torch.randn(2, 2, n, 4, dtype=dtype) for n in (queries, keys, keys)]


def of_all(query, key, value, alpha, bias):
    mask = torch.ones(5, 6, dtype=torch.bool).tril(2)
    return entmax_attention(query, key, value, alpha=alpha, mask=mask, bias=bias, lengths=torch.tensor([6, 4]))


def given(requires_grad=True):
    inputs = [*triple(), torch.tensor([1.4, 1.8], dtype=F64), torch.randn(2, 1, 6, dtype=F64)]
    return [x.requires_grad_(requires_grad) for x in inputs]


@pytest.fixture(params=["at once", "in blocks"])
def _blocks(request, monkeypatch):
    if request.param == "in blocks":
        monkeypatch.setattr(_reference, "_WEIGHTS", 48)


@pytest.mark.usefixtures("_blocks")
def test_gradients_are_right_to_second_order():
    inputs = given()
    assert torch.autograd.gradcheck(of_all, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(of_all, inputs, fast_mode=True)


@pytest.mark.usefixtures("_blocks")
def test_forward_mode():
    assert torch.autograd.gradcheck(of_all, given(), check_forward_ad=True, check_backward_ad=False, fast_mode=True)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"mask": torch.ones(5, 6).tril(-1).bool()}], ids=str)
@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.5, 2.0, 3.0, torch.tensor([1.0, 2.0], dtype=F64)], ids=str)
def test_derivatives_of_every_kind_for_every_alpha(alpha, options):
    def attend(*inputs):
        return entmax_attention(*inputs, alpha=alpha, **options)

    inputs = [x.requires_grad_() for x in triple()]
    kinds = {"check_forward_ad": True, "check_batched_grad": True, "fast_mode": True}
    assert torch.autograd.gradcheck(attend, inputs, **kinds)
    assert torch.autograd.gradgradcheck(attend, inputs, check_batched_grad=True, fast_mode=True)
    query, *others = (x.detach() for x in triple())
    one, other = torch.func.jacrev, torch.func.jacfwd
    sums = lambda query: attend(query, *others).square().sum((0, 1, 3))  # noqa: E731
    torch.testing.assert_close(other(one(sums))(query), one(one(sums))(query))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
def test_blocks_change_nothing(monkeypatch, causal, dtype):
    query, key, value = (x.requires_grad_() for x in triple(queries=11, keys=9, dtype=dtype))
    bias, mask = torch.randn(2, 11, 9, requires_grad=True), torch.rand(2, 1, 1, 9) > 0.2
    results = []
    for size in (10**6, 40):
        monkeypatch.setattr(_reference, "_WEIGHTS", size)
        output = entmax_attention(query, key, value, bias=bias, mask=mask, is_causal=causal)
        results.append([output, *torch.autograd.grad(output.square().sum(), (query, key, value, bias))])
    for whole, parts in zip(*results, strict=True):
        assert torch.allclose(whole, parts, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


def test_gradients_of_many_blocks_are_rounded_once(monkeypatch):
    """Each of 400 blocks adds 1/2 to the gradients of two values: a sum in bfloat16 would end at 128."""
    monkeypatch.setattr(_reference, "_WEIGHTS", 2)
    query, key = (torch.zeros(1, 1, n, 2, dtype=torch.bfloat16) for n in (400, 2))
    value = torch.randn(1, 1, 2, 2, dtype=torch.bfloat16, requires_grad=True)
    output = entmax_attention(query, key, value, bias=torch.zeros(2, requires_grad=True))
    (gradient,) = torch.autograd.grad(output, value, torch.ones_like(output))
    assert (gradient == 200).all()


def test_blocks_drop_the_same_weights_again(monkeypatch):
    monkeypatch.setattr(_reference, "_WEIGHTS", 8)
    query, key, value = (x.requires_grad_() for x in triple())
    output = entmax_attention(query, key, value, dropout_p=0.5)
    # The output is linear in the values, with the weights that were kept.
    (grad,) = torch.autograd.grad(output.sum(), value)
    assert torch.allclose((grad * value).sum(), output.sum())


def test_functional_transforms():
    query, key, value = triple()
    batch = torch.stack([query, 2 * query])

    def function(q):
        return entmax_attention(q, key, value, is_causal=True)

    assert torch.allclose(torch.func.vmap(function)(batch), torch.stack([function(q) for q in batch]), atol=1e-14)
    reverse, forward = (transform(function)(query) for transform in (torch.func.jacrev, torch.func.jacfwd))
    assert torch.allclose(reverse, forward, atol=1e-12)
    per_sample = torch.func.vmap(torch.func.grad(lambda q: function(q).square().sum()))(batch)
    alone = torch.func.grad(lambda q: function(q).square().sum())(batch[1])
    assert torch.allclose(per_sample[1], alone, atol=1e-12)


@pytest.mark.graph
@pytest.mark.parametrize("alpha", [1.0, 1.5, "per head"])
def test_compiles_to_one_graph(alpha):
    alpha = torch.tensor([1.2, 1.7]) if alpha == "per head" else alpha
    inputs = [x.requires_grad_() for x in triple(dtype=torch.float32)]

    def loss(query, key, value):
        return entmax_attention(query, key, value, alpha=alpha, is_causal=True, lengths=torch.tensor([6, 4]))

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager_default_partitioner")
    expected, found = loss(*inputs), compiled(*inputs)
    assert torch.allclose(found, expected, atol=1e-6)
    for ours, theirs in zip(*(torch.autograd.grad(x.square().sum(), inputs) for x in (found, expected)), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.graph
def test_exports():
    class Attend(torch.nn.Module):
        def forward(self, query, key, value, mask):
            return entmax_attention(query, key, value, mask=mask, is_causal=True)

    inputs = (*triple(dtype=torch.float32), torch.rand(5, 6) > 0.2)
    program = torch.export.export(Attend(), inputs)
    assert torch.allclose(program.module()(*inputs), Attend()(*inputs), atol=1e-6)
    assert not any("contmax" in str(node.target) for node in program.graph.nodes)
