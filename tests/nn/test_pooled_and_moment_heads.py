"""PooledHead, the paper's and the one that knows where; MomentHead with widths of its own."""

import pytest
import torch
from torch.nn.functional import softplus

import contmax
from contmax.basis import GaussianBasis
from contmax.nn import CombinedAttention, ContinuousAttention, DiscreteAttention, GateHead, MomentHead, PooledHead

F64 = torch.float64

# State dicts and outputs of the head as it was before it had position channels.
LINE = {
    "convolution.weight": [[[0.0, 0.22, -0.34], [-0.3, -0.16, 0.11]]],
    "convolution.bias": [-0.01],
    "location.weight": [[0.56, -0.06]],
    "location.bias": [0.19],
    "scale.weight": [[-0.21, -0.14]],
    "scale.bias": [-0.68],
}
PLANE = {
    "convolution.weight": [[[[-0.18]], [[-0.28]]]],
    "convolution.bias": [0.61],
    "location.weight": [[-0.65], [-0.46]],
    "location.bias": [-0.7, -0.94],
    "scale.weight": [[-0.58], [0.86], [0.45]],
    "scale.bias": [0.48, 0.05, -0.51],
}
ON_LINE = [[[0.5, -0.7], [0.9, -1.4], [-1.7, 0.6], [0.8, 0.6]], [[-0.3, 0.5], [-0.9, 0.8], [-0.6, -0.2], [0.2, 1.4]]]
ON_PLANE = [[[0.6, 0.3], [-0.2, -0.7], [0.9, 0.5], [-0.7, 0.9]], [[-1.2, 0.0], [-0.5, -0.3], [-1.6, 1.7], [-0.4, 0.7]]]
MASK = torch.tensor([[True, True, True, True], [True, True, True, False]])


def tensor(numbers) -> torch.Tensor:
    return torch.tensor(numbers, dtype=F64)


def state(numbers: dict) -> dict:
    return {name: tensor(entries) for name, entries in numbers.items()}


def test_the_head_of_the_paper_gives_the_density_that_it_always_gave():
    head = PooledHead(2, hidden_dim=1, query_dim=1, position_channels=False).double()
    head.load_state_dict(state(LINE))
    density = head(tensor(ON_LINE), alpha=2.0, query=tensor([[0.5], [-1.0]]), mask=MASK)
    torch.testing.assert_close(density.loc, tensor([0.704529249561, 0.594663954836]))
    torch.testing.assert_close(density.scale, tensor([0.555896522670, 0.664115931485]))
    head = PooledHead(2, dim=2, hidden_dim=1, kernel_size=1, position_channels=False).double()
    head.load_state_dict(state(PLANE))
    density = head(tensor(ON_PLANE), alpha=2.0, grid=(2, 2), mask=MASK)
    loc = [[0.223167871662, 0.209603014174], [0.224976046514, 0.210824948512]]
    tril = [[[0.830045731713, 0.0], [-0.1311, 1.073925507496]], [[0.832830887012, 0.0], [-0.1383, 1.069541479433]]]
    torch.testing.assert_close((density.loc, density.scale_tril), (tensor(loc), tensor(tril)))


@pytest.mark.parametrize("grid", [None, (4, 5), (2, 5, 2)])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, torch.tensor(1.3)])
@pytest.mark.parametrize(
    "options", [{}, {"init_half_width": 0.07}, {"init_half_width": 3.0, "position_channels": False}]
)
def test_it_begins_with_the_half_width_that_was_asked_for(grid, alpha, options):
    dim = 1 if grid is None else len(grid)
    density = PooledHead(4, dim=dim, **options)(torch.randn(3, 20, 4), alpha=alpha, grid=grid)
    expected = torch.full_like(density.mean, options.get("init_half_width", 0.2))
    torch.testing.assert_close(density.variance, expected.square() / (dim + 4), rtol=0.01, atol=0)
    if dim == 1 and not isinstance(alpha, torch.Tensor) and alpha == 2.0:
        torch.testing.assert_close(density.half_width, expected, rtol=0.01, atol=0)


def test_position_channels_are_the_formula():
    head = PooledHead(4, hidden_dim=5).double()
    torch.nn.init.normal_(head.scale.weight)
    values, t = torch.randn(2, 9, 4, dtype=F64), torch.rand(2, 9, dtype=F64)
    # Shares of the interval that the cells of the positions cover.
    cell = (t.amax(-1) - t.amin(-1)) / 8
    low, size = t.amin(-1) - cell / 2, 9 * cell
    shares = (t - low[:, None]) / size[:, None]
    pooled = torch.relu(head.convolution(torch.cat([values, shares[..., None]], -1).mT)).amax(-1)
    density = head(values, alpha=2.0, positions=t)
    torch.testing.assert_close(density.loc, low + size * torch.sigmoid(head.location(pooled))[:, 0])
    torch.testing.assert_close(density.half_width, size * softplus(head.scale(pooled))[:, 0], rtol=0, atol=2e-4)
    moved = head(values, alpha=2.0, positions=t.flip(-1))
    assert not torch.allclose(moved.loc, density.loc)
    plane = PooledHead(4, dim=2, hidden_dim=5).double()
    axes = torch.meshgrid(tensor([1 / 6, 0.5, 5 / 6]), tensor([1 / 6, 0.5, 5 / 6]), indexing="ij")
    channels = torch.cat([values.mT.unflatten(-1, (3, 3)), torch.stack(axes).expand(2, 2, 3, 3)], 1)
    pooled = torch.relu(plane.convolution(channels)).flatten(2).amax(-1)
    torch.testing.assert_close(plane(values, alpha=2.0, grid=(3, 3)).loc, torch.sigmoid(plane.location(pooled)))


def test_position_channels_know_where_behind_an_encoder_that_does_not():
    """The same bump elsewhere: with position channels another summary, without them the same one."""
    bump = torch.zeros(2, 40, 1)
    bump[0, 5:9], bump[1, 28:32] = 1.0, 1.0
    for channels, knows in ((True, True), (False, False)):
        loc = PooledHead(1, hidden_dim=8, position_channels=channels)(bump, alpha=2.0).loc
        assert torch.isclose(loc[0], loc[1], atol=1e-6).item() is not knows


def test_a_start_outlives_empty_tensors():
    head = PooledHead(4, dim=2, init_half_width=0.1).to_empty(device="cpu")
    for module in head.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    density = head(torch.randn(2, 12, 4), alpha=2.0, grid=(3, 4))
    torch.testing.assert_close(density.variance, torch.full((2, 2), 0.01 / 6), rtol=0.01, atol=0)


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("number", [-200.0, 200.0, 1e4])
def test_saturated_heads_stay_finite(dim, number):
    head = PooledHead(4, dim=dim)
    with torch.no_grad():
        head.location.bias.fill_(number)
        head.scale.bias.fill_(number)
        head.scale.bias[-1] = abs(number)
    density = head(torch.randn(2, 20, 4), alpha=2.0, grid=None if dim == 1 else (4, 5))
    total = density.mean.sum() + density.variance.sum()
    assert total.isfinite()
    assert (density.variance > 0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(total, tuple(head.parameters())))


@pytest.mark.parametrize("grid", [None, (4, 5)])
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_moments_are_widened_by_a_factor_and_a_least_half_width(grid, alpha):
    dim, values = 1 if grid is None else 2, torch.randn(2, 20, 4, dtype=F64)
    discrete = DiscreteAttention(4).double()
    plain = MomentHead(discrete, dim=dim)(values, alpha=alpha, grid=grid)
    wide = MomentHead(discrete, dim=dim, width_factor=1.5, least_half_width=0.3)(values, alpha=alpha, grid=grid)
    torch.testing.assert_close(wide.mean, plain.mean)
    if dim == 1:
        torch.testing.assert_close(wide.variance, 2.25 * plain.variance + 0.09 / 5)
        if alpha == 2.0:
            torch.testing.assert_close(wide.half_width.square(), 2.25 * plain.half_width.square() + 0.09)
    else:
        expected = 2.25 * plain.covariance_matrix + 0.09 / 6 * torch.eye(2, dtype=F64)
        torch.testing.assert_close(wide.covariance_matrix, expected)


def test_a_head_hands_out_its_discrete_weights_and_context():
    discrete, values, query = DiscreteAttention(4, 3), torch.randn(2, 20, 4), torch.randn(2, 5, 3)
    place = MomentHead(discrete).attend(values, alpha=2.0, query=query)
    torch.testing.assert_close((place.context, place.weights), discrete(values, query))
    basis = GaussianBasis.linspace(12, 0.1)
    one = CombinedAttention(None, basis, head=MomentHead(discrete))(values, query)
    other = CombinedAttention(discrete, basis)(values, query)
    torch.testing.assert_close((one[0], one[1][0]), (other[0], other[1][0]))


def test_a_discrete_attention_beside_a_head():
    discrete, head, basis = DiscreteAttention(4), GateHead(4), GaussianBasis.linspace(12, 0.1)
    attend, values, keys = (
        CombinedAttention(discrete, basis, head=head).eval(),
        torch.randn(2, 20, 4),
        torch.randn(2, 20, 4),
    )
    context, (weights, density) = attend(values)
    torch.testing.assert_close(weights, discrete(values)[1])
    continuous = ContinuousAttention(basis, head=head).eval()(values)
    torch.testing.assert_close(context, discrete(values)[0] + continuous[0])
    torch.testing.assert_close(density.mean, continuous[1].mean)
    context, (weights, density) = attend(values, keys=keys)
    torch.testing.assert_close(weights, discrete(keys)[1])
    expected = (weights[:, None] @ values)[:, 0] + contmax.continuous_attention(values, density, basis)
    torch.testing.assert_close(context, expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PooledHead(4, init_half_width=0.0), "init_half_width must be positive"),
        (lambda: MomentHead(DiscreteAttention(4), width_factor=0.0), "width_factor must be positive"),
        (lambda: MomentHead(DiscreteAttention(4), least_half_width=-1.0), "least_half_width must not be negative"),
    ],
)
def test_bad_input_says_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_positions_along_one_axis_of_the_plane_have_square_cells():
    where = torch.stack([torch.linspace(0.0, 3.0, 10), torch.full((10,), 5.0)], -1)
    density = MomentHead(DiscreteAttention(2), dim=2)(torch.randn(1, 10, 2), alpha=1.0, positions=where)
    side = 3 / (10**0.5 - 1)
    torch.testing.assert_close(density.covariance_matrix[0, 1, 1], torch.tensor(side**2 / 12))
