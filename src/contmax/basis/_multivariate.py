"""Gaussian radial basis functions on the plane, in space, or in any dimension."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.basis._basis import Basis, evenly, floating, require_positive


class MultivariateGaussianBasis(Basis):
    r"""Gaussian radial basis functions on ℝᴺ.

    .. math:: \psi_j(t) = \mathcal N(t; \mu_j, \Sigma_j)

    A basis knows its structure, so that expectations can use it: ``is_diagonal``, ``is_isotropic``, and ``axes`` for a
    basis made by :meth:`grid` with one width, whose functions are products of one-dimensional ones.

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

    loc: Tensor
    is_diagonal: bool
    """Whether every Σ_j is diagonal."""
    is_isotropic: bool
    """Whether every Σ_j is a multiple of the identity."""

    def __init__(
        self, loc: Float[Tensor, "..."], covariance_matrix: Float[Tensor, "..."], *, learnable: bool = False
    ) -> None:
        super().__init__()
        centres = floating(loc, "loc")
        covariance = floating(covariance_matrix, "covariance_matrix").to(centres.dtype)
        if centres.dim() != 2 or covariance.shape[-2:] != (centres.shape[-1],) * 2 or covariance.dim() not in (2, 3):
            raise ValueError(
                f"loc must have shape (K, N) and covariance_matrix (K, N, N) or (N, N); got {tuple(centres.shape)} and "
                f"{tuple(covariance.shape)}."
            )
        self.num_functions, self.event_dim = centres.shape
        covariance = covariance.expand(self.num_functions, -1, -1)
        tril, failed = torch.linalg.cholesky_ex(covariance)
        if bool(failed.any()) or not torch.allclose(covariance, covariance.mT, rtol=1e-5, atol=0):
            raise ValueError(
                f"covariance_matrix must be symmetric and positive definite; {int((failed != 0).sum())} of "
                f"{self.num_functions} are not. Pass A @ A.T + 1e-6 * I."
            )
        self.learnable = learnable
        self._axes: list[int] | None = None
        off_diagonal = covariance - torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1))
        self.is_diagonal = not learnable and bool((off_diagonal == 0).all())
        variances = covariance.diagonal(dim1=-2, dim2=-1)
        self.is_isotropic = self.is_diagonal and bool((variances == variances[:, :1]).all())
        self._keep("loc", centres, learnable)
        if learnable:
            self._keep("tril_below", tril.tril(-1), learnable)
            self._keep("log_diagonal", tril.diagonal(dim1=-2, dim2=-1).log(), learnable)
        else:
            self._keep("fixed_tril", tril, learnable)

    @property
    def scale_tril(self) -> Float[Tensor, "K N N"]:
        """Cholesky factors L_j of Σ_j = L_j L_jᵀ."""
        if not self.learnable:
            return self.get_buffer("fixed_tril")
        return self.get_parameter("tril_below").tril(-1) + torch.diag_embed(self.get_parameter("log_diagonal").exp())

    @property
    def covariance_matrix(self) -> Float[Tensor, "K N N"]:
        """Covariances Σ_j."""
        tril = self.scale_tril
        return tril @ tril.mT

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The outermost centres along each axis."""
        centres = self.loc.detach()
        return centres.amin(0), centres.amax(0)

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
        counts = [num_per_axis] * dim if isinstance(num_per_axis, int) else list(num_per_axis)
        if len(counts) != dim:
            raise ValueError(f"num_per_axis must be one number or {dim}, one per axis; got {counts}.")
        widths = torch.tensor(
            [scale] if isinstance(scale, int | float) else list(scale), dtype=torch.get_default_dtype()
        )
        require_positive(widths, "scale", "Pass standard deviations.")
        lines = [evenly(n, 1, low, high) for n in counts]
        centres = torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).reshape(-1, dim)
        each = torch.eye(dim, dtype=widths.dtype) * widths.square()[:, None, None]
        basis = cls(centres.repeat(len(widths), 1), each.repeat_interleave(len(centres), 0), learnable=learnable)
        if len(widths) == 1 and not learnable:
            basis._axes = counts
        return basis

    def forward(self, t: Float[Tensor, "... N"]) -> Float[Tensor, "... K"]:
        """ψ(t): (…, N) → (…, K)."""
        if t.shape[-1] != self.event_dim:
            raise ValueError(f"points must have shape (…, {self.event_dim}); got {tuple(t.shape)}.")
        tril = self.scale_tril
        offset = t.unsqueeze(-2) - self.loc
        if self.is_diagonal:
            z = offset / tril.diagonal(dim1=-2, dim2=-1)
        else:
            z = torch.linalg.solve_triangular(tril, offset.unsqueeze(-1), upper=False).squeeze(-1)
        log_volume = tril.diagonal(dim1=-2, dim2=-1).log().sum(-1) + self.event_dim / 2 * math.log(2 * math.pi)
        return torch.exp(-0.5 * z.square().sum(-1) - log_volume)

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        kind = "isotropic" if self.is_isotropic else "diagonal" if self.is_diagonal else "full"
        grid = "" if self._axes is None else ", grid=" + "×".join(map(str, itertools.chain(self._axes)))
        return f"num_functions={self.num_functions}, dim={self.event_dim}, {kind}{grid}, learnable={self.learnable}"
