"""The way of the commonest calls, a density for each sequence: it gives what others give, and takes nothing else."""

import contextlib
import math

import pytest
import torch
from torch.autograd import forward_ad

import contmax
from contmax import nn
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian, TruncatedParabola, TruncatedParaboloid
from contmax.expectations import register_expectation
from contmax.expectations._expectation import RULES
from contmax.signal import _plain_context

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")

PLACES = pytest.mark.parametrize("place", ["line", "plane"])
ALPHAS = pytest.mark.parametrize("alpha", [1.0, 5 / 4, 4 / 3, 1.5, 2.0, 3.0, math.inf, 1.1, 0.9])


@pytest.fixture
def taken(monkeypatch):
    """The calls that went this way."""
    calls, applied = [], _plain_context._apply
    monkeypatch.setattr(_plain_context, "_apply", lambda *arguments: calls.append(arguments) or applied(*arguments))
    return calls


@contextlib.contextmanager
def ordinary():
    """A context in which no call goes this way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_plain_context, "_context", lambda *arguments, **options: None)
        yield


def basis_of(place):
    if place == "line":
        return GaussianBasis([0.0, 0.2, 0.5, 0.6, 1.0], [0.1, 0.3, 0.1, 0.5, 0.2])
    widths = torch.tensor([[[0.04, 0.01], [0.01, 0.02]]]) * torch.tensor([1.0, 2.0, 0.5, 1.5, 1.0]).reshape(5, 1, 1)
    return MultivariateGaussianBasis(torch.rand(5, 2, generator=torch.Generator().manual_seed(3)), widths)


def attention(place, alpha=2.0, **options):
    return nn.ContinuousAttention(basis_of(place), alpha=alpha, grid=None if place == "line" else (3, 5), **options)


def inputs(place, batch=3, channels=7):
    """Values, locations and scales; 15 observations."""
    values = torch.randn(batch, 15, channels)
    if place == "line":
        return values, torch.rand(batch), 0.05 + 0.3 * torch.rand(batch)
    factor = 0.3 * torch.randn(batch, 2, 2)
    return values, torch.rand(batch, 2), factor @ factor.mT + 0.02 * torch.eye(2)


def learned(place, **sizes):
    return [x.requires_grad_() for x in inputs(place, **sizes)]


def called(attend):
    return lambda values, loc, scale: attend(values, (loc, scale), need_density=False)[0]


def both_ways(function):
    """What a function gives this way, then by the ordinary one."""
    ours = function()
    with ordinary():
        return ours, function()


def assert_the_same(ours, theirs):
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert mine.shape == other.shape
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6, equal_nan=True)


def value_and_gradients(function, tensors, cotangent=None):
    result = function(*tensors)
    wanted = [x for x in tensors if x.requires_grad]
    cotangent = torch.linspace(-1, 2, result.numel()).reshape(result.shape) if cotangent is None else cotangent
    return result, *torch.autograd.grad(result, wanted, cotangent)


@PLACES
def test_the_commonest_calls_are_taken(taken, place):
    attend, (values, loc, scale) = attention(place), inputs(place)
    attend(values, (loc, scale))
    attend(torch.nn.Parameter(values), (loc.requires_grad_(), scale), need_density=False)
    with torch.no_grad():
        attend(values, (loc, scale), grid=attend.grid)
    attend(values, (loc, scale[:1]))  # by the density that is made of these
    assert len(taken) == 4


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


def strided(place):
    values, loc, scale = inputs(place)
    wide = [torch.stack([x, torch.full_like(x, torch.nan)], -1) for x in (values, loc, scale)]
    return [x[..., 0] for x in wide]


def turned(place):
    values, loc, scale = inputs(place)
    return values.mT.contiguous().mT, loc, scale.mT.contiguous().mT if place == "plane" else scale


def expanded(place):
    values, loc, scale = inputs(place, batch=1)
    return values.expand(4, -1, -1), loc.expand(4, *loc.shape[1:]), scale.expand(4, *scale.shape[1:])


KINDS = {"contiguous": inputs, "strided": strided, "turned": turned, "expanded": expanded}


@PLACES
@ALPHAS
def test_every_index(place, alpha):
    tensors, function = learned(place), called(attention(place, alpha))
    assert_the_same(*both_ways(lambda: value_and_gradients(function, tensors)))


@PLACES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("needed", ["vls", "v", "l", "s", "ls", "vs"])
def test_every_layout_and_every_choice_of_gradients(taken, place, kind, needed):
    tensors = [x.detach().requires_grad_(name in needed) for x, name in zip(KINDS[kind](place), "vls", strict=True)]
    function = called(attention(place))
    for cotangent in (None, torch.ones(()).expand(len(tensors[0]), 7), torch.randn(7, len(tensors[0])).mT):
        assert_the_same(*both_ways(lambda c=cotangent: value_and_gradients(function, tensors, c)))
    assert len(taken) == 3


@PLACES
@pytest.mark.parametrize(("batch", "channels"), [(1, 2), (130, 3), (5, 33)])
def test_odd_sizes(taken, place, batch, channels):
    tensors, function = learned(place, batch=batch, channels=channels), called(attention(place, 1.5))
    assert_the_same(*both_ways(lambda: value_and_gradients(function, tensors)))
    assert taken


@PLACES
@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-30, 1e30])
def test_numbers_that_are_none(taken, place, alpha, bad):
    function = called(attention(place, alpha))
    for which in range(3):
        tensors = inputs(place)
        tensors[which][1] = bad
        tensors = [x.requires_grad_() for x in tensors]
        assert_the_same(*both_ways(lambda t=tensors: value_and_gradients(function, t)))
    assert len(taken) == 3


@PLACES
@pytest.mark.parametrize("needed", ["vls", "v", "s"])
def test_derivatives_of_every_kind(taken, place, needed):
    tensors = [x.requires_grad_(name in needed) for x, name in zip(inputs(place), "vls", strict=True)]
    wanted = [x for x in tensors if x.requires_grad]
    function = called(attention(place, 1.5))
    many = torch.randn(4, 3, 7)
    g = torch.randn(3, 7, requires_grad=True)

    def derivatives():
        context = function(*tensors)
        first = torch.autograd.grad(context, wanted, g, create_graph=True)
        size = sum(x.square().sum() for x in first)
        second = torch.autograd.grad(size, (*wanted, g), create_graph=True, allow_unused=True)
        third = torch.autograd.grad(sum(x.sum() for x in second if x is not None), (*wanted, g), allow_unused=True)
        context = function(*tensors)
        batched = torch.autograd.grad(context, wanted, many, is_grads_batched=True, retain_graph=True)
        vmapped = torch.vmap(lambda c: torch.autograd.grad(context, wanted, c, retain_graph=True))(many)
        return [context, *first, *second, *third, *batched, *vmapped]

    ours, theirs = both_ways(derivatives)
    assert len(taken) == 2
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5 * (1 + other.detach().abs().max().item()))


@PLACES
def test_a_factor_has_derivatives_of_its_own(taken, place):
    values, loc, scale = inputs(place)
    tril = (scale if place == "line" else torch.linalg.cholesky(scale)).requires_grad_()
    basis = basis_of(place)

    def derivatives():
        if place == "line":
            context = contmax.continuous_attention(values, BetaGaussian(loc, tril, 1.5), basis)
        else:
            density = MultivariateBetaGaussian(loc, scale_tril=tril, alpha=1.5)
            context = contmax.continuous_attention(values, density, basis, grid=(3, 5))
        (first,) = torch.autograd.grad(context.square().sum(), tril, create_graph=True)
        return context, first, *torch.autograd.grad(first.square().sum(), tril)

    ours, theirs = both_ways(derivatives)
    assert len(taken) == 1
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@PLACES
def test_tangents_and_transforms_are_those_of_the_ordinary_way(taken, place):
    tensors, moves = inputs(place), inputs(place)
    function = called(attention(place))

    def total(*arguments):
        return function(*arguments).sin().sum()

    def derivatives():
        with forward_ad.dual_level():
            dual = [forward_ad.make_dual(x, move) for x, move in zip(tensors, moves, strict=True)]
            along = forward_ad.unpack_dual(function(*dual)).tangent
        gradients = torch.func.grad(total, (0, 1, 2))(*tensors)
        several = [torch.stack([x, move]) for x, move in zip(tensors, moves, strict=True)]
        return along, *gradients, torch.vmap(function)(*several), torch.func.jvp(function, tensors, moves)[1]

    ours, theirs = both_ways(derivatives)
    assert not taken
    assert_the_same(ours, theirs)
    # Tensors that no transform sees, inside of one.
    torch.vmap(lambda y: y * function(*tensors).sum())(torch.ones(2))
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
    assert torch.equal(function(values, left[0], scale), function(values, loc, scale))
    assert len(taken) == 1


@PLACES
def test_the_context_can_be_written_to(taken, place):
    """A view that a function of autograd returns could not be."""
    values, loc, scale = learned(place)
    context = called(attention(place))(values, loc, scale)
    context.mul_(2).square().sum().backward()
    assert taken
    assert values.grad is not None


@PLACES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_rounds_nothing(taken, place, dtype):
    tensors, function = learned(place), called(attention(place))
    expected = value_and_gradients(function, tensors)
    with torch.autocast("cpu", dtype):
        assert_the_same(value_and_gradients(function, tensors), expected)
    assert len(taken) == 2


@PLACES
def test_only_what_gradients_need_is_kept(taken, place):
    values, loc, scale = inputs(place)
    saved = []

    def shapes(*needed):
        saved.clear()
        tensors = [x.detach().requires_grad_(x is y) for x, y in zip((values, loc, scale), needed, strict=True)]
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(tuple(x.shape)) or x, lambda x: x):
            called(attention(place))(*tensors)
        return saved

    assert tuple(values.shape) not in shapes(values, None, None)
    assert (3, 15) not in shapes(None, loc, None)
    assert {tuple(values.shape), (3, 15)} <= set(shapes(values, loc, None))
    assert shapes(None, None, None) == []


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


@pytest.mark.graph
@PLACES
def test_a_compiled_program_takes_the_ordinary_way(taken, place):
    torch._dynamo.reset()
    tensors, function = learned(place), called(attention(place))
    traced = torch.compile(function, fullgraph=True, backend="aot_eager_default_partitioner")
    found = value_and_gradients(traced, tensors)
    assert not taken
    assert_the_same(found, value_and_gradients(function, tensors))
