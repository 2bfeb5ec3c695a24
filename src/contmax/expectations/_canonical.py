"""The Jacobian of E_p[ψ] in the canonical parameters of the score."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from contmax._typing import Float
from contmax.basis import Basis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.expectations._expectation import expectation


def canonical_jacobian(
    density: BetaGaussian | MultivariateBetaGaussian, basis: Basis
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    r"""∂r/∂θ for the score :math:`f(t) = \theta_1^\top t + \operatorname{tr}(\Theta_2 tt^\top)`.

    It is the generalised covariance of the statistics of the score with ψ,

    .. math:: \frac{\partial r_j}{\partial\theta} = \mathrm{cov}_{p,2-\alpha}(\phi, \psi_j)
              = \int p^{2-\alpha}(\phi - \nabla A)\,\psi_j, \qquad \phi(t) = (t, tt^\top)

    Gradients in (μ, Σ), which autograd gives, are better conditioned; use this one for work in θ itself.

    Args:
        density: a β-Gaussian on the line or in N dimensions.
        basis: ψ, K functions on the same domain.

    Returns:
        ∂r/∂θ₁ and ∂r/∂Θ₂: each (*batch, K) on the line, else (*batch, K, N) and (*batch, K, N, N), symmetric.

    Example:
        >>> import torch, contmax
        >>> density = contmax.densities.TruncatedParabola(0.5, 0.1)
        >>> basis = contmax.basis.GaussianBasis.linspace(3, scale=0.2)
        >>> contmax.expectations.canonical_jacobian(density, basis)[0].shape
        torch.Size([3])

    Reference: Martins et al. 2020, proposition on the Jacobian (generalised covariance).
    """
    # Autocast would round matrix products to half precision.
    with torch.autocast(density.loc.device.type, enabled=False):
        return _on_the_line(density, basis) if isinstance(density, BetaGaussian) else _in_space(density, basis)


def _on_the_line(density: BetaGaussian, basis: Basis) -> tuple[Tensor, Tensor]:
    def by_theta(linear: Tensor, quadratic: Tensor, index: float | Tensor) -> Tensor:
        return expectation(BetaGaussian.from_canonical(linear, quadratic, index, validate_args=False), basis)

    linear, quadratic = (theta.reshape(-1) for theta in density.canonical)
    first, second = _jacobians(by_theta, linear, quadratic, density.alpha)
    shape = (*density.batch_shape, basis.num_functions)
    return first.reshape(shape), second.reshape(shape)


def _in_space(density: MultivariateBetaGaussian, basis: Basis) -> tuple[Tensor, Tensor]:
    r"""e = ∂r/∂θ₁ = Σ ∂r/∂μ, and ∂r/∂Θ₂ = 2Σ(∂r/∂Σ)Σ + μeᵀ + eμᵀ: neither formula inverts Σ."""

    def by_moments(loc: Tensor, scale_matrix: Tensor, index: float | Tensor) -> Tensor:
        return expectation(MultivariateBetaGaussian(loc, scale_matrix, index, validate_args=False), basis)

    dim = basis.event_dim
    loc, sigma = density.loc.reshape(-1, dim), density.scale_matrix.reshape(-1, dim, dim)
    by_loc, by_sigma = _jacobians(by_moments, loc, sigma, density.alpha)
    first = by_loc @ sigma
    cross = loc[:, None, :, None] * first.unsqueeze(-2)
    second = 2 * sigma.unsqueeze(1) @ by_sigma @ sigma.unsqueeze(1) + cross + cross.mT
    shape = (*density.batch_shape, basis.num_functions)
    return first.reshape(*shape, dim), second.reshape(*shape, dim, dim)


def _jacobians(
    function: Callable[..., Tensor], first: Tensor, second: Tensor, alpha: float | Tensor
) -> tuple[Tensor, Tensor]:
    """The Jacobians of function(first, second, α) in `first` and in `second`, for each row of a batch."""
    index = alpha.reshape(-1) if isinstance(alpha, Tensor) else alpha
    rows = vmap(jacrev(function, argnums=(0, 1)), in_dims=(0, 0, 0 if isinstance(alpha, Tensor) else None))
    by_first, by_second = rows(first, second, index)
    return by_first, by_second
