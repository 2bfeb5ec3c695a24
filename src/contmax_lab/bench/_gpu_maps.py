"""The suite `maps` on a GPU: finite maps against torch.softmax, torch.compile of it, and other libraries."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import contmax
from contmax_lab.bench._figure import Figure
from contmax_lab.bench._gpu_timing import Call, Clock, GraphClock
from contmax_lab.bench._gpu_work import Contest, Work
from contmax_lab.bench._suite import Suite, peer
from contmax_lab.bench._timing import Effort

_TABLE = "forward + backward: device time / torch.softmax"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_LARGE = ((8192, 1024), (8192, 4096), (1024, 32000))
_SMALL = ((64, 100), (16, 700))
_NAMED = {"sparsemax": 2.0, "entmax α=1.5": 1.5, "entmax α=4/3": 4 / 3}
# Where eager calls are timed too.
_EAGER = (_LARGE[0], _SMALL[0])
_OTHER, _LEARNED = "entmax α=1.3", "entmax, learned α"
# Where all of the named maps have another target than on large inputs.
_LIMITS = {(256, 128000): 1.2, (65536, 64): 1.0, (32768, 512): 1.0}


def maps_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """The figures of the suite, by a clock."""
    # Narrow rows first: they take little time, and a run that is stopped early has them.
    shapes = _SMALL if effort.small else sorted((*_LARGE, *_LIMITS), key=lambda shape: shape[1])
    for shape in shapes:
        for dtype in _DTYPES:
            for column in (*_NAMED, _OTHER, _LEARNED) if shape not in _LIMITS else _NAMED:
                contest = _contest(shape, dtype, column, clock.device)
                yield from contest.figures(clock, effort)
                yield from contest.peer_figures(clock, effort)
            if shape in _EAGER:
                yield _python_alone(shape, dtype, clock, effort)


def _contest(shape: tuple[int, int], dtype: str, column: str, device: str) -> Contest:
    generator = torch.Generator(device).manual_seed(0)
    scores = (2 * torch.randn(shape, device=device, generator=generator)).to(_DTYPES[dtype]).requires_grad_()
    cotangent = torch.randn(shape, device=device, generator=generator).to(_DTYPES[dtype])
    alpha: Any = _NAMED.get(column, 1.3)
    if column == _LEARNED:
        rows = torch.rand(shape[0], 1, device=device, generator=generator)
        alpha = (1.1 + 0.8 * rows).to(_DTYPES[dtype]).requires_grad_()
        ours = Work(contmax.entmax, (scores, alpha), cotangent)
    else:
        ours = Work(lambda x: contmax.entmax(x, alpha), (scores,), cotangent)
    return Contest(
        table=_TABLE,
        row=f"{shape} {dtype}",
        column=column,
        ours=ours,
        unit=Work(lambda x: torch.softmax(x, -1), (scores,), cotangent),
        moved_bytes=_least_bytes(contmax.entmax(scores.detach(), alpha)),
        at_most=_limit(shape, dtype, column),
        eager_at_most=1.5 if shape in _EAGER and column in _NAMED else None,
        peers=_peers(scores, cotangent, alpha, compiled=shape == _LARGE[0]),
    )


def _least_bytes(p: Tensor) -> int:
    """The scores and their gradient, the probabilities twice, and of their gradient what is beside a positive one: 32
    bytes are read at a time.
    """
    together = 32 // p.element_size()
    beside = torch.nn.functional.pad(p, (0, -p.shape[-1] % together)).unflatten(-1, (-1, together)).any(-1)
    return 4 * p.numel() * p.element_size() + 32 * int(beside.sum())


class _Nothing(torch.autograd.Function):
    """Memory for a result and for a gradient, and no kernel: what Python's side of any map of ours costs at least."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        p = torch.empty_like(scores)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        return torch.empty_like(p)


def _python_alone(shape: tuple[int, int], dtype: str, clock: Clock, effort: Effort) -> Figure:
    """Eager calls of a function of Python that computes nothing, beside torch.softmax, which has no Python inside."""
    contest = _contest(shape, dtype, "sparsemax", clock.device)
    idle = dataclasses.replace(contest.ours, function=_Nothing.apply)
    column = "an autograd.Function that computes nothing"
    return dataclasses.replace(contest, ours=idle, column=column, eager_at_most=None).eager_figure(clock, effort)


def _limit(shape: tuple[int, int], dtype: str, column: str) -> float:
    if column in _NAMED:
        return _LIMITS.get(shape, 0.75 if dtype == "float32" else 0.85)
    return 1.4 if column == _OTHER else 1.7


def _peers(scores: Tensor, cotangent: Tensor, alpha: Any, compiled: bool) -> dict[str, Call]:
    """Passes of other libraries that are installed, and of what torch.compile makes of softmax."""
    found: dict[str, Callable[[Tensor], Tensor]] = {}
    entmax, liger, adasplash = (peer(name) for name in ("entmax", "liger_kernel.ops.sparsemax", "adasplash"))
    if entmax is not None:
        exact = {2.0: "sparsemax", 1.5: "entmax15"}
        name = exact.get(alpha) if isinstance(alpha, float) else None
        found["entmax"] = getattr(entmax, name) if name else lambda x: entmax.entmax_bisect(x, alpha)
    if liger is not None and isinstance(alpha, float) and alpha == 2:
        found["liger_kernel"] = lambda x: liger.LigerSparsemaxFunction.apply(x, -1)
    if adasplash is not None and isinstance(alpha, float):
        found["adasplash"] = lambda x: adasplash.triton_entmax(x, alpha)
    if compiled and isinstance(alpha, float) and alpha == 2 and scores.is_cuda:
        found["torch.compile of softmax"] = torch.compile(lambda x: torch.softmax(x, -1))
    return {name: Work(function, (scores,), cotangent) for name, function in found.items()}


GPU_MAPS = Suite(
    "maps", lambda effort: maps_figures(effort, GraphClock()), peers=("entmax", "liger_kernel", "adasplash")
)
