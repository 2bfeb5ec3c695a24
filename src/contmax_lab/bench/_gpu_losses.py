"""The suite `losses` on a GPU: entmax losses over vocabularies against torch's cross-entropy, time and memory."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import contmax
from contmax_lab.bench._figure import Figure
from contmax_lab.bench._gpu_timing import Call, Clock, GraphClock
from contmax_lab.bench._gpu_work import Contest, Work
from contmax_lab.bench._suite import Suite, peer
from contmax_lab.bench._timing import Effort

_TABLE = "forward + backward: device time / F.cross_entropy"
_MEMORY = "peak memory beyond the gradient / memory of the logits"
_LINEAR = "linear layer and loss, forward + backward: device time / logits first, then entmax_loss"
_LINEAR_MEMORY = "linear layer and loss: peak memory beyond the gradients / memory of the logits"
_LINEAR_ERROR = "linear layer and loss: error of the weight's gradient, relative to its largest number"
_LIMITS = {torch.float32: 0.5, torch.bfloat16: 0.8}


def losses_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """The figures of the suite, by a clock."""
    shapes = ((64, 1000),) if effort.small else ((4096, 32000), (8192, 128256))
    for shape, targets in (*((shape, _class_ids) for shape in shapes), (shapes[0], _soft_targets)):
        for dtype, limit in _LIMITS.items():
            for alpha in (1.5, 2.0):
                contest = _contest(shape, targets, dtype, alpha, limit, clock.device)
                yield from contest.figures(clock, effort)
                yield _memory(contest, clock)
    # A linear layer that never holds all its logits at once.
    sizes = (64, 32, 1000) if effort.small else (8192, 4096, 128256)
    yield from _linear(*sizes, clock, effort)
    for shape in shapes:
        for dtype, limit in _LIMITS.items():
            for alpha in (1.5, 2.0):
                contest = _contest(shape, _class_ids, dtype, alpha, limit, clock.device)
                yield from contest.peer_figures(clock, effort)


Shape = tuple[int, int]
Targets = Callable[[Shape, torch.Generator], Tensor]


def _class_ids(shape: Shape, generator: torch.Generator) -> Tensor:
    return torch.randint(0, shape[1], shape[:1], device=generator.device, generator=generator)


def _soft_targets(shape: Shape, generator: torch.Generator) -> Tensor:
    """A probability for every class, a third of them zero."""
    target = (2 * torch.randn(shape, device=generator.device, generator=generator)).exp()
    target[:, ::3] = 0
    return target / target.sum(-1, keepdim=True)


def _contest(shape: Shape, targets: Targets, dtype: torch.dtype, alpha: float, limit: float, device: str) -> Contest:
    generator = torch.Generator(device).manual_seed(0)
    logits = (2 * torch.randn(shape, device=device, generator=generator)).to(dtype).requires_grad_()
    target, one = targets(shape, generator), torch.ones((), dtype=dtype, device=device)
    soft = target.is_floating_point()
    target = target.to(dtype) if soft else target
    return Contest(
        table=_TABLE,
        row=f"{'soft targets, ' if soft else ''}{shape} {str(dtype).removeprefix('torch.')}",
        column=f"entmax_loss α={alpha:g}",
        ours=Work(lambda z, y: contmax.losses.entmax_loss(z, y, alpha), (logits, target), one),
        unit=Work(cross_entropy, (logits, target), one),
        # The logits once, soft targets once, the gradient of the logits once.
        moved_bytes=(3 if soft else 2) * logits.numel() * logits.element_size(),
        at_most=limit,
        peers={} if soft else _peers(logits, target, one, alpha),
    )


def _peers(logits: Tensor, target: Tensor, one: Tensor, alpha: float) -> dict[str, Call]:
    found: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    entmax, liger = peer("entmax"), peer("liger_kernel.transformers.functional")
    if entmax is not None:
        loss = entmax.entmax15_loss if alpha == 1.5 else entmax.sparsemax_loss
        found["entmax"] = lambda z, y: loss(z, y).mean()
    if liger is not None:
        found["liger_kernel's cross-entropy"] = lambda z, y: liger.liger_cross_entropy(z, y)
    return {name: Work(function, (logits, target), one) for name, function in found.items()}


def _memory(contest: Contest, clock: Clock) -> Figure:
    logits = contest.ours.inputs[0]
    extra = _beyond_gradients(contest.ours, clock) / (logits.numel() * logits.element_size())
    return Figure(_MEMORY, contest.row, contest.column, extra, at_most=0.01)


def _beyond_gradients(work: Work, clock: Clock) -> float:
    """Bytes at the peak of a pass without what it returns; NaN where it does not run."""
    try:
        peak, (_, *gradients) = clock.peak_memory(work)
    except Exception:  # what is wrong stands with the time of the same work
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


GPU_LOSSES = Suite("losses", lambda effort: losses_figures(effort, GraphClock()), peers=("entmax", "liger_kernel"))
