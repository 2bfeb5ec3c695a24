"""How densely a sequence was observed: a continuous intensity, beside the signal that says what was observed."""

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu, require_float64, wide_dtype
from contmax._typing import Bool, Float
from contmax.basis import Basis
from contmax.numerics import unit_gauss_legendre
from contmax.signal._observations import check_mask, design_at, require_penalty
from contmax.signal._ridge import factored, solved
from contmax.signal._signal import Signal

# The Gram matrix of K functions is integrated on K panels with this many Gauss–Legendre nodes each.
_NODES = 8


def fit_intensity(
    positions: Float[Tensor, "*batch L"],
    basis: Basis,
    *,
    mask: Bool[Tensor, "..."] | None = None,
    penalty: float = 0.01,
) -> Signal:
    r"""Fit the intensity of observations on the line: how many there are per unit of t, whatever their values.

    .. math:: \lambda(t) = b^\top \psi(t), \qquad
              b = \arg\min_b \int \Big(b^\top\psi(t) - \sum_\ell \delta(t - t_\ell)\Big)^2 dt
                  + \frac{\lambda}{V} \|b\|^2
              = \Big(\int \psi\psi^\top dt + \frac{\lambda}{V} I\Big)^{-1} \sum_\ell \psi(t_\ell)

    where the integral is over the interval that the basis covers, and V is the ``volume`` of the basis. A ridge fit of
    the values (:func:`fit_signal`) forgets how many observations it was made from. The intensity remembers: its mean
    under a density, ``fit_intensity(…).expectation(p)``, says how densely a sequence was observed where p looks. It is
    0 where nothing was observed, and, as any least-squares fit, may fall slightly below 0 beside a gap.

    Args:
        positions: where the observations were made, in the unit of the basis, (L,) or (*batch, L), in any order.
        basis: ψ, K functions on the line.
        mask: boolean, (L,) or (*batch, L); True = counts. Masked positions may be NaN.
        penalty: λ > 0, for positions in [0, 1]; in other units the same number gives the same number of observations.

    Returns:
        A :class:`Signal` of one channel with coefficients (*batch, K, 1).

    Raises:
        ValueError: if the basis is not on the line, shapes do not fit each other, or a position is not finite.
        TypeError: if the mask is not boolean.
        NotImplementedError: on mps devices, which have no float64.

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.covering(16)
        >>> often, seldom = torch.linspace(0, 0.5, 50), torch.linspace(0.5, 1, 5)
        >>> intensity = contmax.fit_intensity(torch.cat([often, seldom]), basis, penalty=1e-4)
        >>> looks = contmax.densities.TruncatedParabola(torch.tensor([0.25, 0.75]), 0.1)
        >>> intensity.expectation(looks).squeeze(-1).round()
        tensor([98.,  8.])
    """
    if basis.event_dim != 1:
        raise ValueError(f"an intensity is fitted on the line; got a basis in {basis.event_dim} dimensions.")
    if positions.dim() < 1 or not positions.is_floating_point():
        raise ValueError(
            f"positions must be floating-point of shape (L,) or (*batch, L); got {positions.dtype}, "
            f"{tuple(positions.shape)}."
        )
    require_float64(positions.device)
    require_penalty(penalty)
    check_mask(positions.shape, mask)
    where, design = design_at(positions, basis, mask)
    if is_eager_cpu(where) and not bool(where.isfinite().all()):
        raise ValueError(
            "Some positions are NaN or infinite. Leave such observations out with mask=positions.isfinite()."
        )
    # `factored` divides the penalty by its third argument squared, here V: the Gram matrix is V times a mean of ψψᵀ.
    tril = factored(_gram(basis, positions.device), penalty, torch.as_tensor(basis.volume).double().sqrt())
    coefficients = solved(tril, design.sum(-2).unsqueeze(-1))
    return Signal(basis, coefficients=coefficients.to(wide_dtype(positions.dtype)), dtype=positions.dtype)


def _gram(basis: Basis, device: torch.device) -> Tensor:
    """∫ψψᵀ over the interval that the basis covers, (K, K), in float64."""
    low, high = (end.double().reshape(()) for end in basis.bounds)
    count = basis.num_functions
    nodes, weights = unit_gauss_legendre(_NODES, device)
    panels = torch.arange(count, dtype=torch.float64, device=device).unsqueeze(-1)
    values = basis(low + (high - low) * ((panels + nodes) / count).flatten())
    each = ((high - low) / count * weights).repeat(count)
    gram: Tensor = (values * each.unsqueeze(-1)).mT @ values
    return gram
