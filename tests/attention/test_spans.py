"""Packed sequences, windows and masks of FlexAttention against boolean masks; capped scores and sinks."""

import gc

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.utils.rnn import pad_sequence

import contmax
from contmax import entmax_attention
from contmax.attention import _block_mask

OFFSETS = torch.tensor([0, 3, 3, 20, 26])


def drawn(queries=30, keys=30, heads=2, groups=2, dtype=torch.float64):
    shapes = ((heads, queries), (groups, keys), (groups, keys))
    return [torch.randn(2, *shape, 4, dtype=dtype, requires_grad=True) for shape in shapes]


def assert_same(given, options, expected):
    """Outputs and gradients for two sets of options are the same to rounding."""
    ours, exact = (entmax_attention(*given, **each) for each in (options, expected))
    g = torch.randn_like(exact)
    for a, b in zip(
        (ours, *torch.autograd.grad(ours, given, g)), (exact, *torch.autograd.grad(exact, given, g)), strict=True
    ):
        assert (a - b).abs().max() < 1e-12


@pytest.mark.parametrize("keys", [30, 300])  # by matrices, and by lists
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.5])
def test_packed_sequences_are_padded_sequences(alpha, keys):
    scale = keys // 30
    offsets = OFFSETS * scale
    given = [x.detach()[:1] for x in drawn(keys, keys)]
    packed = entmax_attention(*given, alpha=alpha, cu_seqlens=offsets, is_causal=True)
    lengths = offsets.diff()
    parts = [x[0, :, : offsets[-1]].transpose(0, 1).split(lengths.tolist()) for x in given]
    padded = [pad_sequence(part, batch_first=True).transpose(1, 2) for part in parts]
    # A mask that aligns the first query with the first key, as the padding is at the end of both.
    mask = torch.ones(padded[0].shape[2], padded[0].shape[2], dtype=torch.bool).tril()
    alone = entmax_attention(*padded, alpha=alpha, mask=mask, lengths=lengths)
    alone = torch.cat([x[:, :n] for x, n in zip(alone, lengths.tolist(), strict=True)], 1)
    assert (packed[0, :, : offsets[-1]] - alone).abs().max() < 1e-12
    assert (packed[0, :, offsets[-1] :] == 0).all()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, (0, 0), (4, 1), (None, 2), (3, None), (100, 100)])
@pytest.mark.parametrize("pair", [False, True])
def test_spans_are_masks(pair, window, is_causal):
    of_queries = of_keys = OFFSETS
    if pair:
        of_keys = torch.tensor([0, 10, 20, 25, 40])
    queries, keys = 30, 45 if pair else 30
    i, j = torch.arange(queries).unsqueeze(1), torch.arange(keys)
    mask = torch.zeros(queries, keys, dtype=torch.bool)
    for n in range(len(OFFSETS) - 1):
        inside = (i >= of_queries[n]) & (i < of_queries[n + 1]) & (j >= of_keys[n]) & (j < of_keys[n + 1])
        ahead = (j - of_keys[n + 1]) - (i - of_queries[n + 1])
        inside &= (ahead <= 0) | (not is_causal)
        if window is not None:
            left, right = (1000 if x is None else x for x in window)
            inside &= (ahead >= -left) & (ahead <= right)
        mask |= inside
    offsets = (of_queries, of_keys) if pair else OFFSETS
    options = {"cu_seqlens": offsets, "window": window, "is_causal": is_causal}
    assert_same(drawn(queries, keys), options, {"mask": mask})


def test_windows_with_lengths_masks_and_biases():
    given = drawn(6, 40)
    i, j = torch.arange(6).unsqueeze(1), torch.arange(40)
    near = (j - 34 <= i) & (j - 34 >= i - 9)
    other, bias = torch.rand(2, 1, 1, 40) < 0.7, torch.linspace(-1, 1, 45, dtype=torch.float64)
    both = {"mask": other, "bias": bias, "lengths": torch.tensor([38, 0])}
    assert_same(given, {"is_causal": True, "window": (9, 0), **both}, {**both, "mask": near & other})


@pytest.mark.parametrize("alpha", [1.5, torch.tensor([1.2, 1.7])])
def test_numbers_that_no_query_attends_never_matter(alpha):
    given = [x.detach() for x in drawn()]
    hidden = (torch.arange(30) >= 26) | (torch.arange(30) == 5)
    seen = torch.arange(30) != 5
    results = []
    for x in (0.0, torch.nan):
        inputs = [y.masked_fill(hidden.unsqueeze(-1), x).requires_grad_() for y in given[1:]]
        query = given[0].masked_fill((torch.arange(30) >= 26).unsqueeze(-1), x).requires_grad_()
        output = entmax_attention(query, *inputs, alpha=alpha, cu_seqlens=OFFSETS, mask=seen)
        results.append([output, *torch.autograd.grad(output.sum(), [query, *inputs])])
    for zeros, broken in zip(*results, strict=True):
        assert torch.equal(zeros, broken)


DOCUMENTS = torch.arange(300) // 70
MASKS = {
    "documents": (lambda b, h, q, k: (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k), True),
    "a window": (lambda b, h, q, k: (q >= k) & (q - k < 33), True),
    "a prefix": (lambda b, h, q, k: (k < 50) | (q >= k), True),
    "a window per head": (lambda b, h, q, k: (q >= k) & (q - k < 10 * (h + 1)), True),
    "first keys and a window": (lambda b, h, q, k: (k < 5) | ((q >= k) & (q - k < 33)), False),
    "one per sequence": (lambda b, h, q, k: k <= q - 10 * b, True),
}


@pytest.mark.parametrize("name", MASKS)
def test_block_masks_are_dense_masks(name, monkeypatch):
    monkeypatch.setattr(_block_mask, "_MOST_ENTRIES", 2 * 2 * 300 * 70)  # so that the mask is read in parts
    allows, has_spans = MASKS[name]
    block_mask = create_block_mask(allows, 2, 2, 300, 300, device="cpu")
    i, j = torch.arange(300).unsqueeze(1), torch.arange(300)
    b, h = torch.arange(2).view(2, 1, 1, 1), torch.arange(2).view(2, 1, 1)
    mask = allows(b, h, i, j).expand(2, 2, 300, 300)
    assert_same(drawn(300, 300), {"block_mask": block_mask}, {"mask": mask})
    (read,) = _block_mask._READ[block_mask].values()
    assert (read.spans is not None) == has_spans
    assert_same(
        drawn(300, 300), {"block_mask": block_mask, "window": (50, 0)}, {"mask": mask & (j <= i) & (j >= i - 50)}
    )


def test_block_masks_whose_lists_are_padded_with_blocks():
    """Entries behind the first `counts` of a list may be anything, as may its width."""
    counts = torch.tensor([[[2, 2, 1]]], dtype=torch.int32)
    i, j = torch.arange(40).unsqueeze(1) // 16, torch.arange(40) // 16
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 1, 0]], dtype=torch.bool)[i, j]
    for padding in (0, 1, -1, 99):
        lists = torch.tensor([[[[1, 0, padding], [1, 0, padding], [1, padding, padding]]]], dtype=torch.int32)
        for width in (3, 2):
            block_mask = BlockMask.from_kv_blocks(counts, lists[..., :width], BLOCK_SIZE=16, seq_lengths=(40, 40))
            found = _block_mask.keys_allowed_by(block_mask, 40, 40, torch.device("cpu"))
            place = torch.arange(40)
            spans = (place >= found.spans[..., :1]) & (place < found.spans[..., 1:])
            assert torch.equal(spans[0, 0], mask)


def test_block_masks_are_for_as_many_sequences_and_heads():
    def made(batch, heads):
        return create_block_mask(lambda b, h, q, k: q >= k, batch, heads, 30, 30, device="cpu")

    given = [torch.randn(3, 2, 2, 30, 4) for _ in range(3)]  # a batch of two axes
    expected = entmax_attention(*given, is_causal=True)
    for batch, heads in ((None, None), (6, None), (None, 2), (6, 2)):
        assert torch.allclose(entmax_attention(*given, block_mask=made(batch, heads)), expected, atol=1e-6)
    assert entmax_attention(*(x[0, 0, 0] for x in given), block_mask=made(None, None)).shape == (30, 4)
    for batch, heads in ((3, None), (2, None), (None, 3)):
        with pytest.raises(ValueError, match="block_mask is for"):
            entmax_attention(*given, block_mask=made(batch, heads))


def test_a_block_mask_that_was_read_without_gradients_serves_training():
    block_mask = create_block_mask(MASKS["first keys and a window"][0], None, None, 300, 300, device="cpu")
    given = drawn(300, 300)
    with torch.inference_mode():
        entmax_attention(*given, block_mask=block_mask)
    torch.autograd.grad(entmax_attention(*given, block_mask=block_mask).sum(), given)


def test_keys_that_a_bias_by_distance_and_a_window_hide():
    query, key, value = (x.detach()[:, :, :5] for x in drawn())
    bias = torch.zeros(9, dtype=torch.float64)
    bias[4:] = -torch.inf  # only earlier keys
    key, value = (x.index_fill(2, torch.tensor([4]), torch.nan) for x in (key, value))
    output = entmax_attention(query, key, value, bias=bias, is_causal=True, window=(3, 0))
    assert output.isfinite().all()


@pytest.mark.parametrize("shape", [(), (1, 1), (2, 1, 1, 1), (2, 1, 30, 1)])
def test_masks_and_biases_of_one_column(shape):
    given = drawn()
    mask, bias = torch.rand(shape) < 0.5, torch.randn(shape, dtype=torch.float64)
    near = torch.ones(30, 30, dtype=torch.bool).tril().triu(-2)
    assert_same(
        given, {"is_causal": True, "window": (2, 0), "mask": mask, "bias": bias}, {"mask": near & mask, "bias": bias}
    )


def test_the_widest_window():
    given = [x.detach() for x in drawn()]
    wide = entmax_attention(*given, window=(2**63 - 1, 2**63 - 1))
    assert torch.equal(wide, entmax_attention(*given, window=(100, 100)))


def test_block_masks_by_blocks_alone():
    """Without a function every listed block may be attended whole, in part as well as full."""
    some, full = torch.tensor([[[1, 1]]], dtype=torch.int32), torch.tensor([[[0, 1]]], dtype=torch.int32)
    blocks = torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32)
    block_mask = BlockMask.from_kv_blocks(some, blocks, full, blocks.flip(-1), BLOCK_SIZE=128, seq_lengths=(200, 200))
    i, j = torch.arange(200).unsqueeze(1) // 128, torch.arange(200) // 128
    mask = (i == j) | (i == 1)
    assert_same(drawn(200, 200), {"block_mask": block_mask}, {"mask": mask})


def test_a_block_mask_is_read_once_and_forgotten_with_it():
    reads = []

    def allows(b, h, q, k):
        reads.append(1)
        return q >= k

    block_mask = create_block_mask(allows, None, None, 30, 30, device="cpu", BLOCK_SIZE=16)
    given = drawn()
    entmax_attention(*given, block_mask=block_mask)
    before = len(reads)
    entmax_attention(*given, block_mask=block_mask)
    assert len(reads) == before
    kept = len(_block_mask._READ)
    del block_mask
    gc.collect()
    assert len(_block_mask._READ) == kept - 1


@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"cu_seqlens": OFFSETS}, {"mask": torch.arange(30) < 0}])
def test_capped_scores_and_sinks(options, alpha):
    given, sinks = drawn(), torch.randn(2, dtype=torch.float64, requires_grad=True)
    output, weights = entmax_attention(*given, alpha=alpha, softcap=0.7, sinks=sinks, need_weights=True, **options)
    allowed = torch.ones(30, 30, dtype=torch.bool)
    if "is_causal" in options:
        allowed = allowed.tril()
    if "cu_seqlens" in options:
        sequence = torch.searchsorted(OFFSETS, torch.arange(30), right=True)
        allowed = (sequence == sequence[:, None]) & (sequence < len(OFFSETS))
    allowed = allowed & options.get("mask", torch.tensor(True))
    scores = 0.7 * torch.tanh(given[0] @ given[1].mT / 2 / 0.7)
    scores = torch.where(allowed, scores, -torch.inf)
    p = contmax.entmax(torch.cat([scores, sinks.view(2, 1, 1).expand(2, 2, 30, 1)], -1), alpha)[..., :-1]
    assert (weights - p).abs().max() < 1e-12
    exact = p @ given[2]
    for a, b in zip(
        (entmax_attention(*given, alpha=alpha, softcap=0.7, sinks=sinks, **options), output),
        (exact, exact),
        strict=True,
    ):
        assert (a - b).abs().max() < 1e-12
    found, expected = (
        torch.autograd.grad(x.square().sum(), (*given, sinks), retain_graph=True) for x in (output, exact)
    )
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cu_seqlens": torch.tensor([[0, 3]])}, "holds integers 0"),
        ({"cu_seqlens": torch.tensor([1, 3])}, "begin with 0"),
        ({"cu_seqlens": torch.tensor([0, 5, 3])}, "not fall"),
        ({"cu_seqlens": torch.tensor([0, 31])}, "number of queries, 30; got \\[0, 31\\]"),
        ({"cu_seqlens": (OFFSETS, OFFSETS[:-1])}, "as many sequences"),
        ({"cu_seqlens": OFFSETS, "lengths": torch.tensor([3, 4])}, "not both"),
        ({"window": (-1, 0)}, "two numbers of keys"),
        ({"softcap": 0.0}, "must be positive"),
        ({"sinks": torch.zeros(3)}, "one score per head"),
        ({"block_mask": torch.ones(30, 30, dtype=torch.bool)}, "must be a BlockMask"),
        ({"block_mask": create_block_mask(lambda b, h, q, k: q >= k, None, None, 9, 30, device="cpu")}, "9 queries"),
    ],
)
def test_messages(options, says):
    with pytest.raises((ValueError, TypeError), match=says):
        entmax_attention(*drawn(), **options)


@pytest.mark.graph  # without the type checker, which knows no ragged sizes
def test_jagged_tensors_are_refused():
    jagged = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=torch.jagged)
    heads = jagged.unflatten(-1, [2, 4]).transpose(1, 2)
    with pytest.raises(TypeError, match=r"cu_seqlens=x\.offsets"):
        entmax_attention(heads, heads, heads)
    packed = heads.transpose(1, 2).values().transpose(0, 1)  # as the message says
    output = entmax_attention(packed, packed, packed, cu_seqlens=heads.offsets())
    for n, part in enumerate(jagged.unbind()):
        alone = part.unflatten(-1, [2, 4]).transpose(0, 1)
        assert torch.allclose(output[:, 3 * n : 3 + 5 * n], entmax_attention(alone, alone, alone), atol=1e-6)


def test_lists_begin_and_end_empty():
    """No sequence at all, and sequences without positions."""
    for offsets in (torch.tensor([0]), torch.tensor([0, 0, 0])):
        assert (entmax_attention(*drawn(), cu_seqlens=offsets) == 0).all()


@pytest.mark.graph
def test_compiled():
    # Derivatives are traced, and compared, in test_attention_transforms.
    compiled = torch.compile(entmax_attention, fullgraph=True, backend="eager")
    given = drawn(dtype=torch.float32)
    for options in ({"cu_seqlens": OFFSETS, "is_causal": True}, {"window": (3, 0)}):
        assert (compiled(*given, **options) - entmax_attention(*given, **options)).abs().max() < 1e-6
