"""Ways to launch: side streams, eight threads at once, captured graphs, and two shapes in turns.

The same call gives the same bits on one device, however it is launched; what it gives is compared by other targets.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

import contmax
from contmax.losses import entmax_loss
from fuzz.gpu._case import Case, WrongResultError, shown
from fuzz.gpu._scores import drawn_alpha, drawn_dtype, drawn_kind, scores

_THREADS, _TURNS = 8, 6
_Results = TypeVar("_Results")


class _Call:
    """A function of the library with its arguments: results and gradients, always from the same tensors.

    Args:
        case: the case, from which all is drawn.
        what: "map", "hard", "soft" or "attention".
    """

    def __init__(self, case: Case, what: str) -> None:
        self.what, self.dtype = what, drawn_dtype(case)
        self.alpha = case.choose((1.25, 1.5, 1.7, 2.0)) if what == "attention" else drawn_alpha(case, 0.0)
        if what == "attention":
            keys, queries = (40, 33) if case.is_small else (case.choose((100, 513, 3000)), case.choose((33, 200)))
            shapes = [(1, 4, queries, 64), (1, 4, keys, 64), (1, 4, keys, 64)]
            self.rows, self.columns, self.kind = 4 * queries, keys, "normal"
            self.inputs = [case.normal(*shape).to(self.dtype) for shape in shapes]
        else:
            self.columns = case.choose((5, 33, 300) if case.is_small else (9, 20, 100, 1000, 5000, 32000, 50257))
            self.rows, self.kind = 12 if case.is_small else max(64, 2**21 // self.columns), drawn_kind(case)
            self.inputs = [scores(case, self.rows, self.columns, self.dtype, self.kind)]
        self.ids = case.integers(self.columns, self.rows)
        self.target = torch.nn.functional.one_hot(self.ids, self.columns).to(self.dtype) if what == "soft" else None
        self.inputs = [x.requires_grad_() for x in self.inputs]

    def __str__(self) -> str:
        return f"{self.what} {self.rows}×{self.columns} {shown(self.dtype)} {shown(self.alpha)} {self.kind}"

    def __call__(self) -> list[Tensor]:
        if self.what == "attention":
            output = contmax.entmax_attention(*self.inputs, alpha=self.alpha, is_causal=True)
        elif self.what == "map":
            output = contmax.entmax(self.inputs[0], self.alpha)
        else:
            target = self.ids if self.target is None else self.target
            output = entmax_loss(self.inputs[0], target, self.alpha, dim=-1, reduction="none")
        # An expanded number, as a sum hands back: nothing is made that a graph would have to keep.
        one = torch.ones((), dtype=output.dtype, device=output.device).expand(output.shape)
        return [output.detach(), *torch.autograd.grad(output, self.inputs, one)]


def _drawn(case: Case, count: int) -> list[_Call]:
    calls = [_Call(case, case.choose(("map", "map", "hard", "soft", "attention"))) for _ in range(count)]
    case.describe("; ".join(map(str, calls)))
    return calls


def _require_same(how: str, call: _Call, got: list[Tensor], want: list[Tensor]) -> None:
    for number, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        same = (ours == theirs) | (ours.isnan() & theirs.isnan())
        if not bool(same.all()):
            raise WrongResultError(
                f"{how}: {int((~same).sum())} of {same.numel()} numbers of result {number} differ in {call}"
            )


def _count(case: Case, calls: list[_Call], times: int) -> None:
    for call in calls:
        case.tried(times * call.rows, call.columns)


def _synchronize(case: Case) -> None:
    if case.device == "cuda":
        torch.cuda.synchronize()


def streams(case: Case) -> None:
    """Calls on streams of their own, beside each other."""
    calls = _drawn(case, 3)
    first = [call() for call in calls]
    _synchronize(case)
    found: list[list[list[Tensor]]] = []
    for call in calls:
        with torch.cuda.stream(torch.cuda.Stream() if case.device == "cuda" else None):
            found.append([call() for _ in range(_TURNS)])
    _synchronize(case)
    for call, got, want in zip(calls, found, first, strict=True):
        for again in got:
            _require_same("on a side stream", call, again, want)
    _count(case, calls, 1 + _TURNS)


def threads(case: Case) -> None:
    """Eight threads at once, each with a stream and a call of its own; the first calls of all are among them."""
    calls = _drawn(case, _THREADS)
    found: list[list[list[Tensor]]] = [[] for _ in calls]
    failures: list[BaseException] = []
    start = threading.Barrier(_THREADS)

    def work(number: int) -> None:
        try:
            start.wait(60)
            with torch.cuda.stream(torch.cuda.Stream() if case.device == "cuda" else None):
                found[number] = [calls[number]() for _ in range(_TURNS)]
        except BaseException as error:
            failures.append(error)

    _synchronize(case)
    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(_THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    _synchronize(case)
    for call, got in zip(calls, found, strict=True):
        for again in got:
            _require_same("by a thread", call, again, call())
    _count(case, calls, 2 * _TURNS)


def graphs(case: Case) -> None:
    """A captured call, replayed on other numbers."""
    (call,) = _drawn(case, 1)
    replay = captured(call) if case.device == "cuda" else call
    for _ in range(_TURNS):
        with torch.no_grad():
            for x in call.inputs:
                x.copy_(torch.randn(x.shape, device=x.device, generator=case.generator))
        got = [x.clone() for x in replay()]
        _require_same("replayed", call, got, call())
    _count(case, [call], 2 * _TURNS)


def captured(call: Callable[[], _Results]) -> Callable[[], _Results]:
    """The call as a CUDA graph, which returns its results for what its inputs hold by then."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()

    def replay() -> _Results:
        graph.replay()
        return results

    return replay


def turns(case: Case) -> None:
    """Two calls in turns: what is kept for one must not serve the other."""
    calls = _drawn(case, 2)
    first = [call() for call in calls]
    for _ in range(_TURNS):
        for call, want in zip(calls, first, strict=True):
            _require_same("in turns", call, call(), want)
    _count(case, calls, 1 + _TURNS)
