"""ContinuousAttention, its heads and CombinedAttention: numbers, masks, hostile input."""

import pytest
import torch
from torch.nn.functional import softplus

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian, TruncatedParabola
from contmax.nn import CombinedAttention, ContinuousAttention, DiscreteAttention, GateHead, MomentHead, PooledHead

F64 = torch.float64


def line(num: int = 12) -> GaussianBasis:
    return GaussianBasis.linspace(num, (0.1, 0.5))


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_context_is_the_integral_of_signal_and_density(alpha):
    attend = ContinuousAttention(line(), alpha=alpha, head=PooledHead(4)).double()
    values = torch.randn(2, 30, 4, dtype=F64)
    context, density = attend(values)
    assert density.alpha == alpha
    width = 12 * density.stddev.max().item()
    t = torch.linspace(-width, 1 + width, 200_001, dtype=F64)
    p = density.log_prob(t[:, None]).exp().mT
    expected = torch.trapezoid(p[..., None] * contmax.fit_signal(values, attend.basis)(t), t, dim=-2)
    torch.testing.assert_close(context, expected, rtol=0, atol=1e-6)


def test_a_pair_is_a_density_and_a_density_keeps_its_alpha():
    attend, values = ContinuousAttention(line(), alpha=1.5), torch.randn(2, 30, 4)
    loc, scale = torch.rand(2, 3), 0.1 + torch.rand(2, 3)
    context, density = attend(values, (loc, scale))
    assert isinstance(density, BetaGaussian)
    torch.testing.assert_close(context, attend(values, BetaGaussian(loc, scale, 1.5))[0])
    given = TruncatedParabola(loc, scale)
    context, same = attend(values, given)
    assert same is given
    torch.testing.assert_close(context, contmax.continuous_attention(values, given, attend.basis))
    assert attend(values, given, need_density=False)[1] is None


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_the_plane(alpha):
    basis = MultivariateGaussianBasis.grid(4, 0.2)
    values, grid = torch.randn(2, 20, 3), (4, 5)
    for head in (PooledHead(3, dim=2), MomentHead(DiscreteAttention(3), dim=2)):
        density = head(values, alpha=alpha, grid=grid)
        assert isinstance(density, MultivariateBetaGaussian)
        assert density.batch_shape == (2,)
        assert (torch.linalg.eigvalsh(density.scale_matrix) > 0).all()
        attend = ContinuousAttention(basis, alpha=alpha, head=head)
        context, density = attend(values, grid=grid)
        torch.testing.assert_close(context, contmax.continuous_attention(values, density, basis, grid=grid))
        context.sum().backward()
        assert all(p.grad.isfinite().all() for p in attend.parameters() if p.grad is not None)
        loc, matrix = torch.rand(2, 6, 2), 0.1 * torch.eye(2).expand(2, 6, 2, 2)
        assert attend(values, (loc, matrix), grid=grid)[0].shape == (2, 6, 3)
    combined, (weights, density) = CombinedAttention(DiscreteAttention(3), basis, alpha=alpha)(values, grid=grid)
    rows, columns = torch.meshgrid((torch.arange(4) + 0.5) / 4, (torch.arange(5) + 0.5) / 5, indexing="ij")
    mean, covariance = contmax.maps.moments(weights, torch.stack([rows, columns], -1).reshape(-1, 2), grid=grid)
    torch.testing.assert_close((density.mean, density.covariance_matrix), (mean, covariance), rtol=1e-4, atol=1e-6)
    assert combined.shape == (2, 3)


def test_pooled_head_is_the_formula():
    head = PooledHead(4, hidden_dim=5, kernel_size=3, query_dim=2, position_channels=False)
    values, query = torch.randn(2, 9, 4), torch.randn(2, 3, 2)
    pooled = torch.relu(head.convolution(values.mT)).amax(-1)
    density = head(values, alpha=1.5, query=query)
    assert density.batch_shape == (2, 3)
    for q in range(3):
        joined = torch.cat([pooled, query[:, q]], -1)
        torch.testing.assert_close(density.loc[:, q], torch.sigmoid(head.location(joined))[:, 0])
        torch.testing.assert_close(density.scale[:, q].square(), softplus(head.scale(joined))[:, 0])
    single = head(values, alpha=1.5, query=query[:, 1])
    torch.testing.assert_close((single.loc, single.scale), (density.loc[:, 1], density.scale[:, 1]))


def test_pooled_head_in_space_has_the_diagonal_and_the_rest_of_a_cholesky_factor():
    head = PooledHead(2, dim=3, position_channels=False)
    values = torch.randn(2, 24, 2)
    density = head(values, alpha=2.0, grid=(2, 3, 4))
    pooled = torch.relu(head.convolution(values.mT.unflatten(-1, (2, 3, 4)))).flatten(2).amax(-1)
    numbers = head.scale(pooled)
    tril = density.scale_tril
    torch.testing.assert_close(tril.diagonal(dim1=-2, dim2=-1).square(), softplus(numbers[:, :3]))
    torch.testing.assert_close(tril[:, [1, 2, 2], [0, 0, 1]], numbers[:, 3:])
    assert (tril.triu(1) == 0).all()


@pytest.mark.parametrize("grid", [(3, 4), (2, 3, 2)])
def test_pooled_head_in_space_is_the_formula(grid):
    dim = len(grid)
    head, values = PooledHead(4, dim=dim, position_channels=False), torch.randn(2, torch.Size(grid).numel(), 4)
    pooled = torch.relu(head.convolution(values.mT.unflatten(-1, grid))).flatten(2).amax(-1)
    density, spread = head(values, alpha=1.5, grid=grid), head.scale(pooled)
    tril = torch.diag_embed(softplus(spread[:, :dim]).sqrt())
    places = [(i, j) for i in range(dim) for j in range(i)]
    for entry, (i, j) in enumerate(places):
        tril[:, i, j] = spread[:, dim + entry]
    torch.testing.assert_close(density.loc, torch.sigmoid(head.location(pooled)))
    torch.testing.assert_close(density.scale_matrix, tril @ tril.mT)


@pytest.mark.parametrize("alpha", [1.0, 4 / 3, 2.0])
@pytest.mark.parametrize("queries", [None, 3])
def test_combined_attention_is_the_sum_of_both(alpha, queries):
    discrete = DiscreteAttention(4, query_dim=2)
    attend = CombinedAttention(discrete, line(), alpha=alpha)
    values = torch.randn(2, 9, 4)
    query = torch.randn(2, 2) if queries is None else torch.randn(2, queries, 2)
    context, (weights, density) = attend(values, query)
    first, expected_weights = discrete(values, query)
    torch.testing.assert_close(weights, expected_weights)
    mean, variance = contmax.maps.moments(weights, (torch.arange(9) + 0.5) / 9)
    torch.testing.assert_close((density.mean, density.variance), (mean, variance), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(context, first + contmax.continuous_attention(values, density, line()))
    assert list(attend.parameters()) == list(discrete.parameters())
    same, other = ContinuousAttention(line(), alpha=alpha, head=MomentHead(discrete))(values, query=query)
    torch.testing.assert_close((same, other.scale), (context - first, density.scale), rtol=1e-4, atol=1e-5)


def test_matching_of_the_paper_takes_the_variance_for_the_shape():
    discrete, values = DiscreteAttention(4), torch.randn(2, 9, 4)
    for attend in (
        lambda v: CombinedAttention(discrete, line(), matching="paper")(v)[1][1],
        lambda v: MomentHead(discrete, matching="paper")(v, alpha=2.0),
    ):
        density = attend(values)
        _, variance = contmax.maps.moments(discrete(values)[1], (torch.arange(9) + 0.5) / 9)
        torch.testing.assert_close(density.scale.square(), variance)
        assert not torch.allclose(density.variance, variance, rtol=0.1)
    gaussian = CombinedAttention(discrete, line(), alpha=1.0, matching="paper")(values)[0]
    torch.testing.assert_close(gaussian, CombinedAttention(discrete, line(), alpha=1.0)(values)[0])


@pytest.mark.parametrize("kind", ["pooled", "moments", "gates", "combined", "combined gates"])
def test_masked_sequences_equal_short_ones_and_nothing_gives_zeros(kind):
    make = {
        "pooled": lambda: ContinuousAttention(line(), head=PooledHead(4, query_dim=2)),
        "moments": lambda: ContinuousAttention(line(), head=MomentHead(DiscreteAttention(4, query_dim=2))),
        "gates": lambda: ContinuousAttention(line(), embed_dim=4, query_dim=2),
        "combined": lambda: CombinedAttention(DiscreteAttention(4, query_dim=2), line()),
        "combined gates": lambda: CombinedAttention(None, line(), head=GateHead(4, query_dim=2)),
    }
    attend = make[kind]().double().eval()
    values = torch.randn(3, 9, 4, dtype=F64, requires_grad=True)
    mask = torch.arange(9) < torch.tensor([[9], [5], [0]])
    for query in (torch.randn(3, 2, dtype=F64), torch.randn(3, 6, 2, dtype=F64)):
        query.requires_grad_()
        context, _ = attend(values, query=query, mask=mask)
        torch.testing.assert_close(context[1:2], attend(values[1:2, :5], query=query[1:2])[0])
        assert (context[2] == 0).all()
        gradients = torch.autograd.grad(context.square().sum(), (values, query, *attend.parameters()))
        assert all(g.isfinite().all() for g in gradients)
        assert (gradients[0][2] == 0).all()
        assert (gradients[0][1, 5:] == 0).all()
        assert (gradients[1][2] == 0).all()
        assert (gradients[1][1] != 0).any()
    shared = attend(values, query=query, mask=mask[1])[0]
    torch.testing.assert_close(shared[1], context[1])


@pytest.mark.parametrize("combined", [False, True])
def test_positions_of_a_call_take_the_place_of_the_grid_of_the_module(combined):
    basis, discrete = MultivariateGaussianBasis.grid(3, 0.2).double(), DiscreteAttention(4).double()

    def make(**options):
        if combined:
            return CombinedAttention(discrete, basis, **options)
        return ContinuousAttention(basis, head=MomentHead(discrete, dim=2), **options)

    values, positions = torch.randn(2, 12, 4, dtype=F64), torch.rand(2, 12, 2, dtype=F64)
    expected = make()(values, positions=positions)[0]
    attend = make(grid=(3, 4))
    torch.testing.assert_close(attend(values, positions=positions)[0], expected)
    assert not torch.allclose(attend(values)[0], expected)


def test_positions_irregular_and_of_another_range():
    basis = GaussianBasis.linspace(20, 0.6, low=0.0, high=10.0)
    t = torch.rand(2, 60).sort(-1).values * 10
    values = torch.stack([t, torch.ones_like(t)], -1)
    loc = torch.tensor([3.0, 7.0])
    attend = ContinuousAttention(basis, penalty=1e-6)
    context, _ = attend(values, TruncatedParabola.from_moments(loc, torch.tensor(0.3)), positions=t)
    torch.testing.assert_close(context, torch.stack([loc, torch.ones(2)], -1), rtol=0.02, atol=0.02)
    combined = CombinedAttention(DiscreteAttention(2), basis)
    _, (weights, density) = combined(values, positions=t)
    torch.testing.assert_close(density.mean, (weights * t).sum(-1))
    order = torch.randperm(60)
    torch.testing.assert_close(
        combined(values[:, order], positions=t[:, order])[0], combined(values, positions=t)[0], rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("length", [1, 2, 40])
@pytest.mark.parametrize(
    "basis", [GaussianBasis([0.5], 0.2), GaussianBasis([0.3] * 4, 0.2), line(32)], ids=["one", "same", "many"]
)
def test_short_sequences_and_small_bases(length, basis):
    values = torch.randn(2, length, 4, requires_grad=True)
    for attend in (
        ContinuousAttention(basis, head=PooledHead(4)),
        CombinedAttention(DiscreteAttention(4), basis, alpha=1.5),
    ):
        context, _ = attend(values)
        assert context.isfinite().all()
        gradients = torch.autograd.grad(context.sum(), (values, *attend.parameters()))
        assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("alpha", [1.0, 4 / 3, 1.7, 2.0, torch.tensor(1.5), torch.tensor(1.0)])
@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1e4])
@pytest.mark.parametrize("loc", [0.5, -30.0, 1e4])
def test_extreme_densities_stay_finite(alpha, scale, loc):
    attend = ContinuousAttention(line(), alpha=alpha)
    pair = (torch.full((2,), loc, requires_grad=True), torch.full((2,), scale, requires_grad=True))
    context, _ = attend(torch.randn(2, 20, 3), pair)
    assert context.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(context.sum(), pair))


@pytest.mark.parametrize("dim", [1, 2])
def test_a_masked_position_never_wins_the_pooling(dim):
    """Beside an attended position the convolution sees it, but what it makes at the masked one must not count."""
    head, grid = PooledHead(2, dim=dim, hidden_dim=1), (9,) if dim == 1 else (3, 3)
    with torch.no_grad():
        # The feature at a position is the value of the one before: the largest stands on the first masked position.
        head.convolution.weight.zero_()
        head.convolution.bias.zero_()
        head.convolution.weight[(0, 0, *(1,) * (dim - 1), 0)] = 1.0
    values = torch.zeros(1, 9, 2)
    values[0, 4, 0], values[0, 0, 0] = 5.0, 1.0
    mask = torch.arange(9) < 5
    density = head(values, alpha=2.0, mask=mask, **({} if dim == 1 else {"grid": grid}))
    expected = torch.sigmoid(head.location(torch.ones(1, 1)))
    torch.testing.assert_close(density.loc.reshape(1, dim), expected)


def test_a_saturated_head_stays_finite():
    head = PooledHead(4)
    for bias in (-200.0, 200.0):
        with torch.no_grad():
            head.location.bias.fill_(bias)
            head.scale.bias.fill_(bias)
        context, density = ContinuousAttention(line(), head=head)(torch.randn(2, 20, 4))
        assert context.isfinite().all()
        assert (density.scale > 0).all()
        context.sum().backward()
        assert all(p.grad.isfinite().all() for p in head.parameters())


def test_a_bad_row_does_not_spoil_the_others():
    attend, values = ContinuousAttention(line()), torch.randn(3, 20, 4)
    loc, scale = torch.rand(3), torch.full((3,), 0.1)
    expected = attend(values, (loc, scale))[0]
    values[1, 3], loc[2] = torch.nan, torch.nan
    context = attend(values, (loc, scale))[0]
    torch.testing.assert_close(context[0], expected[0])
    assert context[1:].isnan().all()


class Silent(torch.nn.Module):
    """A head that says nothing."""

    def forward(self, values, **context):
        return None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda v: ContinuousAttention(line())(v), ValueError, "No density was given and the module has no head"),
        (lambda v: ContinuousAttention(line(), head=Silent())(v), TypeError, "A head must return a density"),
        (
            lambda v: ContinuousAttention(line(), head=PooledHead(4))(v, query=torch.randn(2, 3)),
            ValueError,
            "got a query",
        ),
        (lambda v: ContinuousAttention(line(), head=PooledHead(4, query_dim=3))(v), ValueError, "got no query"),
        (
            lambda v: ContinuousAttention(line(), head=PooledHead(4, query_dim=3))(v, query=torch.randn(2, 5)),
            ValueError,
            "query must have shape",
        ),
        (lambda v: ContinuousAttention(line(), head=PooledHead(5))(v), ValueError, "values must have shape"),
        (lambda v: ContinuousAttention(line(), head=PooledHead(4, dim=2))(v), ValueError, "needs a grid of 2 sizes"),
        (lambda v: PooledHead(4, dim=4), ValueError, "dim must be 1, 2 or 3"),
        (lambda v: PooledHead(4, kernel_size=2), ValueError, "kernel_size must be odd"),
        (lambda v: ContinuousAttention(line())(v, (torch.rand(3), torch.rand(3))), ValueError, "does not fit a signal"),
        (
            lambda v: ContinuousAttention(line(), penalty=0.0)(v, (torch.rand(2), torch.rand(2))),
            ValueError,
            "linearly dependent",
        ),
        (
            lambda v: ContinuousAttention(MultivariateGaussianBasis.grid(3, 0.3), head=PooledHead(4))(v, grid=(2, 3)),
            ValueError,
            "needs a grid of 1 sizes",
        ),
        (lambda v: ContinuousAttention(line(), head=GateHead(4))(v[:, :0]), ValueError, "no observation: L = 0"),
        (
            lambda v: ContinuousAttention(line(), head=GateHead(4))(v[:, :0], positions=torch.zeros(2, 0)),
            ValueError,
            "no observation: L = 0",
        ),
    ],
)
def test_bad_input_says_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.randn(2, 6, 4))


@pytest.mark.graph  # with the run-time type checker of the tests it would be the one to refuse
def test_bad_types_are_refused():
    attend, values = ContinuousAttention(line()), torch.randn(2, 6, 4)
    for density in (torch.rand(2), [torch.rand(2), torch.rand(2)], (torch.rand(2),), (0.5, 0.1)):
        with pytest.raises(TypeError, match=r"a Distribution or a pair of tensors \(loc, scale\)"):
            attend(values, density)
    with pytest.raises(TypeError, match="mask must be boolean"):
        attend(values, (torch.rand(2), torch.rand(2)), mask=torch.ones(2, 6))
    discrete = DiscreteAttention(4)
    for make in (
        lambda: CombinedAttention(discrete, line(), matching="no"),
        lambda: MomentHead(discrete, matching="no"),
    ):
        with pytest.raises(ValueError, match='matching must be "exact" or "paper"'):
            make()
