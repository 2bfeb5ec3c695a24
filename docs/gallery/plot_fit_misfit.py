r"""
How do I fit a density to data, and see whether it fits?
========================================================

The likelihood of a bounded density is no good to descend on: a single observation outside the
support makes it zero. The Fenchel–Young loss is finite for all observations, convex in the
canonical parameters, and least where the moments of the density are those of the data.
"""

# %%
# By gradient descent
# -------------------
# We draw 2,000 observations, start with an interval that holds none of them, and minimise
# :func:`contmax.losses.fenchel_young`. The parameters are the coefficients of t and t² in the
# score: in these the loss is convex, and its gradient is a difference of moments, however far away
# the data are. The minimum is known in closed form too (``fit``); it is drawn dashed.

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import kstest

import contmax
from contmax import viz
from contmax.densities import TruncatedParabola, stats

plt.rcParams.update(viz.LIGHT.settings)
torch.manual_seed(0)

observed = TruncatedParabola(loc=2.0, scale=1.5).sample((2000,))
linear, log_curvature = (torch.tensor(x, requires_grad=True) for x in (-3.0, 0.0))
optimizer = torch.optim.Adam([linear, log_curvature], lr=0.3)
path = []
for _ in range(120):
    p = TruncatedParabola.from_canonical(linear, -log_curvature.exp() / 2)
    path.append([(p.mean - p.half_width).item(), p.mean.item(), (p.mean + p.half_width).item()])
    optimizer.zero_grad()
    contmax.losses.fenchel_young(p, observed).mean().backward()
    optimizer.step()
closed = TruncatedParabola.fit(observed)
print(f"by descent     {p.mean:.3f} ± {p.half_width:.3f}")
print(f"in closed form {closed.mean:.3f} ± {closed.half_width:.3f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
low, middle, high = torch.tensor(path).T
left.fill_between(range(len(path)), low, high, alpha=0.2)
left.plot(middle)
for end in (closed.mean - closed.half_width, closed.mean, closed.mean + closed.half_width):
    left.axhline(end, color="C1", ls="--", lw=1)
left.set(xlabel="step", ylabel="t", title="support and mean on the way")
right.hist(observed.numpy(), bins=30, density=True, color=viz.LIGHT.observed)
viz.plot_density(p, ax=right).set_title("the fit, on the data")
plt.show()

# %%
# Misfit
# ------
# Three families, each fitted to 5,000 samples of each of the three. D is the Kolmogorov–Smirnov
# distance, the largest gap between the two distribution functions. On the diagonal (blue) the
# family is the right one; in each column D is smallest there. Bounded families miss the tails of
# the Gaussian, and the Gaussian puts mass where bounded data never are.

families = {
    "Gaussian": (stats.beta_gaussian, {"alpha": 1.0}),
    "parabola": (stats.truncated_parabola, {}),
    "triangular": (stats.triangular, {}),
}
figure, grid = plt.subplots(3, 3, figsize=(7, 5), layout="constrained", sharex="col", sharey="col")
for column, (source, (family, options)) in enumerate(families.items()):
    samples = family.rvs(5000, random_state=column, **options)
    t = np.linspace(samples.min() - 0.3, samples.max() + 0.3, 400)
    for row, (fitted, fixed) in enumerate(families.values()):
        frozen = fitted(*fitted.fit(samples, **fixed), **fixed)
        distance = kstest(samples, frozen.cdf).statistic
        ax = grid[row, column]
        ax.hist(samples, bins=30, density=True, color=viz.LIGHT.observed)
        ax.plot(t, frozen.pdf(t), color="C0" if row == column else "C1", lw=2)
        ax.text(0.02, 0.95, f"D = {distance:.3f}", va="top", transform=ax.transAxes)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
    grid[0, column].set_title(f"samples: {source}")
    grid[column, 0].set_ylabel(f"fitted: {source}")
plt.show()
