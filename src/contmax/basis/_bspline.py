"""B-splines on the line."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.basis._basis import Basis, can_be_read, device_for, floating


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
        self._keep("knots", values, False, device_for(knots))
        self._find_distinct()

    def _find_distinct(self) -> None:
        """Where runs of distinct knots begin and end; knots that are not known count as distinct.

        Found once, because how many there are decides the size of what is computed later.
        """
        new = [True] * len(self.knots)
        if can_be_read(self.knots):
            new[1:] = (self.knots.diff() > 0).tolist()
        begins = [i for i, is_new in enumerate(new) if is_new and not (i and new[i - 1])]
        ends = [i + 1 for i, is_new in enumerate(new) if is_new and not (i + 1 < len(new) and new[i + 1])]
        self._distinct = list(zip(begins, ends, strict=True))

    def reset_parameters(self) -> None:
        """As :meth:`Basis.reset_parameters`; it also recomputes the distinct knots."""
        super().reset_parameters()
        self._find_distinct()

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._find_distinct()

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
        return torch.cat([self.knots[begin:end] for begin, end in self._distinct])

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The first and the last knot."""
        return self.knots[0], self.knots[-1]

    def forward(self, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """ψ(t): (…) → (…, K)."""
        t = t.unsqueeze(-1)
        low, high = self.knots[:-1], self.knots[1:]
        # The last non-empty interval contains its right end.
        last = (high == self.knots[-1]) & (low < high)
        values = ((t >= low) & ((t < high) | (last & (t == high)))).to(t.dtype)
        for d in range(1, self.degree + 1):
            left = self._ratio(t - self.knots[: -d - 1], self.knots[d:-1] - self.knots[: -d - 1])
            right = self._ratio(self.knots[d + 1 :] - t, self.knots[d + 1 :] - self.knots[1:-d])
            values = left * values[..., :-1] + right * values[..., 1:]
        return values

    @staticmethod
    def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
        """Their quotient, 0 where knots coincide."""
        return torch.where(denominator > 0, numerator / torch.where(denominator > 0, denominator, 1), 0)

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        return f"num_functions={self.num_functions}, degree={self.degree}"
