"""MultiheadContinuousAttention: the formula written out, batches, heads, mixtures, steps, hostile input."""

import math

import pytest
import torch

import contmax
from contmax.basis import BSplineBasis, GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, Mixture
from contmax.nn import MultiheadContinuousAttention

F64 = torch.float64


def make(embed_dim=8, num_heads=2, basis=None, **options):
    basis = GaussianBasis.linspace(12, 0.08) if basis is None else basis
    return MultiheadContinuousAttention(embed_dim, num_heads, basis, **options).double()


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_output_is_the_formula(alpha):
    attend = make(alpha=alpha, kdim=6, vdim=5)
    query, value = torch.randn(2, 3, 8, dtype=F64), torch.randn(2, 30, 5, dtype=F64)
    output, density = attend(query, value, need_density=True)
    assert density.batch_shape == (2, 2, 3)
    anchors = (torch.arange(12, dtype=F64) + 0.5) / 12
    signal = contmax.fit_signal(value, attend.basis)
    for b in range(2):
        read = attend.key_projection(signal(anchors))[b]
        asked = attend.query_projection(query)[b]
        contexts = []
        for head in range(2):
            channels = slice(3 * head, 3 * head + 3)
            preferred = -0.5 * attend.places.closeness[head] * (anchors - attend.places.centers[head, 0]).square()
            p = torch.softmax(asked[:, channels] @ read[:, channels].T / math.sqrt(3) + preferred, -1)
            mean = p @ anchors
            variance = p @ anchors.square() - mean.square() + 1 / (12 * 144)
            torch.testing.assert_close((density.mean[b, head], density.variance[b, head]), (mean, variance))
            one = BetaGaussian.from_moments(mean, variance, alpha)
            r = contmax.expectation(one, attend.basis)
            W = attend.value_projection.weight[4 * head : 4 * head + 4]
            contexts.append(r @ signal.coefficients[b] @ W.T)
        torch.testing.assert_close(output[b], attend.output_projection(torch.cat(contexts, -1)))


def test_queries_and_examples_are_independent():
    attend = make(num_components=2)
    query, value = torch.randn(3, 5, 8, dtype=F64), torch.randn(3, 20, 8, dtype=F64)
    output, density = attend(query, value, need_density=True)
    queries, examples = torch.randperm(5), torch.randperm(3)
    torch.testing.assert_close(attend(query[:, queries], value)[0], output[:, queries])
    torch.testing.assert_close(attend(query[examples], value[examples])[0], output[examples])
    torch.testing.assert_close(attend(query[:1, :1], value[:1])[0], output[:1, :1])
    assert density.batch_shape == (3, 2, 5)
    assert attend(query, value, need_density=False)[1] is None


@pytest.mark.parametrize("options", [{}, {"num_components": 3}, {"num_steps": 2}, {"num_components": 2, "alpha": 1.5}])
def test_masked_sequences_equal_short_ones_and_nothing_gives_zeros(options):
    attend = make(**options)
    query = torch.randn(3, 4, 8, dtype=F64, requires_grad=True)
    value = torch.randn(3, 20, 8, dtype=F64, requires_grad=True)
    mask = torch.arange(20) < torch.tensor([[20], [7], [0]])
    poisoned = torch.where(mask[..., None], value, torch.nan)
    output, density = attend(query, poisoned, mask=mask, need_density=True)
    torch.testing.assert_close(output[1:2], attend(query[1:2], value[1:2, :7])[0])
    assert (output[2] == 0).all()
    assert density.mean.isfinite().all()
    gradients = torch.autograd.grad(output.square().sum(), (query, value, *attend.parameters()))
    assert all(g.isfinite().all() for g in gradients)
    for gradient in gradients[:2]:
        assert (gradient[2] == 0).all()
        assert (gradient[1] != 0).any()
    torch.testing.assert_close(attend(query, value, mask=mask[1])[0][1], output[1])


def test_a_mixture_has_one_density_for_each_component():
    attend = make(num_components=3)
    query, value = torch.randn(2, 4, 8, dtype=F64), torch.randn(2, 20, 8, dtype=F64)
    output, density = attend(query, value, need_density=True)
    assert isinstance(density, Mixture)
    assert density.component_distribution.batch_shape == (2, 2, 4, 3)
    weights = density.mixture_distribution.probs
    logits = attend.component_logits(query).unflatten(-1, (2, 3)).transpose(1, 2)
    torch.testing.assert_close(weights, torch.softmax(logits, -1))
    r = contmax.expectation(density.component_distribution, attend.basis)
    contents = attend.value_projection(contmax.fit_signal(value, attend.basis).coefficients)
    contents = contents.unflatten(-1, (2, -1)).transpose(1, 2)
    mixed = torch.einsum("bhqm,bhqmk,bhkd->bqhd", weights, r, contents).flatten(2)
    torch.testing.assert_close(output, attend.output_projection(mixed))


@pytest.mark.parametrize(("heads", "components"), [(1, 4), (4, 1), (2, 2), (4, 3)])
@pytest.mark.parametrize("dim", [1, 2])
def test_heads_and_components_begin_at_different_places(heads, components, dim):
    basis = GaussianBasis.linspace(32, 0.03, high=10.0) if dim == 1 else MultivariateGaussianBasis.grid(7, 0.1)
    attend = make(8, heads, basis=basis, num_components=components)
    # Nothing to be seen: only the start decides.
    where = {"positions": torch.linspace(0, 10, 49)} if dim == 1 else {"grid": (7, 7)}
    _, density = attend(torch.zeros(1, 1, 8, dtype=F64), torch.zeros(1, 49, 8, dtype=F64), **where)
    parts = density.component_distribution if components > 1 else density
    means = parts.mean.reshape(heads * components, dim)
    apart = torch.cdist(means, means) + 1e3 * torch.eye(len(means), dtype=F64)
    size = 10.0 if dim == 1 else 1.0
    assert apart.min() > 0.15 * size / len(means)
    assert ((means > 0) & (means < size)).all()
    torch.testing.assert_close(means.mean(0), torch.full((dim,), size / 2, dtype=F64), rtol=0.15, atol=0)


def test_a_single_head_begins_with_the_whole_domain():
    attend = make(8, 1)
    _, density = attend(torch.zeros(1, 1, 8, dtype=F64), torch.zeros(1, 20, 8, dtype=F64))
    torch.testing.assert_close((density.mean.item(), density.variance.item()), (0.5, 1 / 12))


def test_a_grid_is_told_once():
    attend = make(basis=MultivariateGaussianBasis.grid(4, 0.2), grid=(4, 5))
    query, value = torch.randn(2, 3, 8, dtype=F64), torch.randn(2, 20, 8, dtype=F64)
    torch.testing.assert_close(attend(query, value)[0], attend(query, value, grid=(4, 5))[0])
    assert not torch.allclose(attend(query, value)[0], attend(query, value, grid=(5, 4))[0])
    with pytest.raises(ValueError, match="grid must have 2 sizes"):
        make(basis=MultivariateGaussianBasis.grid(4, 0.2), grid=(4, 5, 6))
    # Positions of a call take the place of the grid.
    places, without = torch.rand(20, 2, dtype=F64), make(basis=attend.basis)
    without.load_state_dict(attend.state_dict())
    expected = without(query, value, positions=places)[0]
    torch.testing.assert_close(attend(query, value, positions=places)[0], expected)
    assert not torch.allclose(attend(query, value)[0], expected)


def test_a_step_asks_with_what_the_one_before_found():
    once, twice = make(), make(num_steps=2)
    twice.load_state_dict(once.state_dict())
    query, value = torch.randn(2, 4, 8, dtype=F64), torch.randn(2, 20, 8, dtype=F64)
    first, _ = once(query, value)
    second, density = once(query + first, value, need_density=True)
    output, last = twice(query, value, need_density=True)
    torch.testing.assert_close((output, last.mean), (second, density.mean))


def test_three_steps_are_three():
    """The query of a step is that of the step before plus what that one found, not the first one plus it."""
    once, thrice = make(), make(num_steps=3)
    thrice.load_state_dict(once.state_dict())
    query, value = torch.randn(2, 4, 8, dtype=F64), torch.randn(2, 20, 8, dtype=F64)
    asked = query
    for _ in range(2):
        asked = asked + once(asked, value)[0]
    expected, density = once(asked, value)
    output, last = thrice(query, value)
    torch.testing.assert_close((output, last.mean), (expected, density.mean))


def test_equal_state_dicts_are_equal_modules():
    """The anchors are part of the state: a basis may stand elsewhere by now than when the module was made."""
    first, second = make(), make(basis=GaussianBasis.linspace(12, 0.08, low=-1.0, high=3.0))
    second.load_state_dict(first.state_dict())
    query, value = torch.randn(2, 4, 8, dtype=F64), torch.randn(2, 20, 8, dtype=F64)
    torch.testing.assert_close(second(query, value)[0], first(query, value)[0], rtol=0, atol=0)
    state = first.state_dict()
    del state["anchors.low"]
    with pytest.raises(RuntimeError, match=r"Missing key.*anchors\.low"):
        make().load_state_dict(state)


def test_anchors_stay_while_a_basis_is_learned():
    attend = make(basis=GaussianBasis.linspace(12, 0.08, learnable=True))
    with torch.no_grad():
        attend.basis.loc.mul_(5)
    assert (attend.anchors.low, attend.anchors.size) == (torch.zeros(1), torch.ones(1))
    attend.reset_parameters()
    torch.testing.assert_close(attend.basis.loc.amax(), torch.ones((), dtype=F64))


def test_the_former_name_of_the_values():
    attend = make()
    query, value = torch.randn(2, 4, 8, dtype=F64), torch.randn(2, 20, 8, dtype=F64)
    expected = attend(query, value)[0]
    torch.testing.assert_close(attend(query, values=value)[0], expected)
    with pytest.warns(DeprecationWarning, match="value= is now called values="):
        old = attend(query, value=value)[0]
    torch.testing.assert_close(old, expected)
    for arguments in ({}, {"values": value, "value": value}):
        with pytest.raises(TypeError, match="takes the values once"):
            attend(query, **arguments)


def test_alpha_of_each_head():
    alpha = torch.nn.Parameter(torch.tensor([1.2, 2.0]))
    for components in (1, 2):
        attend = make(alpha=alpha, num_components=components)
        query, value = torch.randn(3, 4, 8, dtype=F64), torch.randn(3, 20, 8, dtype=F64)
        output, density = attend(query, value, need_density=True)
        part = density.component_distribution if components > 1 else density
        shape = (3, 2, 4, 2)[: 3 + (components > 1)]
        torch.testing.assert_close(
            part.alpha.expand(shape), attend.alpha.view(1, 2, *(1,) * (len(shape) - 2)).expand(shape)
        )
        output.square().sum().backward()
        assert (attend.alpha.grad != 0).all()
        assert attend.alpha.grad.isfinite().all()


@pytest.mark.parametrize(
    "basis",
    [
        GaussianBasis.linspace(10, 1.0, low=10.0, high=20.0),
        BSplineBasis.clamped(10, low=10.0, high=20.0),
    ],
    ids=["gaussian", "spline"],
)
def test_anchors_stand_where_the_basis_stands(basis):
    attend = make(basis=basis)
    query, t = torch.randn(2, 4, 8, dtype=F64), 10 + 10 * torch.rand(2, 30, dtype=F64)
    _, density = attend(query, torch.randn(2, 30, 8, dtype=F64), positions=t, need_density=True)
    assert ((density.mean > 10) & (density.mean < 20)).all()
    assert (density.variance >= 100 / (12 * 100)).all()


def test_the_same_attention_whatever_the_unit_of_time():
    unit, hours = make(), make(basis=GaussianBasis.linspace(12, 0.08 * 24, high=24.0))
    hours.load_state_dict(
        {k: v for k, v in unit.state_dict().items() if k.split(".")[0] not in ("basis", "anchors")}, strict=False
    )
    query, value = torch.randn(2, 4, 8, dtype=F64), torch.randn(2, 30, 8, dtype=F64)
    t = torch.rand(2, 30, dtype=F64)
    one, p = unit(query, value, positions=t, need_density=True)
    other, q = hours(query, value, positions=24 * t, need_density=True)
    torch.testing.assert_close(other, one)
    torch.testing.assert_close(q.mean, 24 * p.mean)


@pytest.mark.parametrize("components", [1, 2])
def test_the_plane(components):
    attend = make(basis=MultivariateGaussianBasis.grid(4, 0.2), num_components=components)
    query, value = torch.randn(2, 3, 8, dtype=F64), torch.randn(2, 20, 8, dtype=F64)
    output, density = attend(query, value, grid=(4, 5), need_density=True)
    assert output.shape == (2, 3, 8)
    assert density.batch_shape == (2, 2, 3)
    assert density.event_shape == (2,)
    output.sum().backward()
    assert all(p.grad.isfinite().all() for p in attend.parameters())


def test_there_are_at_least_as_many_anchors_as_functions():
    for count, per_axis in ((4, 2), (5, 3), (9, 3), (10, 4)):
        attend = make(basis=MultivariateGaussianBasis(torch.rand(count, 2), 0.1 * torch.eye(2)))
        assert attend.anchors.points(torch.empty(0, dtype=F64)).shape == (per_axis**2, 2)


def test_a_box_of_unequal_sides():
    """The plane stretched by 10 and 2 is the same attention: means and covariances are stretched with it."""
    low, sides = torch.tensor([5.0, -1.0], dtype=F64), torch.tensor([10.0, 2.0], dtype=F64)
    centres = torch.cartesian_prod(*[torch.linspace(0, 1, 3, dtype=F64)] * 2)
    covariance = torch.diag(torch.tensor([0.04, 0.09], dtype=F64))
    unit = make(basis=MultivariateGaussianBasis(centres, covariance))
    box = make(basis=MultivariateGaussianBasis(low + sides * centres, covariance * sides.outer(sides)))
    box.load_state_dict(
        {k: v for k, v in unit.state_dict().items() if k.split(".")[0] not in ("basis", "anchors")}, False
    )
    torch.testing.assert_close((box.anchors.low, box.anchors.size), (low, sides))
    query, value, t = torch.randn(2, 3, 8, dtype=F64), torch.randn(2, 20, 8, dtype=F64), torch.rand(2, 20, 2, dtype=F64)
    one, p = unit(query, value, positions=t)
    other, q = box(query, value, positions=low + sides * t)
    torch.testing.assert_close(q.mean, low + sides * p.mean)
    torch.testing.assert_close(q.covariance_matrix, sides.outer(sides) * p.covariance_matrix)
    torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 40])
@pytest.mark.parametrize(
    "basis",
    [
        GaussianBasis([0.5], 0.2),
        GaussianBasis([0.3] * 4, 0.2),
        GaussianBasis([5.0], 1.0),
        GaussianBasis.linspace(32, 0.05),
    ],
    ids=["one", "same", "elsewhere", "many"],
)
def test_short_sequences_and_small_bases(length, basis):
    attend = make(basis=basis)
    query = torch.randn(2, 3, 8, dtype=F64, requires_grad=True)
    value = torch.randn(2, length, 8, dtype=F64, requires_grad=True)
    at = basis.loc.mean() + torch.rand(length)
    output, density = attend(query, value, need_density=True, positions=at)
    assert output.isfinite().all()
    assert (density.variance > 0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(output.sum(), (query, value)))


def test_huge_scores_give_narrow_densities_and_finite_gradients():
    attend = make()
    query = 1e4 * torch.randn(2, 3, 8, dtype=F64, requires_grad=True)
    value = 1e3 * torch.randn(2, 20, 8, dtype=F64)
    output, density = attend(query, value, need_density=True)
    torch.testing.assert_close(density.variance.amin(), torch.tensor(1 / (12 * 144), dtype=F64))
    output.sum().backward()
    assert all(p.grad.isfinite().all() for p in attend.parameters())


def test_dropout_acts_in_training_only():
    attend = make(dropout=0.5)
    query, value = torch.randn(2, 3, 8, dtype=F64), torch.randn(2, 20, 8, dtype=F64)
    assert not torch.equal(attend(query, value)[0], attend(query, value)[0])
    attend.eval()
    assert torch.equal(attend(query, value)[0], attend(query, value)[0])


def test_without_bias_nothing_is_added():
    attend = make(bias=False)
    assert [name for name, _ in attend.named_parameters() if "bias" in name] == []
    assert (attend(torch.randn(2, 3, 8, dtype=F64), torch.zeros(2, 9, 8, dtype=F64))[0] == 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make(8, 3), "embed_dim must be a multiple of num_heads"),
        (lambda: make(8, 4, kdim=6), "kdim must be a multiple of num_heads"),
        (lambda: make(8, 0), "num_heads must be at least 1"),
        (lambda: make(num_components=0), "num_components must be at least 1"),
        (lambda: make(num_steps=0), "num_steps must be at least 1"),
        (lambda: make(alpha=torch.ones(3)), r"alpha must have shape \(\) or \(2,\)"),
        (lambda: make()(torch.randn(2, 3, 7).double(), torch.randn(2, 9, 8).double()), "query must have shape"),
        (lambda: make()(torch.randn(2, 3, 8).double(), torch.randn(2, 9, 7).double()), "values must have shape"),
    ],
)
def test_bad_input_says_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()
