"""Continuous attention in one call: from observations and a density to a context."""

from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Bool, Float
from contmax.basis import Basis
from contmax.signal._plain_context import context_of_density
from contmax.signal._signal import fit_signal


def continuous_attention(
    values: Float[Tensor, "..."],
    density: Distribution,
    basis: Basis,
    *,
    positions: Float[Tensor, "..."] | None = None,
    grid: tuple[int, ...] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    penalty: float = 0.01,
) -> Float[Tensor, "..."]:
    r"""Attend to a sequence of observations with a density: the mean, under the density, of a signal fitted to them.

    .. math:: c = E_p[V(t)] = B\,E_p[\psi(t)], \qquad V(t) = B\psi(t) \text{ the ridge fit of the values}

    Args:
        values: observations H, (*batch, L, D).
        density: p, of batch shape (*batch, *Q): one query per sequence, or many.
        basis: ψ, K functions.
        positions: where the observations were made; see :func:`fit_signal`.
        grid: if the observations are the cells of a regular grid, its sizes, such as (height, width); see
            :func:`fit_signal`.
        mask: boolean, (L,) or (*batch, L); True = may be attended. A sequence with nothing to attend gives zeros.
        penalty: λ of the ridge fit.

    Returns:
        c, (*batch, *Q, D), in the dtype of the values.

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.linspace(16, scale=0.1)
        >>> density = contmax.densities.TruncatedParabola(torch.tensor([0.2, 0.7]), 0.1)
        >>> contmax.continuous_attention(torch.randn(2, 50, 8), density, basis).shape
        torch.Size([2, 8])

    Reference: Martins et al. 2020, Eq. attention_expectation and B_regression.
    """
    if positions is None and mask is None:
        context = context_of_density(values, density, basis, grid, penalty)
        if context is not None:
            return context
    signal = fit_signal(values, basis, positions=positions, grid=grid, mask=mask, penalty=penalty)
    return signal.expectation(density)
