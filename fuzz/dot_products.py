"""Attention by scores of queries and keys: against maps in float64, with all that may come with it."""

import torch
from hypothesis import strategies as st

import contmax
from fuzz._campaign import target
from fuzz._rows import DTYPES, TOLERANCE, close, dtypes, hidden, require, rows, seeds, some

sizes = st.one_of(st.integers(1, 9), st.sampled_from([31, 64, 65, 130]))
# Queries and keys whose products stay in the range of every dtype.
mild = st.sampled_from(["normal", "grid", "ties", "spread", "near ties", "geometric"])
indices = st.one_of(st.sampled_from([1.0, 1.5, 2.0, 4 / 3, 1.25, 1.001, 2.5, 1 + 2**-20]), st.floats(1.0, 4.0))


@target(
    "attention.entmax",
    kind=mild,
    queries=sizes,
    keys=sizes,
    groups=st.integers(1, 2),
    shared=st.integers(1, 2),
    alpha=indices,
    dtype=dtypes,
    is_causal=st.booleans(),
    is_masked=st.booleans(),
    has_length=st.booleans(),
    window=st.sampled_from([None, None, (0, 0), (3, 0), (None, 1), (20, 40)]),
    sequences=st.integers(0, 4),
    scale=st.sampled_from([None, 0.0, 1.0, -0.5, 30.0]),
    seed=seeds,
)
def entmax_attention(
    kind: str,
    queries: int,
    keys: int,
    groups: int,
    shared: int,
    alpha: float,
    dtype: str,
    is_causal: bool,
    is_masked: bool,
    has_length: bool,
    window: tuple[int | None, int | None] | None,
    sequences: int,
    scale: float | None,
    seed: int,
) -> int:
    """Output and weights like those of float64; rows with nothing to attend are zeros; slopes are finite.

    Keys and values that no query may attend are NaN, and so are queries that may attend nothing.
    """
    heads, channels = groups * shared, 4
    query = rows(kind, heads * queries, channels, dtype, seed).view(heads, queries, channels)
    key = rows(kind, groups * keys, channels, dtype, seed + 1).view(groups, keys, channels)
    value = rows("normal", groups * keys, 3, dtype, seed + 2).view(groups, keys, 3)
    mask = some(heads * queries, keys, seed).view(heads, queries, keys) if is_masked else None
    allowed = torch.ones(heads, queries, keys, dtype=torch.bool) if mask is None else mask
    # How far a key lies ahead of the key that a query is aligned with.
    ahead = torch.arange(keys) - torch.arange(queries).unsqueeze(1) - (keys - queries)
    options = {"alpha": alpha, "mask": mask, "is_causal": is_causal, "scale": scale, "enable_gqa": shared > 1}
    if sequences:
        generator = torch.Generator().manual_seed(seed)
        offsets = [torch.randint(n + 1, (sequences,), generator=generator).sort()[0] for n in (queries, keys)]
        of_query, of_key = (
            torch.searchsorted(x, torch.arange(n), right=True) for x, n in zip(offsets, (queries, keys), strict=True)
        )
        options["cu_seqlens"] = tuple(torch.cat([x.new_zeros(1), x]) for x in offsets)
        allowed = allowed & (of_query.unsqueeze(1) == of_key) & (of_key < sequences)
        ends = [torch.cat([x, x[-1:]]) for x in offsets]
        ahead = (torch.arange(keys) - ends[1][of_key]) - (torch.arange(queries) - ends[0][of_query]).unsqueeze(1)
    if is_causal:
        allowed = allowed & (ahead <= 0)
    if window is not None:
        options["window"] = window
        left, right = (keys + queries if x is None else x for x in window)
        allowed = allowed & (ahead >= -left) & (ahead <= right)
    if has_length and not sequences:
        options["lengths"] = torch.tensor(seed % (keys + 1))
        allowed = allowed & (torch.arange(keys) < options["lengths"])
    seen = allowed.view(groups, shared * queries, keys).any(1).unsqueeze(-1)
    places = (allowed.any(-1, keepdim=True), seen, seen)
    inputs = [hidden(x, may) for x, may in zip((query, key, value), places, strict=True)]
    found, weights = contmax.entmax_attention(*inputs, need_weights=True, **options)
    alone = contmax.entmax_attention(*inputs, **options)
    wide_key, wide_value = (x.detach().double().repeat_interleave(shared, 0) for x in (key, value))
    scores = query.detach().double() @ wide_key.mT * (channels**-0.5 if scale is None else scale)
    exact = contmax.entmax(scores, alpha, mask=allowed)
    shown = {"alpha": alpha, "scores": scores, "found": found, "exact": exact @ wide_value}
    # A score that is off by its rounding moves a probability by as much, at most.
    size = 1 + scores.abs().amax()
    eps = TOLERANCE[DTYPES[dtype]] * size * max(1.0, alpha - 1)
    empty = ~allowed.any(-1)
    require((found == 0).all(-1) | ~empty, "nothing to attend, and not zero", **shown)
    if alpha <= 2:
        largest = wide_value.abs().amax()
        require(close(weights, exact, 4 * eps), "weights differ from float64", weights=weights, **shown)
        require(close(found, exact @ wide_value, 16 * eps * largest), "output differs from float64", **shown)
        require(close(alone, found, 16 * eps * largest), "weights asked for change the output", alone=alone, **shown)
    require(found.isfinite().all(-1) & alone.isfinite().all(-1), "not finite", **shown)
    slopes = torch.autograd.grad(alone.float().sum(), inputs)
    for name, slope, may in zip("qkv", slopes, places, strict=True):
        require(slope.isfinite().all(-1), f"slope of {name}", slope=slope, **shown)
        require(((slope == 0) | may).all(-1), f"slope of {name} where it is masked", slope=slope, **shown)
    return heads * queries
