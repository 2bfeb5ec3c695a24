"""entmax_attention against torch's attention, against the map on scores that are written down, and its promises."""

import math

import pytest
import torch
from torch.nn import functional as F

import contmax
from contmax import entmax_attention

F64 = torch.float64
ALPHAS = [0.7, 1.0, 1.25, 1.5, 2.0, 2.5]


def drawn(*shape, dtype=F64, scale=1.0):
    return (scale * torch.randn(*shape, dtype=F64)).to(dtype)


def triple(batch=2, heads=4, queries=9, keys=9, channels=8, values=8, **options):
    shapes = ((queries, channels), (keys, channels), (keys, values))
    return [drawn(batch, heads, *shape, **options) for shape in shapes]


def written_down(query, key, value, alpha=1.5, allowed=None, bias=0.0, scale=None):
    """Every score and every weight in float64."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query.double() @ key.double().mT * scale + bias
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return contmax.entmax(scores, alpha) @ value.double()


def end_aligned(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def test_a_user_attends():
    query, key, value = triple(dtype=torch.float32)
    output = entmax_attention(query, key, value, is_causal=True)
    assert output.shape == query.shape
    output, weights = entmax_attention(query, key, value, alpha=2.0, need_weights=True)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 4, 9))
    assert torch.allclose(output, weights @ value, atol=1e-6)
    assert (weights == 0).any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_weights_are_those_of_the_map(alpha, causal):
    query, key, value = triple(queries=7, keys=12, values=5)
    allowed = end_aligned(7, 12) if causal else None
    output = entmax_attention(query, key, value, alpha=alpha, is_causal=causal)
    assert torch.allclose(output, written_down(query, key, value, alpha, allowed), atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"enable_gqa": True}, {"scale": 0.3}])
def test_softmax_is_that_of_torch(options):
    query, key, value = triple(heads=4)
    if "enable_gqa" in options:
        key, value = key[:, :2], value[:, :2]
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    assert torch.equal(entmax_attention(query, key, value, alpha=1.0, **options), expected)
    almost = entmax_attention(query, key, value, alpha=torch.tensor(1.0, dtype=F64), **options)
    assert torch.allclose(almost, expected, atol=1e-12)


def test_softmax_with_everything_and_rows_of_nothing():
    query, key, value = triple(queries=12, keys=9)
    mask, bias = torch.rand(2, 1, 12, 9) > 0.3, drawn(4, 1, 9)
    mask[:, :, 11] = False
    lengths = torch.tensor([9, 4])
    options = {"mask": mask, "bias": bias, "is_causal": True, "lengths": lengths}
    given = [x.requires_grad_() for x in (query, key, value, bias)]
    output = entmax_attention(query, key, value, alpha=1.0, **options)
    plain, _ = entmax_attention(query, key, value, alpha=1.0, need_weights=True, **options)
    assert torch.allclose(output, plain, atol=1e-12)
    assert (output[:, :, :3] == 0).all()
    assert (output[:, :, 11] == 0).all()
    for ours, theirs in zip(*(torch.autograd.grad(x.square().sum(), given) for x in (output, plain)), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_masks_biases_lengths_and_causality_combine():
    query, key, value = triple(queries=7, keys=12)
    mask, bias, lengths = torch.rand(7, 12) > 0.3, drawn(4, 7, 1), torch.tensor([12, 5])
    allowed = mask & end_aligned(7, 12) & (torch.arange(12) < lengths[:, None, None, None])
    output = entmax_attention(query, key, value, mask=mask, bias=bias, lengths=lengths, is_causal=True)
    assert torch.allclose(output, written_down(query, key, value, allowed=allowed, bias=bias), atol=1e-12)


def test_the_last_query_stands_at_the_last_key():
    query, key, value = triple(queries=9, keys=9)
    whole = entmax_attention(query, key, value, is_causal=True)
    last = entmax_attention(query[:, :, 6:], key, value, is_causal=True)
    assert torch.allclose(last, whole[:, :, 6:], atol=1e-14)


def test_more_queries_than_keys_leave_the_first_with_nothing():
    query, key, value = (x.requires_grad_() for x in triple(queries=9, keys=4))
    output = entmax_attention(query, key, value, is_causal=True)
    assert (output[:, :, :5] == 0).all()
    assert (output[:, :, 5:] != 0).any()
    (grad,) = torch.autograd.grad(output.sum(), query)
    assert (grad[:, :, :5] == 0).all()


def test_padding_changes_nothing():
    query, key, value = triple(batch=1, queries=5, keys=8)
    padded = [torch.cat([x, drawn(1, 4, 3, 8, scale=9)], -2) for x in (key, value)]
    output = entmax_attention(query, *padded, lengths=torch.tensor([8]))
    assert torch.allclose(output, entmax_attention(query, key, value), atol=1e-14)


def test_one_alpha_per_head():
    query, key, value = triple()
    alpha = torch.tensor([1.0, 1.3, 1.5, 2.0], dtype=F64)
    output = entmax_attention(query, key, value, alpha=alpha)
    for head, number in enumerate(alpha.tolist()):
        one = [x[:, head] for x in (query, key, value)]
        assert torch.allclose(output[:, head], written_down(*one, alpha=number), atol=1e-12)


def test_groups_of_heads_share_keys():
    query, key, value = triple(heads=6)
    shared = [x[:, :2] for x in (key, value)]
    output = entmax_attention(query, *shared, enable_gqa=True)
    repeated = [x.repeat_interleave(3, 1) for x in shared]
    assert torch.allclose(output, entmax_attention(query, *repeated), atol=1e-14)


def test_a_query_with_nothing_to_attend_gets_zeros():
    query, key, value = (x.requires_grad_() for x in triple())
    mask = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    mask[0] = False
    output = entmax_attention(query, key, value, mask=mask)
    assert (output[0] == 0).all()
    for grad in torch.autograd.grad(output.sum(), (query, key, value)):
        assert (grad[0] == 0).all()
        assert grad.isfinite().all()
    assert (entmax_attention(query, key[:, :, :0], value[:, :, :0]) == 0).all()
    assert entmax_attention(query[:, :, :0], key, value).shape == (2, 4, 0, 8)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys", "channels", "values"])
def test_any_axis_may_be_empty(empty, alpha):
    inputs = [x.requires_grad_() for x in triple(**{empty: 0})]
    output = entmax_attention(*inputs, alpha=alpha)
    assert output.shape == (*inputs[0].shape[:-1], inputs[2].shape[-1])
    for x, grad in zip(inputs, torch.autograd.grad(output.sum(), inputs), strict=True):
        assert grad.shape == x.shape
        assert grad.isfinite().all()


def test_axes_in_front_may_be_none_or_many():
    query, key, value = triple(batch=6)
    output = entmax_attention(query, key, value)
    folded = [x.unflatten(0, (2, 3)) for x in (query, key, value)]
    assert torch.allclose(entmax_attention(*folded).flatten(0, 1), output, atol=1e-14)
    single = [x[0, 0] for x in (query, key, value)]
    assert torch.allclose(entmax_attention(*single), output[0, 0], atol=1e-14)
    assert torch.allclose(entmax_attention(query, key[:1], value[:1])[0], output[0], atol=1e-14)


@pytest.mark.parametrize("sizes", [(0, 2, 3, 5), (2, 0, 3, 5), (2, 2, 0, 5), (0, 3, 5)], ids=str)
def test_an_axis_in_front_may_be_empty(sizes):
    *batch, queries, keys = sizes
    query, key, value = (torch.randn(*batch, n, 4, requires_grad=True) for n in (queries, keys, keys))
    output = contmax.entmax_attention(query, key, value)
    assert output.shape == query.shape
    output.sum().backward()
    assert not value.grad.any()


def test_strided_inputs_are_the_same():
    query, key, value = triple()
    expected = entmax_attention(query, key, value)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value)]
    assert torch.allclose(entmax_attention(*strided), expected, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_precision(dtype):
    inputs = triple(queries=50, keys=70, channels=16, values=16, dtype=dtype)
    output = entmax_attention(*inputs, is_causal=True)
    exact = written_down(*inputs, allowed=end_aligned(50, 70))
    assert output.dtype == dtype
    assert (output.double() - exact).abs().max() <= torch.finfo(dtype).eps * 4 * max(1, exact.abs().max())


def test_autocast_takes_its_dtype():
    inputs = triple(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output = entmax_attention(*inputs)
        assert output.dtype == torch.bfloat16
    expected = entmax_attention(*(x.bfloat16() for x in inputs))
    assert torch.equal(output, expected)


def test_dropout_keeps_the_mean_and_drops_weights():
    torch.manual_seed(0)
    query, key, value = triple(batch=1, heads=1, queries=4, keys=6)
    value = torch.eye(6, dtype=F64).expand(1, 1, 6, 6)
    many = torch.stack([entmax_attention(query, key, value, dropout_p=0.4) for _ in range(600)])
    exact = entmax_attention(query, key, value)
    assert torch.allclose(many.mean(0), exact, atol=0.1)
    inside = exact > 0
    dropped = (many[:, inside] == 0).double().mean()
    assert abs(dropped - 0.4) < 0.04
    assert torch.allclose(many.amax(0), exact / 0.6, atol=1e-12)


def test_a_single_alpha_is_looked_at_before_it_goes_to_the_device_of_the_queries():
    query, key, value = (x.to("meta") for x in triple())
    assert entmax_attention(query, key, value, alpha=torch.tensor(1.5)).shape == query.shape
    for alpha in (-1.0, 0.0, torch.inf):
        with pytest.raises(ValueError, match="positive"):
            entmax_attention(query, key, value, alpha=torch.tensor(alpha))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mask": torch.ones(9, 9)}, "boolean"),
        ({"mask": torch.ones(2, 9, dtype=torch.bool)}, "broadcast"),
        ({"bias": torch.ones(9, 8)}, "broadcast"),
        ({"bias": torch.ones(9, 9, dtype=torch.long)}, "floating-point"),
        ({"alpha": -1.0}, "positive"),
        ({"alpha": torch.ones(3)}, "one per head"),
        ({"lengths": torch.tensor([1.0, 2.0])}, "integers"),
        ({"lengths": torch.tensor([1, 2, 3])}, "one number per sequence"),
        ({"lengths": torch.tensor([1, -2])}, "-2"),
        ({"dropout_p": 1.0}, "dropped"),
        ({"key": torch.ones(2, 4, 9, 7, dtype=F64)}, "channels"),
        ({"key": torch.ones(2, 3, 9, 8, dtype=F64)}, "enable_gqa"),
        ({"key": torch.ones(2, 3, 9, 8, dtype=F64), "enable_gqa": True}, "multiple"),
        ({"value": torch.ones(2, 4, 8, 8, dtype=F64)}, "one value per key"),
        ({"value": torch.ones(2, 4, 9, 8)}, "dtype"),
        ({"query": torch.ones(2, 4, 9, 8, dtype=torch.long)}, "real"),
        ({"mask": torch.ones(9, 9, dtype=torch.bool, device="meta")}, "mask is on meta, but the queries are on cpu"),
        ({"bias": torch.ones(9, 9, dtype=F64, device="meta")}, "bias is on meta"),
        ({"lengths": torch.ones(2, dtype=torch.long, device="meta")}, "lengths is on meta"),
        ({"alpha": torch.ones(4, device="meta")}, "alpha is on meta"),
        ({"key": torch.ones(3, 4, 9, 8, dtype=F64), "value": torch.ones(3, 4, 9, 8, dtype=F64)}, "batch axes"),
        ({"query": [[1.0, 2.0]]}, "query must be a tensor; got list"),
        ({"value": None}, "value must be a tensor; got NoneType"),
        ({"mask": [True] * 9}, "mask must be a tensor; got list"),
        ({"lengths": [9, 3]}, "lengths must be a tensor; got list"),
        ({"bias": 0.5}, "bias must be a tensor; got float"),
        ({"alpha": [1.5] * 4}, "alpha must be a number or a tensor; got list"),
        ({"scale": math.nan}, "scale multiplies the scores and must be finite; got nan"),
        ({"scale": math.inf}, "must be finite; got inf"),
    ],
)
def test_wrong_arguments_are_told(change, said):
    query, key, value = triple()
    arguments = {"query": query, "key": key, "value": value, **change}
    given = [arguments.pop(name) for name in ("query", "key", "value")]
    # Where annotations are checked at run time, they may be the first to speak.
    with pytest.raises((ValueError, TypeError), match=f"{said}|whilst typechecking parameter"):
        entmax_attention(*given, **arguments)


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e4, 1e15])
@pytest.mark.parametrize("alpha", [1.0001, 1.5, 2.0])
def test_hostile_scores_give_finite_results(alpha, scale):
    given = [x.requires_grad_() for x in triple(dtype=torch.float32, scale=scale)]
    output = entmax_attention(*given, alpha=alpha, is_causal=True)
    grads = torch.autograd.grad(output.sum(), given)
    assert all(x.isfinite().all() for x in (output, *grads))


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.5])
@pytest.mark.parametrize("shape", [(), (1,), (9,)])
def test_masks_and_biases_of_fewer_than_two_axes(shape, alpha):
    query, key, value = triple()
    mask, bias = torch.arange(9)[: math.prod(shape)].reshape(shape) != 2, torch.randn(shape, dtype=F64)
    full = {"mask": mask.expand(2, 4, 9, 9), "bias": bias.expand(2, 4, 9, 9)}
    for options in ({"mask": mask}, {"bias": bias}, {"mask": mask, "bias": bias}):
        expected = entmax_attention(query, key, value, alpha=alpha, **{name: full[name] for name in options})
        assert torch.allclose(entmax_attention(query, key, value, alpha=alpha, **options), expected, atol=1e-12)
