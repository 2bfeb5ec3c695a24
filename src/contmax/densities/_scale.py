"""The scale matrix Σ of a multivariate density, held as a triangular factor or as a diagonal."""

import contextlib
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from contmax._precision import wide_dtype
from contmax._typing import Float
from contmax.densities._plane_cholesky import compiled_cholesky
from contmax.densities._validation import require_finite, require_positive
from contmax.numerics import factored

# Forward substitution by hand is one fused multiply-add per entry of L; LAPACK and cuBLAS win for larger systems.
_SUBSTITUTION_MAX = 4


class Scale(ABC):
    """A positive definite Σ = LLᵀ, ``(*batch, N, N)``, whose batch broadcasts with that of the density."""

    batch_shape: torch.Size
    dim: int

    @abstractmethod
    def half_log_det(self) -> Float[Tensor, "*batch"]:
        """½ ln|Σ|."""

    @abstractmethod
    def mahalanobis_sq(self, offset: Float[Tensor, "*shape N"]) -> Float[Tensor, "..."]:
        """dᵀΣ⁻¹d for offsets d."""

    @abstractmethod
    def apply(self, white: Float[Tensor, "*shape N"]) -> Float[Tensor, "... N"]:
        """Lz for whitened vectors z."""

    @abstractmethod
    def matrix(self) -> Float[Tensor, "*batch N N"]:
        """Σ."""

    @abstractmethod
    def tril(self) -> Float[Tensor, "*batch N N"]:
        """L."""

    @abstractmethod
    def precision(self) -> Float[Tensor, "*batch N N"]:
        """Σ⁻¹."""

    @abstractmethod
    def diagonal(self) -> Float[Tensor, "*batch N"]:
        """The diagonal of Σ."""

    @abstractmethod
    def solve(self, vector: Float[Tensor, "*shape N"]) -> Float[Tensor, "... N"]:
        """Σ⁻¹b."""

    @abstractmethod
    def multiply(self, vector: Float[Tensor, "*shape N"]) -> Float[Tensor, "... N"]:
        """Σb."""

    @abstractmethod
    def stretched(self, factor: Float[Tensor, "*batch"]) -> "Scale":
        """The scale of factor²·Σ."""


class DiagonalScale(Scale):
    """Σ = diag(σ₁², …, σ_N²), never materialised unless asked for.

    Args:
        scale_diag: σ, ``(*batch, N)``.
    """

    def __init__(self, scale_diag: Float[Tensor, "*batch N"]) -> None:
        self._diag = scale_diag
        self.batch_shape, self.dim = scale_diag.shape[:-1], scale_diag.shape[-1]

    def half_log_det(self) -> Tensor:
        return self._diag.log().sum(-1)

    def mahalanobis_sq(self, offset: Tensor) -> Tensor:
        return (offset / self._diag).square().sum(-1)

    def apply(self, white: Tensor) -> Tensor:
        return self._diag * white

    def matrix(self) -> Tensor:
        return torch.diag_embed(self.diagonal())

    def tril(self) -> Tensor:
        return torch.diag_embed(self._diag)

    def precision(self) -> Tensor:
        return torch.diag_embed(1 / self.diagonal())

    def diagonal(self) -> Tensor:
        return self._diag.square()

    def solve(self, vector: Tensor) -> Tensor:
        return vector / self.diagonal()

    def multiply(self, vector: Tensor) -> Tensor:
        return vector * self.diagonal()

    def stretched(self, factor: Tensor) -> "DiagonalScale":
        return DiagonalScale(factor.unsqueeze(-1) * self._diag)


class TriangularScale(Scale):
    """Σ = LLᵀ.

    Args:
        scale_tril: L, lower triangular with positive diagonal, ``(*batch, N, N)``.
    """

    def __init__(self, scale_tril: Float[Tensor, "*batch N N"]) -> None:
        self._tril = scale_tril
        self.batch_shape, self.dim = scale_tril.shape[:-2], scale_tril.shape[-1]

    def half_log_det(self) -> Tensor:
        return self._tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def mahalanobis_sq(self, offset: Tensor) -> Tensor:
        if self.dim <= _SUBSTITUTION_MAX:
            return self._substitute(offset)
        # The points that share a factor become its columns, so that no copy of L is made for each of them.
        batch = torch.broadcast_shapes(offset.shape[:-1], self.batch_shape)
        ndim = len(batch) - len(self.batch_shape)
        columns = offset.expand(*batch, self.dim).flatten(0, ndim - 1) if ndim else offset.expand(1, *batch, self.dim)
        white: Tensor = torch.linalg.solve_triangular(self._tril, columns.movedim(0, -1), upper=False)
        return white.square().sum(-2).movedim(-1, 0).reshape(batch)

    def _substitute(self, offset: Tensor) -> Tensor:
        """Σᵢ yᵢ² of Ly = d, row by row."""
        white: list[Tensor] = []
        total = torch.zeros((), dtype=offset.dtype, device=offset.device)
        for i in range(self.dim):
            rest = offset[..., i]
            for j, y in enumerate(white):
                rest = rest - self._tril[..., i, j] * y
            white.append(rest / self._tril[..., i, i])
            total = total + white[-1].square()
        return total

    def apply(self, white: Tensor) -> Tensor:
        with _full_precision(white):
            if self._tril.ndim == 2:
                return white @ self._tril.mT
            return (self._tril @ white.unsqueeze(-1)).squeeze(-1)

    def matrix(self) -> Tensor:
        with _full_precision(self._tril):
            return self._tril @ self._tril.mT

    def tril(self) -> Tensor:
        return self._tril

    def precision(self) -> Tensor:
        return torch.cholesky_inverse(self._tril)

    def diagonal(self) -> Tensor:
        return self._tril.square().sum(-1)

    def solve(self, vector: Tensor) -> Tensor:
        return torch.cholesky_solve(vector.unsqueeze(-1), self._tril).squeeze(-1)

    def multiply(self, vector: Tensor) -> Tensor:
        with _full_precision(vector):
            return (self._tril @ (self._tril.mT @ vector.unsqueeze(-1))).squeeze(-1)

    def stretched(self, factor: Tensor) -> "TriangularScale":
        return TriangularScale(factor[..., None, None] * self._tril)


def scale_of_matrix(name: str, matrix: Float[Tensor, "*batch N N"], validate: bool) -> TriangularScale:
    """The scale of Σ, refused where it is not positive definite to working precision.

    Args:
        name: how the caller's user knows the matrix.
        matrix: Σ, symmetric.
        validate: read the values; otherwise a matrix that is not positive definite gives NaN.
    """
    wide = matrix.to(wide_dtype(matrix.dtype))
    if torch.onnx.is_in_onnx_export():
        return TriangularScale(factored(wide))
    compiled = None if validate else compiled_cholesky(wide)
    if compiled is not None:
        return TriangularScale(compiled)
    tril, info = torch.linalg.cholesky_ex(wide)
    if validate:
        require_symmetric(name, wide)
        _require_definite(name, wide, tril, info)
    return TriangularScale(tril)


def scale_of_precision(name: str, precision: Float[Tensor, "*batch N N"], validate: bool) -> TriangularScale:
    """The scale whose inverse is given: with reversed axes, the inverse of a Cholesky factor is one again."""
    wide = precision.to(wide_dtype(precision.dtype))
    flipped, info = torch.linalg.cholesky_ex(wide.flip((-2, -1)))
    if validate:
        require_symmetric(name, wide)
        _require_definite(name, wide.flip((-2, -1)), flipped, info)
    upper = flipped.flip((-2, -1)).mT
    identity = torch.eye(wide.shape[-1], dtype=wide.dtype, device=wide.device)
    return TriangularScale(torch.linalg.solve_triangular(upper, identity, upper=False))


def scale_of_tril(name: str, tril: Float[Tensor, "*batch N N"], validate: bool) -> TriangularScale:
    """The scale of a given factor; only its lower triangle is read."""
    if validate:
        require_finite(name, tril)
        hint = "Pass torch.linalg.cholesky(Σ), or a triangular matrix with softplus on its diagonal."
        require_positive(f"the diagonal of {name}", tril.diagonal(dim1=-2, dim2=-1), hint)
    return TriangularScale(tril.to(wide_dtype(tril.dtype)).tril())


def require_symmetric(name: str, matrix: Tensor) -> None:
    """Symmetric up to rounding, and finite."""
    require_finite(name, matrix)
    if not matrix.numel():
        return
    gap = (matrix - matrix.mT).abs().amax()
    if bool(gap > 64 * torch.finfo(matrix.dtype).eps * matrix.abs().amax()):
        raise ValueError(
            f"{name} must be symmetric; got entries that differ from their mirror by {float(gap):.3g}. "
            f"Pass ({name} + {name}.mT) / 2."
        )


def _require_definite(name: str, matrix: Tensor, tril: Tensor, info: Tensor) -> None:
    if not matrix.numel():
        return
    # What is left of each diagonal entry after elimination: rounding alone leaves about N·eps of a singular matrix.
    pivots = tril.detach().diagonal(dim1=-2, dim2=-1).square() / matrix.detach().diagonal(dim1=-2, dim2=-1)
    if bool((info != 0).any()) or bool((pivots <= matrix.shape[-1] * torch.finfo(matrix.dtype).eps).any()):
        low = float(torch.linalg.eigvalsh(matrix.detach())[..., 0].min())
        raise ValueError(
            f"{name} must be positive definite; got smallest eigenvalue {low:.4g} in shape {tuple(matrix.shape)}, "
            f"so it is degenerate or indefinite. Add a multiple of the identity, or pass scale_tril."
        )


def _full_precision(like: Tensor) -> contextlib.AbstractContextManager:
    """No autocast: a product in half precision would move points across the edge of the support."""
    if torch.is_autocast_enabled(like.device.type):
        return torch.autocast(like.device.type, enabled=False)
    return contextlib.nullcontext()
