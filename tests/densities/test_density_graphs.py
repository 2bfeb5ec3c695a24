"""Densities inside programs that torch compiles and exports."""

import math

import pytest
import torch
from density_families import ALL, LINE, each, inner_points
from torch import Tensor
from torch.distributions import Categorical

from contmax.densities import BetaGaussian, Mixture, MultivariateBetaGaussian, TruncatedParabola

COMPILED = ("alpha-1.7", "gaussian", "uniform", "tensor-alpha", "triangular", "generated-by-cosh", "mixture")
COMPILED += ("student-2d", "tensor-alpha-2d", "student-3d", "diagonal-5d", "precision-5d", "mixture-2d")
# Derivatives that are written by hand are traced too; those of all others are the ones of ordinary operations.
TRACED_TWICE = ("tensor-alpha", "tensor-alpha-2d")


@pytest.mark.graph
@each([family for family in ALL if family.name in COMPILED])
def test_compiles_without_breaks(family):
    parameters = family.tensors(requires_grad=True)
    values = tuple(parameters.values())
    t = inner_points(family.make(), count=2)

    def log_prob(*values: Tensor) -> Tensor:
        return family.build(**dict(zip(parameters, values, strict=True))).log_prob(t)

    torch._dynamo.reset()
    compiled = torch.compile(
        log_prob, fullgraph=True, backend="aot_eager_default_partitioner" if family.name in TRACED_TWICE else "eager"
    )
    torch.testing.assert_close(compiled(*values), log_prob(*values))
    weights = torch.randn_like(log_prob(*values))
    got = torch.autograd.grad((weights * compiled(*values)).sum(), values, allow_unused=True)
    expected = torch.autograd.grad((weights * log_prob(*values)).sum(), values, allow_unused=True)
    for mine, other in zip(got, expected, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other)


@pytest.mark.graph
def test_weights_that_a_batch_shares_compile():
    t = torch.tensor([0.1, 0.4])

    def density(logits: Tensor, loc: Tensor) -> Tensor:
        return Mixture(Categorical(logits=logits, validate_args=False), TruncatedParabola(loc, 0.1)).density(t)

    torch._dynamo.reset()
    values = torch.tensor([0.2, -0.3]), torch.tensor([[0.0, 1.0], [0.5, 0.3]])
    torch.testing.assert_close(torch.compile(density, fullgraph=True, backend="eager")(*values), density(*values))


@pytest.mark.graph
@each([family for family in LINE if family.name in ("alpha-1.7", "parabola", "triangular", "generated-by-cosh")])
def test_distribution_functions_compile(family):
    parameters = family.tensors()
    t = inner_points(family.make(), count=2)

    def quantile(t: Tensor) -> Tensor:
        p = family.build(**parameters)
        return p.icdf(p.cdf(t))

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(quantile, fullgraph=True, backend="eager")(t), t, rtol=1e-9, atol=1e-9)


@pytest.mark.graph
@each([family for family in ALL if family.name in ("parabola", "tensor-alpha", "student-3d", "paraboloid")])
def test_draws_compile(family):
    parameters = family.tensors(requires_grad=True)

    def draw(loc: Tensor) -> Tensor:
        return family.build(**{**parameters, "loc": loc}).rsample((1000,))

    torch._dynamo.reset()
    draws = torch.compile(draw, fullgraph=True, backend="eager")(parameters["loc"])
    (shift,) = torch.autograd.grad(draws.mean(0).sum(), parameters["loc"])
    torch.testing.assert_close(shift, torch.ones_like(shift))


@pytest.mark.graph
def test_a_number_alpha_may_change_between_calls():
    """torch.compile turns a float that changes into a symbol; α must stay a constant of each program."""
    torch._dynamo.reset()
    t = torch.tensor([0.1, -0.2])

    def log_prob(t: Tensor, alpha: float) -> Tensor:
        return BetaGaussian(torch.zeros(2), torch.ones(2), alpha).log_prob(t)

    compiled = torch.compile(log_prob, fullgraph=True, backend="eager")
    for alpha in (1.5, 1.7, 1.0, math.inf):
        torch.testing.assert_close(compiled(t, alpha), log_prob(t, alpha))


@pytest.mark.graph
def test_export():
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loc = torch.nn.Parameter(torch.zeros(3))
            self.scale = torch.nn.Parameter(torch.ones(3))
            self.alpha = torch.nn.Parameter(torch.tensor([1.0, 1.5, 0.8]))

        def forward(self, t: Tensor) -> tuple[Tensor, Tensor]:
            line = BetaGaussian(self.loc, self.scale, self.alpha)
            several = MultivariateBetaGaussian(self.loc, torch.diag(self.scale), 1.5)
            return line.log_prob(t) + line.cdf(t), several.log_prob(t)

    module = Module()
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (0.1 * torch.randn(5, 3),), dynamic_shapes={"t": {0: batch}})
    t = 0.1 * torch.randn(8, 3)
    for got, expected in zip(program.module()(t), module(t), strict=True):
        torch.testing.assert_close(got, expected)
