"""The suites `entmax-attention`: entmax attention beside scaled_dot_product_attention, on one thread and on a GPU.

On a GPU the unit is flash attention. There the times of adasplash are a suite of their own, `entmax-attention-peers`:
adasplash tries many configurations for every length, for minutes. They are wall clocks, since the first version of
adasplash waits for the device and cannot be captured in a CUDA graph.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

import contmax
from contmax_lab.bench._figure import (
    Figure,
    Suite,
    Work,
    checked,
    eager_table,
    gpu_suite,
    peer,
    ratio,
    softmax_attention,
)
from contmax_lab.bench._measuring import Call, Clock, Effort, interleaved, percentiles

_TIME = "forward + backward: time / scaled_dot_product_attention"
_SHORT_TIME = "(16, 4, L, 32), forward + backward: time / entmax of the scores by hand"
_BOTH = "bfloat16, forward + backward: device time / flash attention"
_FORWARD = "bfloat16, forward: device time / flash attention"
_ALPHAS = "bfloat16, forward + backward, L = 4,096: device time / that of α = 1.5"
_CHOICE = "bfloat16, forward + backward: device time of the kernels that torch chooses / flash attention"
_EAGER = eager_table(_BOTH)
_MEMORY = "peak extra memory of forward + backward, MB"
_ERROR = 8e-3
# Lengths that have a target and take minutes at most.
_LENGTHS_OF_PEERS = (40, 4096, 16384)
# Largest ‖x − ours‖/‖ours‖ of the output of a peer: beyond it the peer computes another attention.
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
    _Case(4, 16, 4096, 64, "flat", True, 1.15),
    _Case(2, 16, 4096, 128, "flat", True, 1.3),
    _Case(1, 16, 16384, 64, "flat", True, 1.15),
    _Case(16, 16, 1024, 64, "random"),
    _Case(32, 16, 512, 64, "random"),
]
# A layer of BERT with one sequence: here the host takes longer than the device.
_SHORT = _Case(1, 12, 512, 64, "random")
_SMALL = [_Case(1, 2, 40, 16, "random"), _Case(1, 2, 40, 16, "clustered"), _Case(1, 2, 40, 16, "flat", False)]


def entmax_attention_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """The figures of the suite, by a clock."""
    cases = _SMALL if effort.small else _CASES
    for case in cases:
        yield from _beside_flash(case, clock, effort)
    yield from _other_alphas(cases[0], clock, effort)
    longest = max(cases, key=lambda case: case.length)
    extra, _ = clock.peak_memory(Work(_entmax(longest, 1.5), *_drawn(longest, clock.device)))
    yield Figure(_MEMORY, longest.row, longest.kind, extra / 1e6, at_most=1000.0)
    for case in cases if effort.small else (*cases, _SHORT):
        drawn = _drawn(case, clock.device)
        calls = {"contmax": Work(_entmax(case, 1.5), *drawn), "torch": Work(_flash(case), *drawn)}
        times = _wall_times(calls, clock, effort)
        yield ratio(times, table=_EAGER, row=case.row, column=case.kind)


def peer_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """Times of each version of adasplash and of ours, by a clock."""
    for case in _SMALL if effort.small else _CASES:
        if case.kind != "flat" and case.length in _LENGTHS_OF_PEERS:
            yield from _beside_peers(case, clock, effort)


def _beside_flash(case: _Case, clock: Clock, effort: Effort) -> Iterator[Figure]:
    # The largest error of output and gradients of a short case, ‖x − exact‖/‖exact‖ in float64.
    short = case._replace(batch=1, heads=2, length=min(case.length, 1000))
    inputs, cotangent = _drawn(short, clock.device)
    exact = tuple(x.detach().double().requires_grad_() for x in inputs)
    pairs = Work(_entmax(short, 1.5), inputs, cotangent)(), Work(_entmax(short, 1.5), exact, cotangent.double())()
    details = checked(max(map(_distance, *pairs)), _ERROR)
    inputs, cotangent = _drawn(case, clock.device)
    if "failed" in details:
        yield Figure(_BOTH, case.row, case.kind, math.nan, at_most=case.at_most, details=details)
        return
    ours, flash, chosen = _entmax(case, 1.5), _flash(case), _softmax(case)
    functions = {"contmax": ours, "torch": flash} | ({"chosen": chosen} if case.kind == "random" else {})
    times = clock.device_times({name: Work(f, inputs, cotangent) for name, f in functions.items()}, effort)
    place: dict[str, Any] = {"row": case.row, "column": case.kind}
    yield ratio(times, "contmax", "torch", details, table=_BOTH, **place, at_most=case.at_most)
    if case.kind == "random":
        # The name in torch of the kernels that it chooses, such as CUDNN_ATTENTION.
        query, key, value = inputs
        kernels = SDPBackend(torch._fused_sdp_choice(query, key, value, is_causal=case.is_causal)).name
        yield ratio(times, "chosen", "torch", {"kernels": str(kernels)}, table=_CHOICE, row=case.row, column="softmax")
        constants = [x.detach() for x in inputs]
        forward = {"contmax": lambda: ours(*constants), "torch": lambda: flash(*constants)}
        times = clock.device_times(forward, effort)
        yield ratio(times, table=_FORWARD, **place, at_most=case.forward_at_most)


def _beside_peers(case: _Case, clock: Clock, effort: Effort) -> Iterator[Figure]:
    """A row: ours and each version of adasplash whose output is ours, all in turns with flash attention."""
    inputs, cotangent = _drawn(case, clock.device)
    ours = Work(_entmax(case, 1.5), inputs, cotangent)
    calls, exact = {"torch": Work(_flash(case), inputs, cotangent), "contmax": ours}, ours()
    details: dict[str, dict[str, Any]] = {"contmax": {}}
    for name, attend in _versions_of_adasplash(case).items():
        details[name] = {}
        if attend is not None:
            theirs = Work(attend, inputs, cotangent)
            try:
                pairs = zip(("output", "query", "key", "value"), theirs(), exact, strict=True)
                found = {part: _distance(x, reference) for part, x, reference in pairs}
                # A peer whose output is something else gets no time.
                if not found["output"] <= _LARGEST_DIFFERENCE:
                    raise ValueError(f"its output differs from that of entmax_attention by {found['output']:.2g}")
                details[name], calls[name] = {"differences": found}, theirs
            except Exception as problem:  # peers fail in ways of their own
                details[name] = {"refused": str(problem)[:200]}
    times = _wall_times(calls, clock, effort)
    for name, known in details.items():
        place: dict[str, Any] = {"table": _EAGER, "row": f"{case.row}, {case.kind}", "column": name}
        empty = Figure(value=None, details=known, **place)
        yield ratio(times, name, "torch", known, **place) if name in calls else empty


def _wall_times(calls: Mapping[str, Call], clock: Clock, effort: Effort) -> dict[str, list[float]]:
    """In blocks so long that the host's delay before the first kernel is negligible."""
    return clock.wall_times(calls, effort if effort.small else dataclasses.replace(effort, block=0.05))


def _versions_of_adasplash(case: _Case) -> dict[str, Callable[..., Tensor] | None]:
    """The attention of each version, where it is installed; the second is for causal attention alone."""
    library = peer("adasplash")
    if library is None:
        return {"adasplash v2": None, "adasplash v1": None}
    # Releases before 0.2 lack the second version; looking it up inside the call makes this a refusal of that call.
    return {
        "adasplash v2": (lambda *inputs: library.adasplash2(*inputs)) if case.is_causal else None,
        "adasplash v1": lambda *inputs: library.adasplash_v1(*inputs, is_causal=case.is_causal),
    }


def _other_alphas(case: _Case, clock: Clock, effort: Effort) -> Iterator[Figure]:
    inputs, cotangent = _drawn(case, clock.device)
    per_head = torch.linspace(1.3, 1.8, case.heads, device=clock.device).requires_grad_()
    alphas = {"α = 1.5": 1.5, "α = 1.25": 1.25, "α = 4/3": 4 / 3, "α = 2": 2.0}
    calls = {name: Work(_entmax(case, alpha), inputs, cotangent) for name, alpha in alphas.items()}
    learned = (*inputs, per_head)
    calls["α per head, learned"] = Work(lambda q, k, v, a: _entmax(case, a)(q, k, v), learned, cotangent)
    unit, *others = ((name, percentiles(of)) for name, of in clock.device_times(calls, effort).items())
    for name, seconds in others:
        value = seconds["median"] / unit[1]["median"]
        yield Figure(_ALPHAS, case.row, name, value, at_most=1.3, details={"seconds": seconds})


def _entmax(case: _Case, alpha: float | Tensor) -> Callable[..., Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = contmax.entmax_attention(query, key, value, alpha=alpha, is_causal=case.is_causal)
        assert isinstance(output, Tensor)
        return output

    return attend


def _softmax(case: _Case) -> Callable[..., Tensor]:
    """Softmax attention by the kernels that torch chooses, which may be faster than flash attention."""
    return lambda query, key, value: scaled_dot_product_attention(query, key, value, is_causal=case.is_causal)


def _flash(case: _Case) -> Callable[..., Tensor]:
    return softmax_attention(SDPBackend.FLASH_ATTENTION, is_causal=case.is_causal)


def _drawn(case: _Case, device: str) -> tuple[tuple[Tensor, ...], Tensor]:
    """Query, key and value, and the gradient of the output: bfloat16, by a fixed seed.

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


def _distance(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact.double()).norm() / exact.double().norm())


def _cpu_figures(effort: Effort) -> Iterator[Figure]:
    shape = (1, 2, 64, 16) if effort.small else (1, 8, 1024, 64)
    inputs = tuple(torch.randn(shape, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3))
    cotangent = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    for is_causal in (False, True):
        case = _Case(*shape, kind="random", is_causal=is_causal)
        for alpha in (1.5, 2.0):
            functions = {"torch": _softmax(case), "contmax": _entmax(case, alpha)}
            passes = {name: Work(function, inputs, cotangent) for name, function in functions.items()}
            row = f"{shape}, {'causal' if is_causal else 'not causal'}"
            place = {"table": _TIME, "row": row, "column": f"α = {alpha:g}"}
            yield ratio(interleaved(passes, effort), "contmax", "torch", **place, at_most=2.0)
    yield from _short_figures(effort)


def _short_figures(effort: Effort) -> Iterator[Figure]:
    """Sequences so short that all weights are in memory, as by hand."""
    for length in (16,) if effort.small else (16, 32, 64, 128, 256):
        case = _Case(16, 4, length, 32, "random", is_causal=False)
        generator = torch.Generator().manual_seed(length)
        drawn = [torch.randn(16, 4, length, 32, generator=generator) for _ in range(4)]
        inputs, cotangent = tuple(x.requires_grad_() for x in drawn[:3]), drawn[3]
        functions = {"contmax": _entmax(case, 1.5), "scaled_dot_product_attention": _softmax(case), "by hand": _by_hand}
        times = interleaved({name: Work(function, inputs, cotangent) for name, function in functions.items()}, effort)
        for name, target in (("contmax", 1.0), ("scaled_dot_product_attention", None)):
            yield ratio(times, name, "by hand", table=_SHORT_TIME, row=f"L = {length}", column=name, at_most=target)


def _by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights: Tensor = contmax.entmax(query @ key.mT / math.sqrt(query.shape[-1]), 1.5)
    return weights @ value


ENTMAX_ATTENTION = Suite("entmax-attention", _cpu_figures)
GPU_ENTMAX_ATTENTION = gpu_suite("entmax-attention", entmax_attention_figures)
GPU_ENTMAX_ATTENTION_PEERS = gpu_suite("entmax-attention-peers", peer_figures, peers=("adasplash",))
