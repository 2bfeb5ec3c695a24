"""What no query may attend never matters: NaN, infinities and overflow there, on every path of attention."""

import math

import pytest
import torch

from contmax import entmax_attention
from contmax.attention import _reference
from contmax.kernels.attention import _gpu_attention as triton_attention
from masked_checks import ALL, FILLERS, assert_never_matters, filled

HEADS, QUERIES, KEYS, WIDTH = 2, 5, 9, 6
ALPHAS = {
    "one": 1.0,
    "near one": 1.01,
    "4/3": 4 / 3,
    "3/2": 1.5,
    "1.7": 1.7,
    "two": 2.0,
    "beyond two": 2.5,
    "learned": torch.tensor(1.6),
    "per head": torch.tensor([1.0, 1.7]),
}


def minus_inf(allowed):
    return torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)


def forms(exist, keys):
    """What says so, and the keys that some query of sequences with so many keys may attend, (B or 1, 1, 1, L)."""
    place, row = torch.arange(keys), torch.arange(QUERIES)[:, None]
    seen, all_seen = (place < exist[:, None])[:, None, None], place != 3
    some = (row * keys + place) % 3 > 0
    early = (place < keys - 1) | (row < 4)  # the last key is left to queries that come before it
    distance = torch.arange(QUERIES + keys - 1)
    pairs = (seen & some).any(-2, keepdim=True)
    return {
        "keys": ({"mask": seen}, seen),
        "one axis": ({"mask": all_seen}, all_seen),
        "pairs": ({"mask": seen & some}, pairs),
        "pairs, causal": (
            {"mask": some & early, "is_causal": True},
            (some & early & (place <= row + keys - QUERIES)).any(-2, keepdim=True),
        ),
        "lengths": ({"lengths": exist}, seen),
        "lengths, causal": ({"lengths": exist, "is_causal": True}, seen),
        "bias": ({"bias": minus_inf(seen)}, seen),
        "bias of one axis": ({"bias": minus_inf(all_seen)}, all_seen),
        "bias of pairs": ({"bias": minus_inf(seen & some)}, pairs),
        # A query sees itself and two keys before it.
        "bias by distance": (
            {"bias": minus_inf(distance >= 6).view(1, 1, -1), "is_causal": True},
            place >= 2,
        ),
        # A query sees the key two before it, and keys behind it, which a causal mask hides.
        "bias by distance, causal": (
            {"bias": minus_inf((distance == 6) | (distance >= keys)), "is_causal": True},
            (place >= 2) & (place <= 6),
        ),
        "bias by distance, lengths": ({"bias": minus_inf(distance >= 6), "lengths": exist}, (place >= 2) & seen),
        "mask and bias": ({"mask": some, "bias": minus_inf(seen)}, pairs),
    }


FORMS = forms(torch.tensor([7, 4]), KEYS)


def drawn(batch=2, heads=HEADS, keys=KEYS, dtype=torch.float32, sharp=1.0):
    query = sharp * torch.randn(batch, heads, QUERIES, WIDTH)
    key, value = torch.randn(batch, heads, keys, WIDTH), torch.randn(batch, heads, keys, 3)
    return [x.to(dtype) for x in (query, key, value)]


def check(form, alpha, filler, **more):
    (options, seen), given = FORMS[form], drawn(sharp=more.pop("sharp", 1.0))
    check_call(given, alpha, filler, seen, **options, **more)


def check_call(given, alpha, filler, seen, **options):
    seen = seen.expand(given[0].shape[0], 1, 1, given[1].shape[-2]).mT
    places = [None, seen, seen]
    if isinstance(alpha, torch.Tensor):
        given, places = [*given, alpha[-given[0].shape[1] :] if alpha.dim() else alpha], [*places, None]

    def call(query, key, value, *index):
        output = entmax_attention(query, key, value, alpha=index[0] if index else alpha, **options)
        return output if isinstance(output, tuple) else (output,)

    assert_never_matters(call, given, places, FILLERS.get(filler, filler))


@pytest.fixture
def _small_blocks(monkeypatch):
    monkeypatch.setattr(_reference, "_WEIGHTS", 3 * 2 * HEADS * KEYS)


@pytest.fixture
def _few_queries_too(monkeypatch):
    monkeypatch.setattr("contmax.attention._compiled._FEWEST_QUERIES", 1)


@pytest.fixture
def _few_keys_are_listed(monkeypatch):
    pytest.importorskip("triton", reason="Triton's kernels need triton: pip install 'contmax[gpu]'")
    monkeypatch.setattr("contmax.kernels.attention._sizes._FEW_KEYS", 0)


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_every_alpha_and_form(alpha, form, filler):
    check(form, ALPHAS[alpha], filler)


# Infinities make NaN of scores, and the next two tests leave them out: what is masked is the same as in the one above.
@pytest.mark.parametrize("filler", ["nan", "3e38"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", ["one", "3/2", "beyond two"])
def test_weights_too(alpha, form, filler):
    check(form, ALPHAS[alpha], filler, need_weights=True)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("filler", ["nan", "3e38"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", ["3/2", "beyond two"])
@pytest.mark.parametrize("sharp", [0.05, 5.0], ids=["flat", "sparse"])
def test_blocks_of_queries(sharp, alpha, form, filler):
    check(form, ALPHAS[alpha], filler, sharp=sharp)


# The interpreter takes a second for each.
TRITON_FORMS = ["keys", "pairs, causal", "lengths, causal", "bias of pairs", "bias by distance", "mask and bias"]


@pytest.mark.usefixtures("triton_takes_cpu_tensors", "_few_queries_too")
@pytest.mark.parametrize("form", TRITON_FORMS)
@pytest.mark.parametrize("alpha", ["3/2", "per head"])
def test_triton_with_few_keys(alpha, form):
    options, seen = forms(torch.tensor([4]), KEYS)[form]
    check_call(drawn(1, 1, dtype=torch.float16), ALPHAS[alpha], ALL, seen, **options)


@pytest.mark.usefixtures("triton_takes_cpu_tensors", "_few_queries_too", "_few_keys_are_listed")
@pytest.mark.parametrize("form", TRITON_FORMS)
@pytest.mark.parametrize("alpha", ["3/2", "per head"])
def test_triton_with_lists(alpha, form):
    options, seen = forms(torch.tensor([4]), KEYS)[form]
    check_call(drawn(1, 1, sharp=5.0), ALPHAS[alpha], ALL, seen, **options)


@pytest.mark.usefixtures("triton_takes_cpu_tensors", "_few_queries_too")
@pytest.mark.parametrize("form", TRITON_FORMS)
def test_triton_where_lists_are_too_long(form, monkeypatch):
    options, seen = forms(torch.tensor([220]), 230)[form]
    if form == "bias by distance":
        options["bias"][..., :50] = -math.inf
        seen = torch.arange(230) >= 46
    made = []
    empty = triton_attention.empty_attended
    monkeypatch.setattr(triton_attention, "empty_attended", lambda *a: made.append(empty(*a)) or made[-1])
    check_call(drawn(1, 1, keys=230, sharp=0.01), 1.5, ALL, seen, **options)
    assert all(triton_attention.AttentionLists(*attended[1:]).dense.any() for attended in made)
    assert len(made) == 2


# Queries that may attend nothing, (Q, 1).
EMPTY = {
    "mask of pairs": ({"mask": (torch.arange(6) != 2)[:, None] & (torch.arange(4) < 3)}, torch.arange(6) != 2),
    "bias of pairs": ({"bias": minus_inf((torch.arange(6) != 2)[:, None].expand(6, 4))}, torch.arange(6) != 2),
    "bias by distance": ({"bias": minus_inf(torch.arange(9) < 5)}, torch.arange(6) >= 1),
    "bias by distance, causal": (
        {"bias": minus_inf(torch.arange(9) < 3).view(1, 1, -1), "is_causal": True},
        torch.arange(6) >= 3,
    ),
    "no keys": ({"lengths": torch.tensor([0])}, torch.zeros(6, dtype=torch.bool)),
    "more queries than keys": ({"is_causal": True}, torch.arange(6) >= 2),
    "padding before": ({"mask": torch.arange(4) >= 1, "is_causal": True}, torch.arange(6) >= 3),
}


def check_empty(form, alpha, dtype=torch.float32):
    options, asks = EMPTY[form]
    given = [torch.randn(1, 1, *sizes).to(dtype) for sizes in ((6, WIDTH), (4, WIDTH), (4, 3))]
    places = [asks[:, None], None, None]
    assert_never_matters(lambda *inputs: (entmax_attention(*inputs, alpha=alpha, **options),), given, places, ALL)


@pytest.mark.parametrize("form", EMPTY)
@pytest.mark.parametrize("alpha", ["one", "3/2", "beyond two", "learned"])
def test_queries_that_may_attend_nothing(alpha, form):
    check_empty(form, ALPHAS[alpha])


@pytest.mark.usefixtures("triton_takes_cpu_tensors", "_few_queries_too")
@pytest.mark.parametrize("form", EMPTY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["lists", "few keys"])
def test_queries_that_may_attend_nothing_by_triton(dtype, form):
    check_empty(form, 1.5, dtype)


@pytest.mark.parametrize("alpha", ["one", "3/2", "two", "beyond two"])
@pytest.mark.parametrize("learned", [False, True])
def test_a_bias_under_the_mask(alpha, learned):
    mask = FORMS["pairs"][0]["mask"]
    query, key, value = drawn()
    bias = torch.randn(2, HEADS, QUERIES, KEYS)

    def attend(added):
        return (entmax_attention(query, key, value, alpha=ALPHAS[alpha], mask=mask, bias=added),)

    if learned:
        assert_never_matters(attend, [bias], [mask], ALL)
    else:
        assert torch.equal(attend(filled(bias, mask, ALL))[0], attend(filled(bias, mask, 0.0))[0])


@pytest.mark.parametrize("alpha", ["one", "3/2", "two", "beyond two"])
def test_second_derivatives(alpha):
    seen = FORMS["keys"][1].mT

    def slopes(query, key, value):
        output = entmax_attention(query, key, value, alpha=ALPHAS[alpha], lengths=torch.tensor([7, 4]))
        return torch.autograd.grad(output.sin().sum(), [query, key, value], create_graph=True)

    assert_never_matters(slopes, drawn(), [None, seen, seen], ALL)


def test_a_nan_that_may_be_attended_is_not_hidden():
    query, key, value = drawn()
    bias = torch.zeros(KEYS)
    bias[1] = math.nan
    for alpha in (1.0, 1.5, 2.5):
        output = entmax_attention(query, key, value, alpha=alpha, bias=bias, lengths=torch.tensor([7, 4]))
        assert output.isnan().all()


@pytest.mark.parametrize("form", ["keys", "pairs"])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.5])
def test_heads_that_share_keys_see_what_any_of_them_may_attend(alpha, form):
    query, (key, value) = torch.randn(2, 4, 5, 3), torch.randn(2, 2, 2, 6, 3)
    mask = torch.rand(2, 4, 1 if form == "keys" else 5, 6) > 0.5
    # Of the two heads that share the first keys one sees key 0, of the others none; and the other way round.
    mask[..., :2] = False
    mask[:, 0, :, 0] = mask[:, 3, :, 1] = True
    for name in (key, value):
        name[:, 1, 0] = name[:, 0, 1] = torch.nan
    found = entmax_attention(query, key, value, alpha=alpha, mask=mask, enable_gqa=True)
    repeated = (x.repeat_interleave(2, 1) for x in (key, value))
    expected = entmax_attention(query, *repeated, alpha=alpha, mask=mask)
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected)
