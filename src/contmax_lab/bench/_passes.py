"""The work that is measured: one forward and backward pass of a map or a loss, by any of three libraries."""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import contmax

Library = Literal["torch", "contmax", "entmax"]
Shape = tuple[int, int]

# How scores are drawn: the usual case and the two that keep whole rows in the support.
DRAWS: dict[str, Callable[[Shape, torch.Generator], Tensor]] = {
    "normal": lambda shape, generator: torch.randn(shape, generator=generator),
    "flat": lambda shape, generator: 0.01 * torch.randn(shape, generator=generator),
    "ties": lambda shape, generator: torch.randint(0, 2, shape, generator=generator).float(),
}


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation in three libraries, as functions of the scores and of a second argument (α, or class ids).

    Args:
        contmax: ours.
        entmax: the peer's, whose first argument is the package.
        second: draws the second argument for scores of a shape.
        torch: the operation whose time is the unit.
        per_row: whether the result has one number per row, not one per score.
        peer_is_exact: whether the peer computes it exactly, not by bisection.
    """

    contmax: Callable[[Tensor, Any], Tensor]
    entmax: Callable[[ModuleType, Tensor, Any], Tensor]
    second: Callable[[Shape, torch.Generator], float | Tensor]
    torch: Callable[[Tensor, Any], Tensor] = lambda scores, _: torch.softmax(scores, -1)
    per_row: bool = False
    peer_is_exact: bool = True

    def by(self, library: Library) -> Callable[[Tensor, Any], Tensor]:
        """The operation in one of the libraries, which must be installed."""
        if library == "contmax":
            return self.contmax
        if library == "torch":
            return self.torch
        return functools.partial(self.entmax, importlib.import_module("entmax"))


def _fixed(alpha: float) -> Callable[[Shape, torch.Generator], float]:
    return lambda shape, generator: alpha


def _learned_alpha(shape: Shape, generator: torch.Generator) -> Tensor:
    return (1.1 + 0.8 * torch.rand(shape[0], 1, generator=generator)).requires_grad_()


def _class_ids(shape: Shape, generator: torch.Generator) -> Tensor:
    return torch.randint(0, shape[1], shape[:1], generator=generator)


_by_bisection: dict[str, Any] = {
    "contmax": lambda x, alpha: contmax.entmax(x, alpha),
    "entmax": lambda package, x, alpha: package.entmax_bisect(x, alpha),
    "peer_is_exact": False,
}

TENSOR_ALPHA = "entmax, tensor α"

MAP_OPERATIONS = {
    "sparsemax": Operation(
        contmax=lambda x, _: contmax.sparsemax(x),
        entmax=lambda package, x, _: package.sparsemax(x),
        second=_fixed(2.0),
    ),
    "entmax α=1.5": Operation(
        contmax=lambda x, alpha: contmax.entmax(x, alpha),
        entmax=lambda package, x, _: package.entmax15(x),
        second=_fixed(1.5),
    ),
    "entmax α=4/3": Operation(second=_fixed(4 / 3), **_by_bisection),
    TENSOR_ALPHA: Operation(second=_learned_alpha, **_by_bisection),
}

LOSS_OPERATIONS = {
    "entmax_loss α=1.5": Operation(
        torch=lambda z, ids: cross_entropy(z, ids, reduction="none"),
        contmax=lambda z, ids: contmax.losses.entmax_loss(z, ids, 1.5, reduction="none"),
        entmax=lambda package, z, ids: package.entmax15_loss(z, ids),
        second=_class_ids,
        per_row=True,
    ),
}

_OPERATIONS = MAP_OPERATIONS | LOSS_OPERATIONS


def drawn(name: str, shape: Shape, draw: str = "normal") -> tuple[Tensor, Any]:
    """Scores (float32) and second argument of an operation: the same for every library and in every run."""
    generator = torch.Generator().manual_seed(0)
    return DRAWS[draw](shape, generator), _OPERATIONS[name].second(shape, generator)


def prepared_pass(library: Library, name: str, shape: Shape, draw: str = "normal") -> Callable[[], None]:
    """A call that does one forward and backward pass with a given cotangent, by a library that is installed."""
    operation = _OPERATIONS[name]
    function = operation.by(library)
    scores, second = drawn(name, shape, draw)
    scores.requires_grad_()
    cotangent = torch.randn(shape[:1] if operation.per_row else shape, generator=torch.Generator().manual_seed(1))

    def forward_and_backward() -> None:
        scores.grad = None
        if isinstance(second, Tensor):
            second.grad = None
        result = function(scores, second)
        result.backward(cotangent)

    return forward_and_backward
