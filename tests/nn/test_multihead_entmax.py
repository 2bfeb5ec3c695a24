"""nn.EntmaxAttention: as torch's own module at α = 1, its options, and what it keeps."""

import copy
import math

import pytest
import torch

import contmax
from contmax.nn import EntmaxAttention

F64 = torch.float64


def test_a_user_attends():
    attend = EntmaxAttention(16, 4, is_causal=True)
    x = torch.randn(2, 10, 16)
    output, weights = attend(x, need_weights=True)
    assert output.shape == (2, 10, 16)
    assert weights.shape == (2, 4, 10, 10)
    assert (weights.triu(1) == 0).all()
    assert torch.allclose(attend(x), output, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_softmax_is_torchs_module(bias):
    theirs = torch.nn.MultiheadAttention(16, 4, bias=bias, kdim=6, vdim=5, batch_first=True).double()
    ours = EntmaxAttention(16, 4, alpha=1.0, bias=bias, kdim=6, vdim=5).double()
    with torch.no_grad():
        parts = [("query", theirs.q_proj_weight), ("key", theirs.k_proj_weight), ("value", theirs.v_proj_weight)]
        if bias:
            theirs.in_proj_bias.normal_()
        for i, (name, weight) in enumerate(parts):
            getattr(ours, f"{name}_projection").weight.copy_(weight)
            if bias:
                getattr(ours, f"{name}_projection").bias.copy_(theirs.in_proj_bias[16 * i : 16 * (i + 1)])
        ours.output_projection.load_state_dict(theirs.out_proj.state_dict())
    query, key, value = (torch.randn(2, n, c, dtype=F64) for n, c in ((3, 16), (7, 6), (7, 5)))
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    expected, weights = theirs(query, key, value, key_padding_mask=~mask, average_attn_weights=False)
    output, found = ours(query, key, value, mask=mask, need_weights=True)
    assert torch.allclose(output, expected, atol=1e-12)
    assert torch.allclose(found, weights, atol=1e-12)
    assert torch.allclose(ours(query, key, value, mask=mask), expected, atol=1e-12)


def test_masks_of_all_shapes():
    attend = EntmaxAttention(8, 2).double()
    x, keys = torch.randn(3, 4, 8, dtype=F64), torch.randn(3, 5, 8, dtype=F64)
    mask = torch.rand(5) > 0.4
    mask[0] = True
    expected = attend(x, keys, mask=mask)
    for shape in ((1, 5), (3, 5), (3, 4, 5), (3, 2, 4, 5)):
        assert torch.allclose(attend(x, keys, mask=mask.expand(shape)), expected, atol=1e-14)
    with pytest.raises(ValueError, match="True = may be attended"):
        attend(x, keys, mask=torch.ones(4, 5, dtype=torch.bool))
    lengths = torch.tensor([5, 2, 0])
    by_mask = attend(x, keys, mask=torch.arange(5) < lengths[:, None])
    assert torch.allclose(attend(x, keys, lengths=lengths), by_mask, atol=1e-14)
    assert torch.allclose(by_mask[2], attend.output_projection.bias.expand(4, 8))


def test_half_of_the_heads_mind_the_distance():
    attend = EntmaxAttention(8, 4, alibi="half", alpha=1.5).double()
    with torch.no_grad():
        attend.query_projection.weight.zero_()
        attend.query_projection.bias.zero_()
    _, weights = attend(torch.randn(1, 9, 8, dtype=F64), need_weights=True)
    place = torch.arange(9)
    distance = (place[:, None] - place).abs().double()
    for head, slope in enumerate((1, 1 / 2, 0, 0)):
        assert torch.allclose(weights[0, head], contmax.entmax(-slope * distance, 1.5), atol=1e-12)


def test_cached_queries_mind_the_same_distance():
    attend = EntmaxAttention(8, 2, alibi="half", is_causal=True, length_scale=True).double()
    with torch.no_grad():
        attend.length_scale.copy_(torch.tensor([[0.8, 0.5, 1.3], [1.0, 0.2, 0.5]]))
    x = torch.randn(2, 9, 8, dtype=F64)
    assert torch.allclose(attend(x[:, 6:], x), attend(x)[:, 6:], atol=1e-12)


def test_queries_scale_with_the_logarithm_of_what_they_meet():
    attend = EntmaxAttention(8, 2, is_causal=True, length_scale=True).double()
    plain = EntmaxAttention(8, 2, is_causal=True).double()
    plain.load_state_dict({k: v for k, v in attend.state_dict().items() if k != "length_scale"})
    x = torch.randn(2, 6, 8, dtype=F64)
    assert torch.allclose(attend(x), plain(x), atol=1e-12)
    with torch.no_grad():
        attend.length_scale.copy_(torch.tensor([[0.8, 0.5, 1.3], [1.0, 0.2, 0.5]]))
    n = torch.tensor([2, 3, 4])  # of the fourth query, by three masks
    for i, count in enumerate(n.tolist()):
        mask = torch.zeros(6, dtype=torch.bool)
        mask[torch.tensor([0, 2, 3, 1])[:count]] = True
        query, key, value = (
            getattr(attend, f"{name}_projection")(x).unflatten(-1, (2, 4)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        delta, beta, gamma = attend.length_scale.detach().T[:, :, None, None]
        query = query[:, :, 3:4] * (delta + beta * torch.log(n[i].double()) ** gamma)
        expected = contmax.entmax_attention(query, key[:, :, :4], value[:, :, :4], mask=mask[:4])
        got = attend(x, mask=mask)[:, 3:4]
        assert torch.allclose(got, attend.output_projection(expected.transpose(1, 2).flatten(2)), atol=1e-12)
    assert all(p.grad is None or p.grad.isfinite().all() for p in attend.parameters())
    attend(x, lengths=torch.tensor([6, 0])).sum().backward()
    assert attend.length_scale.grad.isfinite().all()
    lengths = torch.tensor([6, 3])
    assert torch.allclose(attend(x, lengths=lengths), attend(x, mask=torch.arange(6) < lengths[:, None]), atol=1e-12)
    assert (attend.length_scale.grad != 0).all()


def asentmax(**options) -> EntmaxAttention:
    """ASEntmax of four heads, the last two without positions, with scales that differ from query to query."""
    attend = EntmaxAttention(8, 4, alibi="half", length_scale="adaptive", **options).double()
    torch.nn.init.normal_(attend.scale_projection.weight)
    return attend


def by_formula(attend: EntmaxAttention, x: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """ASEntmax, query by query and head by head, as its authors write it; `allowed` is (Q, L)."""
    query, key, value = (
        getattr(attend, f"{name}_projection")(x).unflatten(-1, (4, 2)) for name in ("query", "key", "value")
    )
    raw = x @ attend.scale_projection.weight.T + attend.scale_projection.bias
    output = torch.zeros_like(query)
    for batch in range(len(x)):
        for i in range(x.shape[1]):
            n = int(allowed[i].sum())
            for head, slope in enumerate((1.0, 0.5, 0.0, 0.0)):
                scale = 1.0
                if head >= 2:
                    beta = (1 + raw[batch, i, head - 2].exp()).log()
                    scale = 1 + beta * math.log(n + 1) ** (2 * torch.tanh(raw[batch, i, head]))
                scores = scale * key[batch, :, head] @ query[batch, i, head] / 2**0.5
                scores = scores - slope * (torch.arange(len(scores)) - i).abs()
                weights = contmax.entmax(scores[allowed[i]], 1.5)
                output[batch, i, head] = weights @ value[batch, allowed[i], head]
    return attend.output_projection(output.flatten(2))


@pytest.mark.parametrize("is_causal", [True, False])
def test_adaptive_scales_are_those_of_the_formula(is_causal):
    attend = asentmax(is_causal=is_causal)
    x = torch.randn(2, 6, 8, dtype=F64, requires_grad=True)
    mask = torch.tensor([True, True, False, True, True, False])
    inputs = [x, *attend.scale_projection.parameters(), attend.query_projection.weight]
    for given in (None, mask):
        allowed = torch.ones(6, 6, dtype=torch.bool) if given is None else mask.expand(6, 6)
        allowed = allowed.tril() if is_causal else allowed
        got, expected = attend(x, mask=given), by_formula(attend, x, allowed)
        assert torch.allclose(got, expected, atol=1e-12)
        cotangent = torch.randn_like(got)
        found = torch.autograd.grad(got, inputs, cotangent)
        for grad, other in zip(found, torch.autograd.grad(expected, inputs, cotangent), strict=True):
            assert (grad != 0).any()
            assert torch.allclose(grad, other, atol=1e-11)


def test_adaptive_scales_of_cached_queries_of_lengths_and_of_masks_per_head():
    attend = asentmax(is_causal=True)
    x = torch.randn(2, 9, 8, dtype=F64)
    whole = attend(x)
    assert torch.allclose(attend(x[:, 6:], x), whole[:, 6:], atol=1e-12)
    assert torch.allclose(attend(x[:, 8:], x), whole[:, 8:], atol=1e-12)
    lengths = torch.tensor([9, 4])
    by_mask = attend(x, mask=torch.arange(9) < lengths[:, None])
    assert torch.allclose(attend(x, lengths=lengths), by_mask, atol=1e-12)
    of_heads = torch.ones(2, 4, 9, 9, dtype=torch.bool)
    of_heads[:, 3, :, 5:] = False
    alone = attend(x, mask=of_heads, need_weights=True)[1]
    assert torch.allclose(alone[:, :3], attend(x, need_weights=True)[1][:, :3], atol=1e-12)
    assert torch.allclose(alone[:, 3], attend(x, mask=torch.arange(9) < 5, need_weights=True)[1][:, 3], atol=1e-12)


def test_adaptive_scales_without_positions_and_in_half_precision():
    attend = EntmaxAttention(16, 4, length_scale="adaptive")
    assert attend.scale_projection.out_features == 8
    assert "length_scale='adaptive'" in repr(attend)
    x = torch.randn(2, 50, 16)
    assert torch.allclose(copy.deepcopy(attend).bfloat16()(x.bfloat16()).float(), attend(x), atol=0.05)
    assert attend(x, lengths=torch.tensor([50, 0])).isfinite().all()
    with pytest.raises((ValueError, TypeError), match=r"adaptive|whilst typechecking parameter"):
        EntmaxAttention(16, 4, length_scale="adapt")


def test_every_head_learns_its_alpha():
    attend = EntmaxAttention(16, 4, learnable=True)
    attend(torch.randn(2, 20, 16)).square().sum().backward()
    assert attend.alpha_logit.shape == (4,)
    assert (attend.alpha_logit.grad != 0).all()
    twin = EntmaxAttention(16, 4, learnable=True, alpha=[1.2, 1.3, 1.4, 1.6])
    twin.load_state_dict(attend.state_dict())
    assert torch.equal(twin.alpha, attend.alpha)
    assert "alpha=learnable(1.5" in repr(attend)


def test_dropout_only_in_training():
    attend = EntmaxAttention(16, 4, dropout=0.5)
    x = torch.randn(2, 20, 16)
    assert not torch.equal(attend(x), attend(x))
    attend.eval()
    assert torch.equal(attend(x), attend(x))


@pytest.mark.parametrize("shape", [(0, 5, 16), (2, 0, 16)])
def test_an_empty_batch_and_empty_sequences(shape):
    attend = EntmaxAttention(16, 4, learnable=True, alibi="half", length_scale=True)
    output, weights = attend(torch.empty(shape), need_weights=True)
    assert output.shape == attend(torch.empty(shape)).shape == shape
    assert weights.shape == (shape[0], 4, shape[1], shape[1])
    assert attend(torch.empty(shape)[:, :0], torch.ones(shape[0], 3, 16)).shape == (shape[0], 0, 16)


def test_meta_and_half_modules():
    with torch.device("meta"):
        empty = EntmaxAttention(16, 4, learnable=True, alibi="half", length_scale=True)
    empty.to_empty(device="cpu")
    for module in empty.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    made = EntmaxAttention(16, 4, learnable=True, alibi="half", length_scale=True)
    made.load_state_dict(empty.state_dict())
    x = torch.randn(2, 5, 16)
    assert torch.allclose(empty(x), made(x))
    half = copy.deepcopy(made).bfloat16()
    assert torch.allclose(half(x.bfloat16()).float(), made(x), atol=0.05)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_heads": 3}, "multiple"),
        ({"dropout": 1.0}, "dropped"),
        ({"alibi": "all"}, "half"),
        ({"alpha": [1.5, 1.2]}, "one per head"),
        ({"alpha": 2.0, "learnable": True}, "inside"),
    ],
)
def test_wrong_options_are_told(options, said):
    with pytest.raises((ValueError, TypeError), match=f"{said}|whilst typechecking parameter"):
        EntmaxAttention(16, **{"num_heads": 4, **options})


@pytest.mark.graph
@pytest.mark.parametrize("length_scale", [True, "adaptive"])
def test_compiles_and_exports(length_scale):
    attend = EntmaxAttention(16, 4, learnable=True, alibi="half", length_scale=length_scale, is_causal=True)
    x = torch.randn(2, 4, 16)  # a graph has steps for every doubling of the length
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager_default_partitioner")
    assert torch.allclose(compiled(x), attend(x), atol=1e-5)
    program = torch.export.export(attend, (x,))
    assert torch.allclose(program.module()(x), attend(x), atol=1e-5)


def test_an_empty_batch():
    x = torch.randn(0, 5, 16, requires_grad=True)
    output, weights = EntmaxAttention(16, 4)(x, need_weights=True)
    assert (output.shape, weights.shape) == ((0, 5, 16), (0, 4, 5, 5))
    output.sum().backward()
    assert x.grad.shape == x.shape
