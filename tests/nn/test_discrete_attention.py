"""DiscreteAttention: the formulas written out, masks, queries, given scores, contracts of a module."""

import copy
import io

import pytest
import torch

import contmax
from contmax.nn import DiscreteAttention

F64 = torch.float64


def test_additive_scores_are_those_of_bahdanau():
    attend = DiscreteAttention(6, query_dim=4, hidden_dim=5)
    values, query = torch.randn(2, 9, 6), torch.randn(2, 4)
    W, b, U, v = attend.key.weight, attend.key.bias, attend.query.weight, attend.energy.weight[0]
    context, weights = attend(values, query)
    for example in range(2):
        z = torch.stack([v @ torch.tanh(W @ h + b + U @ query[example]) for h in values[example]])
        p = torch.softmax(z, 0)
        torch.testing.assert_close(weights[example], p)
        torch.testing.assert_close(context[example], p @ values[example])


def test_without_queries_the_additive_score_has_a_constant_one():
    attend = DiscreteAttention(6, alpha=2.0)
    values = torch.randn(2, 9, 6)
    z = torch.tanh(values @ attend.key.weight.T + attend.key.bias) @ attend.energy.weight[0]
    context, weights = attend(values)
    torch.testing.assert_close(weights, contmax.sparsemax(z))
    torch.testing.assert_close(context, torch.einsum("bl,bld->bd", weights, values))
    assert not any("query" in name for name, _ in attend.named_parameters())


def test_dot_products_are_scaled_dot_product_attention():
    attend = DiscreteAttention(8, query_dim=5, score="dot")
    values, queries = torch.randn(2, 9, 8), torch.randn(2, 3, 5)
    mask = torch.rand(2, 9) > 0.3
    context, weights = attend(values, queries, mask=mask)
    expected = torch.nn.functional.scaled_dot_product_attention(
        attend.query(queries), values, values, attn_mask=mask[:, None]
    )
    assert weights.shape == (2, 3, 9)
    torch.testing.assert_close(context, expected)
    torch.testing.assert_close(attend(values, queries[:, 1], mask=mask)[0], expected[:, 1])
    alone = DiscreteAttention(8, score="dot")
    torch.testing.assert_close(alone(values)[1], torch.softmax(values @ alone.constant_query / 8**0.5, -1))


@pytest.mark.parametrize("score", ["additive", "dot"])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_many_queries_are_many_single_ones(score, alpha):
    attend = DiscreteAttention(6, query_dim=4, score=score, alpha=alpha)
    values, queries = torch.randn(3, 7, 6), torch.randn(3, 5, 4)
    context, weights = attend(values, queries)
    for q in range(5):
        torch.testing.assert_close((context[:, q], weights[:, q]), attend(values, queries[:, q]))


def test_given_scores_replace_the_modules_own():
    attend = DiscreteAttention(6, query_dim=4, alpha=1.5)
    values = torch.randn(2, 7, 6)
    for shape in ((2, 7), (2, 3, 7)):
        scores = torch.randn(shape)
        context, weights = attend(values, scores=scores)
        torch.testing.assert_close(weights, contmax.entmax(scores, 1.5))
        torch.testing.assert_close(context, torch.einsum("b...l,bld->b...d", weights, values))


@pytest.mark.parametrize("queries", [None, 3])
def test_masked_sequences_equal_short_ones_and_nothing_gives_zeros(queries):
    attend = DiscreteAttention(6, query_dim=4, alpha=1.5)
    values = torch.randn(3, 8, 6, requires_grad=True)
    query = torch.randn(3, 4, requires_grad=True) if queries is None else torch.randn(3, queries, 4, requires_grad=True)
    mask = torch.arange(8) < torch.tensor([[8], [5], [0]])
    context, weights = attend(values, query, mask=mask)
    short = attend(values[1:2, :5], query[1:2])
    torch.testing.assert_close((context[1], weights[1, ..., :5]), (short[0][0], short[1][0]))
    assert (weights[1, ..., 5:] == 0).all()
    assert (context[2] == 0).all()
    assert (weights[2] == 0).all()
    context.square().sum().backward()
    assert (values.grad[2] == 0).all()
    assert (values.grad[1, 5:] == 0).all()
    assert (query.grad[2] == 0).all()
    assert all(p.grad.isfinite().all() for p in attend.parameters())
    shared = attend(values, query, mask=mask[1])[0]
    torch.testing.assert_close(shared[1], context[1])
    if queries is not None:
        each = mask.unsqueeze(1).expand(3, queries, 8)
        torch.testing.assert_close(attend(values, query, mask=each)[0], context)


def test_gradients():
    attend = DiscreteAttention(3, query_dim=2, alpha=torch.nn.Parameter(torch.tensor(1.4))).double()
    values = torch.randn(2, 4, 3, dtype=F64, requires_grad=True)
    query = torch.randn(2, 2, 2, dtype=F64, requires_grad=True)
    names, parameters = zip(*attend.named_parameters(), strict=True)

    def call(values, query, *parameters):
        state = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(attend, state, (values, query))

    assert torch.autograd.gradcheck(call, (values, query, *parameters), atol=1e-6)


def test_learned_alpha_is_a_parameter_and_a_tensor_a_buffer():
    learned = DiscreteAttention(4, alpha=torch.nn.Parameter(torch.tensor(1.3)))
    assert "given_alpha" in dict(learned.named_parameters())
    fixed = DiscreteAttention(4, alpha=torch.tensor(1.3))
    assert "given_alpha" in fixed.state_dict()
    assert fixed.double().alpha.dtype == F64
    values = torch.randn(2, 5, 4)
    learned(values)[1].square().sum().backward()
    assert learned.alpha.grad.isfinite()
    assert learned.alpha.grad != 0


def test_round_trips_and_representation():
    attend = DiscreteAttention(4, query_dim=3, alpha=torch.nn.Parameter(torch.tensor(1.25)), score="dot")
    values, query = torch.randn(2, 5, 4), torch.randn(2, 3)
    buffer = io.BytesIO()
    torch.save(attend.state_dict(), buffer)
    buffer.seek(0)
    fresh = DiscreteAttention(4, query_dim=3, alpha=torch.nn.Parameter(torch.tensor(2.0)), score="dot")
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    torch.testing.assert_close(fresh(values, query), attend(values, query))
    torch.testing.assert_close(copy.deepcopy(attend)(values, query), attend(values, query))
    assert "embed_dim=4, query_dim=3, alpha=learnable(1.25), score='dot'" in repr(attend)
    assert "alpha=2" in repr(DiscreteAttention(4, alpha=2.0))
    assert "learnable of shape ()" in repr(attend.to_empty(device="meta"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(dtype):
    attend = DiscreteAttention(16, query_dim=8, alpha=1.5)
    values, query = torch.randn(2, 40, 16), torch.randn(2, 8)
    context, weights = attend(values, query)
    low, low_weights = copy.deepcopy(attend).to(dtype)(values.to(dtype), query.to(dtype))
    assert low.dtype == low_weights.dtype == dtype
    torch.testing.assert_close(low.float(), context, rtol=0.02, atol=0.02)
    with torch.autocast("cpu", dtype):
        mixed, mixed_weights = attend(values, query)
    assert mixed_weights.dtype == torch.float32
    torch.testing.assert_close(mixed.float(), context, rtol=0.02, atol=0.02)
    torch.testing.assert_close(mixed_weights, weights, rtol=0.05, atol=0.01)


@pytest.mark.graph
@pytest.mark.parametrize("score", ["additive", "dot"])
def test_compiled_exported_and_vmapped(score):
    attend = DiscreteAttention(6, query_dim=4, alpha=1.5, score=score)
    inputs = torch.randn(2, 7, 6), torch.randn(2, 3, 4)
    mask = torch.rand(2, 7) > 0.2
    expected = attend(*inputs, mask=mask)
    torch.testing.assert_close(
        torch.compile(attend, fullgraph=True, backend="aot_eager_default_partitioner")(*inputs, mask=mask), expected
    )
    exported = torch.export.export(attend, inputs, {"mask": mask})
    torch.testing.assert_close(exported.module()(*inputs, mask=mask), expected)
    one = torch.vmap(lambda v, q, m: attend(v[None], q[None], mask=m[None]))(*inputs, mask)
    torch.testing.assert_close(tuple(part.squeeze(1) for part in one), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DiscreteAttention(4, score="dot", hidden_dim=3), "hidden_dim"),
        (lambda: DiscreteAttention(4, query_dim=3)(torch.randn(2, 5, 4)), "got no query"),
        (lambda: DiscreteAttention(4)(torch.randn(2, 5, 4), torch.randn(2, 3)), "got a query"),
        (lambda: DiscreteAttention(4, query_dim=3)(torch.randn(2, 5, 4), torch.randn(2, 2)), "query must have shape"),
        (lambda: DiscreteAttention(4, query_dim=3)(torch.randn(2, 5, 4), torch.randn(1, 3)), "query must have shape"),
        (lambda: DiscreteAttention(4)(torch.randn(2, 5, 6)), "values must have shape"),
        (lambda: DiscreteAttention(4)(torch.randn(2, 5, 4), scores=torch.randn(6, 5)), "scores must have shape"),
        (lambda: DiscreteAttention(4)(torch.randn(2, 5, 4), scores=torch.randn(2, 4)), "scores must have shape"),
        (lambda: DiscreteAttention(4)(torch.randn(2, 5, 4), mask=torch.ones(3, 5).bool()), "mask must have shape"),
        (lambda: DiscreteAttention(4, alpha=-1.0)(torch.randn(2, 5, 4)), "alpha must be positive"),
    ],
)
def test_bad_input_says_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.graph  # with the run-time type checker of the tests it would be the one to refuse
def test_bad_types_are_refused():
    with pytest.raises(TypeError, match="mask must be boolean"):
        DiscreteAttention(4)(torch.randn(2, 5, 4), mask=torch.ones(2, 5))
    with pytest.raises(ValueError, match='score must be "additive" or "dot"'):
        DiscreteAttention(4, score="cosine")
