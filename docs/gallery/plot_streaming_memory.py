r"""
How do I remember a signal that is too long to keep?
====================================================

A stream cannot be kept, but a signal of K basis functions can: its size does not depend on how much
it has seen. This page fits one to a long stream in chunks, and then lets the stream go on without
end in a memory of fixed size.
"""

# %%
# A long stream, in chunks
# ------------------------
# Forty thousand noisy observations come in chunks of a thousand. :class:`contmax.SignalAccumulator`
# keeps sums of them and forgets the observations. Up to rounding, the signal is that of a fit to
# all observations at once, which we make as well.

import matplotlib.pyplot as plt
import numpy as np
import torch

import contmax
from contmax import viz
from contmax.densities import TruncatedParabola

plt.rcParams.update(viz.LIGHT.settings)
torch.manual_seed(0)


def world(t):
    """What happens at time t: slow waves, and four brief events."""
    slow = torch.sin(0.9 * t) + 0.6 * torch.sin(0.31 * t + 1)
    return slow + sum(2.5 * torch.exp(-8 * (t - event) ** 2) for event in (7.0, 21.0, 33.0, 38.0))


seconds = torch.linspace(0, 40, 40_000)
observed = (world(seconds) + 0.5 * torch.randn_like(seconds))[:, None]
basis = contmax.basis.GaussianBasis.covering(128, low=0.0, high=40.0)
stream = contmax.SignalAccumulator(basis)
for values, t in zip(observed.split(1000), seconds.split(1000), strict=True):
    stream.update(values, t)

signal, at_once = stream.signal(), contmax.fit_signal(observed, basis, positions=seconds)
difference = (signal(seconds) - at_once(seconds)).abs().max()
print(f"largest difference to the fit at once: {difference:.1e}")
error = (signal(seconds)[:, 0] - world(seconds)).square().mean().sqrt()
print(f"root-mean-square error against the truth: {error:.3f}; noise of an observation: 0.5")
print(f"kept: {128 * 128 + 128:,} numbers, however many observations follow")
look = TruncatedParabola.from_support(20.0, 22.0)
print(f"attended to seconds 20 to 22: {signal.expectation(look).item():.3f}")

figure, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
ax.plot(seconds[::20], observed[::20], ",", color=viz.LIGHT.observed)
ax.plot(seconds, signal(seconds), label="signal of 128 functions")
ax.axvspan(20, 22, color="C1", alpha=0.2, lw=0, label="attended to")
ax.set(xlabel="seconds", xlim=(0, 40), ylim=(-3, 5.5))
ax.legend(ncols=2, loc="upper left", fontsize=8)
plt.show()

# %%
# A memory without end
# --------------------
# Above, the basis had to know how long the stream would last. If that is not known, squeeze: when a
# chunk comes, the old signal is read at some points and moved to the first four fifths of the time
# axis, the chunk takes the last fifth, and one fit goes through both. This is how the ∞-former
# (Martins et al. 2022) remembers. The memory is always 96 numbers.

KEEP = 0.8
unit = contmax.basis.GaussianBasis.covering(96)
places = torch.linspace(0, 1, 400)
memory, edges = None, np.array([0.0])
for values in observed.split(2000):
    fresh = torch.linspace(0, 1, len(values))
    if memory is not None:
        values = torch.cat([memory(places), values])
        fresh = torch.cat([KEEP * places, KEEP + (1 - KEEP) * fresh])
    memory = contmax.fit_signal(values, unit, positions=fresh).materialize()
    edges = np.append(KEEP * edges, 1.0)

# %%
# After twenty chunks, what does it remember of each? ``edges`` are the places where the chunks have
# got to, so that a second of the past can be looked up. The last chunks are remembered well. Older
# ones take up less and less of the axis, and are blurred: brief events go first, slow waves last.

times = torch.linspace(0, 40, 2000)
where = torch.tensor(np.interp(times, np.linspace(0, 40, len(edges)), edges), dtype=torch.float32)
recalled = memory(where)[:, 0]
error = (recalled - world(times)).square().reshape(20, -1).mean(1).sqrt()

figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 4), layout="constrained", sharex=True)
top.plot(times, world(times), color=viz.LIGHT.observed, lw=3, label="what happened")
top.plot(times, recalled, color="C0", label="what is remembered")
top.set(ylabel="value", ylim=(-2, 4.6))
top.legend(ncols=2, loc="upper left")
bottom.bar(np.arange(20) * 2 + 1, error.tolist(), 1.7, color="C1")
bottom.set(xlabel="seconds (now = 40)", ylabel="error", xlim=(0, 40))
plt.show()
