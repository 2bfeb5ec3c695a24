"""Samples against any basis: a weighted mean of its functions."""

import torch
from torch import Tensor

from contmax.basis import Basis, GaussianBasis, MultivariateGaussianBasis
from contmax.densities import Empirical
from contmax.expectations._expectation import register_expectation


@register_expectation(Empirical, Basis)
@register_expectation(Empirical, GaussianBasis)
@register_expectation(Empirical, MultivariateGaussianBasis)
def samples(density: Empirical, basis: Basis) -> Tensor:
    """r_j = Σ w_i ψ_j(t_i)."""
    # Points with one coordinate are numbers for a basis on the line.
    points = density.samples.squeeze(-1) if density.event_shape == (1,) else density.samples
    functions: Tensor = basis(points)
    weights = density.weights / density.weights.sum(-1, keepdim=True)
    with torch.autocast(functions.device.type, enabled=False):
        return torch.einsum("...n,...nk->...k", weights.to(functions.dtype), functions)
