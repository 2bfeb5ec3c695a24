"""A forward and backward pass; on a GPU, whether it is right, and how its time compares."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from contmax_lab.bench._figure import Figure, Times
from contmax_lab.bench._measuring import Call, Clock, Effort, percentiles

# Examples of a batch that are computed again in float64.
_CHECKED = 32


@dataclasses.dataclass(frozen=True)
class Work:
    """A function of tensors and the cotangent of its result: what one forward and backward pass computes.

    Args:
        function: returns one tensor; it is called with tensors of another dtype too, where it is checked.
        inputs: its arguments. Tensors that require a gradient are differentiated; the first axis of a tensor is that of
            examples.
        cotangent: gradient of the result, with examples first, or a scalar.
        shared: places of inputs without an axis of examples.
    """

    function: Callable[..., Tensor]
    inputs: tuple[Any, ...]
    cotangent: Tensor
    shared: tuple[int, ...] = ()

    def __call__(self) -> tuple[Tensor, ...]:
        """The result and the gradients."""
        live = [x for x in self.inputs if isinstance(x, Tensor) and x.requires_grad]
        result = self.function(*self.inputs)
        return result.detach(), *torch.autograd.grad(result, live, self.cotangent)

    def part(self, dtype: torch.dtype | None = None) -> "Work":
        """This work for the last examples alone, in another dtype if one is given."""
        inputs = [_taken(x, place in self.shared, dtype) for place, x in enumerate(self.inputs)]
        cotangent = _taken(self.cotangent, self.cotangent.dim() == 0, dtype)
        return Work(self.function, tuple(inputs), cotangent, self.shared)

    def errors(self) -> list[float]:
        """Largest error of the result and of each gradient against float64, relative to the largest number of each."""
        return list(map(relative_error, self.part()(), self.part(torch.float64)()))


def _taken(x: Tensor, is_shared: bool, dtype: torch.dtype | None) -> Tensor:
    part = x.detach() if is_shared else x.detach()[-_CHECKED:].contiguous()
    moved = part.to(dtype) if dtype is not None and part.is_floating_point() else part
    return moved.clone().requires_grad_(x.requires_grad)


def relative_error(got: Tensor, exact: Tensor) -> float:
    """Largest error, relative to the largest number unless that is 0."""
    largest = float(exact.abs().max())
    error = float((got.double() - exact).abs().max())
    return error / largest if largest else error


@dataclasses.dataclass(frozen=True)
class Contest:
    """A pass of ours beside the torch operation it is measured by, and peers.

    Args:
        table: what is compared, in words.
        row: the size of the inputs.
        column: the operation.
        ours: our pass.
        unit: the pass whose time is the unit.
        moved_bytes: what any implementation must at least read and write.
        at_most: target of the ratio of device times, or None.
        eager_at_most: target of the ratio of wall clocks; no eager passes are timed without one.
        peers: name → another library's pass; an exception that one raises is noted, and the others go on.
        tolerance: largest relative error of our result and gradients that is allowed; by default twice the error of the
            unit's, and rounding.
    """

    table: str
    row: str
    column: str
    ours: Work
    unit: Work
    moved_bytes: int
    at_most: float | None = None
    eager_at_most: float | None = None
    peers: Mapping[str, Call] = dataclasses.field(default_factory=dict)
    tolerance: float | None = None

    def figures(self, clock: Clock, effort: Effort) -> Iterator[Figure]:
        """The ratio of device times, the share of the bandwidth, and the ratio of wall clocks."""
        place: dict[str, Any] = {"row": self.row, "column": self.column}
        details = self._checked()
        if "failed" not in details:
            try:
                times = clock.device_times({"contmax": self.ours, "torch": self.unit}, effort)
            except Exception as error:  # a pass that waits for the device cannot be captured
                details = {"failed": _said(error)}
        if "failed" in details:
            yield Figure(self.table, **place, value=math.nan, at_most=self.at_most, details=details)
            return
        yield device_ratio(times, "contmax", details, table=self.table, at_most=self.at_most, **place)
        seconds = percentiles(times["contmax"])["median"]
        yield Figure(share_table(self.table), **place, value=self.moved_bytes / seconds / clock.bandwidth())
        if self.eager_at_most is not None:
            yield self.eager_figure(clock, effort)

    def eager_figure(self, clock: Clock, effort: Effort) -> Figure:
        """The ratio of wall clocks of eager calls."""
        # Wall clocks vary with the load of the machine, unlike times of the device.
        patient = effort if effort.small else dataclasses.replace(effort, fewest_rounds=51, most_rounds=101, budget=2.0)
        wall = clock.wall_times({"contmax": self.ours, "torch": self.unit}, patient)
        place = {"table": eager_table(self.table), "row": self.row, "column": self.column}
        return device_ratio(wall, "contmax", **place, at_most=self.eager_at_most)

    def peer_figures(self, clock: Clock, effort: Effort) -> Iterator[Figure]:
        """The ratios of device times of the peers, as rows of the table.

        A peer that fails may leave the memory of the device full; suites with large inputs time their peers last.
        """
        for name, call in self.peers.items():
            place: dict[str, Any] = {"table": self.table, "row": f"{self.row} by {name}", "column": self.column}
            try:
                times = clock.device_times({name: call, "torch": self.unit}, effort)
            except Exception as error:  # peers fail in ways of their own
                yield Figure(**place, value=None, details={"refused": _said(error)})
            else:
                yield device_ratio(times, name, **place)

    def _checked(self) -> dict[str, Any]:
        """Errors of both, and what is wrong with ours, if anything is."""
        try:
            ours, theirs = self.ours.errors(), self.unit.errors()
            self.ours()
        except Exception as error:  # the other rows are still measured
            return {"failed": _said(error)}
        # One rounding to the dtype of the result, after a computation in float32.
        dtype = next(x.dtype for x in self.ours.inputs if x.is_floating_point())
        rounding = torch.finfo(dtype).eps + 32 * torch.finfo(torch.float32).eps
        allowed = 2 * max(theirs) + rounding if self.tolerance is None else self.tolerance
        details: dict[str, Any] = {"errors": ours, "errors_of_torch": theirs, "allowed_error": allowed}
        if not max(ours) <= allowed:
            details["failed"] = f"an error of {max(ours):.3g} relative to float64; {allowed:.3g} is allowed"
        return details


def share_table(table: str) -> str:
    """Title of the table that says which share of the bandwidth of the memory was reached."""
    return f"{table}: share of the bandwidth of the memory"


def eager_table(table: str) -> str:
    """Title of the table of wall clocks."""
    return table.replace("device time", "wall clock of eager calls")


def checked(error: float, allowed: float) -> dict[str, Any]:
    """An error relative to float64 as details of a figure; ``failed`` says that it is too large, or NaN."""
    details = {"error": error, "allowed_error": allowed}
    return details if error <= allowed else {**details, "failed": f"an error of {error:.3g} relative to float64"}


def softmax_attention(kernels: SDPBackend, **options: Any) -> Callable[..., Tensor]:
    """scaled_dot_product_attention, on a GPU by certain kernels of torch."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(kernels) if query.is_cuda else contextlib.nullcontext():
            return scaled_dot_product_attention(query, key, value, **options)

    return attend


def _said(error: Exception) -> str:
    first_line = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first_line[:200]}"


def device_ratio(times: Times, name: str, details: Mapping[str, Any] = {}, /, **place: Any) -> Figure:
    """The ratio of the medians of a contender's and torch's times by a `Clock`; their seconds join the details."""
    seconds = {key: percentiles(times[key]) for key in (name, "torch")}
    value = seconds[name]["median"] / seconds["torch"]["median"]
    return Figure(value=value, details={"seconds": seconds, **details}, **place)
