"""
How do I draw from a bounded density, and differentiate the draws?
==================================================================

``sample`` and ``rsample`` work as in ``torch.distributions``. No draw falls outside the support,
and draws of ``rsample`` carry gradients to location, scale and α.
"""

# %%
# Draws stay inside
# -----------------
# Twenty thousand draws of each density, as a histogram under the curve. The shaded stretch is the
# support; we print how many draws leave it, and how far the empirical distribution function is from
# the exact one.

import matplotlib.pyplot as plt
import torch

import contmax
from contmax import viz
from contmax.densities import BetaGaussian, TruncatedParaboloid

plt.rcParams.update(viz.LIGHT.settings)
torch.manual_seed(0)

figure, axes = plt.subplots(1, 3, figsize=(7, 2.6), layout="constrained", sharey=True)
for ax, alpha in zip(axes, (1.0, 1.5, 2.0), strict=True):
    p = BetaGaussian(loc=0.0, scale=1.0, alpha=alpha)
    draws = p.sample((20_000,)).sort().values
    outside = (draws.abs() > p.half_width).sum()
    gap = (p.cdf(draws) - torch.linspace(0, 1, len(draws))).abs().max()
    print(f"α = {alpha}: {outside} draws outside ±{p.half_width:.2f}, largest gap {gap:.4f}")
    ax.hist(draws.numpy(), bins=60, density=True, color=viz.LIGHT.observed)
    viz.plot_density(p, ax=ax, limits=(-3.5, 3.5), color="C0").set_title(f"α = {alpha:g}")
    ax.label_outer()
plt.show()

# %%
# In the plane
# ------------
# Lines are at 10, 30, 50, 70 and 90 % of the peak. The line at half of the peak holds three
# quarters of a truncated paraboloid in the plane, so about three quarters of the draws should lie
# within it, and all within the outer ellipse.

plane = TruncatedParaboloid(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 0.6]]))
draws = plane.sample((1500,))
height = plane.density(draws) / plane.density(plane.mode)
print(f"inside the support: {(height > 0).float().mean():.3f}")
print(f"above half of the peak: {(height > 0.5).float().mean():.3f}")
figure, ax = plt.subplots(figsize=(5, 3.6), layout="constrained")
viz.plot_density(plane, ax=ax)
ax.scatter(*draws.T, s=3, color=viz.LIGHT.ink, alpha=0.5, linewidth=0)
plt.show()

# %%
# Gradients through draws
# -----------------------
# How does the mean of cos 3T change when the density gets wider, or when its α grows? The exact
# answer is the derivative of :func:`contmax.expectation`. Below it is estimated from n draws, 100
# times for each n: the dots are the means of the estimates, the bars hold the middle nine tenths of
# them, and the line is the exact derivative.

start = {"scale": torch.tensor(0.8), "alpha": torch.tensor(1.6)}
start = {name: value.requires_grad_() for name, value in start.items()}
cosine = contmax.basis.CosineBasis(torch.tensor([3.0]))
mean = contmax.expectation(BetaGaussian(0.0, **start), cosine).sum()
exact = torch.autograd.grad(mean, list(start.values()))

copies = {name: value.detach().repeat(100).requires_grad_() for name, value in start.items()}
counts = (8, 32, 128)
estimates = []
for n in counts:
    means = (3 * BetaGaussian(0.0, **copies).rsample((n,))).cos().mean(0)
    estimates.append(torch.stack(torch.autograd.grad(means.sum(), list(copies.values()))))

figure, axes = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
for row, (ax, name) in enumerate(zip(axes, ("scale", "index α"), strict=True)):
    estimate = torch.stack(estimates)[:, row]
    mean, (low, high) = estimate.mean(1), estimate.quantile(torch.tensor([0.05, 0.95]), dim=1)
    ax.axhline(exact[row].item(), color="C1", label=f"exact: {exact[row]:.3f}")
    ax.errorbar(counts, mean, (mean - low, high - mean), fmt="o", capsize=3)
    ax.set(xscale="log", xlim=(5, 200), xlabel="draws n")
    ax.set_title(f"derivative of E[cos 3T] in the {name}")
    ax.set_xticks(counts, counts)
    ax.minorticks_off()
    ax.legend()
plt.show()
