"""The paper's names for the β-Gaussians of index two."""

from typing import Self

from torch import Tensor

from contmax.densities._beta_gaussian import BetaGaussian
from contmax.densities._multivariate import MultivariateBetaGaussian
from contmax.densities._scale import Scale


class TruncatedParabola(BetaGaussian):
    r"""Truncated parabola (Epanechnikov); its width grows like σ^{2/3}: see :meth:`from_support`, :meth:`from_moments`.

    .. math:: p(t) = \Big[-\lambda - \frac{(t-\mu)^2}{2\sigma^2}\Big]_+, \qquad
              \lambda = -\tfrac12\Big(\frac{3}{2\sigma}\Big)^{2/3}, \qquad a = \Big(\frac{3\sigma^2}{2}\Big)^{1/3}

    The :class:`BetaGaussian` of index α = 2.

    Args:
        loc: location μ, shape broadcastable to ``(*batch)``.
        scale: shape parameter σ > 0, shape broadcastable to ``(*batch)``.
        validate_args: check values; by default on eager CPU tensors only.

    Example:
        >>> TruncatedParabola.from_support(-1.0, 1.0).variance
        tensor(0.2000)

    References:
        Martins et al. 2020, Eq. (truncated parabola).
    """

    def __init__(self, loc: float | Tensor, scale: float | Tensor, *, validate_args: bool | None = None) -> None:
        super().__init__(loc, scale, 2.0, validate_args=validate_args)

    @classmethod
    def _with_index(cls, loc: Tensor, scale: Tensor, alpha: float | Tensor, *, validate_args: bool | None) -> Self:
        _require_two(alpha)
        return cls(loc, scale, validate_args=validate_args)

    def _extra_repr(self) -> list[str]:
        return []


class TruncatedParaboloid(MultivariateBetaGaussian):
    r"""Truncated paraboloid; Σ is not its covariance: see :meth:`from_support`, :meth:`from_moments`.

    .. math:: p(t) = [-\lambda - \tfrac12(t-\mu)^\top\Sigma^{-1}(t-\mu)]_+, \qquad
              \lambda = -\Big(\frac{\Gamma(N/2+2)}{\sqrt{\det 2\pi\Sigma}}\Big)^{2/(N+2)}

    The :class:`MultivariateBetaGaussian` of index α = 2.

    Args:
        loc: location μ, ``(*batch, N)``.
        scale_matrix: Σ, symmetric positive definite, ``(*batch, N, N)``.
        scale_tril: lower triangular L with LLᵀ = Σ, instead of Σ.
        precision_matrix: Σ⁻¹, instead of Σ.
        scale_diag: σ with Σ = diag(σ²), instead of Σ.
        validate_args: check values; by default on eager CPU tensors only.

    Example:
        >>> import torch
        >>> TruncatedParaboloid(torch.zeros(2), torch.eye(2)).threshold
        tensor(-0.5642)

    References:
        Martins et al. 2020, Eq. (truncated paraboloid).
    """

    def __init__(
        self,
        loc: Tensor,
        scale_matrix: Tensor | None = None,
        *,
        scale_tril: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_diag: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(
            loc,
            scale_matrix,
            2.0,
            scale_tril=scale_tril,
            precision_matrix=precision_matrix,
            scale_diag=scale_diag,
            validate_args=validate_args,
        )

    @classmethod
    def _of_scale(cls, loc: Tensor, scale: Scale, alpha: float | Tensor, *, validate_args: bool | None = None) -> Self:
        _require_two(alpha)
        return super()._of_scale(loc, scale, alpha, validate_args=validate_args)

    def _extra_repr(self) -> list[str]:
        return []


def _require_two(alpha: float | Tensor) -> None:
    if isinstance(alpha, Tensor) or alpha != 2:
        raise ValueError(f"alpha is 2 for this density; got {alpha}. Use BetaGaussian or MultivariateBetaGaussian.")
