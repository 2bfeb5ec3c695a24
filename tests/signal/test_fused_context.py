"""The way of the commonest calls, a density for each sequence: which calls it takes, and that it takes no others."""

import math

import pytest
import torch

import contmax
from contmax import nn
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian, TruncatedParabola, TruncatedParaboloid
from contmax.expectations import register_expectation
from contmax.expectations._expectation import RULES
from fused_context_checks import PLACES, assert_the_same, attention, basis_of, both_ways, called, inputs, learned

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")


@PLACES
def test_the_commonest_calls_are_taken(taken, place):
    attend, (values, loc, scale) = attention(place), inputs(place)
    attend(values, (loc, scale))
    attend(torch.nn.Parameter(values), (loc.requires_grad_(), scale), need_density=False)
    with torch.no_grad():
        attend(values, (loc, scale), grid=attend.grid)
    attend(values, (loc, scale[:1]))  # by the density that is made of these
    assert len(taken) == 4


@PLACES
def test_the_density_is_returned_where_it_is_asked_for(taken, place):
    attend, (values, loc, scale) = attention(place, 1.5), inputs(place)
    (_, density), (_, expected) = both_ways(lambda: attend(values, (loc, scale)))
    assert type(density) is type(expected)
    assert density.alpha == 1.5
    assert torch.equal(density.loc, loc)
    assert torch.equal(density.variance, expected.variance)
    assert attend(values, (loc, scale), need_density=False)[1] is None
    assert len(taken) == 2


def test_densities_are_taken_too(taken):
    values, loc, scale = inputs("line")
    line = basis_of("line")
    for density in (BetaGaussian(loc, scale, 1.5), TruncatedParabola(loc, scale), BetaGaussian(loc, 0.2)):
        contmax.continuous_attention(values, density, line)
        nn.ContinuousAttention(line)(values, density)
    assert len(taken) == 6
    values, loc, scale = inputs("plane")
    plane, tril = basis_of("plane"), torch.linalg.cholesky(scale)
    for density in (
        MultivariateBetaGaussian(loc, scale, 1.5),
        MultivariateBetaGaussian(loc, scale_tril=tril[:1], alpha=1.5),
        MultivariateBetaGaussian(loc, scale_diag=torch.rand(3, 2), alpha=1.0),
        TruncatedParaboloid(loc, precision_matrix=scale),
    ):
        ours, theirs = both_ways(lambda d=density: contmax.continuous_attention(values, d, plane, grid=(3, 5)))
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert len(taken) == 10


OTHERS = {
    "α of a tensor": lambda v, m, s: attention("line", torch.tensor(2.0))(v, (m, s)),
    "a learned α": lambda v, m, s: attention("line", 1.5, learnable=True)(v, (m, s)),
    "α without windows": lambda v, m, s: attention("line", 3.0)(v, (m, s)),
    "heavy tails": lambda v, m, s: attention("line", 0.9)(v, (m, s)),
    "a mask": lambda v, m, s: attention("line")(v, (m, s), mask=torch.ones(15, dtype=torch.bool)),
    "positions": lambda v, m, s: attention("line")(v, (m, s), positions=torch.rand(15)),
    "float64": lambda v, m, s: attention("line")(v.double(), (m, s)),
    "half precision": lambda v, m, s: attention("line")(v.half(), (m, s)),
    "a location in float64": lambda v, m, s: attention("line")(v, (m.double(), s)),
    "a basis in float64": lambda v, m, s: attention("line").double()(v, (m, s)),
    "one density for all": lambda v, m, s: attention("line")(v, (m[0], s[0])),
    "many queries": lambda v, m, s: attention("line")(v, (m.unsqueeze(1), s.unsqueeze(1))),
    "no sequence": lambda v, m, s: attention("line")(v[:0], (m[:0], s[:0])),
    "no channel": lambda v, m, s: attention("line")(v[..., :0], (m, s)),
    "fewer products by coefficients": lambda v, m, s: attention("line")(v[..., :1], (m, s)),
    "another basis": lambda v, m, s: nn.ContinuousAttention(contmax.basis.PowerBasis(3))(v, (m, s)),
    "a learned basis": lambda v, m, s: nn.ContinuousAttention(GaussianBasis([0.0, 1.0], 0.5, learnable=True))(
        v, (m, s)
    ),
    "another density": lambda v, m, s: attention("line")(v, torch.distributions.Normal(m, s)),
    "a mixture": lambda v, m, s: attention("line")(
        v,
        contmax.densities.Mixture(
            torch.distributions.Categorical(torch.ones(3, 2)), BetaGaussian(m[:, None].expand(3, 2), s[:, None])
        ),
    ),
    "no α above two on the plane": lambda v, m, s: attention("plane", 3.0)(v, inputs("plane")[1:]),
    "space": lambda v, m, s: nn.ContinuousAttention(
        MultivariateGaussianBasis.grid(2, 0.3, dim=3), grid=(1, 3, 5), alpha=1.0
    )(v, (torch.rand(3, 3), torch.eye(3).expand(3, 3, 3))),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_all_others_are_not(taken, kind):
    OTHERS[kind](*inputs("line"))
    assert not taken


WRONG = {
    "no tensor": lambda v, m, s: attention("line")(v, (0.5, s)),
    "three tensors": lambda v, m, s: attention("line")(v, (m, s, s)),
    "other batches": lambda v, m, s: attention("line")(v, (m[:2], s[:2])),
    "location and scale that differ": lambda v, m, s: attention("line")(v, (m, s[:2])),
    "integers": lambda v, m, s: attention("line")(v.long(), (m, s)),
    "no observation": lambda v, m, s: attention("line")(v[:, :0], (m, s)),
    "a vector": lambda v, m, s: contmax.continuous_attention(v[0, 0], BetaGaussian(m, s), basis_of("line")),
    "a negative penalty": lambda v, m, s: attention("line", penalty=-1.0)(v, (m, s)),
    "α too small": lambda v, m, s: attention("line", 0.2)(v, (m, s)),
    "α that is no number": lambda v, m, s: attention("line", math.nan)(v, (m, s)),
    "no grid": lambda v, m, s: nn.ContinuousAttention(basis_of("plane"))(v, inputs("plane")[1:]),
    "another grid": lambda v, m, s: attention("plane")(v, inputs("plane")[1:], grid=(4, 5)),
    "a grid of another dimension": lambda v, m, s: attention("plane")(v, inputs("plane")[1:], grid=(15,)),
    "another grid on the line": lambda v, m, s: attention("line")(v, (m, s), grid=(14,)),
    "the plane in space": lambda v, m, s: nn.ContinuousAttention(MultivariateGaussianBasis.grid(2, 0.3, dim=3))(
        v, inputs("plane")[1:], grid=(3, 5)
    ),
    "the line on the plane": lambda v, m, s: attention("plane")(v, (m, s)),
    "the plane on the line": lambda v, m, s: contmax.continuous_attention(
        v, MultivariateBetaGaussian(*inputs("plane")[1:]), basis_of("line")
    ),
    "factors that differ": lambda v, m, s: attention("plane")(v, (torch.rand(3, 2), torch.eye(3).expand(3, 3, 3))),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_refused_as_ever(taken, kind):
    def message():
        with pytest.raises((TypeError, ValueError, RuntimeError)) as refused:
            WRONG[kind](*inputs("line"))
        return type(refused.value), str(refused.value)

    ours, theirs = both_ways(message)
    assert ours == theirs
    assert not taken


def test_no_other_kind_of_tensor_is_taken(taken):
    class Mine(torch.Tensor):
        pass

    values, loc, scale = inputs("line")
    for which in range(3):
        tensors = [x.as_subclass(Mine) if i == which else x for i, x in enumerate((values, loc, scale))]
        called(attention("line"))(*tensors)
    assert not taken


def test_a_tensor_that_torch_func_left_behind(taken):
    left = []
    values, loc, scale = inputs("line")
    torch.func.grad(lambda x: left.append(x) or x.sum())(loc)
    function = called(attention("line"))
    assert_the_same([function(values, left[0], scale)], [function(values, loc, scale)])
    assert len(taken) == 1


@PLACES
def test_a_basis_that_changes_changes_the_context(taken, place):
    attend, (values, loc, scale) = attention(place), inputs(place)
    before = attend(values, (loc, scale))[0]
    with torch.no_grad():
        attend.basis.loc.copy_(attend.basis.loc.flip(0) + 0.1)
    after, expected = both_ways(lambda: attend(values, (loc, scale))[0])
    assert len(taken) == 2
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, expected, rtol=1e-6, atol=1e-6)


@PLACES
def test_a_basis_that_changes_before_the_backward_pass_is_noticed(taken, place):
    attend, tensors = attention(place), learned(place)
    context = called(attend)(*tensors)
    with torch.no_grad():
        attend.basis.loc.add_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        context.sum().backward()
    assert taken


@PLACES
def test_a_basis_whose_constants_need_gradients_is_not_taken(taken, place):
    attend, tensors = attention(place), learned(place)
    attend.basis.loc.requires_grad_()
    ours, theirs = both_ways(
        lambda: torch.autograd.grad(called(attend)(*tensors).sin().sum(), (*tensors, attend.basis.loc))
    )
    assert not taken
    assert_the_same(ours, theirs)


def test_a_basis_of_a_users_own_is_asked(taken, monkeypatch):
    class Mine(GaussianBasis):
        pass

    monkeypatch.setattr(RULES, "_registered", dict(RULES._registered))
    monkeypatch.setattr(RULES, "_found", {})
    values, loc, scale = inputs("line")
    attend = nn.ContinuousAttention(Mine([0.0, 0.5, 1.0], 0.3))

    @register_expectation(BetaGaussian, Mine)
    def twice(density, basis):
        return torch.full((*density.batch_shape, 3), 2.0)

    ours, theirs = both_ways(lambda: attend(values, (loc, scale))[0])
    assert torch.equal(ours, theirs)
    assert not taken


@pytest.mark.parametrize("kind", [BetaGaussian, TruncatedParabola])
def test_a_rule_that_a_user_registers_is_asked(taken, monkeypatch, kind):
    monkeypatch.setattr(RULES, "_registered", dict(RULES._registered))
    monkeypatch.setattr(RULES, "_found", {})
    values, loc, scale = inputs("line")
    basis, density = basis_of("line"), TruncatedParabola(loc, scale)
    contmax.continuous_attention(values, density, basis)
    assert len(taken) == 1

    @register_expectation(kind, GaussianBasis)
    def ones(density, basis):
        return torch.ones(*density.batch_shape, 5)

    ours, theirs = both_ways(lambda: contmax.continuous_attention(values, density, basis))
    assert torch.equal(ours, theirs)
    assert len(taken) == 1
