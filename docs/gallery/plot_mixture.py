r"""
How do I look at several places at once?
========================================

One interval cannot cover two distant places without everything between them. A mixture can: its
support is a union of intervals, and locations, widths and shares are all learned by gradient
descent.
"""

# %%
# A question about two stretches
# ------------------------------
# Sequences of noise. The answer to each is the mean of its values, half from the stretch between
# 0.15 and 0.3, half from that between 0.6 and 0.8; nothing else matters. We know the stretches, the
# attention has to find them from the answers.

import matplotlib.pyplot as plt
import torch
from torch.distributions import Categorical

import contmax
from contmax import viz
from contmax.densities import Mixture, TruncatedParabola

plt.rcParams.update(viz.LIGHT.settings)
LENGTH = 80
place = (torch.arange(LENGTH) + 0.5) / LENGTH
stretches = [(0.15, 0.3), (0.6, 0.8)]
parts = torch.stack([(place > low) & (place < high) for low, high in stretches]).float()
shares = (parts / parts.sum(-1, keepdim=True)).mean(0)


def sequences(count):
    values = torch.randn(count, LENGTH, 1)
    return values, shares @ values


# %%
# One interval, and a mixture of two
# ----------------------------------
# The parameters are centres, half-widths and weights. ``continuous_attention`` takes the mixture
# like any density.


def density_of(centre, log_half_width, logits):
    half_width = log_half_width.exp()
    parts = TruncatedParabola.from_support(centre - half_width, centre + half_width)
    return Mixture(Categorical(logits=logits), parts)


def train(start):
    torch.manual_seed(0)
    centre = torch.tensor(start)
    parameters = [centre, torch.full_like(centre, -1.5), torch.zeros_like(centre)]
    parameters = [parameter.requires_grad_() for parameter in parameters]
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    basis = contmax.basis.GaussianBasis.covering(40)
    for _ in range(250):
        values, answers = sequences(64)
        context = contmax.continuous_attention(values, density_of(*parameters), basis)
        loss = (context - answers).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    values, answers = sequences(4000)
    with torch.no_grad():
        density = density_of(*parameters)
        error = (contmax.continuous_attention(values, density, basis) - answers).square().mean()
    return density, error / answers.square().mean()


# %%
# What they learned
# -----------------
# The grey steps are the true shares. The single interval has to choose; the mixture finds both
# stretches and leaves out what lies between. The error is in units of the variance of the answers:
# 1 is what an answer of zero would cost.

figure, axes = plt.subplots(1, 2, figsize=(7, 2.9), layout="constrained", sharey=True)
starts = {"one interval": [0.5], "mixture of two": [0.4, 0.6]}
for ax, (name, start) in zip(axes, starts.items(), strict=True):
    density, error = train(start)
    component, weights = density.component_distribution, density.mixture_distribution.probs
    for centre, width, weight in zip(component.mean, component.half_width, weights, strict=True):
        print(f"{name}: {centre:.2f} ± {width:.2f} with weight {weight:.2f}")
    edges = torch.linspace(0, 1, LENGTH + 1)
    ax.stairs(shares * LENGTH, edges, fill=True, color=viz.LIGHT.observed)
    viz.plot_density(density, ax=ax, limits=(0, 1)).set_title(f"{name}: error {error:.2f}")
    ax.label_outer()
plt.show()
