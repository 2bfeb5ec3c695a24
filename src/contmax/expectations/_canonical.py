"""The Jacobian of E_p[ψ] in the canonical parameters of the score, on the line."""

from torch import Tensor
from torch.func import jacrev, vmap

from contmax._typing import Float
from contmax.basis import Basis
from contmax.densities import BetaGaussian
from contmax.expectations._expectation import expectation


def canonical_jacobian(
    density: BetaGaussian, basis: Basis
) -> tuple[Float[Tensor, "*batch K"], Float[Tensor, "*batch K"]]:
    r"""∂r/∂θ for the score :math:`f(t) = \theta_1 t + \theta_2 t^2`: the generalised covariance of (t, t²) with ψ.

    .. math:: \frac{\partial r_j}{\partial\theta} = \mathrm{cov}_{p,2-\alpha}(\phi, \psi_j)
              = \int p^{2-\alpha}(\phi - \nabla A)\,\psi_j, \qquad \phi(t) = (t, t^2)

    Gradients in (μ, σ) are the better conditioned ones; this is for those who think in θ.

    Args:
        density: a β-Gaussian on the line.
        basis: ψ, K functions on the line.

    Returns:
        ∂r/∂θ₁ and ∂r/∂θ₂, each (*batch, K).

    Example:
        >>> import torch, contmax
        >>> density = contmax.densities.TruncatedParabola(0.5, 0.1)
        >>> basis = contmax.basis.GaussianBasis.linspace(3, scale=0.2)
        >>> contmax.expectations.canonical_jacobian(density, basis)[0].shape
        torch.Size([3])

    Reference: Martins et al. 2020, proposition on the Jacobian (generalised covariance).
    """
    alpha = density.alpha

    def by_theta(linear: Tensor, quadratic: Tensor, index: float | Tensor) -> Tensor:
        return expectation(BetaGaussian.from_canonical(linear, quadratic, index, validate_args=False), basis)

    linear, quadratic = (theta.reshape(-1) for theta in density.canonical)
    index = alpha.reshape(-1) if isinstance(alpha, Tensor) else alpha
    jacobian = vmap(jacrev(by_theta, argnums=(0, 1)), in_dims=(0, 0, 0 if isinstance(alpha, Tensor) else None))
    first, second = jacobian(linear, quadratic, index)
    shape = (*density.batch_shape, basis.num_functions)
    return first.reshape(shape), second.reshape(shape)
