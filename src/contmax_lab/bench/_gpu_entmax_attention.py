"""The suite `entmax-attention` on a GPU: entmax attention beside the flash kernels of scaled_dot_product_attention.

What adasplash takes on the same inputs is a suite of its own, `entmax-attention-peers`: it tries many configurations
for every length, for minutes. By the wall clock, as its first version waits for the device and is no CUDA graph.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import contmax
from contmax_lab.bench._figure import Figure
from contmax_lab.bench._gpu_timing import Clock, GraphClock, percentiles
from contmax_lab.bench._gpu_work import eager_table
from contmax_lab.bench._suite import Suite, peer
from contmax_lab.bench._timing import Effort

_BOTH = "bfloat16, forward + backward: device time / flash attention"
_FORWARD = "bfloat16, forward: device time / flash attention"
_ALPHAS = "bfloat16, forward + backward, L = 4,096: device time / that of α = 1.5"
_CHOICE = "bfloat16, forward + backward: device time of the kernels that torch chooses / flash attention"
_EAGER = eager_table(_BOTH)
_MEMORY = "peak extra memory of forward + backward, MB"
_ERROR = 8e-3
# Longer ones would take too long, and others have no target.
_LENGTHS_OF_PEERS = (40, 4096, 16384)
# How far the output of a peer may be from ours, ‖x − ours‖/‖ours‖: farther it is not the same attention.
_LARGEST_DIFFERENCE = 0.05


class _Case(NamedTuple):
    """Sizes of the inputs, what the scores are like, and the targets."""

    batch: int
    heads: int
    length: int
    channels: int
    kind: str
    is_causal: bool = True
    at_most: float | None = None
    forward_at_most: float | None = None

    @property
    def row(self) -> str:
        order = "causal" if self.is_causal else "not causal"
        return f"B = {self.batch}, H = {self.heads}, L = {self.length:,}, d = {self.channels}, {order}"


_CASES = [
    _Case(4, 16, 4096, 64, "random", True, 1.1, 2.0),
    _Case(2, 16, 4096, 128, "random", True, 1.1, 2.0),
    _Case(4, 16, 4096, 64, "random", False, 1.2),
    _Case(4, 16, 4096, 64, "clustered", True, 0.6),
    _Case(2, 16, 4096, 128, "clustered", True, 0.6),
    _Case(1, 16, 16384, 64, "random", True, 0.65, 1.3),
    _Case(1, 8, 16384, 128, "random", True, 0.65, 1.3),
    _Case(1, 16, 16384, 64, "clustered", True, 0.35),
    _Case(1, 4, 65536, 64, "random", True, 0.5, 1.1),
    _Case(1, 4, 65536, 64, "clustered", True, 0.2),
    _Case(1, 1, 131072, 64, "random", True, 0.45),
    _Case(4, 16, 4096, 64, "flat", True, 3.0),
    _Case(16, 16, 1024, 64, "random"),
    _Case(32, 16, 512, 64, "random"),
]
# So little work that the host is what takes time: as in a layer of BERT with one sequence.
_SHORT = _Case(1, 12, 512, 64, "random")
_SMALL = [_Case(1, 2, 40, 16, "random"), _Case(1, 2, 40, 16, "clustered"), _Case(1, 2, 40, 16, "flat", False)]


def entmax_attention_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """The figures of the suite, by a clock."""
    cases = _SMALL if effort.small else _CASES
    for case in cases:
        yield from _beside_flash(case, clock, effort)
    yield from _other_alphas(cases[0], clock, effort)
    yield _memory(max(cases, key=lambda case: case.length), clock)
    for case in cases if effort.small else (*cases, _SHORT):
        yield _eager(case, clock, effort)


def peer_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """What adasplash takes in each of its versions, and what we take, by a clock."""
    for case in _SMALL if effort.small else _CASES:
        if case.kind != "flat" and case.length in _LENGTHS_OF_PEERS:
            yield from _beside_peers(case, clock, effort)


def _beside_flash(case: _Case, clock: Clock, effort: Effort) -> Iterator[Figure]:
    inputs, cotangent = _drawn(case, clock.device)
    error = _error(case, clock.device)
    details: dict[str, Any] = {"error": error, "allowed_error": _ERROR}
    if not error <= _ERROR:
        details["failed"] = f"an error of {error:.3g} relative to float64"
        yield Figure(_BOTH, case.row, case.kind, math.nan, at_most=case.at_most, details=details)
        return
    ours, flash, chosen = _entmax(case, 1.5), _flash(case), _softmax(case)
    functions = {"contmax": ours, "torch": flash} | ({"chosen": chosen} if case.kind == "random" else {})
    times = clock.device_times({name: _pass(f, inputs, cotangent) for name, f in functions.items()}, effort)
    both = Figure(_BOTH, case.row, case.kind, None, case.at_most, details=details)
    yield _ratio(both, {name: times[name] for name in ("contmax", "torch")})
    if case.kind == "random":
        choice = Figure(_CHOICE, case.row, "softmax", None, details={"kernels": _chosen_kernels(case, inputs)})
        yield _ratio(choice, {name: times[name] for name in ("chosen", "torch")})
        plain = [x.detach() for x in inputs]
        forward = {"contmax": lambda: ours(*plain), "torch": lambda: flash(*plain)}
        figure = Figure(_FORWARD, case.row, case.kind, None, case.forward_at_most)
        yield _ratio(figure, clock.device_times(forward, effort))


def _eager(case: _Case, clock: Clock, effort: Effort) -> Figure:
    inputs, cotangent = _drawn(case, clock.device)
    calls = {"contmax": _pass(_entmax(case, 1.5), inputs, cotangent), "torch": _pass(_flash(case), inputs, cotangent)}
    return _ratio(Figure(_EAGER, case.row, case.kind, None), _wall_times(calls, clock, effort))


def _beside_peers(case: _Case, clock: Clock, effort: Effort) -> Iterator[Figure]:
    """A row: ours and each version of adasplash whose output is ours, all in turns with flash attention."""
    inputs, cotangent = _drawn(case, clock.device)
    ours = _results(_entmax(case, 1.5), inputs, cotangent)
    calls = {"torch": _pass(_flash(case), inputs, cotangent), "contmax": _pass(_entmax(case, 1.5), inputs, cotangent)}
    details: dict[str, dict[str, Any]] = {"contmax": {}}
    for name, attend in _versions_of_adasplash(case).items():
        details[name] = {}
        if attend is not None:
            try:
                details[name] = _differences(_results(attend, inputs, cotangent), ours)
                calls[name] = _pass(attend, inputs, cotangent)
            except Exception as problem:  # peers fail in ways of their own
                details[name] = {"refused": str(problem)[:200]}
    times = _wall_times(calls, clock, effort)
    for name, known in details.items():
        figure = Figure(_EAGER, f"{case.row}, {case.kind}", name, None, details=known)
        yield _ratio(figure, {x: times[x] for x in (name, "torch")}) if name in calls else figure


def _wall_times(calls: Mapping[str, Callable[[], object]], clock: Clock, effort: Effort) -> dict[str, list[float]]:
    """Of passes one after the other: so many that what the host takes before the device begins does not count."""
    return clock.wall_times(calls, effort if effort.small else dataclasses.replace(effort, block=0.05))


def _versions_of_adasplash(case: _Case) -> dict[str, Callable[..., Tensor] | None]:
    """The attention of each version, where it is installed; the second is for causal attention alone."""
    library = peer("adasplash")
    if library is None:
        return {"adasplash v2": None, "adasplash v1": None}
    # Looked up when called, and refused there: releases before 0.2 have one version only.
    return {
        "adasplash v2": (lambda *inputs: library.adasplash2(*inputs)) if case.is_causal else None,
        "adasplash v1": lambda *inputs: library.adasplash_v1(*inputs, is_causal=case.is_causal),
    }


def _differences(theirs: list[Tensor], ours: list[Tensor]) -> dict[str, Any]:
    """‖x − ours‖/‖ours‖ of the output and of the gradients; no time for a peer whose output is something else."""
    names = ("output", "query", "key", "value")
    found = {name: _distance(x, exact) for name, x, exact in zip(names, theirs, ours, strict=True)}
    if not found["output"] <= _LARGEST_DIFFERENCE:
        raise ValueError(f"its output differs from that of entmax_attention by {found['output']:.2g}")
    return {"differences": found}


def _ratio(empty: Figure, times: Mapping[str, list[float]]) -> Figure:
    """The figure with the time of the first of two calls, divided by that of the second."""
    seconds = {name: percentiles(of_call) for name, of_call in times.items()}
    ours, unit = (of_call["median"] for of_call in seconds.values())
    return dataclasses.replace(empty, value=ours / unit, details={"seconds": seconds, **empty.details})


def _other_alphas(case: _Case, clock: Clock, effort: Effort) -> Iterator[Figure]:
    inputs, cotangent = _drawn(case, clock.device)
    per_head = torch.linspace(1.3, 1.8, case.heads, device=clock.device).requires_grad_()
    calls = {"α = 1.5": _pass(_entmax(case, 1.5), inputs, cotangent)}
    for name, alpha in (("α = 1.25", 1.25), ("α = 4/3", 4 / 3), ("α = 2", 2.0)):
        calls[name] = _pass(_entmax(case, alpha), inputs, cotangent)
    learned = (*inputs, per_head)
    calls["α per head, learned"] = _pass(lambda q, k, v, a: _entmax(case, a)(q, k, v), learned, cotangent)
    times = clock.device_times(calls, effort)
    unit = percentiles(times["α = 1.5"])["median"]
    for name in calls:
        if name != "α = 1.5":
            seconds = percentiles(times[name])
            yield Figure(_ALPHAS, case.row, name, seconds["median"] / unit, at_most=1.3, details={"seconds": seconds})


def _memory(case: _Case, clock: Clock) -> Figure:
    inputs, cotangent = _drawn(case, clock.device)
    extra, _ = clock.peak_memory(_pass(_entmax(case, 1.5), inputs, cotangent))
    return Figure(_MEMORY, case.row, case.kind, extra / 1e6, at_most=1000.0)


def _entmax(case: _Case, alpha: float | Tensor) -> Callable[..., Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = contmax.entmax_attention(query, key, value, alpha=alpha, is_causal=case.is_causal)
        assert isinstance(output, Tensor)
        return output

    return attend


def _softmax(case: _Case) -> Callable[..., Tensor]:
    """By the kernels that torch chooses: not flash attention where cuDNN has faster ones."""
    return lambda query, key, value: scaled_dot_product_attention(query, key, value, is_causal=case.is_causal)


def _chosen_kernels(case: _Case, inputs: tuple[Tensor, ...]) -> str:
    """Their name in torch, such as CUDNN_ATTENTION."""
    query, key, value = inputs
    return str(SDPBackend(torch._fused_sdp_choice(query, key, value, is_causal=case.is_causal)).name)


def _flash(case: _Case) -> Callable[..., Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        only = sdpa_kernel(SDPBackend.FLASH_ATTENTION) if query.is_cuda else contextlib.nullcontext()
        with only:
            return _softmax(case)(query, key, value)

    return attend


def _pass(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], cotangent: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(function(*inputs), inputs, cotangent)


def _drawn(case: _Case, device: str) -> tuple[tuple[Tensor, ...], Tensor]:
    """Query, key and value, and the gradient of the output: bfloat16, the same in every run.

    Random scores are normal. Clustered ones have queries and keys near one of L/64 centres, in order. Flat ones are a
    tenth of random ones: hundreds of keys have mass.
    """
    generator = torch.Generator(device).manual_seed(0)
    shape = (case.batch, case.heads, case.length, case.channels)
    query, key, value, cotangent = (torch.randn(shape, device=device, generator=generator) for _ in range(4))
    if case.kind == "clustered":
        few = (*shape[:2], -(-case.length // 64), case.channels)
        centres = torch.randn(few, device=device, generator=generator).repeat_interleave(64, 2)[:, :, : case.length]
        query, key = centres + 0.5 * query, centres + 0.5 * key
    if case.kind == "flat":
        query = 0.1 * query
    inputs = tuple(x.bfloat16().requires_grad_() for x in (query, key, value))
    return inputs, cotangent.bfloat16()


def _error(case: _Case, device: str) -> float:
    """Largest error of output and gradients of a short case, ‖x − exact‖/‖exact‖ in float64."""
    short = case._replace(batch=1, heads=2, length=min(case.length, 1000))
    inputs, cotangent = _drawn(short, device)
    exact = tuple(x.detach().double().requires_grad_() for x in inputs)
    ours, theirs = (_results(_entmax(short, 1.5), given, cotangent) for given in (inputs, exact))
    return max(_distance(x, y) for x, y in zip(ours, theirs, strict=True))


def _results(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], cotangent: Tensor) -> list[Tensor]:
    """The output and the gradients."""
    output = function(*inputs)
    return [output.detach(), *torch.autograd.grad(output, inputs, cotangent.to(output.dtype))]


def _distance(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact.double()).norm() / exact.double().norm())


GPU_ENTMAX_ATTENTION = Suite("entmax-attention", lambda effort: entmax_attention_figures(effort, GraphClock()))
GPU_ENTMAX_ATTENTION_PEERS = Suite(
    "entmax-attention-peers", lambda effort: peer_figures(effort, GraphClock()), peers=("adasplash",)
)
