"""Multi-head attention of many queries to one continuous signal."""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from contmax._eager import common_dtype, in_dtype, wide_dtype, without_autocast
from contmax._typing import Bool, Float
from contmax.basis import Basis
from contmax.densities import Mixture
from contmax.expectations import expectation
from contmax.maps import moments
from contmax.nn._module import (
    AlphaModule,
    ShownModule,
    basis_comes_last,
    check_values,
    checked_grid,
    split_heads,
    wide_linear,
)
from contmax.nn._place import density_of_moments
from contmax.numerics import spread_points
from contmax.signal import fit_signal, observation_positions

# The least initial width of a `PreferredPlaces` term, as a share of an axis. A narrower term would outweigh the
# comparison of queries with values.
_NARROWEST = 1 / 4


class Anchors(ShownModule):
    """The A points at which the signal is compared with queries: centres of cells of a regular grid over a box.

    The box in N dimensions is the one that the basis covered when the module was made. It is stored in the state dict
    and does not move while a basis is learned.
    """

    low: Tensor
    size: Tensor
    """Corner and sides of the box, (N,)."""
    _shown = ("per_axis", "dim")

    def __init__(self, basis: Basis) -> None:
        super().__init__()
        self.dim = dim = basis.event_dim
        self.per_axis = max(2, math.ceil(basis.num_functions ** (1 / dim) - 1e-9))
        self.cell_grid = None if dim == 1 else (self.per_axis,) * dim
        for name, corner in zip(("low", "size"), basis.bounds, strict=True):
            self.register_buffer(name, torch.empty_like(corner).reshape(dim))
        self.span(basis)

    def span(self, basis: Basis) -> None:
        """Set the box to the one that the functions of a basis cover now."""
        low, high = (corner.detach().reshape(-1) for corner in basis.bounds)
        size = high - low
        # If all functions have the same coordinate along an axis, the side of the box there is 0: derive it from the
        # volume of the basis.
        flat = size <= 0
        rest = torch.as_tensor(basis.volume, device=size.device).detach() / torch.where(flat, 1, size).prod()
        side = (rest ** (1 / flat.sum().clamp(min=1))).to(size.dtype)
        with torch.no_grad():
            self.low.copy_(torch.where(flat, low - side / 2, low))
            self.size.copy_(torch.where(flat, side, size))

    def points(self, like: Tensor) -> Tensor:
        """Positions of the anchors in the domain, (A,) or (A, N)."""
        low, size = self._box(like)
        return low + size * in_dtype(self.cells(like), size.dtype)

    def moments(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and (co)variance of positions under weights (…, A), each spread evenly over the cell of its anchor."""
        low, size = self._box(weights)
        mean, covariance = (
            in_dtype(part, size.dtype) for part in moments(weights, self.cells(weights), grid=self.cell_grid)
        )
        return low + size * mean, covariance * (size.square() if self.cell_grid is None else size.unsqueeze(-1) * size)

    def cells(self, like: Tensor) -> Tensor:
        """Anchors in coordinates in which the box is the unit cube, (A,) or (A, N)."""
        return observation_positions(self.per_axis, None, self.cell_grid, None, like)

    def _box(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Corner and sides of the box, () on the line, (N,) in N > 1 dimensions."""
        # A float64 corner stays float64: float32 would round the corner of a small box far from 0.
        dtype = common_dtype(self.low.dtype, like.dtype)
        low, size = in_dtype(self.low, dtype), in_dtype(self.size, dtype)
        return (low[0], size[0]) if self.cell_grid is None else (low, size)


class PreferredPlaces(ShownModule):
    r"""A term of the scores at points u: at first each head h and component m prefers a different part of the cube.

    .. math:: -\tfrac12\,\kappa_{hm}\,\|u - c_{hm}\|^2

    Without the term every head and component begins with a density over the whole domain. c and κ are learned.

    Args:
        num_heads: H.
        num_components: M.
        dim: N.
    """

    _shown = ("num_heads", "num_components", "dim")

    def __init__(self, num_heads: int, num_components: int, dim: int) -> None:
        super().__init__()
        self.num_heads, self.num_components, self.dim = num_heads, num_components, dim
        self.centers = torch.nn.Parameter(torch.empty(num_heads, num_components, dim))
        self.closeness = torch.nn.Parameter(torch.empty(num_heads, num_components))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Spread the centres c evenly over the cube, those of one head far from each other, and set κ."""
        count = self.num_heads * self.num_components
        places = _spread_over_cube(count, self.dim).reshape(self.num_components, self.num_heads, self.dim)
        sharpness = min(count ** (1 / self.dim), 1 / _NARROWEST)
        with torch.no_grad():
            self.centers.copy_(places.transpose(0, 1))
            # κ = sharpness² − 1 is 0 for a single centre, whose sharpness is 1.
            self.closeness.fill_(sharpness**2 - 1)

    def forward(self, points: Tensor) -> Tensor:
        """The term −½κ‖u − c‖², (H, M, A), at points u of the unit cube, (A,) or (A, N)."""
        centers, closeness = in_dtype(self.centers, points.dtype), in_dtype(self.closeness, points.dtype)
        points = points if points.dim() == 2 else points.unsqueeze(-1)
        distances = (points - centers.unsqueeze(-2)).square().sum(-1)
        return -0.5 * closeness.unsqueeze(-1) * distances


class MultiheadContinuousAttention(AlphaModule):
    r"""Multi-head attention of queries to a continuous signal; the cost per query does not depend on its length.

    The values become one signal V = Bψ. A head reads it at anchors a_m, evenly spaced over the domain, compares them
    with the query, and attends with the density that has the moments of the comparison:

    .. math:: \pi = \mathrm{softmax}\big(q^\top W_k V(a_m)/\sqrt d - \tfrac12\kappa\|a_m - c\|^2\big), \qquad
              p = \text{β-Gaussian with mean } E_\pi[a],\ \text{covariance } \mathrm{Cov}_\pi[a] + \text{cell}, \qquad
              c = W_v\,E_p[V]

    With several components a head attends with a mixture, one such density for each component's own query. Heads and
    components begin at different places c, spread over the domain; c and κ are learned.

    Args:
        embed_dim: E, channels of queries and outputs; a multiple of `num_heads`.
        num_heads: H.
        basis: ψ, K functions on the domain.
        alpha: α: a float, or one for each head: numbers, or a tensor of shape () or (H,). A Parameter is learned as it
            is, without bounds.
        learnable: whether each head learns its own α inside (1, 2), starting at `alpha`; see :class:`Entmax`.
        grid: if the values are the cells of a grid, its sizes, such as (height, width); used in all calls without
            `positions`.
        num_components: M, densities per head, mixed by weights that depend on the query.
        kdim: channels of the space in which queries meet anchors; E by default, a multiple of `num_heads`.
        vdim: channels of the values; E by default.
        bias: whether the projections of queries, anchors and outputs have a bias.
        dropout: share of the heads' channels dropped in training, before the output projection.
        penalty: λ of the ridge fit.
        num_steps: attention steps; each later step uses the query plus the output of the step before it.

    Shape:
        query (B, Q, E), values (B, L, vdim), mask (B, L) or (L,); output (B, Q, E), density of batch shape (B, H, Q).
        A sequence with nothing to attend gives an output of zeros.

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.linspace(32, scale=0.05)
        >>> attend = contmax.nn.MultiheadContinuousAttention(16, 4, basis)
        >>> output, density = attend(torch.randn(2, 5, 16), torch.randn(2, 300, 16))
        >>> output.shape, density.batch_shape
        (torch.Size([2, 5, 16]), torch.Size([2, 4, 5]))

    References: Martins et al. 2020, conclusions (mixtures, heads, sequential steps); Martins et al. 2022, ∞-former.
    """

    _shown = ("embed_dim", "num_heads", "alpha", "num_components", "kdim", "vdim", "penalty", "num_steps")

    @basis_comes_last
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        basis: Basis,
        *,
        alpha: float | Sequence[float] | Tensor = 2.0,
        learnable: bool = False,
        grid: tuple[int, ...] | None = None,
        num_components: int = 1,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        penalty: float = 0.01,
        num_steps: int = 1,
    ) -> None:
        super().__init__(alpha, learnable=learnable, num_heads=num_heads)
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        for name, count in (("num_heads", num_heads), ("num_components", num_components), ("num_steps", num_steps)):
            if count < 1:
                raise ValueError(f"{name} must be at least 1; got {count}.")
        for name, channels in (("embed_dim", embed_dim), ("kdim", self.kdim)):
            if channels % num_heads:
                raise ValueError(f"{name} must be a multiple of num_heads; got {channels} for {num_heads} heads.")
        self.embed_dim, self.num_heads, self.num_components = embed_dim, num_heads, num_components
        self.basis, self.penalty, self.num_steps = basis, penalty, num_steps
        self.grid = checked_grid(grid, basis.event_dim)
        self.query_projection = torch.nn.Linear(embed_dim, num_components * self.kdim, bias=bias)
        self.key_projection = torch.nn.Linear(self.vdim, self.kdim, bias=bias)
        # No bias: added to the mean W_v E_p[V], it would only be another bias of the output.
        self.value_projection = torch.nn.Linear(self.vdim, embed_dim, bias=False)
        self.output_projection = torch.nn.Linear(embed_dim, embed_dim, bias=bias)
        self.component_logits = torch.nn.Linear(embed_dim, num_heads * num_components) if num_components > 1 else None
        self.dropout = torch.nn.Dropout(dropout)
        self.anchors = Anchors(basis)
        self.places = PreferredPlaces(num_heads, num_components, basis.event_dim)

    def reset_parameters(self) -> None:
        """Reset α, the basis and the anchors; the linear maps have their own `reset_parameters`."""
        super().reset_parameters()
        self.basis.reset_parameters()
        self.anchors.span(self.basis)

    def forward(
        self,
        query: Float[Tensor, "B Q E"],
        values: Float[Tensor, "B L C"] | None = None,
        *,
        positions: Float[Tensor, "..."] | None = None,
        grid: tuple[int, ...] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        need_density: bool = True,
        value: Float[Tensor, "B L C"] | None = None,
    ) -> tuple[Float[Tensor, "B Q E"], Distribution | None]:
        """Output, and the density of the last step (None unless `need_density`).

        Args:
            query: q.
            values: H; `positions`, `grid`, `mask` and `need_density` as in :class:`ContinuousAttention`.
            value: the former name of `values`.
        """
        if value is not None and values is None:
            warnings.warn("value= is now called values=, as in the other modules.", DeprecationWarning, stacklevel=2)
            values = value
        elif values is None or value is not None:
            raise TypeError("forward() takes the values once, by position or as values=….")
        check_values(query, self.embed_dim, "query")
        check_values(values, self.vdim, "values")
        grid = self.grid if grid is None and positions is None else grid
        signal = fit_signal(values, self.basis, positions=positions, grid=grid, mask=mask, penalty=self.penalty)
        signal = signal.materialize()
        keys = split_heads(self.key_projection(signal(self.anchors.points(signal.coefficients))), self.num_heads)
        contents = split_heads(wide_linear(self.value_projection, signal.coefficients), self.num_heads)
        queries = query
        for step in range(self.num_steps):
            density = self._density(queries, keys)
            r = expectation(density, self.basis)
            # Large terms cancel in E_p[V]: use at least float32.
            with without_autocast(r):
                mixed = in_dtype(in_dtype(r, contents.dtype) @ contents, query.dtype)
            output = self.output_projection(self.dropout(mixed.transpose(1, 2).flatten(2)))
            if mask is not None:
                output = torch.where(mask.any(-1)[..., None, None], output, 0)
            if step + 1 < self.num_steps:
                queries = queries + output
        return output, density if need_density else None

    def _density(self, query: Tensor, keys: Tensor) -> Distribution:
        """Densities of batch shape (B, H, Q) for queries (B, Q, E) and keys at the anchors (B, H, A, d)."""
        queries = self.query_projection(query).unflatten(-1, (self.num_components, self.num_heads, -1))
        wide = wide_dtype(keys.dtype)
        with without_autocast(query):
            products = torch.einsum("bqmhd,bhad->bhqma", in_dtype(queries, wide), in_dtype(keys, wide))
            scores = products / math.sqrt(keys.shape[-1])
            scores = scores + self.places(self.anchors.cells(scores)).unsqueeze(1)
        mean, covariance = self.anchors.moments(torch.softmax(scores, -1))
        dim, alpha = self.basis.event_dim, self.alpha
        alpha = alpha[:, None] if isinstance(alpha, Tensor) and alpha.dim() else alpha
        if self.component_logits is None:
            return density_of_moments(mean.select(3, 0), covariance.select(3, 0), alpha, dim)
        alpha = alpha.unsqueeze(-1) if isinstance(alpha, Tensor) and alpha.dim() else alpha
        parts = density_of_moments(mean, covariance, alpha, dim)
        logits = wide_linear(self.component_logits, query).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return Mixture(Categorical(logits=logits, validate_args=False), parts)


def _spread_over_cube(count: int, dim: int) -> Tensor:
    """Points (count, N) spread evenly over the unit cube: midpoints for N = 1, else a low-discrepancy sequence."""
    index = torch.arange(count, dtype=torch.float64, device="cpu")
    if dim == 1:
        return ((index + 0.5) / count).unsqueeze(-1)
    return spread_points(index, dim)
