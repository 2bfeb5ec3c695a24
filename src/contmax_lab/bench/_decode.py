"""The suite `decode` for a GPU: entmax attention of one new token, beside the fastest of torch's kernels for softmax.

Bytes are those of keys and values. Softmax reads all of them; entmax reads all keys, and values where there is weight.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

import contmax
from contmax_lab.bench._figure import Figure, checked, gpu_suite, ratio, relative_error, softmax_attention
from contmax_lab.bench._measuring import Clock, Effort, percentiles

_TIME = "bfloat16, one token: device time / scaled_dot_product_attention"
_BYTES = "bfloat16, one token: gigabytes of keys and values read per second"
_TIME_OF_PAGES = "bfloat16, one token, with key pages: device time / scaled_dot_product_attention"
_TIME_OF_BOXES = "bfloat16, one token, with key pages: device time / that without"
_KEYS_READ = "one token, with key pages: share of the keys that is read"
_TRAINED = "keys of a trained GPT, one token in all layers: device time / scaled_dot_product_attention"
_TRAINED_READ = "keys of a trained GPT, one token: share of the keys that is read"
_ERROR = 1e-2
# With pages that cannot be skipped, decoding may take this much longer.
_SLOWER_AT_MOST = 1.1
# Kernels of torch that decode: the faster of them is the unit.
_KERNELS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)


class _Case(NamedTuple):
    """Sizes of the cache, and the targets for random and for flat scores."""

    batch: int
    heads: int
    groups: int
    keys: int
    channels: int
    random_at_most: float | None = None
    flat_at_most: float | None = None

    @property
    def row(self) -> str:
        return f"B = {self.batch}, H = {self.heads}/{self.groups}, L = {self.keys:,}, d = {self.channels}"


_CASES = [
    _Case(8, 32, 8, 4096, 128, 1.15),
    _Case(1, 32, 8, 65536, 128, 0.75, 1.3),
    _Case(8, 32, 8, 65536, 128, 0.75, 1.3),
    _Case(1, 32, 8, 524_288, 128, 0.75, 1.3),
]
_SMALL = [_Case(1, 4, 2, 300, 16)]


class Layer(NamedTuple):
    """What a layer of a model attends: one query (1, H, 1, d), keys and values (1, H, L, d), and a bias (H, 1, L)."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor


# Kinds of scores by the standard deviation of the queries: flat ones give every key weight.
_KINDS = {"random": 1.0, "flat": 0.0, "a third of random": 1 / 3}
# Kinds of keys: independent ones; ones of topics that the text turns to in turn, the query being of the last; and
# independent ones with a bias that falls with the distance, by a slope per head.
_PAGES = ("random", "topics", "distance")
_KEYS_OF_TOPIC = 512


def decode_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """The figures of the suite, by a clock."""
    for case in _SMALL if effort.small else _CASES:
        for kind in _KINDS:
            yield from _beside_softmax(case, kind, clock, effort)
        for kind in _PAGES:
            yield from _by_pages(case, kind, clock, effort)


def _beside_softmax(case: _Case, kind: str, clock: Clock, effort: Effort) -> Iterator[Figure]:
    query, key, value = _drawn(case, clock.device)
    query = _KINDS[kind] * query
    target = {"random": case.random_at_most, "flat": case.flat_at_most}.get(kind)
    place: dict[str, Any] = {"row": case.row, "column": kind}
    error, share = _error_and_share(query, key, value)
    details = {**checked(error, _ERROR), "keys_with_weight": share}
    if "failed" in details:
        yield Figure(_TIME, **place, value=math.nan, at_most=target, details=details)
        return
    ours = functools.partial(contmax.entmax_attention, query, key, value, enable_gqa=True)
    times, details["kernels"] = _times_beside_softmax({"contmax": ours}, [(query, key, value)], clock, effort)
    yield ratio(times, "contmax", "torch", details, table=_TIME, **place, at_most=target)
    size = key.numel() * key.element_size() + value.numel() * value.element_size()
    read = {"contmax": size * (1 + share) / 2, "torch": size}
    for name, column in (("contmax", kind), ("torch", f"softmax, {kind}")):
        yield Figure(_BYTES, case.row, column, read[name] / percentiles(times[name])["median"] / 1e9)


def _by_pages(case: _Case, kind: str, clock: Clock, effort: Effort) -> Iterator[Figure]:
    """With boxes around pages of keys, beside softmax and beside the same call without boxes."""
    query, key, value = _drawn(case, clock.device)
    options: dict[str, Any] = {"enable_gqa": True}
    if kind == "topics":
        count = -(-case.keys // _KEYS_OF_TOPIC)
        topics = torch.randn_like(key[:, :, :count])
        key = 0.3 * key + topics.repeat_interleave(_KEYS_OF_TOPIC, 2)[:, :, : case.keys]
        query = query + topics[:, :, -1:].repeat_interleave(case.heads // case.groups, 1)
    if kind == "distance":
        slopes = 2.0 ** -torch.linspace(1, 8, case.heads, device=clock.device)
        options["bias"] = slopes[:, None, None] * torch.arange(1 - case.keys, 1, device=clock.device)
    pages = contmax.KeyPages(key)
    plain: Callable[..., Any] = functools.partial(contmax.entmax_attention, query, key, value, **options)
    certified = functools.partial(plain, key_pages=pages)
    output, certificate = certified(return_certificate=True)
    details = checked(relative_error(output, plain().double()), _ERROR)
    share = float(certificate.keys_read.double().mean()) / case.keys
    times, details["kernels"] = _times_beside_softmax(
        {"contmax": certified, "without pages": plain}, [(query, key, value)], clock, effort
    )
    place: dict[str, Any] = {"row": case.row, "column": kind}
    yield ratio(times, "contmax", "torch", details, table=_TIME_OF_PAGES, **place)
    at_most = _SLOWER_AT_MOST if kind == "random" else None
    without = {"contmax": times["contmax"], "torch": times["without pages"]}
    yield ratio(without, table=_TIME_OF_BOXES, **place, at_most=at_most)
    yield Figure(_KEYS_READ, **place, value=share)


def trained_figures(layers: Sequence[Layer], at_most: float | None, clock: Clock, effort: Effort) -> Iterator[Figure]:
    """One token of a trained model in all its layers, with pages and without, beside softmax."""
    plain: list[Callable[..., Any]] = [
        functools.partial(contmax.entmax_attention, x.query, x.key, x.value, bias=x.bias) for x in layers
    ]
    paged = [functools.partial(call, key_pages=contmax.KeyPages(x.key)) for call, x in zip(plain, layers, strict=True)]
    keys = layers[0].key.shape[2]
    error, shares = 0.0, list[float]()
    for exact, call in zip(plain, paged, strict=True):
        output, certificate = call(return_certificate=True)
        error = max(error, relative_error(output, exact().double()))
        shares.append(float(certificate.keys_read.double().mean()) / keys)
    ours: dict[str, Callable[[], object]] = {
        name: functools.partial(_in_turn, calls) for name, calls in (("with pages", paged), ("without pages", plain))
    }
    times, kernels = _times_beside_softmax(ours, [x[:3] for x in layers], clock, effort)
    for name, target in (("with pages", at_most), ("without pages", None)):
        details = {**checked(error, _ERROR), "kernels": kernels}
        yield ratio(times, name, "torch", details, table=_TRAINED, row=f"L = {keys:,}", column=name, at_most=target)
    share, by_layer = sum(shares) / len(shares), {"by_layer": shares}
    yield Figure(_TRAINED_READ, f"L = {keys:,}", "with pages", share, details=by_layer)


def _in_turn(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _times_beside_softmax(
    ours: dict[str, Callable[[], object]], layers: Sequence[tuple[Tensor, ...]], clock: Clock, effort: Effort
) -> tuple[dict[str, Any], str]:
    """Times of our calls, and of the fastest of torch's kernels as ``torch``; the name of these kernels.

    Each call computes all `layers`, which are queries, keys and values.
    """
    calls = dict(ours)
    for kernels in _KERNELS if clock.device == "cuda" else (SDPBackend.MATH,):
        attend = softmax_attention(kernels, enable_gqa=True)
        calls[kernels.name] = functools.partial(_in_turn, [functools.partial(attend, *layer) for layer in layers])
    times = clock.device_times(calls, effort)
    chosen = min(list(calls)[len(ours) :], key=lambda name: percentiles(times[name])["median"])
    return {**{name: times[name] for name in ours}, "torch": times[chosen]}, chosen


def _drawn(case: _Case, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """One query per head, keys and values, by a fixed seed."""
    generator = torch.Generator(device).manual_seed(0)
    cache = (case.batch, case.groups, case.keys, case.channels)
    query, key, value = (
        torch.randn(size, device=device, dtype=torch.bfloat16, generator=generator)
        for size in ((case.batch, case.heads, 1, case.channels), cache, cache)
    )
    return query, key, value


def _error_and_share(query: Tensor, key: Tensor, value: Tensor) -> tuple[float, float]:
    """The error of the first sequence relative to float64, and the share of keys that have weight in some head."""
    ours = contmax.entmax_attention(query[:1], key[:1], value[:1], enable_gqa=True)
    assert isinstance(ours, Tensor)
    groups, error, share = key.shape[1], 0.0, 0.0
    queries, outputs = (x[0, :, 0].unflatten(0, (groups, -1)) for x in (query, ours))
    for g in range(groups):  # a whole cache in float64 would take too much memory
        p = contmax.entmax(queries[g].double() @ key[0, g].double().mT / math.sqrt(key.shape[-1]), 1.5)
        error = max(error, relative_error(outputs[g], p @ value[0, g].double()))
        share += float((p > 0).any(0).double().mean()) / groups
    return error, share


GPU_DECODE = gpu_suite("decode", decode_figures)
