"""GateHead: supports of known gates, symmetries, masks, positions, queries, hostile input."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.nn import CombinedAttention, ContinuousAttention, GateHead, PooledHead

F64 = torch.float64


def reading_gates(dim: int = 1, channels: int = 1, **options) -> GateHead:
    """A head whose gates are open (σ(300)) where the first channel is 1 and shut (σ(−300)) where it is −1."""
    head = GateHead(channels, dim=dim, hidden_dim=1, **options).double().eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.key.weight[0, 0], head.energy.weight[0, 0] = 20.0, 300.0
    return head


def gates(open_ones: torch.Tensor) -> torch.Tensor:
    """Values (B, L, 1) that say which gates are open."""
    return (2.0 * open_ones.double() - 1).unsqueeze(-1)


def scale_of(density) -> torch.Tensor:
    return density.scale if isinstance(density, BetaGaussian) else density.scale_matrix


def assert_same_density(one, other, **tolerances) -> None:
    torch.testing.assert_close((one.mean, scale_of(one)), (other.mean, scale_of(other)), **tolerances)


def test_five_lines_from_values_to_context():
    basis = GaussianBasis.linspace(32, scale=(0.1, 0.5))
    attend = ContinuousAttention(basis, embed_dim=16)
    context, density = attend(torch.randn(2, 50, 16))
    assert isinstance(attend.head, GateHead)
    assert context.shape == (2, 16)
    assert ((density.half_width > 0) & (density.half_width < 1)).all()


@pytest.mark.parametrize(("first", "last"), [(0, 40), (5, 6), (12, 19), (12, 20), (39, 40)])
def test_open_gates_of_an_interval_have_the_interval_as_support(first, last):
    open_ones = (torch.arange(40) >= first) & (torch.arange(40) < last)
    density = reading_gates()(gates(open_ones[None]), alpha=2.0)
    ends = torch.tensor([first / 40, last / 40], dtype=F64)
    torch.testing.assert_close(
        torch.stack([density.mean - density.half_width, density.mean + density.half_width])[:, 0], ends
    )
    wider = reading_gates(least_half_width=0.05)(gates(open_ones[None]), alpha=2.0)
    torch.testing.assert_close(wider.half_width[0], torch.hypot((ends[1] - ends[0]) / 2, torch.tensor(0.05, dtype=F64)))


@pytest.mark.parametrize("dim", [2, 3])
def test_open_gates_of_an_ellipsoid_have_the_ellipsoid_as_support(dim):
    grid = (60, 40) if dim == 2 else (40, 36, 30)
    axes = [(torch.arange(n, dtype=F64) + 0.5) / n for n in grid]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, dim)
    center = torch.full((dim,), 0.45, dtype=F64)
    root = 0.3 * torch.eye(dim, dtype=F64)
    root[1, 0], root[1, 1] = 0.1, 0.2
    support = root @ root.mT
    inside = torch.linalg.solve(root, (points - center).mT).square().sum(0) <= 1
    density = reading_gates(dim)(gates(inside[None]), alpha=2.0, grid=grid)
    expected = MultivariateBetaGaussian.from_support(center[None], support[None], 2.0)
    torch.testing.assert_close(density.mean, expected.mean, rtol=0, atol=3e-3)
    torch.testing.assert_close(density.covariance_matrix, expected.covariance_matrix, rtol=0.03, atol=3e-4)
    same = reading_gates(dim)(gates(inside[None]), alpha=2.0, positions=points)
    torch.testing.assert_close(same.mean, density.mean)
    torch.testing.assert_close(same.covariance_matrix, density.covariance_matrix, rtol=0.01, atol=1e-5)
    least = reading_gates(dim, least_half_width=0.1)(gates(inside[None]), alpha=2.0, grid=grid)
    added = (dim + 4) * (least.covariance_matrix - density.covariance_matrix)
    torch.testing.assert_close(added[0], 0.01 * torch.eye(dim, dtype=F64))


@pytest.mark.parametrize(
    "alpha", [1.0, 4 / 3, 1.5, 3.0, torch.tensor(1.2, dtype=F64), torch.tensor([1.1, 2.0], dtype=F64)]
)
@pytest.mark.parametrize("dim", [1, 2])
def test_another_alpha_has_the_same_mean_and_covariance(alpha, dim):
    head, values = GateHead(4, dim=dim).double().eval(), torch.randn(2, 12, 4, dtype=F64)
    grid = None if dim == 1 else (3, 4)
    density, parabola = head(values, alpha=alpha, grid=grid), head(values, alpha=2.0, grid=grid)
    torch.testing.assert_close(density.mean, parabola.mean)
    spread = "variance" if dim == 1 else "covariance_matrix"
    torch.testing.assert_close(getattr(density, spread), getattr(parabola, spread))


@pytest.mark.parametrize("dim", [1, 2])
def test_a_gate_that_is_open_far_away_does_not_count(dim):
    """Without its factor it would widen a support of eight cells to 2.7 times its size."""
    grid = (64,) if dim == 1 else (32, 16)
    cells = torch.zeros(grid, dtype=torch.bool)
    cells[4:12] = True
    if dim == 2:
        cells[:, 8:] = False
    alone, with_far = cells.flatten(), cells.flatten().clone()
    with_far[-1] = True
    head, where = reading_gates(dim), {} if dim == 1 else {"grid": grid}
    densities = [head(gates(one[None]), alpha=2.0, **where) for one in (alone, with_far)]
    assert_same_density(*densities)
    weights = head.attend(gates(with_far[None]), alpha=2.0, **where).weights
    torch.testing.assert_close(weights[0], alone / alone.sum(dtype=F64))
    # Two places that are open alike both count.
    both = alone | alone.flip(0)
    weights = head.attend(gates(both[None]), alpha=2.0, **where).weights
    torch.testing.assert_close(weights[0], both / both.sum(dtype=F64))


@pytest.mark.parametrize("dim", [1, 2])
def test_what_counts_is_a_constant_in_derivatives(dim):
    head = GateHead(3, dim=dim).double().eval()
    t = torch.rand((2, 12) if dim == 1 else (2, 12, 2), dtype=F64)
    keys = torch.randn(2, 12, 3, dtype=F64, requires_grad=True)
    with torch.no_grad():
        head.energy.weight *= 30  # some gates are far from the others
    weights = head.attend(keys, alpha=2.0, positions=t).weights
    g = torch.sigmoid(head.energy(torch.tanh(head.key(keys)))[..., 0] - 2)
    factors = (weights / g).detach()
    assert (factors.amin(-1) < 0.9 * factors.amax(-1)).any()
    expected = factors * g / (factors * g).sum(-1, keepdim=True)
    cotangent = torch.randn_like(weights)
    torch.testing.assert_close(
        torch.autograd.grad(weights, keys, cotangent), torch.autograd.grad(expected, keys, cotangent)
    )


@pytest.mark.parametrize("dim", [2, 3])
def test_one_open_gate_has_its_cell_as_support(dim):
    grid = (4, 5, 2)[:dim]
    open_ones = torch.arange(torch.Size(grid).numel()) == 7
    density = reading_gates(dim)(gates(open_ones[None]), alpha=2.0, grid=grid)
    sides = 1 / torch.tensor(grid, dtype=F64)
    # The ellipsoid with the covariance of a uniform cell, side²/12.
    torch.testing.assert_close(density.variance[0], (dim + 2) / (dim + 4) * sides.square() / 12)


def near_others(g: torch.Tensor, t: torch.Tensor, side: float) -> torch.Tensor:
    """The weights of gates (B, L) at the centres t of cells on the line, by means over many points of each cell."""
    points = t[:, None] + side * ((torch.arange(2000, dtype=t.dtype) + 0.5) / 2000 - 0.5)
    f = torch.ones_like(g)
    for _ in range(2):
        p = f * g / (f * g).sum(-1, keepdim=True)
        mean = (p * t).sum(-1, keepdim=True)
        half_width = 2 * (p * (points - mean[..., None]).abs().mean(-1)).sum(-1, keepdim=True)
        f = (2 - (t - mean).abs() / half_width).clamp(0, 1)
    return f * g / (f * g).sum(-1, keepdim=True)


def test_weights_are_the_formula_and_give_the_context():
    head = GateHead(4, query_dim=3).eval()
    values, query = torch.randn(2, 9, 4), torch.randn(2, 5, 3)
    place = head.attend(values, alpha=2.0, query=query)
    for q in range(5):
        hidden = torch.tanh(head.key(values) + head.query(query[:, q])[:, None])
        g = torch.sigmoid(head.energy(hidden) - 2)[..., 0]
        torch.testing.assert_close(place.weights[:, q], near_others(g, (torch.arange(9) + 0.5) / 9, 1 / 9))
        one = head.attend(values, alpha=2.0, query=query[:, q])
        torch.testing.assert_close(one.weights, place.weights[:, q])
        torch.testing.assert_close(
            (one.density.mean, one.density.scale), (place.density.mean[:, q], place.density.scale[:, q])
        )
    torch.testing.assert_close(place.context, place.weights @ values)


@pytest.mark.parametrize("dim", [1, 2])
def test_shifted_and_stretched_positions_move_the_density(dim):
    head, values = GateHead(4, dim=dim).double().eval(), torch.randn(3, 20, 4, dtype=F64)
    t = torch.rand((3, 20) if dim == 1 else (3, 20, 2), dtype=F64)
    one, other = head(values, alpha=2.0, positions=t), head(values, alpha=2.0, positions=24 * t - 7)
    torch.testing.assert_close(other.mean, 24 * one.mean - 7)
    torch.testing.assert_close(other.variance, 24**2 * one.variance)
    # What is seen moves along the line: so does the support.
    if dim == 1:
        values = torch.randn(1, 8, 4, dtype=F64)
        noise = torch.full((1, 40, 4), -10.0, dtype=F64)
        with torch.no_grad():
            head.key.weight.copy_(torch.eye(4))
            head.key.bias.zero_()
            head.energy.weight.fill_(10.0)
        early, late = noise.clone(), noise.clone()
        early[:, 3:11], late[:, 25:33] = values, values
        early, late = head(early, alpha=2.0), head(late, alpha=2.0)
        torch.testing.assert_close((late.mean, late.scale), (early.mean + 22 / 40, early.scale), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("queries", [(), (5,)])
@pytest.mark.parametrize("case", ["default", "positions", "shared positions", "plane"])
def test_masked_sequences_equal_short_ones(case, queries):
    dim = 2 if case == "plane" else 1
    head = GateHead(4, dim=dim, query_dim=3).double().eval()
    values, query = torch.randn(3, 9, 4, dtype=F64), torch.randn(3, *queries, 3, dtype=F64)
    mask = torch.arange(9) < torch.tensor([[9], [5], [0]])
    shape = {"default": None, "positions": (3, 9), "shared positions": (9,), "plane": (3, 9, 2)}[case]
    t = None if shape is None else torch.rand(shape, dtype=F64)
    poisoned, at = torch.where(mask[..., None], values, torch.nan), t
    if t is not None and t.dim() > 1:
        at = torch.where(mask if t.dim() == 2 else mask[..., None], t, torch.nan)
    density, weights, context = head.attend(poisoned, alpha=2.0, query=query, mask=mask, positions=at)
    short = None if t is None else (t[:5] if t.dim() == 1 else t[1:2, :5])
    alone, *others = head.attend(values[1:2, :5], alpha=2.0, query=query[1:2], positions=short)
    torch.testing.assert_close((density.mean[1:2], scale_of(density)[1:2]), (alone.mean, scale_of(alone)))
    torch.testing.assert_close([weights[1:2, ..., :5], context[1:2]], others)
    whole = head(values[:1], alpha=2.0, query=query[:1], positions=t if t is None or t.dim() == 1 else t[:1])
    torch.testing.assert_close((density.mean[:1], scale_of(density)[:1]), (whole.mean, scale_of(whole)))
    parameters = list(head.parameters())
    found = torch.autograd.grad(context[1].sum() + density.mean[1].sum(), parameters, materialize_grads=True)
    wanted = torch.autograd.grad(others[1].sum() + alone.mean.sum(), parameters, materialize_grads=True)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("training", [False, True])
def test_nothing_to_attend_is_a_density_with_zero_context_and_gradient(training):
    attend = ContinuousAttention(GaussianBasis.linspace(12, 0.1), embed_dim=4, query_dim=3).double().train(training)
    values = torch.randn(2, 9, 4, dtype=F64, requires_grad=True)
    query = torch.randn(2, 3, dtype=F64, requires_grad=True)
    t = torch.rand(2, 9, dtype=F64, requires_grad=True)
    mask = torch.tensor([[True], [False]]).expand(2, 9)
    for positions in (None, t):
        context, density = attend(values, query=query, mask=mask, positions=positions)
        assert density.mean.isfinite().all()
        assert (density.half_width > 0).all()
        assert (context[1] == 0).all()
        total = context.sum() + density.mean.sum() + density.scale.sum()
        inputs = (values, query, *attend.parameters(), *([] if positions is None else [t]))
        gradients = torch.autograd.grad(total, inputs)
        assert all(g.isfinite().all() for g in gradients)
        assert (gradients[0][1] == 0).all()
        assert (gradients[1][1] == 0).all()
        assert (gradients[0][0] != 0).any()


def test_the_frame_rate_does_not_matter():
    head, values = GateHead(4).double().eval(), torch.randn(3, 50, 4, dtype=F64)
    one = head(values, alpha=2.0)
    twice = head(values.repeat_interleave(2, 1), alpha=2.0)
    assert ((twice.mean - one.mean).abs() < 0.01 / 50).all()
    assert ((twice.half_width - one.half_width).abs() < 0.1 / 50).all()


@pytest.mark.parametrize("dim", [1, 2])
def test_the_order_of_irregular_positions_does_not_matter(dim):
    head, values = GateHead(4, dim=dim).double().eval(), torch.randn(2, 30, 4, dtype=F64)
    t, order = torch.rand((2, 30) if dim == 1 else (2, 30, 2), dtype=F64), torch.randperm(30)
    assert_same_density(head(values[:, order], alpha=2.0, positions=t[:, order]), head(values, alpha=2.0, positions=t))


def test_a_grid_is_told_once_and_a_call_may_name_another():
    basis = MultivariateGaussianBasis.grid(4, 0.2)
    attend = ContinuousAttention(basis, embed_dim=3, grid=(4, 5)).eval()
    values = torch.randn(2, 20, 3)
    context, density = attend(values)
    torch.testing.assert_close(context, contmax.continuous_attention(values, density, basis, grid=(4, 5)))
    assert_same_density(attend(values, grid=(4, 5))[1], density)
    assert not torch.allclose(attend(values, grid=(5, 4))[1].mean, density.mean)
    rows, columns = torch.meshgrid((torch.arange(4) + 0.5) / 4, (torch.arange(5) + 0.5) / 5, indexing="ij")
    positions = torch.stack([rows, columns], -1).reshape(-1, 2)
    torch.testing.assert_close(attend(values, positions=positions)[1].mean, density.mean)


def test_keys_decide_where_and_values_say_what():
    basis, keys, values = GaussianBasis.linspace(12, 0.1), torch.randn(2, 30, 6), torch.randn(2, 30, 4)
    attend = ContinuousAttention(basis, embed_dim=6).eval()
    context, density = attend(values, keys=keys)
    assert_same_density(density, attend.head(keys, alpha=2.0))
    torch.testing.assert_close(context, contmax.continuous_attention(values, density, basis))
    combined = CombinedAttention(None, basis, head=attend.head).eval()
    mask = torch.arange(30) < torch.tensor([[30], [11]])
    both, (weights, density) = combined(values, keys=keys, mask=mask)
    place = attend.head.attend(keys, alpha=2.0, mask=mask)
    torch.testing.assert_close(weights, place.weights)
    expected = weights[:, None] @ values
    expected = expected[:, 0] + contmax.continuous_attention(values, density, basis, mask=mask)
    torch.testing.assert_close(both, expected)


def test_values_are_hidden_from_the_context_in_training_only():
    """Gates see all values; the context is that of some of them, by a share for each sequence, and right on average."""
    basis, values = line(), torch.randn(400, 30, 4)
    attend = ContinuousAttention(basis, embed_dim=4)
    with torch.no_grad():
        hidden = attend.head.hide_values(values)
        zeros = (hidden == 0).all(-1)
        shares = zeros.float().mean(-1)
        assert shares.min() < 0.1
        assert 0.7 < shares.max() <= 1
        assert abs(shares.mean() - 0.45) < 0.03  # uniform in [0, 0.9)
        ratio = (hidden / values).amax(-1)
        for row in range(3):  # one factor for a sequence
            factors = ratio[row][~zeros[row]]
            torch.testing.assert_close(factors, factors[:1].expand_as(factors))
        assert abs(ratio.mean() - 1) < 0.03
        context, density = attend(values)
        assert_same_density(density, attend.eval()(values)[1])
        exact = attend(values)[0]
        assert not torch.allclose(context, exact, atol=1e-2)
        repeated = torch.stack([attend.train()(values)[0] for _ in range(300)]).mean(0)
        assert (repeated - exact).norm() < 0.1 * (context - exact).norm()


def test_values_are_hidden_from_both_contexts_and_on_request_from_none():
    basis, values = line(), torch.randn(3, 30, 4)
    combined = CombinedAttention(None, basis, head=GateHead(4, hide=0.5))
    torch.manual_seed(0)
    context, (weights, density) = combined(values)
    torch.manual_seed(0)
    seen = combined.continuous.head.hide_values(values)
    expected = (weights.unsqueeze(1) @ seen).squeeze(1) + contmax.continuous_attention(seen, density, basis)
    torch.testing.assert_close(context, expected)
    for keys in (None, torch.randn(3, 30, 4)):
        never = ContinuousAttention(basis, head=GateHead(4, hide=0.0))
        torch.testing.assert_close(never(values, keys=keys)[0], never.eval()(values, keys=keys)[0])


def test_the_wider_the_support_the_less_hidden_values_disturb_the_context():
    """The variance of a mean under weights p is proportional to Σp²: to attend to all that matters pays in training."""
    head = GateHead(1, hide=0.9)
    values, basis, spread = torch.ones(2000, 60, 1), GaussianBasis.linspace(30, 1 / 30), []
    for half in (0.05, 0.15, 0.45):
        ends = (torch.full((2000,), 0.5 + side * half) for side in (-1, 1))
        density = contmax.densities.TruncatedParabola.from_support(*ends)
        spread.append(contmax.continuous_attention(head.hide_values(values), density, basis).std().item())
    assert spread[0] > 1.4 * spread[1] > 2 * spread[2]


@pytest.mark.parametrize("bias", [-1e30, -1e4, -100.0, 0.0, 100.0, 1e30])
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_saturated_gates_stay_finite(bias, dim, dtype):
    head = GateHead(3, dim=dim).to(dtype)
    with torch.no_grad():
        head.energy.bias.fill_(bias)
    values = torch.randn(2, 12, 3, dtype=dtype, requires_grad=True)
    for training in (True, False):
        place = head.train(training).attend(values, alpha=2.0, grid=None if dim == 1 else (3, 4))
        torch.testing.assert_close(place.weights.sum(-1), torch.ones(2, dtype=dtype))
        total = place.density.mean.sum() + scale_of(place.density).sum()
        assert total.isfinite()
        assert all(g.isfinite().all() for g in torch.autograd.grad(total, (values, *head.parameters())))


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("where", ["one", "same", "close", "far", "tiny", "huge"])
def test_degenerate_positions_stay_finite(where, dim):
    length = 1 if where == "one" else 6
    t = torch.rand((length,) if dim == 1 else (length, dim))
    t = {
        "one": t,
        "same": torch.full_like(t, 0.3),
        "close": 0.3 + 1e-7 * t,
        "far": 1e6 + t,
        "tiny": 1e-15 * t,
        "huge": 1e6 * t,
    }[where].requires_grad_()
    values = torch.randn(2, length, 4, requires_grad=True)
    head = GateHead(4, dim=dim)
    for alpha in (1.0, 2.0):
        density = head(values, alpha=alpha, positions=t)
        assert (density.variance > 0).all()
        total = density.mean.sum() + scale_of(density).sum()
        assert total.isfinite()
        assert all(g.isfinite().all() for g in torch.autograd.grad(total, (values, t, *head.parameters())))


def test_first_and_second_derivatives_in_positions_too():
    head = GateHead(3, query_dim=2, hidden_dim=2).double().eval()
    # No gate is far from the others: f, a constant in derivatives, is 1 for all.
    with torch.no_grad():
        head.energy.weight *= 0.3
    t = ((torch.arange(6) + 0.4 * torch.rand(2, 6, dtype=F64)) / 6).requires_grad_()
    values, query = torch.randn(2, 6, 3, dtype=F64, requires_grad=True), torch.randn(2, 2, 2, dtype=F64)

    def found(values, query, t):
        density = head(values, alpha=1.5, query=query, positions=t)
        return density.mean, density.half_width

    arguments = (values, query.requires_grad_(), t)
    assert torch.autograd.gradcheck(found, arguments)
    assert torch.autograd.gradgradcheck(found, arguments, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v: GateHead(4, hide=1.0), r"hide must be in \[0, 1\)"),
        (lambda v: GateHead(4, dim=0), "dim must be at least 1"),
        (lambda v: GateHead(4, least_half_width=-0.1), "least_half_width must not be negative"),
        (lambda v: GateHead(5)(v, alpha=2.0), "values must have shape"),
        (lambda v: GateHead(4, query_dim=3)(v, alpha=2.0), "got no query"),
        (lambda v: GateHead(4, dim=2)(v, alpha=2.0), "needs a grid of 2 sizes"),
        (lambda v: GateHead(4, dim=2)(v, alpha=2.0, grid=(2, 4)), "with product 6"),
        (lambda v: GateHead(4)(v, alpha=2.0, grid=(2, 3)), "make the head with dim=2"),
        (lambda v: GateHead(4)(v, alpha=2.0, positions=torch.rand(2, 6, 2)), "pass positions of shape"),
        (lambda v: GateHead(4)(v, alpha=2.0, mask=torch.ones(2, 5).bool()), "mask must have shape"),
        (lambda v: ContinuousAttention(line(), head=GateHead(4), embed_dim=4), "embed_dim and query_dim make a head"),
        (lambda v: ContinuousAttention(line(), query_dim=4), "Pass embed_dim"),
        (lambda v: ContinuousAttention(line(), embed_dim=4, grid=(2, 3)), "grid must have 1 sizes"),
        (lambda v: ContinuousAttention(line(), embed_dim=4)(v, keys=v[:, :5]), "keys must have shape"),
        (lambda v: ContinuousAttention(line())(v), "Make it with embed_dim="),
        (lambda v: CombinedAttention(None, line()), "discrete=None uses the weights of the head"),
        (lambda v: CombinedAttention(None, line(), head=PooledHead(4)), "PooledHead has none"),
        (lambda v: CombinedAttention(None, line(), head=GateHead(4), matching="paper"), "not for a head"),
    ],
)
def test_bad_input_says_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randn(2, 6, 4))


def line() -> GaussianBasis:
    return GaussianBasis.linspace(12, 0.1)


def test_vmap_over_sequences():
    attend, values = ContinuousAttention(line(), embed_dim=4).eval(), torch.randn(3, 20, 4)
    together = torch.vmap(lambda v: attend(v[None], need_density=False)[0][0])(values)
    torch.testing.assert_close(together, attend(values)[0])
    attend.train()
    random = torch.vmap(lambda v: attend(v[None], need_density=False)[0][0], randomness="different")(values)
    assert random.isfinite().all()


@pytest.mark.graph
@pytest.mark.parametrize("dim", [1, 2])
def test_compiled_in_one_graph(dim):
    torch._dynamo.reset()
    basis = line() if dim == 1 else MultivariateGaussianBasis.grid(3, 0.3)
    attend = ContinuousAttention(basis, embed_dim=4, query_dim=3, grid=None if dim == 1 else (3, 4))
    values, query = torch.randn(2, 12, 4), torch.randn(2, 3, 3)
    mask = torch.arange(12) < torch.tensor([[12], [7]])
    # Derivatives on the line are traced, and compared, in test_attention_contracts.
    compiled = torch.compile(attend, fullgraph=True, backend="eager" if dim == 1 else "aot_eager_default_partitioner")
    if dim == 1:  # what is drawn in training does not know of positions
        assert compiled(values, query=query, mask=mask, need_density=False)[0].isfinite().all()
    attend.eval()
    got = compiled(values, query=query, mask=mask, need_density=False)[0]
    torch.testing.assert_close(got, attend(values, query=query, mask=mask)[0], rtol=1e-4, atol=1e-4)
