"""E_p[ψ] of mixtures and samples, as weighted sums."""

import torch
from torch import Tensor
from torch.distributions import MixtureSameFamily

from contmax.basis import Basis, GaussianBasis, MultivariateGaussianBasis
from contmax.densities import Empirical, Mixture
from contmax.expectations._expectation import expectation, register_expectation

_KINDS = (Basis, GaussianBasis, MultivariateGaussianBasis)


def mixture(density: MixtureSameFamily | Mixture, basis: Basis) -> Tensor:
    """Σ_m π_m E_{p_m}[ψ]."""
    parts = expectation(density.component_distribution, basis)
    return (density.mixture_distribution.probs.unsqueeze(-1) * parts).sum(-2)


def samples(density: Empirical, basis: Basis) -> Tensor:
    """r_j = Σ w_i ψ_j(t_i)."""
    # A basis on the line takes numbers, without an axis for one coordinate.
    points = density.samples.squeeze(-1) if density.event_shape == (1,) else density.samples
    functions: Tensor = basis(points)
    weights = density.weights / density.weights.sum(-1, keepdim=True)
    with torch.autocast(functions.device.type, enabled=False):
        return torch.einsum("...n,...nk->...k", weights.to(functions.dtype), functions)


for _basis in _KINDS:
    register_expectation(Empirical, _basis)(samples)
    for _density in (MixtureSameFamily, Mixture):
        register_expectation(_density, _basis)(mixture)
