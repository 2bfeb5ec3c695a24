"""The suites `maps` and `losses` on a GPU: against torch.softmax, F.cross_entropy and other libraries."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import contmax
from contmax_lab.bench._figure import Contest, Figure, Work, gpu_suite, peer, ratio
from contmax_lab.bench._measuring import Call, Clock, Effort

_MAPS = "forward + backward: device time / torch.softmax"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_LARGE = ((8192, 1024), (8192, 4096), (1024, 32000))
_SMALL = ((64, 100), (16, 700))
_NAMED = {"sparsemax": 2.0, "entmax α=1.5": 1.5, "entmax α=4/3": 4 / 3}
# Shapes whose eager calls are timed too.
_EAGER = (_LARGE[0], _SMALL[0])
_OTHER, _LEARNED = "entmax α=1.3", "entmax, learned α"
# Shapes on which all named maps have a target of their own.
_LIMITS = {(256, 128000): 1.2, (65536, 64): 1.0, (32768, 512): 1.0}
# Calls one after the other in one compiled function, and the target of both.
_COMPILED = "compiled by torch.compile, forward + backward: wall clock / compiled torch.softmax"
_COMPILED_CALLS = {"one call": 1, "eight calls in a row": 8}
_COMPILED_AT_MOST = 1.3
_LOSSES = "forward + backward: device time / F.cross_entropy"
_MEMORY = "peak memory beyond the gradient / memory of the logits"
_LINEAR = "linear layer and loss, forward + backward: device time / logits first, then entmax_loss"
_LINEAR_MEMORY = "linear layer and loss: peak memory beyond the gradients / memory of the logits"
_LINEAR_ERROR = "linear layer and loss: error of the weight's gradient, relative to its largest number"
_LOSS_LIMITS = {torch.float32: 0.5, torch.bfloat16: 0.8}

Shape = tuple[int, int]


def _scores(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return (2 * torch.randn(shape, device=generator.device, generator=generator)).to(dtype).requires_grad_()


def maps_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """The figures of the suite, by a clock."""
    # Narrow rows first: they take little time, and a run that is stopped early has them.
    shapes = _SMALL if effort.small else sorted((*_LARGE, *_LIMITS), key=lambda shape: shape[1])
    for shape in shapes:
        for dtype in _DTYPES:
            for column in (*_NAMED, _OTHER, _LEARNED) if shape not in _LIMITS else _NAMED:
                contest = _map_contest(shape, dtype, column, clock.device)
                yield from contest.figures(clock, effort)
                yield from contest.peer_figures(clock, effort)
            if shape in _EAGER:
                # An autograd.Function is called from Python, torch.softmax from C++.
                contest = _map_contest(shape, dtype, "sparsemax", clock.device)
                idle = dataclasses.replace(contest.ours, function=_Nothing.apply)
                column = "an autograd.Function that computes nothing"
                alone = dataclasses.replace(contest, ours=idle, column=column, eager_at_most=None)
                yield alone.eager_figure(clock, effort)
    for calls in _COMPILED_CALLS:
        for dtype in _DTYPES:
            yield _compiled(shapes[0] if effort.small else _LARGE[0], dtype, calls, clock, effort)


def _map_contest(shape: Shape, dtype: str, column: str, device: str) -> Contest:
    generator = torch.Generator(device).manual_seed(0)
    scores = _scores(shape, _DTYPES[dtype], generator)
    cotangent = torch.randn(shape, device=device, generator=generator).to(_DTYPES[dtype])
    alpha: Any = _NAMED.get(column, 1.3)
    others = {_OTHER: 1.4, _LEARNED: 1.7}
    if column == _LEARNED:
        rows = torch.rand(shape[0], 1, device=device, generator=generator)
        alpha = (1.1 + 0.8 * rows).to(_DTYPES[dtype]).requires_grad_()
        ours = Work(contmax.entmax, (scores, alpha), cotangent)
    else:
        ours = Work(lambda x: contmax.entmax(x, alpha), (scores,), cotangent)
    return Contest(
        table=_MAPS,
        row=f"{shape} {dtype}",
        column=column,
        ours=ours,
        unit=Work(lambda x: torch.softmax(x, -1), (scores,), cotangent),
        moved_bytes=_least_bytes(contmax.entmax(scores.detach(), alpha)),
        at_most=others.get(column, _LIMITS.get(shape, 0.75 if dtype == "float32" else 0.85)),
        eager_at_most=1.5 if shape in _EAGER and column in _NAMED else None,
        peers=_map_peers(scores, cotangent, alpha, compiled=shape == _LARGE[0]),
    )


def _compiled(shape: Shape, dtype: str, calls: str, clock: Clock, effort: Effort) -> Figure:
    """Calls of α-entmax, each on the probabilities of the call before, compiled as one function."""
    generator = torch.Generator(clock.device).manual_seed(0)
    scores = _scores(shape, _DTYPES[dtype], generator)
    cotangent = torch.randn(shape, device=clock.device, generator=generator).to(scores.dtype)

    def in_a_row(function: Callable[[Tensor], Tensor]) -> Work:
        def all_calls(x: Tensor) -> Tensor:
            for _ in range(_COMPILED_CALLS[calls]):
                x = function(x)
            return x

        compiled = all_calls if effort.small else torch.compile(all_calls, fullgraph=True, dynamic=False)
        return Work(compiled, (scores,), cotangent)

    works = {"contmax": in_a_row(lambda x: contmax.entmax(x, 1.5)), "torch": in_a_row(lambda x: torch.softmax(x, -1))}
    patient = effort if effort.small else dataclasses.replace(effort, fewest_rounds=21, most_rounds=51, budget=1.0)
    place = {"table": _COMPILED, "row": f"{shape} {dtype}", "column": f"entmax α=1.5, {calls}"}
    return ratio(clock.wall_times(works, patient), **place, at_most=_COMPILED_AT_MOST)


def _least_bytes(p: Tensor) -> int:
    """Bytes of the scores, of their gradient, twice of the probabilities, and of the cotangent where p > 0.

    The memory is read in sectors of 32 bytes: every sector with a positive probability counts.
    """
    together = 32 // p.element_size()
    beside = torch.nn.functional.pad(p, (0, -p.shape[-1] % together)).unflatten(-1, (-1, together)).any(-1)
    return 4 * p.numel() * p.element_size() + 32 * int(beside.sum())


class _Nothing(torch.autograd.Function):
    """A map that allocates its result and its gradient but launches no kernel: the least cost of Python's side."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        p = torch.empty_like(scores)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        return torch.empty_like(p)


def _map_peers(scores: Tensor, cotangent: Tensor, alpha: Any, compiled: bool) -> dict[str, Call]:
    """Passes of other libraries that are installed, and of softmax compiled by torch.compile."""
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


# -- losses ------------------------------------------------------------------------------------------------------------


def losses_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """The figures of the suite, by a clock."""
    shapes = ((64, 1000),) if effort.small else ((4096, 32000), (8192, 128256))
    kinds = [(dtype, alpha) for dtype in _LOSS_LIMITS for alpha in (1.5, 2.0)]
    for shape, targets in (*((shape, _class_ids) for shape in shapes), (shapes[0], _soft_targets)):
        for kind in kinds:
            contest = _loss_contest(shape, targets, *kind, clock.device)
            yield from contest.figures(clock, effort)
            logits = contest.ours.inputs[0]
            extra = _beyond_gradients(contest.ours, clock) / (logits.numel() * logits.element_size())
            yield Figure(_MEMORY, contest.row, contest.column, extra, at_most=0.01)
    # A linear layer whose logits are never all in memory.
    sizes = (64, 32, 1000) if effort.small else (8192, 4096, 128256)
    yield from _linear(*sizes, clock, effort)
    for shape, kind in itertools.product(shapes, kinds):
        yield from _loss_contest(shape, _class_ids, *kind, clock.device).peer_figures(clock, effort)


Targets = Callable[[Shape, torch.Generator], Tensor]


def _class_ids(shape: Shape, generator: torch.Generator) -> Tensor:
    return torch.randint(0, shape[1], shape[:1], device=generator.device, generator=generator)


def _soft_targets(shape: Shape, generator: torch.Generator) -> Tensor:
    """A probability for every class, a third of them zero."""
    target = (2 * torch.randn(shape, device=generator.device, generator=generator)).exp()
    target[:, ::3] = 0
    return target / target.sum(-1, keepdim=True)


def _loss_contest(shape: Shape, targets: Targets, dtype: torch.dtype, alpha: float, device: str) -> Contest:
    generator = torch.Generator(device).manual_seed(0)
    logits = _scores(shape, dtype, generator)
    target, one = targets(shape, generator), torch.ones((), dtype=dtype, device=device)
    soft = target.is_floating_point()
    target = target.to(dtype) if soft else target
    return Contest(
        table=_LOSSES,
        row=f"{'soft targets, ' if soft else ''}{shape} {str(dtype).removeprefix('torch.')}",
        column=f"entmax_loss α={alpha:g}",
        ours=Work(lambda z, y: contmax.losses.entmax_loss(z, y, alpha), (logits, target), one),
        unit=Work(cross_entropy, (logits, target), one),
        # The logits once, soft targets once, the gradient of the logits once.
        moved_bytes=(3 if soft else 2) * logits.numel() * logits.element_size(),
        at_most=_LOSS_LIMITS[dtype],
        peers={} if soft else _loss_peers(logits, target, one, alpha),
    )


def _loss_peers(logits: Tensor, target: Tensor, one: Tensor, alpha: float) -> dict[str, Call]:
    found: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    entmax, liger = peer("entmax"), peer("liger_kernel.transformers.functional")
    if entmax is not None:
        loss = entmax.entmax15_loss if alpha == 1.5 else entmax.sparsemax_loss
        found["entmax"] = lambda z, y: loss(z, y).mean()
    if liger is not None:
        found["liger_kernel's cross-entropy"] = lambda z, y: liger.liger_cross_entropy(z, y)
    return {name: Work(function, (logits, target), one) for name, function in found.items()}


def _beyond_gradients(work: Work, clock: Clock) -> float:
    """Peak memory of a pass beyond its gradients, in bytes; NaN where it does not run."""
    try:
        peak, (_, *gradients) = clock.peak_memory(work)
    except Exception:  # the figure of the time has the reason
        return math.nan
    return float(peak - sum(g.numel() * g.element_size() for g in gradients))


def _linear(tokens: int, channels: int, classes: int, clock: Clock, effort: Effort) -> Iterator[Figure]:
    generator = torch.Generator(clock.device).manual_seed(0)
    hidden, weight = (
        (size * torch.randn(rows, channels, device=clock.device, generator=generator)).bfloat16().requires_grad_()
        for rows, size in ((tokens, 1.0), (classes, 2 / math.sqrt(channels)))
    )
    target = torch.randint(0, classes, (tokens,), device=clock.device, generator=generator)
    one = torch.ones((), dtype=torch.bfloat16, device=clock.device)
    inputs, options = (hidden, weight, target), {"shared": (1,)}
    contest = Contest(
        table=_LINEAR,
        row=f"{tokens} × {channels} × {classes} bfloat16",
        column="linear_entmax_loss α=1.5",
        ours=Work(lambda h, w, y: contmax.losses.linear_entmax_loss(h, w, y, 1.5), inputs, one, **options),
        unit=Work(lambda h, w, y: contmax.losses.entmax_loss(h @ w.mT, y, 1.5), inputs, one, **options),
        moved_bytes=4 * (hidden.numel() + weight.numel()) * hidden.element_size(),
        at_most=1.1,
    )
    figures = list(contest.figures(clock, effort))
    yield from figures
    extra = _beyond_gradients(contest.ours, clock) / (tokens * classes * hidden.element_size())
    yield Figure(_LINEAR_MEMORY, contest.row, contest.column, extra, at_most=1 / 8)
    if "errors" in figures[0].details:
        ours, theirs = (figures[0].details[name][2] for name in ("errors", "errors_of_torch"))
        limit = 2 * theirs + torch.finfo(torch.bfloat16).eps
        yield Figure(_LINEAR_ERROR, contest.row, contest.column, ours, at_most=limit)


GPU_MAPS = gpu_suite("maps", maps_figures, peers=("entmax", "liger_kernel", "adasplash"))
GPU_LOSSES = gpu_suite("losses", losses_figures, peers=("entmax", "liger_kernel"))
