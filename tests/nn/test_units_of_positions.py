"""Attention to positions in any unit: contexts, places and gradients are those on [0, 1]."""

import functools

import pytest
import torch

from contmax import nn
from contmax.basis import GaussianBasis, MultivariateGaussianBasis

F64 = torch.float64
UNITS = [(1e-6, 0.0), (1e-6, -3e-6), (3600.0, 0.0), (86400.0, 7 * 86400.0), (1e9, 0.0), (1e9, -2e9)]
LENGTHS = [40, 23, 2, 1, 0]
D = 4


def line(low, high, dtype):
    centres = torch.linspace(low, high, 12, dtype=dtype)
    return GaussianBasis(centres, 0.8 * (centres[1] - centres[0]))


def box(low, high, dtype, dim):
    ends = torch.tensor([low, high], dtype=dtype)
    corners = torch.cartesian_prod(*[ends] * dim)
    return MultivariateGaussianBasis.spanning(corners, 4)


HEADS = {
    "gates": lambda dim: nn.GateHead(D, dim=dim),
    "moments": lambda dim: nn.MomentHead(nn.DiscreteAttention(D), dim=dim),
    "windows": lambda dim: nn.WindowHead(nn.DiscreteAttention(D), dim=dim),
    "pooled": lambda dim: nn.PooledHead(D),
    "pooled, of the paper": lambda dim: nn.PooledHead(D, position_channels=False),
}
MODULES = {
    **{
        name: lambda basis, head=head: nn.ContinuousAttention(basis, head=head(basis.event_dim))
        for name, head in HEADS.items()
    },
    "gates, alpha 1": lambda basis: nn.ContinuousAttention(basis, embed_dim=D, alpha=1.0),
    "gates, alpha 1.5": lambda basis: nn.ContinuousAttention(basis, embed_dim=D, alpha=1.5),
    "pooled of the paper, alpha learned": lambda basis: nn.ContinuousAttention(
        basis, head=nn.PooledHead(D, position_channels=False), alpha=1.4, learnable=True
    ),
    "combined": lambda basis: nn.CombinedAttention(nn.DiscreteAttention(D), basis),
    "combined, as the paper has it": lambda basis: nn.CombinedAttention(
        nn.DiscreteAttention(D), basis, alpha=1.0, matching="paper"
    ),
    "combined gates": lambda basis: nn.CombinedAttention(None, basis, head=nn.GateHead(D, dim=basis.event_dim)),
    "multihead": lambda basis: Asked(nn.MultiheadContinuousAttention(D, 2, basis)),
    "multihead, two components": lambda basis: Asked(nn.MultiheadContinuousAttention(D, 2, basis, num_components=2)),
}


class Asked(torch.nn.Module):
    """A multi-head attention, asked by the first values."""

    def __init__(self, attend):
        super().__init__()
        self.attend = attend

    def forward(self, values, **where):
        return self.attend(
            torch.linspace(-1, 1, 3 * D, dtype=values.dtype).view(1, 3, D).expand(5, -1, -1), values, **where
        )


def attended(name, unit, begin, dtype, dim=1):
    """Contexts, gradients of parameters, values and (in the unit of [0, 1]) positions."""
    torch.manual_seed(0)
    basis = line(begin, begin + unit, dtype) if dim == 1 else box(begin, begin + unit, dtype, dim)
    attend = MODULES[name](basis).to(dtype).eval()
    for parameter in attend.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    values = torch.randn(5, 40, D, dtype=dtype, requires_grad=True)
    u = torch.rand(5, 40, *([dim] if dim > 1 else []), dtype=torch.float32).to(dtype)
    mask = torch.arange(40) < torch.tensor(LENGTHS)[:, None]
    positions = (begin + unit * u).requires_grad_()
    context, _ = attend(values, positions=positions, mask=mask)
    chosen = [p for p in attend.parameters() if p.requires_grad]
    by_values, by_positions, *rest = torch.autograd.grad(
        context.square().sum(), (values, positions, *chosen), allow_unused=True
    )
    rest = [torch.zeros_like(p) if g is None else g for p, g in zip(chosen, rest, strict=True)]
    return context.detach(), by_values, unit * by_positions, *rest


@functools.cache
def in_the_unit_interval(name, dtype, dim=1):
    """The same on [0, 1], computed once for all units."""
    return attended(name, 1.0, 0.0, dtype, dim)


@pytest.mark.parametrize(("unit", "begin"), UNITS)
@pytest.mark.parametrize("name", MODULES)
def test_the_unit_of_a_line_does_not_matter(name, unit, begin):
    expected = in_the_unit_interval(name, F64)
    assert expected[0].abs().amax() > 0.01
    torch.testing.assert_close(attended(name, unit, begin, F64), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("unit", "begin"), UNITS)
@pytest.mark.parametrize("name", MODULES)
def test_the_unit_of_a_line_does_not_matter_in_float32(name, unit, begin):
    expected = in_the_unit_interval(name, torch.float32)
    torch.testing.assert_close(attended(name, unit, begin, torch.float32), expected, rtol=1e-2, atol=5e-3)


# In space those that do not begin at 0, which are the harder ones.
@pytest.mark.parametrize(
    ("dim", "unit", "begin"), [(2, *unit) for unit in UNITS] + [(3, *unit) for unit in UNITS[1::2]]
)
@pytest.mark.parametrize("name", [n for n in MODULES if "pooled" not in n])
def test_the_unit_of_plane_and_space_does_not_matter(name, dim, unit, begin):
    expected = in_the_unit_interval(name, F64, dim)
    torch.testing.assert_close(attended(name, unit, begin, F64, dim), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_unix_times_in_float64_keep_their_differences_in_a_model_of_float32(name):
    torch.manual_seed(0)
    seconds = 3600 * torch.rand(2, 50, dtype=F64)
    contexts = []
    for begin in (0.0, 1.7e9):
        torch.manual_seed(1)
        attend = MODULES[name](GaussianBasis.spanning(begin + seconds, 16)).eval()
        values = torch.linspace(-1, 1, 2 * 50 * D).view(2, 50, D).sin().repeat(3, 1, 1)[:5]
        where = (begin + seconds).repeat(3, 1)[:5]
        contexts.append(attend(values, positions=where)[0])
    assert contexts[0].dtype == torch.float32
    torch.testing.assert_close(*contexts, rtol=1e-4, atol=1e-4)


def learned(unit, begin):
    """Losses and the share of right answers of the guide's five lines, where a bump has to be found by its sign."""
    torch.manual_seed(0)
    u = torch.rand(128, 40, dtype=F64).sort(-1).values
    place, label = 0.15 + 0.7 * torch.rand(128, 1, dtype=F64), torch.randint(2, (128,))
    bump = torch.exp(-0.5 * ((u - place) / 0.06) ** 2).float()
    values = torch.stack([bump, bump * (2 * label - 1)[:, None], torch.ones(128, 40)], -1)
    values = values + 0.3 * torch.randn(128, 40, 3)
    times = begin + unit * u
    times = times if begin else times.float()
    basis = GaussianBasis.spanning(times, 24)
    attend, decide = nn.ContinuousAttention(basis, embed_dim=3), torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam([*attend.parameters(), *decide.parameters()], lr=0.05)
    losses = []
    for _ in range(50):
        context, _ = attend(values, positions=times)
        loss = torch.nn.functional.cross_entropy(decide(context), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        right = (decide(attend.eval()(values, positions=times)[0]).argmax(-1) == label).float().mean()
    return torch.tensor(losses), right.item()


def test_times_in_seconds_are_learned_from_as_those_in_the_unit_interval():
    losses, right = learned(1.0, 0.0)
    assert right > 0.9
    for unit, begin in ((3600.0, 0.0), (86400.0, 0.0), (86400.0, 1.7e9)):
        there, found = learned(unit, begin)
        torch.testing.assert_close(there, losses, rtol=0.02, atol=0.02)
        assert found > 0.9
