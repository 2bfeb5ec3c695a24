"""Expectations on the line: gradients of every order, transforms, graphs, what the first use leaves behind."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import contmax
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian, TruncatedParabola
from fresh import Program, run_each

F64 = torch.float64
GAUSSIANS = GaussianBasis.linspace(6, (0.1, 0.5)).double()


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.1, 1.5, 1.7, 2.0, 3.0])
def test_derivatives_of_first_and_second_order(alpha):
    mu = torch.tensor([0.3, 0.9], dtype=F64, requires_grad=True)
    scale = torch.tensor([0.2, 0.05], dtype=F64, requires_grad=True)
    index = torch.full((2,), alpha, dtype=F64, requires_grad=True)
    centre = torch.tensor([0.1, 0.6], dtype=F64, requires_grad=True)
    log_width = torch.tensor([-2.0, -1.0], dtype=F64, requires_grad=True)
    learned = GaussianBasis(torch.zeros(2, dtype=F64), 1.0, learnable=True)

    def r(mu, scale, index, centre, log_width):
        def call(module, mu, scale):
            return contmax.expectation(BetaGaussian(mu, scale, index, validate_args=False), module)

        class Shell(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.basis = learned

            def forward(self, mu, scale):
                return call(self.basis, mu, scale)

        constants = {"basis.loc": centre, "basis.log_scale": log_width}
        return torch.func.functional_call(Shell(), constants, (mu, scale))

    assert gradcheck(r, (mu, scale, alpha, centre, log_width), check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(r, (mu, scale, alpha, centre, log_width), fast_mode=True)
    assert gradcheck(r, (mu, scale, index, centre, log_width), rtol=1e-3, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 1.7, 2.0, 3.0])
def test_functional_transforms(alpha):
    def r(mu, scale):
        return contmax.expectation(BetaGaussian(mu, scale, alpha, validate_args=False), GAUSSIANS)

    mu, scale = (x.requires_grad_() for x in (torch.rand(4, dtype=F64), 0.1 + torch.rand(4, dtype=F64)))
    g = torch.randn_like(r(mu, scale))
    gradients = [torch.autograd.grad(value(mu, scale), (mu, scale), g) for value in (r, torch.func.vmap(r))]
    torch.testing.assert_close(*gradients)
    mu, scale = mu.detach(), scale.detach()
    torch.testing.assert_close(torch.func.vmap(r)(mu, scale), r(mu, scale))
    reverse = torch.func.vmap(torch.func.jacrev(r))(mu, scale)
    forward = torch.func.vmap(torch.func.jacfwd(r))(mu, scale)
    torch.testing.assert_close(reverse, forward)
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacfwd(r))(mu, scale), torch.func.hessian(r)(mu, scale))


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.3, 2.0])
def test_an_empty_batch(alpha):
    def r(mu, scale):
        return contmax.expectation(BetaGaussian(mu, scale, alpha), GAUSSIANS)

    nothing = torch.rand(2, 0, dtype=F64, requires_grad=True)
    value, tangent = torch.func.jvp(r, (nothing, nothing), (nothing, nothing))
    assert value.shape == tangent.shape == (2, 0, len(GAUSSIANS.loc))
    assert torch.autograd.grad(r(nothing, nothing).sum(), nothing)[0].shape == (2, 0)


@pytest.mark.graph
def test_compiles_whole():
    torch._dynamo.reset()

    def r(mu, scale):
        return contmax.expectation(TruncatedParabola(mu, scale, validate_args=False), GAUSSIANS)

    mu = torch.rand(4, dtype=F64, requires_grad=True)
    scale = torch.full((4,), 0.2, dtype=F64, requires_grad=True)
    compiled = torch.compile(r, fullgraph=True, backend="aot_eager_default_partitioner")
    torch.testing.assert_close(compiled(mu, scale), r(mu, scale))
    torch.testing.assert_close(
        torch.autograd.grad(compiled(mu, scale).sum(), (mu, scale)),
        torch.autograd.grad(r(mu, scale).sum(), (mu, scale)),
    )


@pytest.mark.graph
def test_any_index_is_a_few_nodes_of_a_graph():
    """Heavy tails too, which the kernel does not know: whether an α is below one, a trace cannot see."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd  # the compiler takes a second to import

    nodes = []

    def counted(graph, _):
        nodes.append(len(graph.graph.nodes))
        return make_boxed_func(graph.forward)

    basis = GaussianBasis([0.2, 0.7], [0.1, 0.3], learnable=True).double()

    def r(mu, scale, alpha):
        return contmax.expectation(BetaGaussian(mu, scale, alpha, validate_args=False), basis)

    torch._dynamo.reset()
    compiled = torch.compile(r, fullgraph=True, backend=aot_autograd(fw_compiler=counted, bw_compiler=counted))
    mu, scale = (torch.rand(3, dtype=F64, requires_grad=True) for _ in range(2))
    for index in ([1.0, 1.3, 1.7], [0.8, 1.3, 2.5]):
        alpha = torch.tensor(index, dtype=F64, requires_grad=True)
        inputs = (mu, scale, alpha)
        got, expected = compiled(*inputs), r(*inputs)
        torch.testing.assert_close(got, expected)
        g = torch.randn_like(got)
        gradients = [torch.autograd.grad(results, (*inputs, *basis.parameters()), g) for results in (got, expected)]
        torch.testing.assert_close(*gradients)
    assert max(nodes) < 40


@pytest.mark.graph
@pytest.mark.parametrize("alpha", [1.7, 2.0])
def test_exports_with_its_tables(alpha):
    """Tables made inside an export must be constants of the program, and must not replace the real ones."""

    class Attend(torch.nn.Module):
        def forward(self, mu, scale):
            return contmax.expectation(BetaGaussian(mu, scale, alpha, validate_args=False), GAUSSIANS)

    mu, scale = torch.rand(4, dtype=F64), torch.full((4,), 0.2, dtype=F64)
    program = torch.export.export(Attend(), (mu, scale)).module()
    torch.testing.assert_close(program(mu, scale), Attend()(mu, scale))


def test_two_forwards_before_a_backward():
    mu = torch.tensor([0.2, 0.8], dtype=F64, requires_grad=True)
    first = contmax.expectation(TruncatedParabola(mu[0], 0.1), GAUSSIANS)
    second = contmax.expectation(TruncatedParabola(mu[1], 0.3), GAUSSIANS)
    (together,) = torch.autograd.grad(first.sum() + second.sum(), mu)
    alone = [
        torch.autograd.grad(contmax.expectation(TruncatedParabola(mu[i], s), GAUSSIANS).sum(), mu)[0][i]
        for i, s in ((0, 0.1), (1, 0.3))
    ]
    torch.testing.assert_close(together, torch.stack(alone))


def test_first_use_in_inference_mode_leaves_training_possible():
    density, basis = BetaGaussian(0.4, 0.1, 1.9), GaussianBasis.linspace(3, scale=0.1)
    with torch.inference_mode():
        first = contmax.expectation(density, basis)
    loc = torch.tensor(0.4, requires_grad=True)
    second = contmax.expectation(BetaGaussian(loc, 0.1, 1.9), basis)
    torch.autograd.grad(second.sum(), loc)
    torch.testing.assert_close(first.clone(), second.detach())


def test_first_use_inside_a_transform_leaves_others_possible():
    """In a process of its own: whatever ran before has made the tables of nodes already."""
    code = """
import torch, contmax
basis = contmax.basis.GaussianBasis.linspace(3, scale=0.1)
def at(alpha):
    return lambda loc: contmax.expectation(contmax.densities.BetaGaussian(loc, 0.1, alpha, validate_args=False), basis)
loc = torch.tensor([0.4, 0.6])
rules = [at(1.5), at(1.6)]
inside = [torch.func.vmap(torch.func.jacrev(r))(loc) for r in rules]
for r, slopes in zip(rules, inside):
    torch.testing.assert_close(r(loc), torch.func.vmap(r)(loc))
    torch.testing.assert_close(slopes, torch.func.vmap(torch.func.jacfwd(r))(loc))
"""
    (run,) = run_each([Program("first use", code)])
    assert run.complaint == ""
