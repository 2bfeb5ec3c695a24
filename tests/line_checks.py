"""What tests of expectations on the line share: densities and bases of every width, gradients, errors of float32."""

import torch

import contmax
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian


def drawn(count, functions, seed=7, dtype=torch.float32):
    """μ, σ, μ_j and σ_j."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(size, low, high):
        return low + (high - low) * torch.rand(size, dtype=dtype, generator=generator)

    loc, scale = uniform(count, -0.3, 1.3), 10 ** uniform(count, -3, 0.5)
    return loc, scale, uniform(functions, 0, 1), 10 ** uniform(functions, -2, 0)


def value_and_gradients(alpha, loc, scale, centre, width):
    """r, and the gradients of a fixed mixture of its entries, α's among them if it is a tensor."""
    basis = GaussianBasis(centre, width, learnable=True)
    inputs = [x.clone().requires_grad_() for x in (loc, scale)]
    if isinstance(alpha, torch.Tensor):
        alpha = alpha.to(loc.dtype).requires_grad_()
        inputs.append(alpha)
    r = contmax.expectation(BetaGaussian(*inputs[:2], alpha, validate_args=False), basis)
    mixture = torch.linspace(0.5, 1.5, r.shape[-1], dtype=r.dtype)
    cotangent = mixture / r.detach().amax(-1, keepdim=True).clamp(min=1e-30)
    return r, *torch.autograd.grad(r, (*inputs, *basis.parameters()), cotangent)


def require_errors_at_most_twice(compiled, plain, exact, floor, gradient_floor):
    """Of r relative to the largest entry of a row, and of the gradients."""
    peak = exact[0].detach().amax(-1, keepdim=True)
    error, reference = (((r[0] - exact[0]).abs() / peak).max() for r in (compiled, plain))
    assert error <= 2 * reference + floor
    for ours, theirs, true in zip(compiled[1:], plain[1:], exact[1:], strict=True):
        unit = true.abs().max().clamp(min=1.0)  # at α = ∞ the scale does nothing
        error, reference = ((g - true).abs().max() / unit for g in (ours, theirs))
        assert error <= 2 * reference + gradient_floor


def require_a_millionth(alpha, count, functions):
    """Over μ, μ_j ∈ [0, 1], σ² ∈ [1e-6, 10], σ_j ∈ [.01, 1], in units of the largest r for the same σ and σ_j."""
    generator = torch.Generator().manual_seed(3)
    loc, scale = torch.rand(count, generator=generator), 10 ** (3.5 * torch.rand(count, generator=generator) - 3)
    centre, width = (
        torch.rand(functions, generator=generator),
        10 ** (2 * torch.rand(functions, generator=generator) - 2),
    )
    single = contmax.expectation(BetaGaussian(loc, scale, alpha), GaussianBasis(centre, width))
    density = BetaGaussian(loc.double(), scale.double(), alpha)
    double = contmax.expectation(density, GaussianBasis(centre.double(), width.double()))
    centred = BetaGaussian(torch.zeros_like(loc).double(), scale.double(), alpha)
    largest = contmax.expectation(centred, GaussianBasis(torch.zeros_like(centre).double(), width.double()))
    assert ((single.double() - double).abs() / largest).max() <= 1e-6
