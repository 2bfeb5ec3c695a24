"""WindowHead: a density for each window of the domain, mixed."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.nn import CombinedAttention, ContinuousAttention, DiscreteAttention, MomentHead, WindowHead

F64 = torch.float64


class Given(torch.nn.Module):
    """A discrete attention with weights that are given."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def forward(self, values, query=None, *, mask=None):
        weights = self.weights if mask is None else self.weights * mask
        return torch.einsum("b...l,bld->b...d", weights, values), weights


def two_peaks(side=14):
    """Half of the attention at the upper left, half at the lower right, on a grid."""
    weights = torch.zeros(1, side, side, dtype=F64)
    weights[0, 1:4, 1:4] = weights[0, -4:-1, -4:-1] = 1 / 18
    return weights.flatten(1)


def test_two_objects_are_covered_and_not_what_lies_between_them():
    values, grid = torch.zeros(1, 196, 2, dtype=F64), (14, 14)
    points = torch.tensor([[2.5, 2.5], [11.5, 11.5], [7.0, 7.0]], dtype=F64).unsqueeze(1) / 14
    one = MomentHead(Given(two_peaks()), dim=2)(values, alpha=2.0, grid=grid)
    assert one.log_prob(points).argmax() == 2
    several = WindowHead(Given(two_peaks()), windows=4, dim=2)(values, alpha=2.0, grid=grid)
    # Windows without attention have no part in it: what lies between the objects is outside the support.
    assert several.log_prob(points).exp().squeeze(1).tolist()[2] == 0
    assert (several.log_prob(points[:2]) > 1).all()
    assert (several.mixture_distribution.probs > 0).sum() == 8


@pytest.mark.parametrize(("grid", "windows"), [(None, 5), ((40,), 2), ((5, 8), 3), ((2, 5, 4), 2)])
@pytest.mark.parametrize("queries", [(), (3,)])
def test_the_mixture_has_the_moments_of_the_weights(grid, windows, queries):
    dim = 1 if grid is None else len(grid)
    weights = torch.randn(2, *queries, 40, dtype=F64).mul(3).softmax(-1)
    values = torch.zeros(2, 40, 3, dtype=F64)
    density = WindowHead(Given(weights), windows=windows, dim=dim)(values, alpha=1.0, grid=grid)
    assert density.batch_shape == (2, *queries)
    shares, parts = density.mixture_distribution.probs, density.component_distribution
    assert shares.shape == (2, *queries, windows**dim)
    torch.testing.assert_close(shares.sum(-1), torch.ones_like(shares[..., 0]))
    where = (torch.arange(40, dtype=F64) + 0.5) / 40
    if grid is not None:
        where = torch.cartesian_prod(*((torch.arange(n, dtype=F64) + 0.5) / n for n in grid)).reshape(40, dim)
    mean = weights @ where
    torch.testing.assert_close(density.mean.reshape(mean.shape), mean)
    # Law of total variance, along the first axis; a cell has a spread of its own.
    first = where if grid is None else where[:, 0]
    variance = weights @ first**2 - (weights @ first) ** 2 + 1 / (12 * (40 if grid is None else grid[0]) ** 2)
    means = parts.mean if parts.mean.shape == shares.shape else parts.mean[..., 0]
    spreads = parts.variance if parts.variance.shape == shares.shape else parts.covariance_matrix[..., 0, 0]
    found = (shares * (spreads + means**2)).sum(-1) - (shares * means).sum(-1) ** 2
    torch.testing.assert_close(found, variance)


def test_positions_mask_and_nothing_to_attend():
    values = torch.randn(3, 6, 2, dtype=F64, requires_grad=True)
    mask = torch.tensor([[True] * 6, [True, True, False, False, False, False], [False] * 6])
    attend = ContinuousAttention(
        GaussianBasis.linspace(8, scale=0.2), alpha=2.0, head=WindowHead(DiscreteAttention(2, alpha=2.0), windows=3)
    ).double()
    positions = torch.rand(3, 6, dtype=F64).sort(-1).values * 2 - 0.5
    for where in (None, positions, positions[0]):
        context, density = attend(values, positions=where, mask=mask)
        assert context.isfinite().all()
        assert (context[2] == 0).all()
        assert density.mixture_distribution.probs.isfinite().all()
        gradient = torch.autograd.grad(context.square().sum(), values)[0]
        assert gradient.isfinite().all()
        assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (2.0, -0.5), (3600.0, 1e4), (1e-3, -5.0)])
def test_windows_divide_the_box_of_the_positions(dim, scale, shift):
    """Wherever the positions lie, every window has its share, and the mixture has the mean of the weights."""
    where = scale * torch.rand(2, 40, dim, dtype=F64) + shift
    mask = torch.arange(40) < torch.tensor([[40], [25]])
    weights = torch.randn(2, 40, dtype=F64).masked_fill(~mask, -torch.inf).softmax(-1)
    head = WindowHead(Given(weights), windows=3, dim=dim)
    positions = torch.where(mask[..., None], where, torch.nan).reshape(2, 40, *[dim] * (dim > 1))
    density = head(torch.zeros(2, 40, 2, dtype=F64), alpha=1.0, positions=positions, mask=mask)
    shares = density.mixture_distribution.probs
    assert (shares > 0).all()
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, dtype=F64))
    torch.testing.assert_close(density.mean.reshape(2, dim), (weights[..., None] * where).sum(1))
    unit = WindowHead(Given(weights), windows=3, dim=dim)(
        torch.zeros(2, 40, 2, dtype=F64), alpha=1.0, positions=(positions - shift) / scale, mask=mask
    )
    torch.testing.assert_close(shares, unit.mixture_distribution.probs)


@pytest.mark.parametrize(("alpha", "discrete_alpha"), [(1.0, 2.0), (2.0, 1.0)])
def test_gradients(alpha, discrete_alpha):
    torch.manual_seed(0)
    basis = MultivariateGaussianBasis.grid(3, scale=0.3).double()
    head = WindowHead(DiscreteAttention(2, alpha=discrete_alpha).double(), windows=2, dim=2)
    attend = ContinuousAttention(basis, alpha=alpha, head=head, grid=(3, 3))
    assert torch.autograd.gradcheck(lambda v: attend(v)[0], torch.randn(1, 9, 2, dtype=F64, requires_grad=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [0.0, 1.0, 300.0])
def test_hostile_scores_in_every_precision(dtype, size):
    values = (size * torch.randn(4, 30, 2)).to(dtype).requires_grad_()
    attend = ContinuousAttention(
        GaussianBasis.linspace(8, scale=0.2), head=WindowHead(DiscreteAttention(2, alpha=1.0), windows=6)
    ).to(dtype)
    context, _ = attend(values)
    context.float().sum().backward()
    assert context.dtype == dtype
    assert context.isfinite().all()
    assert values.grad.isfinite().all()


def test_learned_alpha_and_the_combined_attention():
    values, query = torch.randn(2, 20, 4), torch.randn(2, 3, 5)
    head = WindowHead(DiscreteAttention(4, query_dim=5), windows=3)
    basis = GaussianBasis.linspace(8, scale=0.2)
    attend = CombinedAttention(None, basis, head=head, alpha=1.5, learnable=True)
    context, (weights, density) = attend(values, query)
    assert (context.shape, weights.shape, density.batch_shape) == ((2, 3, 4), (2, 3, 20), (2, 3))
    context.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in attend.parameters())
    torch.testing.assert_close(
        context, contmax.continuous_attention(values, density, basis) + weights @ values, rtol=1e-4, atol=1e-5
    )


def test_a_grid_with_one_axis_is_the_line():
    values = torch.randn(2, 10, 3)
    for head in (MomentHead(DiscreteAttention(3)), WindowHead(DiscreteAttention(3), windows=3)):
        density, same = head(values, alpha=1.0, grid=(10,)), head(values, alpha=1.0)
        assert density.batch_shape == (2,)
        torch.testing.assert_close(density.mean, same.mean)


def test_one_window_is_a_moment_head():
    with pytest.raises(ValueError, match=r"at least 2 along each axis; got 1\. For one window use MomentHead"):
        WindowHead(DiscreteAttention(2), windows=1)
