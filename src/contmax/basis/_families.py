"""Bases other than Gaussians: waves, powers, rectangles and splines on the line."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.basis._basis import Basis, can_be_read, device_for, floating


class SineBasis(Basis):
    r"""Sines ψ_j(t) = sin(ω_j t).

    Args:
        frequency: angular frequencies ω_j, shape (K,); :meth:`harmonics` gives 2πj for j = 1…K.
        learnable: make the frequencies parameters.

    Example:
        >>> import torch, contmax
        >>> contmax.basis.SineBasis.harmonics(2)(torch.tensor([0.25]))
        tensor([[ 1.0000e+00, -8.7423e-08]])
    """

    frequency: Tensor
    _first = 1

    def __init__(self, frequency: Float[Tensor, " K"] | Sequence[float], *, learnable: bool = False) -> None:
        super().__init__()
        values = floating(frequency, "frequency")
        if values.dim() != 1:
            raise ValueError(
                f"frequency must have shape (K,); got {tuple(values.shape)}. Use {type(self).__name__}.harmonics(num) "
                "for the first harmonics of a period."
            )
        self.num_functions = values.shape[0]
        self._register("frequency", values, learnable, device_for(frequency))

    @classmethod
    def harmonics(cls, num: int, *, period: float = 1.0, learnable: bool = False) -> Self:
        """The first `num` harmonics of a period: ω_j = 2πj/period, j = 1…K for sines, j = 0…K−1 for cosines."""
        return cls([2 * math.pi / period * (cls._first + j) for j in range(num)], learnable=learnable)

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """0 and the period of the slowest wave; [0, 1] if all are constant."""
        speed = self.frequency.detach().abs()
        slowest = torch.where(speed > 0, speed, torch.inf).amin(0)
        period = torch.where(slowest.isfinite(), 2 * math.pi / slowest, 1)
        return torch.zeros_like(period), period

    def forward(self, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """ψ(t): (…) → (…, K)."""
        return torch.sin(t.unsqueeze(-1) * self.frequency)


class CosineBasis(SineBasis):
    r"""Cosines ψ_j(t) = cos(ω_j t), including the constant ω = 0.

    Example:
        >>> import torch, contmax
        >>> contmax.basis.CosineBasis.harmonics(2)(torch.tensor([0.5]))
        tensor([[ 1., -1.]])
    """

    _first = 0

    def forward(self, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """ψ(t): (…) → (…, K)."""
        return torch.cos(t.unsqueeze(-1) * self.frequency)


class PowerBasis(Basis):
    r"""Powers ψ_j(t) = t^j, j = 0…K−1.

    Unlike those of other bases, fits depend on the unit of t, since in another unit each power has another height:
    divide positions by their span, to have them in [0, 1].

    Args:
        num: K.

    Example:
        >>> import torch, contmax
        >>> contmax.basis.PowerBasis(4)(torch.tensor([2.0]))
        tensor([[1., 2., 4., 8.]])
    """

    def __init__(self, num: int) -> None:
        super().__init__()
        if num < 1:
            raise ValueError(f"num must be at least 1; got {num}.")
        self.num_functions = num

    def forward(self, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """ψ(t): (…) → (…, K)."""
        # Multiply repeatedly: t ** j with a tensor j of exponents has a NaN as second derivative at t = 0.
        powers = [torch.ones_like(t)]
        for _ in range(self.num_functions - 1):
            powers.append(powers[-1] * t)
        return torch.stack(powers, -1)


class RectangularBasis(Basis):
    r"""Indicators of consecutive intervals, ψ_j(t) = 1/(e_{j+1} − e_j) for e_j ≤ t < e_{j+1}: a histogram.

    Args:
        edges: e_0 < … < e_K, shape (K + 1,). The last interval contains its right end.

    Example:
        >>> import torch, contmax
        >>> contmax.basis.RectangularBasis(torch.linspace(0, 1, 5))(torch.tensor([0.3, 1.0]))
        tensor([[0., 4., 0., 0.],
                [0., 0., 0., 4.]])
    """

    edges: Tensor

    def __init__(self, edges: Float[Tensor, " M"] | Sequence[float]) -> None:
        super().__init__()
        values = floating(edges, "edges")
        increasing = values.dim() == 1 and (not can_be_read(values) or bool((values.diff() > 0).all()))
        if not increasing or values.shape[0] < 2:
            raise ValueError(
                f"edges must be at least two increasing numbers; got shape {tuple(values.shape)}. Pass for example "
                "torch.linspace(0, 1, num + 1)."
            )
        self.num_functions = values.shape[0] - 1
        self._register("edges", values, False, device_for(edges))

    @property
    def breakpoints(self) -> Tensor:
        """The edges."""
        return self.edges

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The first and the last edge."""
        return self.edges[0], self.edges[-1]

    @property
    def volume(self) -> Tensor:
        """The length from the first to the last edge."""
        return self.edges[-1].double() - self.edges[0].double()

    def forward(self, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """ψ(t): (…) → (…, K)."""
        return _indicators(t, self.edges) / self.edges.diff()


class BSplineBasis(Basis):
    r"""B-splines of degree d over given knots, by the Cox–de Boor recursion; between the outer knots they sum to 1.

    .. math:: \psi_{j,d}(t) = \frac{t - \kappa_j}{\kappa_{j+d} - \kappa_j}\psi_{j,d-1}(t)
              + \frac{\kappa_{j+d+1} - t}{\kappa_{j+d+1} - \kappa_{j+1}}\psi_{j+1,d-1}(t)

    Args:
        knots: κ, non-decreasing, shape (K + d + 1,). :meth:`clamped` makes the usual ones for an interval.
        degree: d ≥ 0; 3 is cubic.

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.BSplineBasis.clamped(6, degree=3)
        >>> basis(torch.tensor([0.0, 0.4])).sum(-1)
        tensor([1., 1.])

    Reference: de Boor 1978.
    """

    knots: Tensor

    def __init__(self, knots: Float[Tensor, " M"] | Sequence[float], degree: int = 3) -> None:
        super().__init__()
        values = floating(knots, "knots")
        ordered = values.dim() == 1 and (not can_be_read(values) or bool((values.diff() >= 0).all()))
        if degree < 0 or not ordered or values.shape[0] < degree + 2:
            raise ValueError(
                f"knots must be at least degree + 2 = {degree + 2} non-decreasing numbers; got shape "
                f"{tuple(values.shape)}. BSplineBasis.clamped(num) makes the usual ones for an interval."
            )
        self.degree = degree
        self.num_functions = values.shape[0] - degree - 1
        self._register("knots", values, False, device_for(knots))

    def _read_constants(self) -> None:
        """Find an index of each distinct knot; take all knots if their values cannot be read.

        The number of distinct knots is the size of `breakpoints`. It is fixed here, because a trace cannot read values.
        """
        new = [True] * len(self.knots)
        if can_be_read(self.knots):
            new[1:] = (self.knots.diff() > 0).tolist()
        self._distinct = [i for i, is_new in enumerate(new) if is_new]

    @classmethod
    def clamped(cls, num: int, degree: int = 3, *, low: float = 0.0, high: float = 1.0) -> "BSplineBasis":
        """`num` splines over evenly spaced knots in [low, high], both ends repeated so that the splines reach them."""
        if num < degree + 1:
            raise ValueError(f"num must be at least degree + 1 = {degree + 1}; got {num}.")
        inner = torch.linspace(low, high, num - degree + 1, device="cpu").tolist()
        return cls([low] * degree + inner + [high] * degree, degree)

    @property
    def breakpoints(self) -> Tensor:
        """The knots, each once."""
        return torch.stack([self.knots[i] for i in self._distinct])

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The first and the last knot."""
        return self.knots[0], self.knots[-1]

    def forward(self, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """ψ(t): (…) → (…, K)."""
        values = _indicators(t, self.knots).to(t.dtype)
        t = t.unsqueeze(-1)
        for d in range(1, self.degree + 1):
            left = self._ratio(t - self.knots[: -d - 1], self.knots[d:-1] - self.knots[: -d - 1])
            right = self._ratio(self.knots[d + 1 :] - t, self.knots[d + 1 :] - self.knots[1:-d])
            values = left * values[..., :-1] + right * values[..., 1:]
        return values

    @staticmethod
    def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
        """numerator / denominator; 0 where the denominator is 0, because knots coincide."""
        return torch.where(denominator > 0, numerator / torch.where(denominator > 0, denominator, 1), 0)

    def extra_repr(self) -> str:
        """The text of `repr` between the parentheses."""
        return f"num_functions={self.num_functions}, degree={self.degree}"


def _indicators(t: Tensor, edges: Tensor) -> Tensor:
    """Whether each point (…) lies in [e_j, e_{j+1}), (…, K), e = `edges`; the last non-empty interval is closed."""
    t, low, high = t.unsqueeze(-1), edges[:-1], edges[1:]
    last = (high == edges[-1]) & (low < high)
    return (t >= low) & ((t < high) | (last & (t == high)))
