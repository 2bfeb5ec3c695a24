"""Checks of arguments by their shapes, and densities made from numbers that a network produced."""

import functools
from collections.abc import Callable
from typing import Literal, ParamSpec, get_args

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._eager import refuse_tracing
from contmax._mask import has_shape, require_boolean
from contmax._precision import in_dtype, wide_dtype, without_autocast
from contmax.basis import Basis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.maps import moments
from contmax.nn._place import cells_of_weights
from contmax.signal._observations import as_grid

_P = ParamSpec("_P")
Matching = Literal["exact", "paper"]


def basis_is_argument(at: int) -> Callable[[Callable[_P, None]], Callable[_P, None]]:
    """A decorator of constructors that refuses arguments in another order, with the right one in the message.

    Args:
        at: the place of the basis among positional arguments, the last that may be one.
    """

    def decorate(init: Callable[_P, None]) -> Callable[_P, None]:
        @functools.wraps(init)
        def checked(*arguments: _P.args, **options: _P.kwargs) -> None:
            module, *given = arguments
            misplaced = [isinstance(x, Basis) != (place == at) for place, x in enumerate(given)]
            if any(misplaced) or len(given) > at + 1 or not isinstance(options.get("basis"), Basis | None):
                kinds = ", ".join(type(x).__name__ for x in given)
                raise TypeError(
                    f"{type(module).__name__} got ({kinds}), which is not the order of its arguments. Call "
                    "ContinuousAttention(basis, embed_dim=64), CombinedAttention(discrete, basis), or "
                    "MultiheadContinuousAttention(64, 8, basis)."
                )
            init(*arguments, **options)

        return checked

    return decorate


def density_of_scale(loc: Tensor, scale: Tensor, alpha: float | Tensor, dim: int) -> Distribution:
    """The β-Gaussian of (μ, σ) on the line, of (μ, Σ) in N dimensions."""
    if dim == 1:
        return BetaGaussian(loc, scale, alpha, validate_args=False)
    return MultivariateBetaGaussian(loc, scale, alpha, validate_args=False)


def density_of_moments(
    mean: Tensor, covariance: Tensor, alpha: float | Tensor, dim: int, matching: Matching
) -> Distribution:
    """The β-Gaussian with these moments; for the matching of the paper, with the covariance as its shape parameter."""
    if matching == "paper":
        return density_of_scale(mean, covariance.sqrt() if dim == 1 else covariance, alpha, dim)
    if dim == 1:
        return BetaGaussian.from_moments(mean, covariance, alpha, validate_args=False)
    return MultivariateBetaGaussian.from_moments(mean, covariance, alpha, validate_args=False)


def moments_of_weights(
    weights: Tensor, dim: int, *, positions: Tensor | None, grid: tuple[int, ...] | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mean and (co)variance of the positions of L observations under weights (B, L) or (B, Q, L)."""
    wide = in_dtype(weights, wide_dtype(weights.dtype))
    (where, sides), first = cells_of_weights(wide, dim, positions=positions, grid=grid, mask=mask)
    if dim == 1:
        where, first = where.squeeze(-1), first.squeeze(-1)
    else:
        # Expanded, points (L, N) cannot be mistaken for positions (B, L) on the line.
        where = where.expand(*weights.shape, dim)
    mean, covariance = moments(wide, where, sides=sides)
    return first + mean, covariance


def check_query(query: Tensor | None, query_dim: int | None, values: Tensor) -> None:
    """Raise ValueError for a missing or unexpected query, or one of other channels."""
    if query is None and query_dim is None:
        return
    if query is None or query_dim is None:
        got, fix = ("no query", "a query") if query is None else ("a query", "query_dim=… at construction, or no query")
        raise ValueError(f"The module was made with query_dim={query_dim} but got {got}. Pass {fix}.")
    batch = values.shape[0]
    if query.dim() not in (2, 3) or query.shape[0] != batch or query.shape[-1] != query_dim:
        raise ValueError(
            f"query must have shape (B, {query_dim}) or (B, Q, {query_dim}) with B = {batch}; got {tuple(query.shape)}."
        )


def check_least_half_width(least: float | None) -> None:
    """Raise ValueError for a least half-width that is negative or NaN."""
    if least is not None and not least >= 0:
        raise ValueError(f"least_half_width must not be negative; got {least}. Pass a length in units of the domain.")


def check_mask(mask: Tensor | None, values: Tensor) -> None:
    """Raise TypeError or ValueError for a mask that is not one boolean for each position of each sequence."""
    require_boolean(mask)
    batch, length = values.shape[:2]
    if mask is not None and not has_shape(mask, (length,), (1, length), (batch, length)):
        raise ValueError(
            f"mask must have shape (L,) or (B, L), B = {batch} and L = {length}, True = may be attended; got "
            f"{tuple(mask.shape)}."
        )


def check_keys(keys: Tensor | None, values: Tensor) -> None:
    """Raise ValueError for keys at other positions than those of the values; their channels may differ."""
    if keys is not None and (keys.dim() != 3 or keys.shape[:2] != values.shape[:2]):
        raise ValueError(
            f"keys must have shape (B, L, channels) with the B and L of the values, {tuple(values.shape[:2])}; got "
            f"{tuple(keys.shape)}."
        )


def checked_grid(grid: tuple[int, ...] | None, dim: int) -> tuple[int, ...] | None:
    """The grid, with one size for each axis of the domain; raises ValueError or TypeError for any other."""
    grid = as_grid(grid)
    if grid is not None and len(grid) != dim:
        raise ValueError(f"grid must have {dim} sizes, one for each axis of the basis; got {grid}.")
    return grid


def check_values(values: Tensor, channels: int, name: str) -> None:
    """Raise ValueError for values of another shape than (B, L, channels)."""
    # torch.jit.trace gives sizes as tensors, which equal no number of channels.
    refuse_tracing()
    if values.dim() != 3 or values.shape[-1] != channels:
        raise ValueError(
            f"{name} must have shape (B, L, {channels}); got {tuple(values.shape)}. Pass x[None] for one sequence."
        )


def checked_matching(matching: Matching) -> Matching:
    """The matching; raises ValueError for an unknown one."""
    if matching not in get_args(Matching):
        raise ValueError(f'matching must be "exact" or "paper"; got {matching!r}.')
    return matching


def with_queries(keys: Tensor, queries: Tensor | None) -> Tensor:
    """Keys (B, L, d) plus queries: (B, L, d) for queries (B, d), (B, Q, L, d) for queries (B, Q, d)."""
    if queries is None:
        return keys
    return keys + queries.unsqueeze(1) if queries.dim() == 2 else keys.unsqueeze(1) + queries.unsqueeze(2)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, n, H·d) → (B, H, n, d)."""
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads).transpose(1, 2)


def wide_linear(linear: torch.nn.Linear, x: Tensor) -> Tensor:
    """An affine map in at least float32, under autocast too: three digits are too few to say where to look."""
    dtype = wide_dtype(x.dtype)
    bias = None if linear.bias is None else in_dtype(linear.bias, dtype)
    with without_autocast(x):
        return torch.nn.functional.linear(in_dtype(x, dtype), in_dtype(linear.weight, dtype), bias)
