"""A continuous signal V(t) = Bᵀψ(t) through observations, immutable and lazy."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from contmax._typing import Bool, Float
from contmax.basis import Basis
from contmax.expectations import expectation
from contmax.signal._positions import observation_positions
from contmax.signal._ridge import cached_ridge_weights, ridge_weights

if TYPE_CHECKING:
    from torch.distributions import Distribution


class Signal:
    r"""A continuous signal V(t) = Σ_j b_j ψ_j(t) with D channels.

    It remembers its observations H (*batch, L, D) and the ridge weights G until :meth:`materialize`, because one
    expectation is cheaper as H·(G r) than as (H G)·r; after it a query costs nothing in L.

    Made by :func:`fit_signal` or :meth:`SignalAccumulator.signal <contmax.SignalAccumulator.signal>`.
    """

    def __init__(
        self,
        basis: Basis,
        *,
        coefficients: Tensor | None = None,
        values: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> None:
        self._basis, self._coefficients, self._values, self._weights = basis, coefficients, values, weights

    @property
    def basis(self) -> Basis:
        """ψ."""
        return self._basis

    @property
    def coefficients(self) -> Float[Tensor, "*batch K D"]:
        """B = GᵀH."""
        if self._coefficients is not None:
            return self._coefficients
        values, weights = self._observations()
        with torch.autocast(values.device.type, enabled=False):
            return (weights.mT @ values.to(weights.dtype)).to(values.dtype)

    def __call__(self, t: Float[Tensor, "..."]) -> Float[Tensor, "*batch T D"]:
        """V(t) at points t: (T,) or (*batch, T) for N = 1, (T, N) or (*batch, T, N) for N > 1."""
        coefficients = self.coefficients
        wide = torch.promote_types(coefficients.dtype, torch.float32)
        functions: Tensor = self._basis(t)
        with torch.autocast(coefficients.device.type, enabled=False):
            return (functions.to(wide) @ coefficients.to(wide)).to(coefficients.dtype)

    def expectation(self, density: "Distribution") -> Float[Tensor, "*batch D"]:
        """E_p[V]: the batch of the signal is a prefix of the density's, (*batch, *Q) → (*batch, *Q, D)."""
        return self.mix(expectation(density, self._basis))

    def mix(self, r: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch D"]:
        """Bᵀr for r = E_p[ψ] of shape (*batch, *Q, K), in the cheaper order."""
        source = self._coefficients if self._coefficients is not None else self._values
        if source is None:
            raise ValueError("a signal needs coefficients, or values and weights.")
        batch = source.dim() - 2
        queries = r.shape[batch:-1]
        # Ridge weights have both signs and large sizes: in half precision they would cancel to nothing.
        wide = torch.promote_types(source.dtype, torch.float32)
        flat = r.reshape(*r.shape[:batch], -1, r.shape[-1]).to(wide)
        with torch.autocast(source.device.type, enabled=False):
            mixed = self._mixed(flat, wide).to(source.dtype)
        return mixed.reshape(*r.shape[:batch], *queries, source.shape[-1])

    def _mixed(self, r: Tensor, wide: torch.dtype) -> Tensor:
        if self._coefficients is not None:
            return r @ self._coefficients.to(wide)
        values, weights = self._observations()
        values, weights = values.to(wide), weights.to(wide)
        length, channels = values.shape[-2:]
        functions, queries = weights.shape[-1], r.shape[-2]
        through_values = queries * length * (functions + channels)
        through_coefficients = functions * channels * (length + queries)
        if through_values <= through_coefficients:
            return (r @ weights.mT) @ values
        return r @ (weights.mT @ values)

    def materialize(self) -> "Signal":
        """The same signal with its coefficients computed and its observations forgotten."""
        return Signal(self._basis, coefficients=self.coefficients)

    def to(self, *args: Any, **kwargs: Any) -> "Signal":
        """The same signal with its tensors moved as by Tensor.to; the basis, a module, is moved with Module.to."""
        return self._mapped(lambda tensor: tensor.to(*args, **kwargs))

    def detach(self) -> "Signal":
        """The same signal cut off from the graph that made it."""
        return self._mapped(torch.Tensor.detach)

    def _mapped(self, change: Any) -> "Signal":
        parts = {"coefficients": self._coefficients, "values": self._values, "weights": self._weights}
        return Signal(self._basis, **{name: None if part is None else change(part) for name, part in parts.items()})

    def _observations(self) -> tuple[Tensor, Tensor]:
        if self._values is None or self._weights is None:
            raise ValueError("a signal needs coefficients, or values and weights.")
        return self._values, self._weights

    def __repr__(self) -> str:
        source = self._coefficients if self._coefficients is not None else self._values
        shape = None if source is None else (*source.shape[:-2], self._basis.num_functions, source.shape[-1])
        state = "materialized" if self._coefficients is not None else "lazy"
        return f"Signal(coefficients={shape}, {state}, basis={self._basis})"


def fit_signal(
    values: Float[Tensor, "..."],
    basis: Basis,
    *,
    positions: Float[Tensor, "..."] | None = None,
    grid: tuple[int, ...] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    penalty: float = 0.01,
) -> Signal:
    r"""Fit a continuous signal to observations by ridge regression.

    .. math:: B = \arg\min_B \|B\,\Psi - H\|_F^2 + \lambda \|B\|_F^2 = H\Psi^\top(\Psi\Psi^\top + \lambda I)^{-1}

    Args:
        values: observations H, (*batch, L, D).
        basis: ψ, K functions on the line (N = 1) or in N dimensions.
        positions: where they were made: (L,) or (*batch, L) for N = 1, (L, N) or (*batch, L, N) for N > 1. By default
            (rank + ½)/n over the n unmasked observations of a sequence; with `grid`, the centres of its cells.
        grid: sizes of a regular grid over the unit cube whose cells the observations are, row-major: (height, width).
        mask: boolean, (L,) or (*batch, L); True = counts. A sequence without any observation gives the zero signal.
        penalty: λ ≥ 0.

    Returns:
        A :class:`Signal` with coefficients (*batch, K, D).

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.linspace(32, scale=0.05)
        >>> t = (torch.arange(200) + 0.5) / 200
        >>> signal = contmax.fit_signal(torch.sin(6 * t)[:, None], basis, penalty=1e-4)
        >>> torch.allclose(signal(torch.tensor([0.25, 0.5])), torch.sin(torch.tensor([[1.5], [3.0]])), atol=1e-2)
        True

    Reference: Martins et al. 2020, Eq. B_regression.
    """
    _check(values, basis, positions, grid, mask, penalty)
    length = values.shape[-2]
    # Positions and functions are evaluated in float64, whatever the values are: see `ridge_weights`.
    like = values.new_empty(0, dtype=torch.float64)
    wide = torch.promote_types(values.dtype, torch.float32)
    if positions is None and mask is None:
        where = observation_positions(length, None, grid, None, like)
        weights = cached_ridge_weights(basis, where, (length, grid), penalty, wide)
    else:
        design = basis(observation_positions(length, positions, grid, mask, like).double())
        if mask is not None:
            design = torch.where(mask.unsqueeze(-1), design, 0)
            values = torch.where(mask.unsqueeze(-1), values, 0)
        weights = ridge_weights(design, penalty)
    return Signal(basis, values=values, weights=weights.to(wide))


def _check(
    values: Tensor,
    basis: Basis,
    positions: Tensor | None,
    grid: tuple[int, ...] | None,
    mask: Tensor | None,
    penalty: float,
) -> None:
    if values.dim() < 2 or not values.is_floating_point():
        raise ValueError(
            f"values must be floating-point of shape (*batch, L, D); got {values.dtype}, {tuple(values.shape)}. "
            "Pass values[:, None] for one channel."
        )
    length = values.shape[-2]
    if length == 0:
        raise ValueError(f"values of shape {tuple(values.shape)} hold no observation: L = 0. Skip such inputs.")
    if penalty < 0:
        raise ValueError(f"penalty must not be negative; got {penalty}. 0.01 is a good start.")
    if grid is not None:
        size = torch.Size(grid).numel()
        if size != length or len(grid) != basis.event_dim or positions is not None:
            raise ValueError(
                f"grid {tuple(grid)} does not fit: it has {len(grid)} axes and {size} cells, for a basis of dimension "
                f"{basis.event_dim} and {length} observations; and positions must be None with it."
            )
    elif positions is None and basis.event_dim > 1:
        raise ValueError(
            f"a basis of dimension {basis.event_dim} needs grid=(…) or positions of shape (L, {basis.event_dim})."
        )
    if positions is not None:
        shape = positions.shape if basis.event_dim == 1 else positions.shape[:-1]
        fits = basis.event_dim == 1 or positions.shape[-1] == basis.event_dim
        if not fits or not shape or shape[-1] != length:
            raise ValueError(
                f"positions of shape {tuple(positions.shape)} do not fit values of shape {tuple(values.shape)}: pass "
                f"(L,) or (*batch, L), with a last axis of {basis.event_dim} if the basis has more than one dimension."
            )
    if mask is not None and (mask.dtype != torch.bool or mask.shape[-1:] != (length,)):
        raise ValueError(
            f"mask must be boolean of shape (L,) or (*batch, L), L = {length}; got {mask.dtype} of {tuple(mask.shape)}."
        )
