"""Gaussian radial basis functions on the plane, in space, or in any dimension."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax._eager import wide_dtype
from contmax._typing import Bool, Float
from contmax.basis._basis import (
    RadialBasis,
    can_be_read,
    covering_width,
    device_for,
    evenly,
    extent,
    floating,
    least_exponent,
    listed,
    require_positive,
)


class MultivariateGaussianBasis(RadialBasis):
    r"""Gaussian radial basis functions on ℝᴺ.

    .. math:: \psi_j(t) = \mathcal N(t; \mu_j, \Sigma_j)

    A basis knows its structure, so that expectations can use it: ``is_diagonal``, ``is_isotropic``, and ``axes`` for a
    basis made by :meth:`grid` with one width, whose functions are products of one-dimensional ones.

    In one dimension it takes points (…) without an axis for their coordinates, as every basis on the line does.

    Args:
        loc: centres μ_j, shape (K, N).
        covariance_matrix: covariances Σ_j, shape (K, N, N), or (N, N) for all.
        learnable: make the centres and the Cholesky factors of the covariances parameters.

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.MultivariateGaussianBasis.grid(10, scale=0.001**0.5)
        >>> basis(torch.rand(3, 7, 2)).shape
        torch.Size([3, 7, 100])

    Reference: Martins et al. 2020, appendix on Gaussian RBFs; VQA experiments (10 × 10 grid, 0.001·I).
    """

    fixed_tril: Tensor
    tril_below: Tensor
    log_diagonal: Tensor
    _axes: list[int] | None
    is_diagonal: bool
    """Whether every Σ_j is diagonal."""
    is_isotropic: bool
    """Whether every Σ_j is a multiple of the identity."""

    def __init__(
        self,
        loc: Float[Tensor, "..."] | Sequence[Any],
        covariance_matrix: Float[Tensor, "..."] | Sequence[Any],
        *,
        learnable: bool = False,
    ) -> None:
        super().__init__()
        centres, given = floating(loc, "loc"), floating(covariance_matrix, "covariance_matrix")
        covariance = given.to("meta" if given.is_meta else centres.device, centres.dtype)
        if centres.dim() != 2 or covariance.shape[-2:] != (centres.shape[-1],) * 2 or covariance.dim() not in (2, 3):
            raise ValueError(
                f"loc must have shape (K, N) and covariance_matrix (K, N, N) or (N, N); got {tuple(centres.shape)} and "
                f"{tuple(covariance.shape)}."
            )
        self.event_dim, self._axes = centres.shape[1], None
        covariance = covariance.expand(len(centres), -1, -1)
        tril, failed = torch.linalg.cholesky_ex(covariance)
        if can_be_read(covariance):
            skew = not torch.allclose(covariance, covariance.mT, rtol=1e-5, atol=0)
            if bool(failed.any()) or skew:
                raise ValueError(
                    f"covariance_matrix must be symmetric and positive definite; {int((failed != 0).sum())} of "
                    f"{len(covariance)} are not positive definite{', and some are not symmetric' if skew else ''}. "
                    "Pass A @ A.T + 1e-6 * I."
                )
        # Kernels need row-major factors: convert LAPACK's column-major factors now instead of in every call.
        tril = tril.contiguous()
        widths = {"fixed_tril": tril}
        if learnable:
            widths = {"tril_below": tril.tril(-1), "log_diagonal": tril.diagonal(dim1=-2, dim2=-1).log()}
        self._register_radial(centres, covariance.diagonal(dim1=-2, dim2=-1).sqrt(), widths, learnable, device_for(loc))

    def _read_constants(self) -> None:
        """Set `is_diagonal` and `is_isotropic`; forget `_axes` if the functions form no product grid any more.

        Both are False for a basis whose constants are learned or cannot be read.
        """
        tril = self.scale_tril.detach()
        known = not self.learnable and can_be_read(tril)
        diagonal = tril.diagonal(dim1=-2, dim2=-1)
        self.is_diagonal = known and bool((tril == torch.diag_embed(diagonal)).all())
        self.is_isotropic = self.is_diagonal and bool((diagonal == diagonal[:, :1]).all())
        if self._axes is not None and not self._is_product():
            self._axes = None

    def _is_product(self) -> bool:
        """Whether centres and widths still form a product grid of shape `_axes`."""
        if not self.is_diagonal or not can_be_read(self.loc):
            return False
        centres, widths = zip(*(self.axes or ()), strict=True)
        grid = torch.stack(torch.meshgrid(*centres, indexing="ij"), -1).reshape(-1, self.event_dim)
        sides = torch.stack(torch.meshgrid(*widths, indexing="ij"), -1).reshape(-1, self.event_dim)
        return torch.equal(grid, self.loc) and torch.equal(sides, self.scale_tril.diagonal(dim1=-2, dim2=-1))

    @property
    def scale_tril(self) -> Float[Tensor, "K N N"]:
        """Cholesky factors L_j of Σ_j = L_j L_jᵀ."""
        if not self.learnable:
            return self.fixed_tril
        return self.tril_below.tril(-1) + torch.diag_embed(self.log_diagonal.exp())

    @property
    def covariance_matrix(self) -> Float[Tensor, "K N N"]:
        """Covariances Σ_j."""
        tril = self.scale_tril
        return tril @ tril.mT

    @property
    def _deviations(self) -> Tensor:
        return self.scale_tril.detach().double().square().sum(-1).sqrt()

    @property
    def axes(self) -> tuple[tuple[Tensor, Tensor], ...] | None:
        """(centres, standard deviations) of the one-dimensional factors, axis by axis, if this is a product grid."""
        if self._axes is None:
            return None
        centres = self.loc.view(*self._axes, self.event_dim)
        widths = self.scale_tril.diagonal(dim1=-2, dim2=-1).view(*self._axes, self.event_dim)
        first = [[slice(None) if i == n else 0 for i in range(self.event_dim)] for n in range(self.event_dim)]
        return tuple((centres[(*index, n)], widths[(*index, n)]) for n, index in enumerate(first))

    @classmethod
    def grid(
        cls,
        num_per_axis: int | Sequence[int],
        scale: float | Sequence[float],
        *,
        dim: int = 2,
        low: float = 0.0,
        high: float = 1.0,
        learnable: bool = False,
    ) -> "MultivariateGaussianBasis":
        """Isotropic functions on a regular grid over [low, high]ᴺ, in row-major order; one grid for each width.

        Args:
            num_per_axis: centres along each axis, one number or one per axis.
            scale: one standard deviation, or several.
            dim: N.
            low: the first centre along every axis.
            high: the last centre along every axis.
            learnable: make centres and covariances parameters.
        """
        lines = [evenly(n, 1, low, high) for n in _counts(num_per_axis, dim)]
        widths = listed(scale)
        return cls._on_lines(lines, [[w] * dim for w in widths], learnable)

    @classmethod
    def covering(
        cls,
        num_per_axis: int | Sequence[int],
        *,
        dim: int = 2,
        low: float = 0.0,
        high: float = 1.0,
        learnable: bool = False,
    ) -> "MultivariateGaussianBasis":
        """Functions on a regular grid over [low, high]ᴺ, along each axis 0.8 times as wide as they are spaced.

        Narrower functions leave gaps in which the signal is lost; wider ones are nearly dependent, so the ridge penalty
        smooths the signal; see :meth:`GaussianBasis.covering <contmax.basis.GaussianBasis.covering>`. On a feature map
        of 16 × 16 a grid of 10 × 10 follows what varies over a tenth of the image or more;
        ``Signal.explained_variance()`` tells whether that is enough.

        Args:
            num_per_axis: centres along each axis, one number or one per axis.
            dim: N.
            low: the first centre along every axis.
            high: the last centre along every axis.
            learnable: make centres and covariances parameters.

        Example:
            >>> import contmax
            >>> contmax.basis.MultivariateGaussianBasis.covering(10)
            MultivariateGaussianBasis(num_functions=100, dim=2, isotropic, grid=10×10, learnable=False)
        """
        lines = [evenly(n, 1, low, high) for n in _counts(num_per_axis, dim)]
        return cls._on_lines(lines, [[covering_width(len(line), low, high) for line in lines]], learnable)

    @classmethod
    def spanning(
        cls,
        positions: Float[Tensor, "... N"],
        num_per_axis: int | Sequence[int],
        scale: float | Sequence[float] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        learnable: bool = False,
    ) -> "MultivariateGaussianBasis":
        r"""Functions on a regular grid over the box that the observations cover; one grid for each width.

        .. math:: \mu_{j,i} = a_i + \frac{j_i - 1}{K_i - 1}\,(b_i - a_i), \qquad
                  \Sigma_j = \mathrm{diag}\big(s^2 (b_i - a_i)^2\big), \qquad
                  a = \min_\ell t_\ell,\ b = \max_\ell t_\ell

        Args:
            positions: t_ℓ, (…, N).
            num_per_axis: K_i, centres along each axis, one number or one per axis.
            scale: s, one standard deviation or several, as a share of the sides b_i − a_i: 0.05 is 5 % of each. None
                for the widths that :meth:`covering` uses, 0.8/(K_i − 1) of each.
            mask: boolean, broadcastable to the points; points that are False are ignored.
            learnable: make centres and covariances parameters.

        Returns:
            A basis of the dtype and on the device of the positions.

        Raises:
            ValueError: if the positions span no box, are not finite, or are on the meta device.

        Example:
            >>> import torch, contmax
            >>> places = torch.rand(500, 2) * torch.tensor([360.0, 180.0])
            >>> basis = contmax.basis.MultivariateGaussianBasis.spanning(places, (8, 4))
            >>> basis
            MultivariateGaussianBasis(num_functions=32, dim=2, diagonal, grid=8×4, learnable=False)
        """
        sides = extent(positions.squeeze(-1), mask, positions.shape[-1])
        counts = _counts(num_per_axis, len(sides))
        lines = [evenly(n, 1, low, high, positions.dtype) for n, (low, high) in zip(counts, sides, strict=True)]
        if scale is None:
            widths = [[covering_width(n, low, high) for n, (low, high) in zip(counts, sides, strict=True)]]
        else:
            scales = listed(scale)
            widths = [[s * (high - low) for low, high in sides] for s in scales]
        return cls._on_lines(lines, widths, learnable, positions)

    @classmethod
    def _on_lines(
        cls, lines: list[list[float]], widths: list[list[float]], learnable: bool, like: Tensor | None = None
    ) -> "MultivariateGaussianBasis":
        """Functions centred on the product of `lines`, one grid for each row of `widths` (one width per axis)."""
        require_positive(torch.tensor(widths, device="cpu"), "scale", "Pass standard deviations.")
        centres: Any = [list(point) for point in itertools.product(*lines)] * len(widths)
        each = [[[w * w if i == j else 0.0 for j in range(len(row))] for i, w in enumerate(row)] for row in widths]
        covariance: Any = [matrix for matrix in each for _ in range(len(centres) // len(widths))]
        if like is not None:
            dtype = wide_dtype(like.dtype)
            centres, covariance = like.new_tensor(centres, dtype=dtype), like.new_tensor(covariance, dtype=dtype)
        basis = cls(centres, covariance, learnable=learnable)
        if len(widths) == 1 and not learnable:
            basis._axes = [len(line) for line in lines]
        return basis

    def forward(self, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """ψ(t): (…) → (…, K) for N = 1, (…, N) → (…, K) for N > 1."""
        if self.event_dim == 1:
            t = t.unsqueeze(-1)
        elif t.shape[-1] != self.event_dim:
            raise ValueError(f"points must have shape (…, {self.event_dim}); got {tuple(t.shape)}.")
        tril = self.scale_tril
        offset = t.unsqueeze(-2) - self.loc
        if self.is_diagonal:
            z = offset / tril.diagonal(dim1=-2, dim2=-1)
        else:
            z = torch.linalg.solve_triangular(tril, offset.unsqueeze(-1), upper=False).squeeze(-1)
        log_volume = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1) + self.event_dim / 2 * math.log(2 * math.pi)
        exponent = -0.5 * z.square().sum(-1) - log_volume
        return exponent.clamp(min=least_exponent(exponent.dtype)).exp()

    def extra_repr(self) -> str:
        """The text of `repr` between the parentheses."""
        kind = "isotropic" if self.is_isotropic else "diagonal" if self.is_diagonal else "full"
        grid = "" if self._axes is None else ", grid=" + "×".join(map(str, self._axes))
        return f"num_functions={self.num_functions}, dim={self.event_dim}, {kind}{grid}, learnable={self.learnable}"


def _counts(num_per_axis: int | Sequence[int], dim: int) -> list[int]:
    """The number of centres along each of `dim` axes."""
    counts = [num_per_axis] * dim if isinstance(num_per_axis, int) else list(num_per_axis)
    if len(counts) != dim:
        raise ValueError(f"num_per_axis must be one number or {dim}, one per axis; got {counts}.")
    return counts
