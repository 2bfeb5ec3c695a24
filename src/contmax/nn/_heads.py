"""Heads, modules that make a density: from a summary of the values, or from the weights of a discrete attention."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution
from torch.nn.functional import softplus

from contmax._eager import in_dtype, wide_dtype, without_autocast
from contmax.densities import Mixture, MultivariateBetaGaussian
from contmax.nn._module import check_query, check_values, wide_linear
from contmax.nn._place import (
    Box,
    Head,
    Matching,
    Place,
    PlacingHead,
    Where,
    ball_covariance,
    check_least_half_width,
    checked_matching,
    density_of_moments,
    density_of_scale,
    moments_of_weights,
    observed_cells,
)
from contmax.signal._observations import check_mask, unmasked

# `_LEAST` is added to σ² and `_LEAST_HALF_WIDTH` to half-widths, because softplus may round them to 0. `_LEAST_SHARE`
# of its diagonal is added to the matrix T of an elliptical support, because rounding may make T indefinite.
_LEAST = 1e-12
_LEAST_HALF_WIDTH = 1e-4
_LEAST_SHARE = 1e-5
# Initial half-width of a head with position channels, as a share of the domain.
_HALF_WIDTH = 0.2
_CONVOLUTIONS: dict[int, type[torch.nn.Module]] = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}
# A window of a `WindowHead` that holds less than this of the weights counts as empty; its density is arbitrary.
_EMPTY = 1e-12


class PooledHead(Head):
    r"""Decides where to look from a summary of the values: convolution, maximum over positions, affine maps.

    .. math:: v = \max_\ell\, \mathrm{relu}(\mathrm{conv}([H, t]))_\ell, \qquad
              \mu = \mathrm{sigmoid}(W_1 v), \qquad a = \mathrm{softplus}(w_2^\top v)

    The positions t are extra channels, because a maximum alone does not tell where it was taken. a is the half-width
    for α = 2; for other α the density has this variance. In N > 1 dimensions the support is the ellipsoid of T =
    LLᵀ, with diagonal softplus(W₂v) and the entries W₃v below it. μ lies in the unit cube, where positions are by
    default. Where positions are given, the interval that they cover takes its place: t, μ and a are shares of it.

    The head of the paper is ``PooledHead(…, position_channels=False)``: v without t, and σ² = softplus(w₂ᵀv); in N > 1
    dimensions Σ = LLᵀ with squared diagonal softplus(W₂v). After an encoder that treats all positions alike it cannot
    tell where to look, and it begins wider than the domain: use it to reproduce the paper, and :class:`GateHead` to
    find places.

    Args:
        embed_dim: D, channels of the values.
        dim: N, 1 to 3; for N > 1 the attention needs `grid`.
        hidden_dim: channels of the convolution; D by default.
        kernel_size: its width, odd.
        query_dim: channels of queries, joined to v; None for a head without queries.
        position_channels: whether the convolution sees the positions; False for the head of the paper.
        init_half_width: half-width (semi-axis) a to begin with, as a share of the domain. None for 0.2, or, without
            position channels, for the start of the paper.

    Shape:
        values (B, L, D), query (B, query_dim) or (B, Q, query_dim); density of batch shape (B,) or (B, Q).

    Example:
        >>> import torch, contmax
        >>> head = contmax.nn.PooledHead(16)
        >>> head(torch.randn(2, 50, 16), alpha=2.0).batch_shape
        torch.Size([2])

    Reference: Martins et al. 2020, document classification.
    """

    _shown = ("embed_dim", "dim", "query_dim", "position_channels", "init_half_width")

    def __init__(
        self,
        embed_dim: int,
        *,
        dim: int = 1,
        hidden_dim: int | None = None,
        kernel_size: int = 3,
        query_dim: int | None = None,
        position_channels: bool = True,
        init_half_width: float | None = None,
    ) -> None:
        super().__init__()
        if dim not in _CONVOLUTIONS:
            raise ValueError(f"dim must be 1, 2 or 3; got {dim}. For other domains pass your own head.")
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, to stay aligned with the positions; got {kernel_size}.")
        if init_half_width is not None and not init_half_width > 0:
            raise ValueError(f"init_half_width must be positive, a share of the domain; got {init_half_width}.")
        self.embed_dim, self.dim, self.query_dim = embed_dim, dim, query_dim
        self.position_channels = position_channels
        self.init_half_width = _HALF_WIDTH if position_channels and init_half_width is None else init_half_width
        width = embed_dim if hidden_dim is None else hidden_dim
        channels = embed_dim + dim if position_channels else embed_dim
        make: Any = _CONVOLUTIONS[dim]
        self.convolution = make(channels, width, kernel_size, padding=kernel_size // 2)
        summary = width + (query_dim or 0)
        self.location = torch.nn.Linear(summary, dim)
        self.scale = _Spread(summary, dim, self.init_half_width)

    def _attend(self, values: Tensor, alpha: float | Tensor, query: Tensor | None, where: Where) -> Place:
        grid, mask = where.grid, where.mask
        check_values(values, self.embed_dim, "values")
        check_query(query, self.query_dim, values)
        if (1 if grid is None else len(grid)) != self.dim:
            raise ValueError(
                f"A head of dim={self.dim} needs a grid of {self.dim} sizes; got {grid}. Pass grid=(…) to the "
                "attention, or make the head with dim=…."
            )
        check_mask(values.shape[:2], mask)
        like = values.new_empty(0, dtype=wide_dtype(values.dtype))
        cells = observed_cells((values.shape[0], values.shape[1]), self.dim, where, like)
        # If positions are given, they determine the box to look in; with position channels they are also inputs.
        box = None if where.positions is None else cells.box(mask)
        centers = cells.centers if box is None else box.shares(cells.centers)
        summary = self._summary(values, centers, grid, mask)
        if query is not None:
            if query.dim() == 3:
                summary = summary.unsqueeze(1).expand(-1, query.shape[1], -1)
            summary = torch.cat([summary, in_dtype(query, summary.dtype)], -1)
        loc, spread = torch.sigmoid(wide_linear(self.location, summary)), wide_linear(self.scale, summary)
        make = self._with_scale if self.init_half_width is None else self._with_half_width
        return Place(make(loc if box is None else box.points(loc), spread, alpha, box), None, None)

    def _with_half_width(self, loc: Tensor, spread: Tensor, alpha: float | Tensor, box: Box | None) -> Distribution:
        """The density for α with the moments of a truncated paraboloid (α = 2), whose support `spread` describes.

        `spread` holds half-widths before softplus, then the entries below the diagonal of the Cholesky factor of T.
        """
        half_width = softplus(spread[..., : self.dim]) + _LEAST_HALF_WIDTH
        half_width = half_width if box is None else box.lengths(half_width)
        if self.dim == 1:
            return density_of_moments(loc.squeeze(-1), half_width.squeeze(-1).square() / 5, alpha, 1)
        tril = _lower_triangular(half_width, spread[..., self.dim :])
        with without_autocast(tril):
            support = tril @ tril.mT
        # Add a share of the diagonal: otherwise rounding could make the matrix of a very thin ellipsoid indefinite.
        support = support + _LEAST_SHARE * torch.diag_embed(support.diagonal(dim1=-2, dim2=-1))
        return density_of_moments(loc, support / (self.dim + 4), alpha, self.dim)

    def _with_scale(self, loc: Tensor, spread: Tensor, alpha: float | Tensor, box: Box | None) -> Distribution:
        """The density of the paper: softplus of `spread` is σ², or for N > 1 the squared diagonal of L in Σ = LLᵀ."""
        squared = softplus(spread[..., : self.dim]) + _LEAST
        if self.dim == 1:
            scale = squared.squeeze(-1).sqrt()
            if box is not None:
                # The half-width is proportional to σ^(2/(α+1)): a support s times as wide has σ times s^((α+1)/2).
                stretch = box.lengths(torch.ones_like(loc)).squeeze(-1)
                scale = scale * stretch ** ((alpha + 1) / 2)
            return density_of_scale(loc.squeeze(-1), scale, alpha, 1)
        tril = _lower_triangular(squared.sqrt(), spread[..., self.dim :])
        return MultivariateBetaGaussian(loc, alpha=alpha, scale_tril=tril, validate_args=False)

    def _summary(self, values: Tensor, centers: Tensor, grid: tuple[int, ...] | None, mask: Tensor | None) -> Tensor:
        """v, (B, hidden_dim): maxima of the features over unmasked positions; zeros if all positions are masked."""
        may = None if mask is None else mask.expand(values.shape[:-1])
        if self.position_channels:
            values = torch.cat([values, in_dtype(centers, values.dtype)], -1)
        seen = unmasked(values, may)
        channels_first = seen.mT if grid is None else seen.mT.unflatten(-1, grid)
        features = torch.relu(self.convolution(channels_first)).flatten(2)
        if may is not None:
            # Mask by zeros: after relu a zero never exceeds the value of an attended position.
            features = torch.where(may.unsqueeze(1), features, 0)
        return features.amax(-1)


class _Spread(torch.nn.Linear):
    """An affine map from a summary to N widths (before softplus) and N(N−1)/2 entries below a matrix diagonal.

    With a `start`, softplus of the widths is initially `start`, and the entries are 0, for every summary.
    """

    def __init__(self, summary: int, dim: int, start: float | None) -> None:
        self.dim, self.start = dim, start  # read by reset_parameters, which Linear.__init__ calls
        super().__init__(summary, dim + dim * (dim - 1) // 2)

    def reset_parameters(self) -> None:
        """Reset the parameters."""
        if self.start is None:
            return super().reset_parameters()
        with torch.no_grad():
            self.weight.zero_()
            self.bias.zero_()
            # The inverse of softplus.
            self.bias[: self.dim] = self.start + math.log(-math.expm1(-self.start))


def _lower_triangular(diagonal: Tensor, below: Tensor) -> Tensor:
    """The lower triangular matrix (…, N, N) of a diagonal (…, N) and entries below, (…, N(N−1)/2), row by row."""
    rest, zero = iter(below.unbind(-1)), torch.zeros_like(diagonal[..., 0])
    rows = [
        [*(next(rest) for _ in range(i)), entry, *[zero] * (diagonal.shape[-1] - 1 - i)]
        for i, entry in enumerate(diagonal.unbind(-1))
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


class MomentHead(PlacingHead):
    r"""Looks where a discrete attention looks: the density has the moments of its weights over the positions.

    .. math:: \mu = E_p[t], \qquad V = s^2\big(\mathrm{Cov}_p[t] + \mathrm{diag}(1/12L_i^2)\big) + \frac{a^2}{N+4}\,I

    L_i observations lie along each axis of the unit cube; where positions are given, 1/L_i is their mean spacing, in
    their unit. The head finds the place, but trained from labels alone it stays narrow, since a softmax stays peaked: s
    and a widen it. For α = 2 the support is s times as wide, and has no half-width (semi-axis) below a.

    Args:
        discrete: a module called as ``discrete(values, query, mask=mask)`` that returns (context, weights), such as
            :class:`DiscreteAttention`.
        dim: N.
        matching: "exact" for the β-Gaussian with mean μ and covariance V; "paper" for the one with shape parameter
            Σ := V, which agrees with "exact" only for α = 1.
        width_factor: s > 0; 1 for the moments as they are.
        least_half_width: a ≥ 0, about the radius of the objects, in the unit of the positions; 0 for none.

    Example:
        >>> import torch, contmax
        >>> head = contmax.nn.MomentHead(contmax.nn.DiscreteAttention(16))
        >>> head(torch.randn(2, 50, 16), alpha=2.0).batch_shape
        torch.Size([2])

    Reference: Martins et al. 2020, combined attention.
    """

    _shown = ("dim", "matching", "width_factor", "least_half_width")

    def __init__(
        self,
        discrete: torch.nn.Module,
        *,
        dim: int = 1,
        matching: Matching = "exact",
        width_factor: float = 1.0,
        least_half_width: float = 0.0,
    ) -> None:
        super().__init__()
        if not width_factor > 0:
            raise ValueError(f"width_factor must be positive; got {width_factor}. 1 leaves the moments as they are.")
        check_least_half_width(least_half_width)
        self.discrete, self.dim, self.matching = discrete, dim, checked_matching(matching)
        self.width_factor, self.least_half_width = width_factor, least_half_width

    def _attend(self, values: Tensor, alpha: float | Tensor, query: Tensor | None, where: Where) -> Place:
        context, weights = self.discrete(values, query, mask=where.mask)
        mean, covariance = moments_of_weights(weights, self.dim, where)
        least = ball_covariance(self.least_half_width**2, self.dim, covariance)
        covariance = self.width_factor**2 * covariance + least
        return Place(density_of_moments(mean, covariance, alpha, self.dim, self.matching), weights, context)


class WindowHead(PlacingHead):
    r"""Looks where a discrete attention looks, also at several peaks: a mixture with one density for each window.

    .. math:: w_j = \sum_\ell k_j(t_\ell)\,p_\ell, \qquad p = \sum_j w_j\,p_j, \qquad
              p_j \text{ with the moments of } k_j(t_\ell)\,p_\ell / w_j

    The windows k_j are products of triangles around n points along each axis of the unit cube, or, where positions are
    given, of the box that they cover, and sum to one everywhere. So the mixture has the mean and the covariance of the
    weights, like the density of a :class:`MomentHead`. But when two objects are attended to, that density also covers
    the space between them, while the mixture covers the objects, and training can shift weight from one to the other.

    Args:
        discrete: a module called as ``discrete(values, query, mask=mask)`` that returns (context, weights), such as
            :class:`DiscreteAttention`. Where its weights are zero in a whole window, the component has weight zero too.
        windows: n ≥ 2 along each axis, n^N in all; about as many as objects fit along it.
        dim: N.

    Shape:
        values (B, L, D), weights (B, L) or (B, Q, L) as the discrete attention has them, mask (B, L) or (L,); density
        of batch shape (B,) or (B, Q), with n^N components.

    Example:
        >>> import torch, contmax
        >>> head = contmax.nn.WindowHead(contmax.nn.DiscreteAttention(16), windows=4)
        >>> density = head(torch.randn(2, 50, 16), alpha=1.0)
        >>> density.batch_shape, density.mixture_distribution.probs.shape
        (torch.Size([2]), torch.Size([2, 4]))
    """

    _shown = ("windows", "dim")

    def __init__(self, discrete: torch.nn.Module, *, windows: int = 4, dim: int = 1) -> None:
        super().__init__()
        if windows < 2:
            raise ValueError(
                f"windows must be at least 2 along each axis; got {windows}. For one window use MomentHead."
            )
        self.discrete, self.windows, self.dim = discrete, windows, dim

    def _attend(self, values: Tensor, alpha: float | Tensor, query: Tensor | None, where: Where) -> Place:
        context, weights = self.discrete(values, query, mask=where.mask)
        wide = in_dtype(weights, wide_dtype(weights.dtype))
        cells = observed_cells((weights.shape[0], weights.shape[-1]), self.dim, where, wide)
        windows = self._windows(in_dtype(cells.box(where.mask).shares(cells.centers), wide.dtype))
        if weights.dim() == 3:
            # Add an axis for the queries: all queries of a sequence share its positions, and so its windows.
            windows = windows.unsqueeze(1)
        joint = wide.unsqueeze(-2) * windows
        shares = joint.sum(-1)
        local = joint / shares.clamp(min=_EMPTY).unsqueeze(-1)
        flat = moments_of_weights(local.flatten(1, -2), self.dim, where)
        mean, covariance = (moment.unflatten(1, shares.shape[1:]) for moment in flat)
        # A sequence with nothing to attend gets a uniform mixture instead of NaN.
        shares = torch.where(shares.sum(-1, keepdim=True) > 0, shares, 1.0)
        # If there is one α for each density, add an axis to it for the components of the mixture.
        alpha = alpha.unsqueeze(-1) if isinstance(alpha, Tensor) and alpha.dim() else alpha
        parts = density_of_moments(mean, covariance, alpha, self.dim)
        return Place(Mixture(Categorical(shares, validate_args=False), parts), weights, context)

    def _windows(self, where: Tensor) -> Tensor:
        """Window functions k_j(t_ℓ), (B, n^N, L), at positions (B, L, N) in the unit cube; n windows along an axis."""
        nodes = torch.arange(self.windows, dtype=where.dtype, device=where.device)
        # Triangles around the nodes of each axis, (…, L, N, n).
        triangles = torch.relu(1 - ((self.windows - 1) * where.clamp(0, 1).unsqueeze(-1) - nodes).abs())
        product = triangles[..., 0, :]
        for axis in range(1, self.dim):
            product = (product.unsqueeze(-1) * triangles[..., axis, :].unsqueeze(-2)).flatten(-2)
        return product.mT
