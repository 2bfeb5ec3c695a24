"""Mixtures: the weighted sum of what the components expect."""

from torch import Tensor
from torch.distributions import MixtureSameFamily

from contmax.basis import Basis, GaussianBasis
from contmax.densities import Mixture
from contmax.expectations._expectation import expectation, register_expectation


@register_expectation(MixtureSameFamily, GaussianBasis)
@register_expectation(MixtureSameFamily, Basis)
@register_expectation(Mixture, GaussianBasis)
@register_expectation(Mixture, Basis)
def mixture(density: MixtureSameFamily | Mixture, basis: Basis) -> Tensor:
    """Σ_m π_m E_{p_m}[ψ]."""
    parts = expectation(density.component_distribution, basis)
    return (density.mixture_distribution.probs.unsqueeze(-1) * parts).sum(-2)
