"""What no query may attend never matters: NaN, infinities and overflow there, on every path of attention."""

import math

import pytest
import torch

from contmax import entmax_attention
from contmax.attention import _blocked
from masked_checks import FILLERS, assert_never_matters

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 2, 5, 9, 6
# Keys that no query of a sequence may attend.
EXIST = torch.tensor([7, 4])
SEEN = (torch.arange(KEYS) < EXIST[:, None])[:, None, None]
ALL_SEEN = torch.arange(KEYS) != 3
SOME = torch.arange(QUERIES * KEYS).view(QUERIES, KEYS) % 3 > 0
CAUSAL = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(KEYS - QUERIES)
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


# What says so, and the keys that some query may attend, (B or 1, H or 1, 1, L).
FORMS = {
    "keys": ({"mask": SEEN}, SEEN),
    "one axis": ({"mask": ALL_SEEN}, ALL_SEEN),
    "pairs": ({"mask": SEEN & SOME}, (SEEN & SOME).any(-2, keepdim=True)),
    "pairs, causal": (
        # The last key is left to queries that come before it.
        {"mask": SOME & ~((torch.arange(KEYS) == 8) & (torch.arange(QUERIES) == 4)[:, None]), "is_causal": True},
        (SOME & CAUSAL & (torch.arange(KEYS) < 8)).any(-2, keepdim=True),
    ),
    "lengths": ({"lengths": EXIST}, SEEN),
    "lengths, causal": ({"lengths": EXIST, "is_causal": True}, SEEN),
    "bias": ({"bias": minus_inf(SEEN)}, SEEN),
    "bias of one axis": ({"bias": minus_inf(ALL_SEEN)}, ALL_SEEN),
    "bias of pairs": ({"bias": minus_inf(SEEN & SOME)}, (SEEN & SOME).any(-2, keepdim=True)),
    # A query sees three keys before it.
    "bias by distance": (
        {"bias": minus_inf(torch.arange(QUERIES + KEYS - 1) >= 6).view(1, 1, -1), "is_causal": True},
        torch.arange(KEYS) >= 2,
    ),
    "bias by distance, lengths": (
        {"bias": minus_inf(torch.arange(QUERIES + KEYS - 1) >= 6), "lengths": EXIST},
        (torch.arange(KEYS) >= 2) & SEEN,
    ),
    "mask and bias": ({"mask": SOME, "bias": minus_inf(SEEN)}, (SEEN & SOME).any(-2, keepdim=True)),
}


def drawn(dtype=torch.float32, heads=HEADS, sharp=1.0):
    query = sharp * torch.randn(BATCH, HEADS, QUERIES, WIDTH)
    key, value = torch.randn(BATCH, heads, KEYS, WIDTH), torch.randn(BATCH, heads, KEYS, 3)
    return [x.to(dtype) for x in (query, key, value)]


def check(form, alpha, filler, dtype=torch.float32, sharp=1.0, **more):
    options, seen = FORMS[form]
    if isinstance(alpha, torch.Tensor):
        alpha = alpha.to(torch.promote_types(dtype, torch.float32)).requires_grad_()
    seen = seen.expand(BATCH, 1, 1, KEYS).mT
    given, places = drawn(dtype, sharp=sharp), [None, seen, seen]

    def call(query, key, value, *index):
        output = entmax_attention(query, key, value, alpha=index[0] if index else alpha, **options, **more)
        return output if isinstance(output, tuple) else (output,)

    if isinstance(alpha, torch.Tensor):
        given, places = [*given, alpha], [*places, None]
    filler = min(FILLERS[filler], torch.finfo(dtype).max) if filler == "3e38" else FILLERS[filler]
    assert_never_matters(call, given, places, filler)


@pytest.fixture
def _small_blocks(monkeypatch):
    monkeypatch.setattr(_blocked, "_WEIGHTS", 3 * BATCH * HEADS * KEYS)


@pytest.fixture
def _few_queries_too(monkeypatch):
    monkeypatch.setattr("contmax.attention._fused._FEWEST_QUERIES", 1)


@pytest.fixture
def _few_keys_are_listed(monkeypatch):
    pytest.importorskip("triton", reason="Triton's kernels need triton: pip install 'contmax[gpu]'")
    monkeypatch.setattr("contmax.kernels.triton._attention_tuning._FEW_KEYS", 0)


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_every_alpha_and_form(alpha, form, filler):
    check(form, ALPHAS[alpha], filler)


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", ["one", "3/2", "beyond two"])
def test_weights_too(alpha, form, filler):
    check(form, ALPHAS[alpha], filler, need_weights=True)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", ["3/2", "beyond two"])
@pytest.mark.parametrize("sharp", [0.05, 5.0], ids=["flat", "sparse"])
def test_blocks_of_queries(sharp, alpha, form, filler):
    check(form, ALPHAS[alpha], filler, sharp=sharp)


@pytest.mark.usefixtures("triton_takes_cpu_tensors", "_few_queries_too")
@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", ["3/2", "per head"])
def test_triton_with_few_keys(alpha, form, filler):
    check(form, ALPHAS[alpha], filler)


@pytest.mark.usefixtures("triton_takes_cpu_tensors", "_few_queries_too", "_few_keys_are_listed")
@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("alpha", "sharp"), [("3/2", 5.0), ("per head", 0.01)], ids=["lists", "dense"])
def test_triton_with_lists(alpha, sharp, form, filler):
    check(form, ALPHAS[alpha], filler, sharp=sharp)
