r"""
What if the observations come at irregular times?
=================================================

A continuous signal does not ask for a regular clock. It is fitted to observations wherever they
are, and attention is an interval of time, in seconds, not a set of indices.
"""

# %%
# A signal through irregular observations
# ---------------------------------------
# Sixty observations within a minute, many at first and few at the end, with noise. The basis spans
# the times that occur, its functions 4 % of that span wide; ``explained_variance`` says how well it
# follows the observations. An interval of time is attended to by its density, however many
# observations happen to lie in it.

import matplotlib.pyplot as plt
import torch
from torch import nn

import contmax
from contmax import viz
from contmax.densities import TruncatedParabola

plt.rcParams.update(viz.LIGHT.settings)
torch.manual_seed(0)


def wave(t):
    return torch.sin(t / 4) + 0.5 * torch.sin(t / 1.7)


times = (60 * torch.rand(60) ** 1.5).sort().values
observed = wave(times) + 0.1 * torch.randn(60)
basis = contmax.basis.GaussianBasis.spanning(times, 24)
signal = contmax.fit_signal(observed[:, None], basis, positions=times, penalty=0.3)
look = TruncatedParabola.from_support(18.0, 30.0)

t = torch.linspace(0, 60, 601)
true = torch.trapezoid(wave(t) * look.density(t), t)
print(f"explained variance: {signal.explained_variance():.3f}")
mean = signal.expectation(look).item()
print(f"mean over the interval: {mean:.3f} by the signal, {true:.3f} in truth")
figure, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
ax.plot(t, wave(t), color=viz.LIGHT.observed, lw=3, label="true wave")
ax.plot(times, observed, ".", color=viz.LIGHT.ink, label="observations")
ax.plot(t, signal(t), color="C0", label="fitted signal")
ax.axvspan(18, 30, color="C1", alpha=0.15, lw=0, label="an interval to attend to")
ax.set(xlabel="seconds", xlim=(0, 60), ylim=(-2, 2.4))
ax.legend(ncols=4, loc="upper center", fontsize=8)
plt.show()

# %%
# Learning which interval to look at
# ----------------------------------
# Now many series with two channels, each observed at times of its own. The first channel is higher
# while a sensor touches something, for 8 to 20 seconds. The second is its reading: mere noise, but
# a little above or below zero on average while it touches. The label says which. A network that
# looks too briefly sees noise, and so does one that looks too long; it is not told when the sensor
# touched.


def series(count, length=60):
    """Times (count, 60), values (count, 60, 2), labels, and where the touch begins and ends."""
    times = (60 * torch.rand(count, length)).sort(-1).values
    low, duration = 40 * torch.rand(count), 8 + 12 * torch.rand(count)
    label = torch.randint(2, (count,))
    touch = ((times > low[:, None]) & (times < (low + duration)[:, None])).float()
    reading = 0.6 * touch * (2 * label - 1)[:, None]
    noise = torch.tensor([0.2, 1.0]) * torch.randn(count, length, 2)
    return times, torch.stack([touch, reading], -1) + noise, label, low, low + duration


class Watcher(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width))
        basis = contmax.basis.GaussianBasis.covering(24, low=0.0, high=60.0)
        self.attend = contmax.nn.ContinuousAttention(basis, embed_dim=width)
        self.decide = nn.Linear(width, 2)

    def forward(self, times, values):
        context, density = self.attend(self.encode(values), positions=times)
        return self.decide(context), density


watcher = Watcher()
optimizer = torch.optim.Adam(watcher.parameters(), lr=0.01)
for _ in range(150):
    times, values, label, *_ = series(32)
    loss = nn.functional.cross_entropy(watcher(times, values)[0], label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# Three new series: the two channels, the touch (orange bar) and the interval that the network looks
# at (blue). On 1,000 new series we print how often it is right, and how much the two intervals have
# in common (intersection over union). The last line is for comparison: the sign of the mean reading
# during the touch, which only somebody who knows the touch can take.

times, values, label, low, high = series(1000)
with torch.no_grad():
    logits, density = watcher.eval()(times, values)
overlap = density.iou(TruncatedParabola.from_support(low, high))
inside = (times > low[:, None]) & (times < high[:, None])
told = (values[..., 1] * inside).sum(-1) > 0
correct = (logits.argmax(-1) == label).float().mean()
print(f"correct: {correct:.3f}; in common: {overlap.mean():.2f}")
print(f"correct if told the touch: {(told == label).float().mean():.3f}")

figure, axes = plt.subplots(3, 1, figsize=(7, 4.8), layout="constrained", sharex=True)
for row, ax in enumerate(axes):
    shifted = torch.tensor([2.0, 1.0]) * values[row] + torch.tensor([4.0, 0.0])
    look = {"density": density, "index": row, "color": "C0"}
    viz.plot_series_attention(times[row], shifted, ax=ax, limits=(0, 60), **look)
    ax.plot(times[row], shifted, ".", color=viz.LIGHT.ink, ms=3)
    ax.axvspan(low[row], high[row], ymin=0.95, color="C1")
    ax.set_yticks([0, 4], ["reading", "touch"])
    ax.set_title(f"{overlap[row]:.0%} in common")
axes[-1].set_xlabel("seconds")
plt.show()
