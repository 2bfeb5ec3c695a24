"""Bases other than Gaussians: waves, powers, rectangles and splines on the line."""

import math
from collections.abc import Sequence

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

    def __init__(self, frequency: Float[Tensor, " K"] | Sequence[float], *, learnable: bool = False) -> None:
        super().__init__()
        values = floating(frequency, "frequency")
        if values.dim() != 1:
            raise ValueError(
                f"frequency must have shape (K,); got {tuple(values.shape)}. Use {type(self).__name__}.harmonics(num) "
                "for the first harmonics of a period."
            )
        self.num_functions = values.shape[0]
        self._keep("frequency", values, learnable, device_for(frequency))

    @classmethod
    def harmonics(cls, num: int, *, period: float = 1.0, learnable: bool = False) -> "SineBasis":
        """The first `num` harmonics of a period: ω_j = 2πj/period, j = 1…K (cosines start at j = 0)."""
        return cls([2 * math.pi / period * j for j in range(1, num + 1)], learnable=learnable)

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

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        return f"num_functions={self.num_functions}"


class CosineBasis(SineBasis):
    r"""Cosines ψ_j(t) = cos(ω_j t), including the constant ω = 0.

    Example:
        >>> import torch, contmax
        >>> contmax.basis.CosineBasis.harmonics(2)(torch.tensor([0.5]))
        tensor([[ 1., -1.]])
    """

    @classmethod
    def harmonics(cls, num: int, *, period: float = 1.0, learnable: bool = False) -> "CosineBasis":
        """The first `num` harmonics of a period: ω_j = 2πj/period, j = 0…K−1."""
        return cls([2 * math.pi / period * j for j in range(num)], learnable=learnable)

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
        # Running products: t ** j has no derivative at t = 0, j = 0.
        powers = [torch.ones_like(t)]
        for _ in range(self.num_functions - 1):
            powers.append(powers[-1] * t)
        return torch.stack(powers, -1)

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        return f"num_functions={self.num_functions}"


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
        self._keep("edges", values, False, device_for(edges))

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
        t = t.unsqueeze(-1)
        low, high = self.edges[:-1], self.edges[1:]
        inside = (t >= low) & ((t < high) | ((t == high) & (high == self.edges[-1])))
        return inside / (high - low)

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        return f"num_functions={self.num_functions}"
