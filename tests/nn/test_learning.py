"""Models with continuous attention learn: to find a burst in noise, to choose α, to locate and to copy."""

import torch
from torch.nn.functional import mse_loss

from contmax.basis import GaussianBasis
from contmax.nn import ContinuousAttention, DiscreteAttention, MomentHead, MultiheadContinuousAttention

LENGTH = 64


def bursts(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a burst at a random place: values (B, L, 2) and the place (B,)."""
    place = 0.1 + 0.8 * torch.rand(count)
    t = (torch.arange(LENGTH) + 0.5) / LENGTH
    shape = torch.exp(-0.5 * ((t - place[:, None]) / 0.04).square())
    return torch.stack([2 * shape, torch.zeros_like(shape)], -1) + 0.3 * torch.randn(count, LENGTH, 2), place


class Finder(torch.nn.Module):
    """Attend to the values with time as one more channel, and say what the context says."""

    def __init__(self, alpha):
        super().__init__()
        head = MomentHead(DiscreteAttention(3, hidden_dim=16))
        self.attend = ContinuousAttention(GaussianBasis.linspace(32, 0.04), alpha=alpha, head=head)
        self.readout = torch.nn.Linear(3, 1)

    def forward(self, values):
        t = ((torch.arange(LENGTH) + 0.5) / LENGTH).expand(len(values), LENGTH)
        context, density = self.attend(torch.cat([values, t[..., None]], -1))
        return self.readout(context)[:, 0], density


def train(model, batch, loss, steps, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, *batch(64)).backward()
        optimizer.step()


def test_a_model_finds_a_burst_and_reports_it_inside_its_support():
    model = Finder(2.0)
    train(model, bursts, lambda m, x, place: mse_loss(m(x)[0], place), steps=200, lr=0.02)
    values, place = bursts(500)
    with torch.no_grad():
        said, density = model(values)
    assert (said - place).abs().mean() < 0.03
    inside = (place - density.mean).abs() < density.half_width
    assert inside.float().mean() > 0.95
    # To look everywhere would not be to report a place.
    assert density.half_width.median() < 0.25


def test_a_learned_alpha_moves_and_stays_finite():
    alpha = torch.nn.Parameter(torch.tensor(1.5))
    model = Finder(alpha)
    train(model, bursts, lambda m, x, place: mse_loss(m(x)[0], place), steps=40, lr=0.02)
    assert alpha.isfinite()
    assert abs(alpha.item() - 1.5) > 1e-3
    assert all(p.isfinite().all() for p in model.parameters())


def marked(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two bumps, each with a mark and a content: values (B, L, 4), queries for the marks, the contents asked for."""
    centre = torch.stack([0.1 + 0.3 * torch.rand(count), 0.6 + 0.3 * torch.rand(count)], -1)
    swap = torch.rand(count) < 0.5
    centre = torch.where(swap[:, None], centre.flip(-1), centre)
    t = (torch.arange(LENGTH) + 0.5) / LENGTH
    bump = torch.exp(-0.5 * ((t - centre[..., None]) / 0.06).square())
    content = torch.randn(count, 2, 2)
    values = torch.cat([bump.mT, torch.einsum("bml,bmd->bld", bump, content)], -1)
    queries = torch.cat([torch.eye(2), torch.zeros(2, 2)], -1).expand(count, 2, 4)
    return values + 0.02 * torch.randn_like(values), queries, content


def test_many_heads_copy_what_is_asked_for():
    attend = MultiheadContinuousAttention(4, 2, GaussianBasis.linspace(24, 0.05), kdim=16)
    readout = torch.nn.Linear(4, 2)
    model = torch.nn.ModuleList([attend, readout])

    def loss(model, values, queries, content):
        return mse_loss(model[1](model[0](queries, values)[0]), content)

    with torch.no_grad():
        before = loss(model, *marked(500))
    train(model, marked, loss, steps=300, lr=0.02)
    with torch.no_grad():
        after = loss(model, *marked(500))
    assert after < 0.2 * before
