r"""Escort weights s = p^{2−α} of any size, in logarithms and in float64, and what derivatives need of them.

For α > 2 a small probability has an enormous s, often beyond the range of the dtype, while the derivative itself is of
order one: the largest entry of s (c − ⟨c⟩), with c = 0 at the anchor, is at least half of max s |c|. So s c is kept
relative to that maximum, e^Λ, and the mass w s relative to its own, e^L. Each factor is then at most one, and what
underflows is negligible.
"""

import torch
from torch import Tensor
from torch.compiler import is_compiling

from contmax._smooth import mean_u_exp
from contmax._torch_private import is_batch_of_cotangents
from contmax.maps._threshold import or_one

_LARGEST = 700.0  # exp of this is finite in float64


class Escort:
    """s of one p, (*slices), as logarithms; the anchor is the point of largest mass w s.

    Pivots (the anchor, Λ and L) are constants in derivatives: the results do not depend on them.
    """

    def __init__(self, p: Tensor, alpha: float | Tensor, dim: int, weights: Tensor | None) -> None:
        self.dim, self.dtype, self.inside = dim, p.dtype, p > 0
        self.alpha = alpha.double() if isinstance(alpha, Tensor) else alpha
        self.p = p.double()
        self.log_p = torch.where(self.inside, self.p, 1).log()
        self.log_s = torch.where(self.inside, (2 - self.alpha) * self.log_p, -torch.inf)
        self.weights: Tensor | float = 1.0 if weights is None else weights.double()
        log_mass = self.log_s if weights is None else self.log_s + weights.double().log()
        self.anchor = log_mass.detach().argmax(dim, keepdim=True)
        self.weight_ratio: Tensor | float = 1.0
        if isinstance(self.weights, Tensor):
            self.weight_ratio = self.weights / self.weights.expand_as(self.p).gather(dim, self.anchor)
        self._pivot = _or_zero(log_mass.detach().amax(dim, keepdim=True))
        self.mass = (log_mass - self._pivot).exp()
        self.share = self.mass if weights is None else _bounded_exp(self.log_s - self._pivot)
        self.total = or_one(self.mass.sum(dim, keepdim=True))

    def times(self, centred: Tensor, shift: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(y, Λ) with s·centred + shift = y e^Λ and |y| of order one."""
        with torch.no_grad():
            size = self.log_s.detach() + _fixed(centred).abs().log()
            if shift is not None:
                size = torch.maximum(size, _fixed(shift).abs().log())
            scale = _or_zero(size.amax(self.dim, keepdim=True))
        y = centred * _bounded_exp(self.log_s - scale)
        return (y if shift is None else y + shift * _bounded_exp(-scale)), scale

    def scaled_back(self, y: Tensor, scale: Tensor) -> Tensor:
        """y e^Λ in the dtype of p; its largest finite number where that overflows."""
        half = (scale / 2).clamp(max=_LARGEST).exp()
        largest = torch.finfo(self.dtype).max
        return (y * half * half).clamp(-largest, largest).to(self.dtype)

    def mean_of(self, mean: Tensor, scale: Tensor) -> Tensor:
        """⟨c⟩ from the mean of y in units of e^{Λ−L}."""
        return mean * _bounded_exp(scale - self._pivot)

    def alpha_rate(self) -> Tensor:
        r"""s (D − D_j), the movement of p with α before it is centred; 0 at the anchor j and off the support.

        D = (1 − (1 − y) e^y)/ε², y = ε ln p. Where |y| is not small, s (D − D_j) = p (expm1(d)(1 − y_j) − d)/ε² with
        d = y_j − y: this form has no s, which would overflow, and no 1, in which the difference would be lost.
        """
        epsilon = self.alpha - 1
        y = epsilon * self.log_p
        anchor = y.gather(self.dim, self.anchor)
        near = (y.abs() <= 1) & (anchor.abs() <= 1)
        curvature = self.log_p.square() * mean_u_exp(torch.where(y.abs() <= 1, y, 0))
        small = _bounded_exp(torch.where(near, self.log_s, 0)) * (curvature - curvature.gather(self.dim, self.anchor))
        d = torch.where(near, 0, anchor - y).clamp(max=_LARGEST)
        square = torch.where(near, 1, epsilon * epsilon)
        large = self.p * (torch.expm1(d) * (1 - anchor) - d) / square
        return torch.where(self.inside, torch.where(near, small, large), 0)


def _bounded_exp(exponent: Tensor) -> Tensor:
    return exponent.clamp(max=_LARGEST).exp()


def _fixed(x: Tensor) -> Tensor:
    """The numbers of x, detached unless torch has no rule for that: then it is left to `torch.no_grad`."""
    return x if not is_compiling() and is_batch_of_cotangents(x) else x.detach()


def _or_zero(pivot: Tensor) -> Tensor:
    """The pivot, or 0 where there is nothing to scale."""
    return torch.where(pivot == -torch.inf, 0, pivot)
