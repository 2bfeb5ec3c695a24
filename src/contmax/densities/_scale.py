"""The scale matrix Σ of a multivariate density, given by a triangular factor or by a diagonal."""

from typing import Self

import torch
from torch import Tensor

from contmax._eager import in_dtype, is_exporting_to_onnx, require_float64, wide_dtype, without_autocast
from contmax._smooth import ARTANH_EXCESS, polynomial
from contmax._typing import Float
from contmax.densities._validation import checks_values, require_finite, require_positive
from contmax.numerics import factored

# Up to this dimension forward substitution with one operation per entry of L is faster than LAPACK and cuBLAS.
_SUBSTITUTION_MAX = 4


class Scale:
    """Σ = LLᵀ, given by a lower triangular L whose batch broadcasts with the batch of vectors.

    Args:
        factor: L, with a positive diagonal.
    """

    #: Event dimensions of the factor.
    _axes = 2

    def __init__(self, factor: Float[Tensor, "..."]) -> None:
        self._factor = factor
        self.batch_shape, self.dim = factor.shape[: factor.ndim - self._axes], factor.shape[-1]

    @property
    def pivots(self) -> Float[Tensor, "*batch N"]:
        """The diagonal of L."""
        return self._factor.diagonal(dim1=-2, dim2=-1)

    def half_log_det(self) -> Float[Tensor, "*batch"]:
        """½ ln|Σ|."""
        return self.pivots.log().sum(-1)

    def mahalanobis_sq(self, offset: Float[Tensor, "*shape N"]) -> Float[Tensor, "..."]:
        """dᵀΣ⁻¹d for offsets d."""
        if self.dim <= _SUBSTITUTION_MAX:
            # Σᵢ yᵢ² for the solution y of Ly = d, row by row.
            solved: list[Tensor] = []
            total = torch.zeros((), dtype=offset.dtype, device=offset.device)
            for i in range(self.dim):
                rest = offset[..., i]
                for j, y in enumerate(solved):
                    rest = rest - self._factor[..., i, j] * y
                solved.append(rest / self._factor[..., i, i])
                total = total + solved[-1].square()
            return total
        # Collect points that share an L as columns of one right-hand side, so that L is not copied for each point.
        batch = torch.broadcast_shapes(offset.shape[:-1], self.batch_shape)
        ndim = len(batch) - len(self.batch_shape)
        columns = offset.expand(*batch, self.dim).flatten(0, ndim - 1) if ndim else offset.expand(1, *batch, self.dim)
        white: Tensor = torch.linalg.solve_triangular(self._factor, columns.movedim(0, -1), upper=False)
        return white.square().sum(-2).movedim(-1, 0).reshape(batch)

    def apply(self, white: Float[Tensor, "*shape N"]) -> Float[Tensor, "... N"]:
        """Lz for whitened vectors z."""
        with without_autocast(white):
            if self._factor.ndim == 2:
                return white @ self._factor.mT
            return (self._factor @ white.unsqueeze(-1)).squeeze(-1)

    def matrix(self) -> Float[Tensor, "*batch N N"]:
        """Σ."""
        with without_autocast(self._factor):
            return self._factor @ self._factor.mT

    def tril(self) -> Float[Tensor, "*batch N N"]:
        """L."""
        return self._factor

    def precision(self) -> Float[Tensor, "*batch N N"]:
        """Σ⁻¹."""
        return torch.cholesky_inverse(self._factor)

    def diagonal(self) -> Float[Tensor, "*batch N"]:
        """The diagonal of Σ."""
        return self._factor.square().sum(-1)

    def stretched(self, factor: Float[Tensor, "*batch"]) -> Self:
        """The Scale of ``factor``²·Σ."""
        return type(self)(factor.reshape(factor.shape + (1,) * self._axes) * self._factor)

    def to(self, dtype: torch.dtype) -> Self:
        """The Scale with L in another dtype."""
        if dtype == torch.float64:
            require_float64(self._factor.device)
        return type(self)(self._factor.to(dtype))


class DiagonalScale(Scale):
    """Σ = diag(σ₁², …, σ_N²), from σ; only ``matrix``, ``tril`` and ``precision`` make matrices."""

    _axes = 1

    @property
    def pivots(self) -> Tensor:
        return self._factor

    def mahalanobis_sq(self, offset: Tensor) -> Tensor:
        return (offset / self._factor).square().sum(-1)

    def apply(self, white: Tensor) -> Tensor:
        return self._factor * white

    def matrix(self) -> Tensor:
        return torch.diag_embed(self.diagonal())

    def tril(self) -> Tensor:
        return torch.diag_embed(self._factor)

    def precision(self) -> Tensor:
        return torch.diag_embed(1 / self.diagonal())

    def diagonal(self) -> Tensor:
        return self._factor.square()


def given_scale(**given: Tensor | None) -> tuple[str, Tensor]:
    """Name and value of the only argument that is not None; raises an error if there is none, or more than one."""
    found = [(name, value) for name, value in given.items() if value is not None]
    if len(found) != 1:
        named = " and ".join(name for name, _ in found) or "none"
        raise ValueError(f"exactly one of {', '.join(given)} must be given; got {named}. Pass one of them.")
    return found[0]


def scale_of(loc: Tensor, name: str, raw: Tensor, validate_args: bool | None, *, kind: str | None = None) -> Scale:
    """The Scale from ``raw``, the argument ``name`` of a density; NaN if an unchecked matrix is not positive definite.

    ``kind`` says what ``raw`` is: ``scale_diag``, ``scale_tril``, ``precision_matrix``, or, for any other value, Σ. By
    default it is ``name``.
    """
    if loc.ndim < 1 or not loc.shape[-1]:
        raise ValueError(f"loc must be at least one-dimensional; got shape {tuple(loc.shape)}. Pass shape (..., N).")
    dim = loc.shape[-1]
    wanted = (dim,) if name == "scale_diag" else (dim, dim)
    if tuple(raw.shape[-len(wanted) :]) != wanted:
        raise ValueError(
            f"{name} must end in {wanted} to match loc of shape {tuple(loc.shape)}; got shape {tuple(raw.shape)}."
        )
    kind, validate = kind or name, checks_values(validate_args, loc, raw)
    wide = raw.to(wide_dtype(raw.dtype))
    if kind == "scale_diag":
        require_positive(name, raw, "Pass softplus(x) or the square roots of the diagonal of Σ.", validate)
        return DiagonalScale(wide)
    if kind == "scale_tril":
        require_finite(name, raw, validate)
        hint = "Pass torch.linalg.cholesky(Σ), or a triangular matrix with softplus on its diagonal."
        require_positive(f"the diagonal of {name}", raw.diagonal(dim1=-2, dim2=-1), hint, validate)
        return Scale(wide.tril())
    if kind == "precision_matrix":
        # Cholesky's factorisation with reversed axes gives Σ⁻¹ = UUᵀ, U upper triangular. So L = U⁻ᵀ has LLᵀ = Σ.
        upper = _cholesky(name, wide.flip((-2, -1)), validate).flip((-2, -1)).mT
        identity = torch.eye(dim, dtype=wide.dtype, device=wide.device)
        return Scale(torch.linalg.solve_triangular(upper, identity, upper=False))
    return Scale(_cholesky(name, wide, validate))


def _cholesky(name: str, matrix: Float[Tensor, "*batch N N"], validate: bool) -> Float[Tensor, "*batch N N"]:
    """L with LLᵀ = A = ``matrix``; if A is not checked, NaN where it is not positive definite.

    Except for ONNX, L is computed in float64, because a nearly singular A leaves few digits in its last pivots.
    """
    if is_exporting_to_onnx():
        return factored(matrix)
    require_float64(matrix.device, "A scale matrix's factor")
    tril, info = torch.linalg.cholesky_ex(matrix.double())
    if validate:
        _require_scale(name, matrix, tril, info)
    else:
        tril = tril + torch.where(info == 0, 0.0, torch.nan)[..., None, None]
    return in_dtype(tril, matrix.dtype)


def _require_scale(name: str, matrix: Tensor, tril: Tensor, info: Tensor) -> None:
    """Refuse a matrix that is not finite, symmetric up to rounding and positive definite to working precision."""
    require_finite(name, matrix)
    if not matrix.numel():
        return
    matrix, eps = matrix.detach(), torch.finfo(matrix.dtype).eps
    gap = (matrix - matrix.mT).abs().amax()
    if bool(gap > 64 * eps * matrix.abs().amax()):
        raise ValueError(
            f"{name} must be symmetric; got entries that differ from their mirror by {float(gap):.3g}. "
            f"Pass ({name} + {name}.mT) / 2."
        )
    # Pivots of the elimination, each divided by its diagonal entry. A singular matrix has a pivot of 0, which rounding
    # may raise to about N·eps.
    pivots = tril.detach().diagonal(dim1=-2, dim2=-1).square() / matrix.diagonal(dim1=-2, dim2=-1)
    if bool((info != 0).any()) or bool((pivots <= matrix.shape[-1] * eps).any()):
        low = float(torch.linalg.eigvalsh(matrix)[..., 0].min())
        raise ValueError(
            f"{name} must be positive definite; got smallest eigenvalue {low:.4g} in shape {tuple(matrix.shape)}, "
            f"so it is degenerate or indefinite. Add a multiple of the identity, or pass scale_tril."
        )


def relative_excess(scale: Scale, other: Scale) -> tuple[Tensor, Tensor]:
    r"""The sums of φ(d) = d − ln(1+d) and of ln(1+d) over the eigenvalues 1 + d of Σ⁻¹Σ'; ``other`` is Σ' = L'L'ᵀ.

    With Σ = LLᵀ and :math:`K = L^{-1}(L' - L)`, which has all its digits where the scales nearly agree, the sums are
    :math:`\|K\|_F^2 + 2\sum_i\phi(K_{ii})` and :math:`2\sum_i\ln(1+K_{ii})`: no eigenvalue is computed.
    """
    if isinstance(scale, DiagonalScale) and isinstance(other, DiagonalScale):
        squares = scale.mahalanobis_sq(other.pivots - scale.pivots)
    else:
        tril, other_tril = scale.tril(), other.tril()
        squares = torch.linalg.solve_triangular(tril, other_tril - tril, upper=False).square().sum((-2, -1))
    log_ratio, excess = _log_ratio_and_excess(other.pivots, scale.pivots)
    return squares + 2 * excess.sum(-1), 2 * log_ratio.sum(-1)


def _log_ratio_and_excess(numerator: Tensor, denominator: Tensor) -> tuple[Tensor, Tensor]:
    """ln(n/d) and φ(x) = x − ln(1+x), x = n/d − 1, for n, d > 0; values and derivatives have full relative accuracy.

    Where n/d is between ½ and 2, both results come from ln(1+x) = 2 artanh w with w = x/(2+x).
    """
    x = (numerator - denominator) / denominator
    near = (x > -0.5) & (x < 1)
    inner = torch.where(near, x, 0.0)
    w = inner / (2 + inner)
    square = w * w
    series = square * polynomial(square, ARTANH_EXCESS)
    log = numerator.log() - denominator.log()
    return torch.where(near, 2 * w * (1 + series), log), torch.where(near, w * (inner - 2 * series), x - log)
