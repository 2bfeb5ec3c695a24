"""A continuous signal V(t) = Bᵀψ(t) through observations, immutable and lazy, and attention to it in one call."""

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from contmax._autograd import apply, gradients_by_reference, refused_by_kernels, tangent_by_reference
from contmax._backend import Backend, backend_of, triton_runs_on
from contmax._eager import in_dtype, is_eager, wide_dtype, without_autocast
from contmax._typing import Bool, Float
from contmax.basis import Basis
from contmax.expectations import expectation
from contmax.signal._fused_context import fused_context
from contmax.signal._observations import (
    as_grid,
    check_grid,
    check_observations,
    design_at,
    observation_positions,
    require_penalty,
    unmasked,
    warn_if_not_on_unit_cube,
)
from contmax.signal._ridge import Even, RidgeFit, default_weights, explained_share, ridge_fit, through_values

if TYPE_CHECKING:
    from torch.distributions import Distribution


class Sites(NamedTuple):
    """Positions of observations, or the sizes of their grid; the default positions if both are None."""

    positions: Tensor | None = None
    grid: tuple[int, ...] | None = None


class _Observed(NamedTuple):
    """Observations H, (*batch, L, D), arbitrary where masked, and ridge weights G, (…, L, K), of their positions."""

    values: Tensor
    weights: Tensor | RidgeFit
    mask: Tensor | None
    sites: Sites

    def coefficients(self) -> Tensor:
        """B = GᵀH, in at least float32."""
        values, weights = unmasked(self.values, self.mask), self.weights
        with without_autocast(values):
            if isinstance(weights, RidgeFit):
                return weights.coefficients(values).to(wide_dtype(values.dtype))
            return weights.mT @ in_dtype(values, weights.dtype)

    def explained_variance(self, coefficients: Tensor, basis: Basis) -> Tensor:
        """1 − Σ‖h−V‖²/Σ‖h−h̄‖² over unmasked positions and channels, h̄ the mean, in float64."""
        values = unmasked(self.values, self.mask).double()
        with without_autocast(values):
            where = observation_positions(values.shape[-2], *self.sites, self.mask, values.new_empty(0))
            fitted = basis(where).double() @ coefficients.double()
            counts = values.new_ones(()) if self.mask is None else self.mask.to(values.dtype)
            counts = counts.expand(values.shape[:-1]).unsqueeze(-1)
            mean = (counts * values).sum(-2, keepdim=True) / counts.sum(-2, keepdim=True).clamp(min=1)
            missed = (counts * (values - fitted).square()).sum((-2, -1))
            total = (counts * (values - mean).square()).sum((-2, -1))
            # Treat a variance up to `least` as 0: the variance of equal observations is a rounding error.
            least = (64 * torch.finfo(values.dtype).eps) ** 2 * values.square().sum((-2, -1))
            return explained_share(missed, total, least)


class Signal:
    r"""A continuous signal V(t) = Σ_j b_j ψ_j(t) with D channels.

    It keeps its observations H (*batch, L, D) and the ridge weights G until :meth:`materialize`, because a single
    expectation is cheaper as H·(G r) than as (H G)·r. After it, the cost of a query does not depend on L.

    Evaluations and expectations have the dtype of the observations; they are computed in at least float32. Made by
    :func:`fit_signal` or :meth:`SignalAccumulator.signal <contmax.SignalAccumulator.signal>`.
    """

    def __init__(
        self,
        basis: Basis,
        *,
        coefficients: Tensor | None = None,
        values: Tensor | None = None,
        weights: Tensor | RidgeFit | None = None,
        mask: Tensor | None = None,
        sites: Sites | None = None,
        explained: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._content: Tensor | _Observed
        if coefficients is not None:
            self._content = source = coefficients
        elif values is not None and weights is not None:
            self._content, source = _Observed(values, weights, mask, sites or Sites()), values
        else:
            raise ValueError("A signal needs coefficients, or values and weights. Call contmax.fit_signal to make one.")
        self._basis, self._explained = basis, explained
        self._shape, self._dtype = source.shape, source.dtype if dtype is None else dtype

    @property
    def basis(self) -> Basis:
        """The basis functions ψ."""
        return self._basis

    @property
    def coefficients(self) -> Float[Tensor, "*batch K D"]:
        """B = GᵀH, in at least float32: large terms of opposite sign cancel, for which half precision is too coarse."""
        return self._content.coefficients() if isinstance(self._content, _Observed) else self._content

    def __call__(self, t: Float[Tensor, "..."]) -> Float[Tensor, "*batch T D"]:
        """V(t) at points t: (T,) or (*batch, T) for N = 1, (T, N) or (*batch, T, N) for N > 1."""
        coefficients = self.coefficients
        functions: Tensor = self._basis(t)
        with without_autocast(coefficients):
            return in_dtype(in_dtype(functions, coefficients.dtype) @ coefficients, self._dtype)

    def expectation(self, density: "Distribution") -> Float[Tensor, "... D"]:
        """E_p[V], of shape (*batch, *Q, D), for a signal of batch (*batch) and a density of batch (*batch, *Q).

        A density without a batch is used for every sequence.
        """
        return self.mix(expectation(density, self._basis))

    def mix(self, r: Float[Tensor, "... K"]) -> Float[Tensor, "... D"]:
        """Bᵀr for r = E_p[ψ] of shape (*batch, *Q, K), in the cheaper order."""
        batch = self._shape[:-2]
        if r.dim() == 1:
            r = r.expand(*batch, -1)
        first = r.shape[: len(batch)]
        fits = first == batch or all(n == m or 1 in (n, m) for n, m in zip(first, batch, strict=False))
        if r.dim() <= len(batch) or not fits:
            raise ValueError(
                f"A density of batch shape {tuple(r.shape[:-1])} does not fit a signal of batch shape {tuple(batch)}: "
                "pass one density per sequence, (*batch), many, (*batch, *Q), or one for all, ()."
            )
        queries, (length, channels) = r.shape[len(batch) : -1], self._shape[-2:]
        with without_autocast(r):
            # Flatten all queries of a sequence into one axis.
            r = in_dtype(r.flatten(len(batch), -2) if queries else r.unsqueeze(-2), wide_dtype(self._dtype))
            if isinstance(self._content, _Observed) and through_values(length, r.shape[-1], channels, r.shape[-2]):
                values, weights, mask, _ = self._content
                # Compute H·(G r), which is cheaper here than (H G)·r.
                known = weights.observed(r) if isinstance(weights, RidgeFit) else r @ weights.mT
                mixed = masked_product(known, values, mask)
            else:
                mixed = r @ self.coefficients.to(r.dtype)
        mixed = in_dtype(mixed, self._dtype)
        return mixed.squeeze(-2) if not queries else mixed.reshape(*mixed.shape[:-2], *queries, mixed.shape[-1])

    def explained_variance(self) -> Float[Tensor, "*batch"]:
        r"""The share of the variance of the observations, over unmasked positions and all channels, that V explains.

        .. math:: 1 - \frac{\sum_\ell \|h_\ell - V(t_\ell)\|^2}{\sum_\ell \|h_\ell - \bar h\|^2}

        Near 1, the basis follows the observations. Well below 1, it is too coarse: use more functions, such as
        ``GaussianBasis.covering(num)`` with a larger `num`, or a smaller penalty. Observations that are all equal give
        1. A fit that is worse than the mean, as under a large penalty, gives a negative value.

        Returns:
            Shape (*batch), at least float32, differentiable.

        Raises:
            ValueError: if the signal no longer has its observations: call this before :meth:`materialize`.

        Example:
            >>> import torch, contmax
            >>> values = torch.sin(40 * torch.linspace(0, 1, 100))[:, None]
            >>> coarse, fine = (contmax.basis.GaussianBasis.linspace(num, scale=1 / num) for num in (8, 32))
            >>> contmax.fit_signal(values, coarse).explained_variance()
            tensor(0.0478)
            >>> contmax.fit_signal(values, fine).explained_variance()
            tensor(0.9999)
        """
        if self._explained is not None:
            return self._explained
        if not isinstance(self._content, _Observed):
            raise ValueError(
                "This signal no longer has its observations, so their variance is not known. Call explained_variance() "
                "on the signal that fit_signal returned, before materialize()."
            )
        return self._content.explained_variance(self.coefficients, self._basis).to(wide_dtype(self._dtype))

    def materialize(self) -> "Signal":
        """This signal with its coefficients computed and its observations dropped."""
        return Signal(self._basis, coefficients=self.coefficients, explained=self._explained, dtype=self._dtype)

    def to(self, *args: Any, **kwargs: Any) -> "Signal":
        """This signal with its tensors moved as by Tensor.to.

        The basis is copied there, in at least float32. Gradients still reach the original basis, which stays where it
        is.
        """
        device = (self._content.values if isinstance(self._content, _Observed) else self._content).device
        like = torch.empty(0, dtype=self._dtype, device=device).to(*args, **kwargs)
        wide = wide_dtype(like.dtype)
        moved = self._mapped(lambda tensor: tensor.to(like.device, wide), lambda tensor: tensor.to(like.device))
        moved._basis, moved._dtype = self._basis.moved(like.device, wide), like.dtype
        return moved

    def detach(self) -> "Signal":
        """This signal, detached from the autograd graph."""
        return self._mapped(torch.Tensor.detach, torch.Tensor.detach)

    def _mapped(self, change: Callable[[Tensor], Tensor], move: Callable[[Tensor], Tensor]) -> "Signal":
        """A copy: `change` maps coefficients, values and weights, and `move` maps the mask and float64 positions."""
        new, content = copy.copy(self), self._content
        new._explained = None if self._explained is None else change(self._explained)
        if isinstance(content, Tensor):
            new._content = change(content)
            return new
        values, weights, mask, (positions, grid) = content
        if isinstance(weights, RidgeFit):
            # Replace a RidgeFit, which needs float64, by its weights: not every device has float64.
            weights = weights.weights(wide_dtype(self._dtype))
        mask, positions = (None if x is None else move(x) for x in (mask, positions))
        new._content = _Observed(change(values), change(weights), mask, Sites(positions, grid))
        return new

    def __repr__(self) -> str:
        shape = (*self._shape[:-2], self._basis.num_functions, self._shape[-1])
        state = "materialized" if isinstance(self._content, Tensor) else "lazy"
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

    .. math:: B = \arg\min_B \|B\,\Psi - H\|_F^2 + \frac{\lambda}{V^2} \|B\|_F^2
              = H\Psi^\top\Big(\Psi\Psi^\top + \frac{\lambda}{V^2} I\Big)^{-1}

    V is the ``volume`` of the basis. Gaussians and rectangles are densities, whose heights depend on the unit of t; for
    them V is the length b − a (area, volume) of the box that the centres cover, so that 1 on [0, 1] and 3600 for an
    hour in seconds. Splines and waves have heights without a unit, and V = 1. So a signal over an hour in seconds is
    that over [0, 1], with this λ.

    Args:
        values: observations H, (*batch, L, D).
        basis: ψ, K functions on the line (N = 1) or in N dimensions.
        positions: where the observations were made, in the unit of the basis: (L,) or (*batch, L) for N = 1, (L, N) or
            (*batch, L, N) for N > 1. By default (rank + ½)/n over the n unmasked observations of a sequence; with
            `grid`, the centres of its cells.
        grid: if the observations are the cells of a regular grid over the unit cube, its sizes, row-major: (height,
            width).
        mask: boolean, (L,) or (*batch, L); True = counts. A sequence without any observation gives the zero signal.
        penalty: λ ≥ 0, for positions in [0, 1]; in other units the same number gives the same signal.

    Returns:
        A :class:`Signal` with coefficients (*batch, K, D).

    Raises:
        ValueError: if shapes do not fit each other, positions are not finite, or λ = 0 and the fit is not unique.
        TypeError: if the mask is not boolean, or a size of the grid no whole number.
        NotImplementedError: on mps devices, which have no float64.

    Ridge weights for the default positions are cached for the next call with the same basis (with a mask, for every
    number of observations up to L, in at most 256 MB), unless the basis is being learned. On an accelerator the cache
    does not notice a write to the basis through ``.data``; write with ``copy_`` under ``torch.no_grad()``. A CUDA graph
    keeps the weights it was captured with.

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.linspace(32, scale=0.05)
        >>> t = (torch.arange(200) + 0.5) / 200
        >>> signal = contmax.fit_signal(torch.sin(6 * t)[:, None], basis, penalty=1e-4)
        >>> torch.allclose(signal(torch.tensor([0.25, 0.5])), torch.sin(torch.tensor([[1.5], [3.0]])), atol=1e-2)
        True

    Reference: Martins et al. 2020, Eq. B_regression.
    """
    grid = as_grid(grid)
    check_observations(values, basis.event_dim, positions, mask)
    require_penalty(penalty)
    check_grid(values.shape[:-1], basis.event_dim, positions, grid)
    weights: Tensor | RidgeFit
    if positions is None:
        warn_if_not_on_unit_cube(basis)
        even = Even(values.shape[-2], grid, penalty, wide_dtype(values.dtype), values.device)
        weights = batched = default_weights(basis, even, mask)
    else:
        # The basis is evaluated in float64 for values of every dtype: see `ridge_fit`.
        positions, batched = design_at(positions, basis, mask)
        weights = ridge_fit(batched, penalty, basis.volume)
    if batched.dim() > 2:
        values = values.expand(*torch.broadcast_shapes(values.shape[:-2], batched.shape[:-2]), -1, -1)
    return Signal(basis, values=values, weights=weights, mask=mask, sites=Sites(positions, grid))


def ridge_weights(
    positions: Float[Tensor, "..."],
    basis: Basis,
    *,
    mask: Bool[Tensor, "..."] | None = None,
    penalty: float = 0.01,
) -> Float[Tensor, "... L K"]:
    r"""What each observation adds to the coefficients of the signal of :func:`contmax.fit_signal`, whatever its value.

    .. math:: G = \Psi^\top\Big(\Psi\Psi^\top + \frac{\lambda}{V^2} I\Big)^{-1}, \qquad B = H G, \qquad
              E_p[V] = \sum_\ell h_\ell\, (G\,E_p[\psi])_\ell

    G depends on the positions alone. Where these stay and the values change, as with features that are learned or
    scaled anew for every split, G is computed once; ``G @ r`` are the weights that attention with r = E_p[ψ] gives to
    the single observations, which may be negative and need not sum to 1.

    Args:
        positions: where the observations were made, in the unit of the basis: (L,) or (*batch, L) for N = 1, (L, N) or
            (*batch, L, N) for N > 1.
        basis: ψ, K functions.
        mask: boolean, (L,) or (*batch, L); True = counts. Masked observations have the weight 0.
        penalty: λ ≥ 0 of the ridge fit.

    Returns:
        G, (*batch, L, K), in the dtype of the positions, but at least float32.

    Raises:
        ValueError: as :func:`contmax.fit_signal`.

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.covering(8)
        >>> t, values = torch.rand(20), torch.randn(20, 3)
        >>> weights = contmax.signal.ridge_weights(t, basis)
        >>> signal = contmax.fit_signal(values, basis, positions=t)
        >>> torch.allclose(weights.mT @ values, signal.coefficients, atol=1e-4)
        True

    Reference: Martins et al. 2020, Eq. B_regression.
    """
    observations = positions.shape if basis.event_dim == 1 else positions.shape[:-1]
    like = positions.new_empty(()).expand(*observations, 1)
    check_observations(like, basis.event_dim, positions, mask)
    require_penalty(penalty)
    check_grid(observations, basis.event_dim, positions, None)
    _, design = design_at(positions, basis, mask)
    return ridge_fit(design, penalty, basis.volume).weights(wide_dtype(positions.dtype))


def continuous_attention(
    values: Float[Tensor, "..."],
    density: "Distribution",
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
    if positions is None and mask is None and triton_runs_on(values):
        context = fused_context(values, density, basis, grid, penalty)
        if context is not None:
            return context
    signal = fit_signal(values, basis, positions=positions, grid=grid, mask=mask, penalty=penalty)
    return signal.expectation(density)


def masked_product(weights: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """W·H without the masked rows of H, which may be NaN: (*batch, Q, L), (*batch, L, D) → (*batch, Q, D).

    Args:
        weights: W, at least float32.
        values: H, in any dtype; the product has the dtype of the weights.
        mask: boolean, broadcastable to (*batch, L), True = counts; None if all count.
    """
    if mask is None:
        values = in_dtype(values, weights.dtype)
        if weights.dim() == values.dim() == 3 and weights.shape[0] == values.shape[0]:
            return torch.bmm(weights, values)  # equals `@`, but needs no views and their backward passes
        return weights @ values
    one_each = weights.dim() == values.dim() == 3 and weights.shape[:2] == (values.shape[0], 1)
    taken = one_each and weights.dtype == torch.float32 and values.numel() > 0 and is_eager(weights, values)
    if taken and backend_of(values) is Backend.TRITON:
        mean: Tensor = apply(MaskedMean, weights, values, mask.expand(values.shape[:2]).contiguous())
        return mean
    return _product_by_torch(weights, values, mask)


def _product_by_torch(weights: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    return weights @ in_dtype(unmasked(values, mask), weights.dtype)


class MaskedMean(torch.autograd.Function):
    """Σ_ℓ w_ℓ h_ℓ over unmasked ℓ, (B, 1, L), (B, L, D), (B, L) → (B, 1, D), by a kernel that skips masked rows."""

    # No `setup_context`: only transforms of torch.func need one, and this Function is called on eager tensors only.
    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(weights, values, mask)
        ctx.save_for_forward(weights, values, mask)
        from contmax.kernels.means import _gpu_masked_mean

        return _gpu_masked_mean.masked_mean(weights.squeeze(1).contiguous(), values.contiguous(), mask).unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        weights, values, mask = ctx.saved_tensors
        needs = ctx.needs_input_grad[:2]
        if refused_by_kernels(cotangent):
            reference = partial(_product_by_torch, mask=mask)
            return *gradients_by_reference(reference, (weights, values), needs, cotangent), None
        from contmax.kernels.means import _gpu_masked_mean

        by_weights, by_values = _gpu_masked_mean.masked_mean_backward(
            weights.squeeze(1).contiguous(), values.contiguous(), mask, cotangent.squeeze(1).contiguous(), needs[1]
        )
        return by_weights.unsqueeze(1) if needs[0] else None, by_values if needs[1] else None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        weights, values, mask = ctx.saved_tensors
        return tangent_by_reference(partial(_product_by_torch, mask=mask), (weights, values), tangents[:2])
