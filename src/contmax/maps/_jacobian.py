r"""Implicit derivatives of p = exp_{2−α}(x − A) with Σ w p = 1, in reverse and forward mode, by torch operations.

Points have masses w, the escort weights are s = p^{2−α} (0 off the support), the escort mean of a vector v is
⟨v⟩ = Σ w s v / Σ w s, and log_{2−α} is the inverse of exp_{2−α}. Then

    dp = s (dx − ⟨dx⟩) − s (D − ⟨D⟩) dα,          D = ∂/∂α log_{2−α}(p) = ln²p ∫₀¹ u p^{(α−1)u} du.

So the derivative in α is the Jacobian in x applied to −D: one formula, smooth through α = 1, where D = ½ ln²p.
See Martins et al. 2020, Eq. jacobians_discrete and the proposition on the generalised covariance.

Where one point j, the anchor, has nearly all the mass w s, v_j − ⟨v⟩ loses digits by cancellation. So the code uses
v − ⟨v⟩ = c − ⟨c⟩ with c = v − v_j. It is exactly 0 at the anchor, so ⟨c⟩ is a sum over the other points only. The
distribution lies along the last axis.
"""

import torch
from torch import Tensor
from torch.compiler import is_compiling

from contmax._eager import wide_dtype, widest_dtype
from contmax._smooth import mean_u_exp
from contmax._torch_private import is_batch_of_cotangents
from contmax.maps._threshold import or_one, power_on_support

# The largest x for which exp(x) is finite, rounded down, by dtype.
_LARGEST = {torch.float64: 700.0, torch.float32: 87.0}


def pull_back_reference(
    p: Tensor, cotangent: Tensor, alpha: float | Tensor, weights: Tensor | None, needs_alpha: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the scores, w·J(cotangent/w) for masses w and Jacobian J, and of α (None unless `needs_alpha`)."""
    g = cotangent if weights is None else cotangent / weights
    if isinstance(alpha, float) and alpha <= 2:
        grad = _bounded_product(p, g, alpha, weights)
        return grad if weights is None else weights * grad, None
    escort = _Escort(p, alpha, weights)
    grad, deviation = escort.product(g.to(escort.p.dtype))
    grad = grad if weights is None else (weights * grad).to(p.dtype)
    if not needs_alpha:
        return grad, None
    return grad, -(escort.alpha_rate() * escort.weights * deviation).sum(-1, keepdim=True).to(p.dtype)


def push_forward(
    p: Tensor, tangent: Tensor | None, alpha: float | Tensor, alpha_tangent: Tensor | None, weights: Tensor | None
) -> Tensor:
    """Jacobian–vector product: the tangent of p when the scores have `tangent` and α has `alpha_tangent`."""
    wide, dtype = wide_dtype(p.dtype), p.dtype
    p, tangent = p.to(wide), p.new_zeros(p.shape, dtype=wide) if tangent is None else tangent.to(wide)
    if isinstance(alpha, float) and alpha <= 2:
        return _bounded_product(p, tangent, alpha, weights).to(dtype)
    escort = _Escort(p, alpha, weights)
    shift = None if alpha_tangent is None else -escort.alpha_rate() * alpha_tangent.to(escort.p.dtype)
    return escort.product(tangent.to(escort.p.dtype), shift)[0].to(dtype)


def _bounded_product(p: Tensor, v: Tensor, alpha: float, weights: Tensor | None) -> Tensor:
    """s (v − ⟨v⟩) in the dtype of p, for a fixed α ≤ 2, where s = p^{2−α} is small if p is."""
    escort = power_on_support(p, 2 - alpha)
    mass = escort if weights is None else weights * escort
    centred = v - v.gather(-1, mass.detach().argmax(-1, keepdim=True))
    centred = torch.where(escort > 0, centred, 0)  # off the support v may be infinite, and 0·∞ is NaN
    mean = (mass * centred).sum(-1, keepdim=True) / or_one(mass.sum(-1, keepdim=True))
    return escort * (centred - mean)


class _Escort:
    """The escort weights s = p^{2−α} for any α, as logarithms; the anchor is the point of largest mass w s.

    They are computed in float64, on a device without it in float32.

    For α > 2 a small probability has an enormous s, often beyond the range of the dtype. So s c, with c = 0 at the
    anchor, is divided by e^Λ = max s |c|, and the mass w s by its maximum e^L: quotients are at most one. Those that
    underflow are negligible, because the largest |s (c − ⟨c⟩)| is at least half of max s |c|. The pivots (the anchor,
    Λ and L) are constants in derivatives, as no result depends on them.
    """

    def __init__(self, p: Tensor, alpha: float | Tensor, weights: Tensor | None) -> None:
        self.dtype, self.inside = p.dtype, p > 0
        wide = widest_dtype(p)
        self.alpha = alpha.to(wide) if isinstance(alpha, Tensor) else alpha
        self.p = p.to(wide)
        self.log_p = torch.where(self.inside, self.p, 1).log()
        self.log_s = torch.where(self.inside, (2 - self.alpha) * self.log_p, -torch.inf)
        self.weights: Tensor | float = 1.0 if weights is None else weights.to(wide)
        log_mass = self.log_s if weights is None else self.log_s + weights.to(wide).log()
        self.anchor = log_mass.detach().argmax(-1, keepdim=True)
        self._pivot = _or_zero(log_mass.detach().amax(-1, keepdim=True))
        mass = (log_mass - self._pivot).exp()
        self._share = mass if weights is None else _bounded_exp(self.log_s - self._pivot)
        self._total = or_one(mass.sum(-1, keepdim=True))

    def product(self, v: Tensor, shift: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """s (v − ⟨v⟩) + shift − s ⟨shift/s⟩, clamped to the range of p's dtype; and v − ⟨v⟩ − ⟨shift/s⟩.

        In the code s c + shift = y e^Λ, with |y| of order one.
        """
        # Off the support s is 0, but v may be infinite and the product NaN: take v = 0 there.
        centred = torch.where(self.inside, v - v.gather(-1, self.anchor), 0)
        with torch.no_grad():
            size = self.log_s.detach() + _fixed(centred).abs().log()
            if shift is not None:
                size = torch.maximum(size, _fixed(shift).abs().log())
            scale = _or_zero(size.amax(-1, keepdim=True))
        y = centred * _bounded_exp(self.log_s - scale)
        y = y if shift is None else y + shift * _bounded_exp(-scale)
        mean = (self.weights * y).sum(-1, keepdim=True) / self._total
        half, largest = _bounded_exp(scale / 2), torch.finfo(self.dtype).max
        moved = ((y - self._share * mean) * half * half).clamp(-largest, largest).to(self.dtype)
        # ⟨c⟩ + ⟨shift/s⟩ = mean · e^{Λ−L}.
        return moved, centred - mean * _bounded_exp(scale - self._pivot)

    def alpha_rate(self) -> Tensor:
        r"""s (D − D_j); its negative, once centred, is the derivative of p in α. 0 at the anchor j and off the support.

        D = (1 − (1 − y) e^y)/ε², y = ε ln p. Where |y| is not small, s (D − D_j) = p (expm1(d)(1 − y_j) − d)/ε² with
        d = y_j − y: this form has neither the factor s, which may overflow, nor the terms 1, which would cancel.
        """
        epsilon = self.alpha - 1
        y = epsilon * self.log_p
        anchor = y.gather(-1, self.anchor)
        near = (y.abs() <= 1) & (anchor.abs() <= 1)
        curvature = self.log_p.square() * mean_u_exp(torch.where(y.abs() <= 1, y, 0))
        small = _bounded_exp(torch.where(near, self.log_s, 0)) * (curvature - curvature.gather(-1, self.anchor))
        d = torch.where(near, 0, anchor - y).clamp(max=_LARGEST[self.p.dtype])
        square = torch.where(near, 1, epsilon * epsilon)
        large = self.p * (torch.expm1(d) * (1 - anchor) - d) / square
        return torch.where(self.inside, torch.where(near, small, large), 0)


def _bounded_exp(exponent: Tensor) -> Tensor:
    return exponent.clamp(max=_LARGEST[exponent.dtype]).exp()


def _fixed(x: Tensor) -> Tensor:
    """x detached; a batch of cotangents, which torch cannot detach, is unchanged. Call it under `torch.no_grad`."""
    return x if not is_compiling() and is_batch_of_cotangents(x) else x.detach()


def _or_zero(pivot: Tensor) -> Tensor:
    """A pivot, the logarithm of a maximum, with 0 in place of −∞, where the maximum is 0."""
    return torch.where(pivot == -torch.inf, 0, pivot)
