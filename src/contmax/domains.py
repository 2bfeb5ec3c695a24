"""Where a prediction lives: an interval, a box, a weighted set of nodes, or the knots of a piecewise-linear score.

A continuous domain also says how finely scores are read: it is divided into ``resolution`` equal cells along each axis,
and a score is sampled at the Gauss nodes of each cell. A feature much narrower than the spacing of these nodes that
does not show at any of them is missed. If it shows but is not resolved, there is a warning or an error. Raise
``resolution`` for such scores.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax._typing import Float
from contmax.numerics import gauss_legendre

Number = float | int

# Gauss nodes per cell and axis, and default cells per axis, by the dimension of the domain. The defaults sample 512
# points of an interval, 16,384 of a rectangle and 110,592 of a three-dimensional box.
_NODES_PER_CELL = {1: 16, 2: 8, 3: 6}
_CELLS_PER_AXIS = {1: 32, 2: 16, 3: 8}


class _Lebesgue:
    """Base of Box and Interval, with Lebesgue measure: corners ``low`` and ``high``, ``resolution`` cells per axis."""

    low: Tensor
    high: Tensor
    resolution: int

    def _set_resolution(self, resolution: int | None) -> None:
        """Check the corners (on eager CPU tensors) and the number of cells; set ``resolution`` or its default."""
        if is_eager_cpu(self.low, self.high):
            length, owner = self.high - self.low, type(self).__name__
            got = f"got low {self.low.tolist()} and high {self.high.tolist()}"
            if not bool(length.isfinite().all()):
                raise ValueError(
                    f"{owner} must be bounded; {got}. Predictions on the whole line need a closed form "
                    "(contmax.densities); else pass ends beyond which the density is negligible."
                )
            if not bool((length > 0).all()):
                raise ValueError(f"{owner} must have low < high; {got}.")
        default = _CELLS_PER_AXIS[self.dimension]
        resolution = default if resolution is None else resolution
        if isinstance(resolution, bool) or not isinstance(resolution, int):
            raise TypeError(f"resolution must be an integer number of cells; got {type(resolution).__name__}.")
        if resolution < 1:
            raise ValueError(f"resolution must be at least one cell; got {resolution}. The default is {default}.")
        self.resolution = resolution

    @property
    def dimension(self) -> int:
        """N, the number of axes."""
        return self.low.numel()

    @property
    def volume(self) -> Float[Tensor, ""]:
        """Length, area or volume of the domain."""
        return (self.high - self.low).prod()

    @property
    def nodes_per_cell(self) -> int:
        """Gauss nodes along each axis of a cell."""
        return _NODES_PER_CELL[self.dimension]

    @property
    def nodes(self) -> Float[Tensor, "n *N"]:
        """The points at which a score is sampled; the values at these points may be passed in place of a callable."""
        local, _ = gauss_legendre(self.nodes_per_cell, self.low.device)
        edges = torch.arange(self.resolution + 1, dtype=torch.float64, device=self.low.device) / self.resolution
        middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
        axis = (middle[:, None] + half[:, None] * local).reshape(-1)
        unit = torch.cartesian_prod(*[axis] * self.dimension).reshape(-1, *self.low.shape)
        return self.low + (self.high - self.low) * unit.to(self.low.dtype)


class Box(_Lebesgue):
    r"""The box :math:`[l_1, h_1] \times \dots \times [l_N, h_N]` with Lebesgue measure, N ≤ 3.

    Args:
        low: lower corner l, N numbers or a tensor of shape (N,), finite. A tensor sets dtype and device.
        high: upper corner h > l.
        resolution: cells per axis; by default 32, 16 or 8 in one, two or three dimensions. A score is sampled at
            16, 8 or 6 Gauss nodes per cell and axis and interpolated between them.

    Raises:
        ValueError: for an empty, reversed or unbounded box, for more than three dimensions, or no cell.
        TypeError: for corners that are not real floating-point numbers.

    Example:
        >>> Box([0.0, -1.0], [1.0, 1.0])
        Box(low=[0.0, -1.0], high=[1.0, 1.0], resolution=16)
    """

    def __init__(
        self, low: Sequence[Number] | Tensor, high: Sequence[Number] | Tensor, *, resolution: int | None = None
    ) -> None:
        self.low, self.high = _as_floats("Box", low=low, high=high)
        if self.low.dim() != 1 or self.low.shape != self.high.shape or not 1 <= len(self.low) <= 3:
            raise ValueError(
                f"Box takes two corners with one to three coordinates; got shapes {tuple(self.low.shape)} and "
                f"{tuple(self.high.shape)}. In more dimensions pass Nodes with your own quadrature rule."
            )
        self._set_resolution(resolution)

    def __repr__(self) -> str:
        return f"Box(low={self.low.tolist()}, high={self.high.tolist()}, resolution={self.resolution})"


class Interval(_Lebesgue):
    r"""The interval [low, high] with Lebesgue measure.

    For a callable score on eager CPU tensors, cells in which 16 Gauss nodes do not resolve the score or its density are
    halved until they do. Kinks, jumps and narrow peaks are then found as long as they show at some node. The scores of
    a batch share their cells, of which there are at most 4,096 (or 65,536 if counted once for each score). Elsewhere
    (accelerators, compiled graphs, ``torch.func`` transforms, scores given by their values) there are ``resolution``
    equal cells.

    Args:
        low: lower end, a number or a 0-d tensor, finite. A tensor sets dtype and device.
        high: upper end, greater than low.
        resolution: number of equal cells to begin with, each with 16 nodes.

    Raises:
        ValueError: for an empty, reversed or unbounded interval, or no cell.
        TypeError: for ends that are not real floating-point numbers.

    Example:
        >>> Interval(-1.0, 1.0)
        Interval(low=-1, high=1, resolution=32)
        >>> Interval(torch.tensor(0.0, dtype=torch.float64), 1.0).nodes.dtype
        torch.float64
    """

    def __init__(self, low: Number | Tensor, high: Number | Tensor, *, resolution: int | None = None) -> None:
        self.low, self.high = _as_floats("Interval", low=low, high=high)
        if self.low.dim() or self.high.dim():
            raise ValueError(
                f"Interval takes two numbers; got shapes {tuple(self.low.shape)} and {tuple(self.high.shape)}. "
                "One interval serves a whole batch of scores; in several dimensions pass Box."
            )
        self._set_resolution(resolution)

    def __repr__(self) -> str:
        return f"Interval(low={self.low.item():g}, high={self.high.item():g}, resolution={self.resolution})"


class Nodes:
    r"""A finite set of points with masses: a vocabulary, a sequence, your own quadrature rule.

    The density p of a prediction is taken with respect to these masses, :math:`\sum_i w_i p_i = 1`; with unit weights
    it is the probability vector of :func:`contmax.entmax`.

    Args:
        points: (n,) or (n, N), finite; the attributes ``points`` and ``nodes``.
        weights: w > 0, (n,); 1 by default.

    Raises:
        ValueError: for no points, shapes that do not agree, NaN, or weights that are not positive.
        TypeError: for tensors that are not floating-point.

    Example:
        >>> Nodes(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.25, 0.5, 0.25]))
        Nodes(3 points in 1 dimension)
    """

    def __init__(self, points: Tensor, weights: Tensor | None = None) -> None:
        (points,) = _as_floats("Nodes", points=points)
        self.points = self.nodes = points
        if self.points.dim() not in (1, 2) or self.points.shape[0] == 0:
            raise ValueError(
                f"Nodes takes points of shape (n,) or (n, N) with n ≥ 1; got {tuple(self.points.shape)}. "
                "A batch belongs to the scores, not to the points."
            )
        self.weights = torch.ones_like(self.points.reshape(len(self.points), -1)[:, 0]) if weights is None else weights
        (self.weights,) = _as_floats("Nodes", weights=self.weights)
        if self.weights.shape != self.points.shape[:1]:
            raise ValueError(
                f"Nodes takes one weight per point; got weights of shape {tuple(self.weights.shape)} for points of "
                f"shape {tuple(self.points.shape)}. Pass weights of shape ({len(self.points)},)."
            )
        _require_finite("Nodes", "points", self.points)
        _require_finite("Nodes", "weights", self.weights)
        if is_eager_cpu(self.weights) and not bool((self.weights > 0).all()):
            raise ValueError(
                f"weights must be positive; got min {float(self.weights.min()):g}. Leave out points without mass."
            )

    def __repr__(self) -> str:
        dimension = 1 if self.points.dim() == 1 else self.points.shape[1]
        return f"Nodes({len(self.points)} points in {dimension} dimension{'s' if dimension > 1 else ''})"


class Knots:
    r"""The interval from the first to the last knot, for a score that is linear between its values at the knots.

    Args:
        points: knots, (n,), n ≥ 2, finite and strictly increasing; the attributes ``points`` and ``nodes``.

    Raises:
        ValueError: for fewer than two knots, or knots that do not increase strictly.
        TypeError: for a tensor that is not floating-point.

    Example:
        >>> Knots(torch.tensor([0.0, 0.3, 1.0]))
        Knots(3 knots from 0 to 1)
    """

    def __init__(self, points: Tensor) -> None:
        (points,) = _as_floats("Knots", points=points)
        self.points = self.nodes = points
        if self.points.dim() != 1 or len(self.points) < 2:
            raise ValueError(
                f"Knots takes a tensor of shape (n,) with n ≥ 2; got {tuple(self.points.shape)}. "
                "One segment needs two knots; a batch belongs to the scores."
            )
        _require_finite("Knots", "knots", self.points)
        if is_eager_cpu(self.points) and not bool((self.points.diff() > 0).all()):
            raise ValueError(
                f"knots must increase strictly; got a step of {float(self.points.diff().min()):g}. "
                "Sort them, and merge equal ones (a jump is not piecewise linear)."
            )

    def __repr__(self) -> str:
        return f"Knots({len(self.points)} knots from {self.points[0].item():g} to {self.points[-1].item():g})"


def _as_floats(owner: str, **given: object) -> list[Tensor]:
    """The values as tensors of one real dtype and device; numbers take the dtype and device of the given tensors."""
    tensors = [value for value in given.values() if isinstance(value, Tensor)]
    dtypes = [tensor.dtype for tensor in tensors] or [torch.get_default_dtype()]
    dtype = functools.reduce(torch.promote_types, dtypes)
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"{owner} takes float32 or float64 coordinates; got {dtype}. "
            "Pass .float(), and cast inside the score where it computes in a lower precision."
        )
    device = tensors[0].device if tensors else None
    try:
        return [torch.as_tensor(value, dtype=dtype, device=device) for value in given.values()]
    except (TypeError, ValueError):
        kinds = ", ".join(type(value).__name__ for value in given.values())
        raise TypeError(f"{owner} takes numbers or tensors; got {kinds}.") from None


def _require_finite(owner: str, name: str, value: Tensor) -> None:
    if is_eager_cpu(value) and not bool(value.isfinite().all()):
        raise ValueError(f"{name} of {owner} must be finite; got NaN or infinity in shape {tuple(value.shape)}.")
