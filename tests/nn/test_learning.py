"""Models with continuous attention learn: to find a burst in noise, to choose α, to locate and to copy."""

import torch
from torch.nn.functional import cross_entropy, mse_loss

from contmax.basis import GaussianBasis
from contmax.nn import ContinuousAttention, DiscreteAttention, MomentHead, MultiheadContinuousAttention, PooledHead

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
    train(model, bursts, lambda m, x, place: mse_loss(m(x)[0], place), steps=100, lr=0.04)
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
    train(model, marked, loss, steps=120, lr=0.05)
    with torch.no_grad():
        after = loss(model, *marked(500))
    assert after < 0.2 * before


def bumps(count: int, length: int = 48) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noise with a bump of one of two kinds at a random place: values (B, L, 3), kinds, ends (B, 2)."""
    width = 0.25
    start = (1 - width) * torch.rand(count)
    t = (torch.arange(length) + 0.5) / length
    inside = (t >= start[:, None]) & (t <= start[:, None] + width)
    kind = torch.randint(2, (count,))
    shape = torch.stack([inside, inside & (kind == 0)[:, None], inside & (kind == 1)[:, None]], -1)
    return 2.0 * shape + 0.7 * torch.randn(count, length, 3), kind, torch.stack([start, start + width], -1)


def trained_iou(**options) -> float:
    """IoU of supports and bumps after a short training on the kinds alone."""
    attend = ContinuousAttention(GaussianBasis.linspace(24, 0.05), **options)
    model = torch.nn.ModuleList([torch.nn.Conv1d(3, 8, 3, padding=1), attend, torch.nn.Linear(8, 2)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def forward(values):
        context, density = attend(torch.relu(model[0](values.mT)).mT)
        return model[2](context), density

    for _ in range(75):
        values, kind, _ = bumps(64)
        optimizer.zero_grad()
        cross_entropy(forward(values)[0], kind).backward()
        optimizer.step()
    model.eval()
    values, kind, ends = bumps(400)
    with torch.no_grad():
        logits, density = forward(values)
    assert (logits.argmax(-1) == kind).float().mean() > 0.9
    low, high = (density.mean - density.half_width).clamp(0, 1), (density.mean + density.half_width).clamp(0, 1)
    shared = (torch.minimum(high, ends[:, 1]) - torch.maximum(low, ends[:, 0])).clamp(min=0)
    return (shared / (high - low + ends[:, 1] - ends[:, 0] - shared)).mean().item()


def test_the_default_head_finds_the_bump_from_its_kind_alone_and_a_pooled_one_does_not():
    found = trained_iou(embed_dim=8)
    lost = trained_iou(head=PooledHead(8, position_channels=False))
    assert found > 0.5
    # A quarter of the line is bump: this is the IoU of looking everywhere.
    assert lost < 0.3
