r"""
What do the densities look like, and where do they end?
=======================================================

One number, :math:`\alpha`, decides how far a density reaches. Below 1 its tails are heavy, at 1 it
is the Gaussian, above 1 it is exactly zero outside an interval, or in the plane outside an ellipse.
"""

# %%
# On the line
# -----------
# All six densities below have mean 0 and variance 1, so that only their shapes differ. A dot marks
# where a density ends: beyond it the probability is zero, not merely small.

import matplotlib.pyplot as plt
import torch
from torch.distributions import Categorical

from contmax import viz
from contmax.densities import BetaGaussian, Mixture, MultivariateBetaGaussian, Triangular

plt.rcParams.update(viz.LIGHT.settings)

alphas = {0.8: "0.8", 1.0: "1  Gaussian", 4 / 3: "4/3  triweight", 1.5: "3/2  biweight"}
alphas |= {2.0: "2  parabola", 4.0: "4"}
figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
shades = plt.cm.viridis(torch.linspace(0, 0.92, len(alphas)).numpy())
for (alpha, name), shade in zip(alphas.items(), shades, strict=True):
    p = BetaGaussian.from_moments(mean=0.0, variance=1.0, alpha=alpha)
    t = p.half_width.clamp(max=4.5) * torch.linspace(-1, 1, 901)
    ax.plot(t, p.density(t), color=shade, label=f"α = {name}", lw=2)
    ax.plot([-p.half_width, p.half_width], [0, 0], "o", color=shade, ms=5, clip_on=False)
    far = p.density(torch.tensor(2.5))
    print(f"α = {alpha:.2f}: half-width {p.half_width:.2f}, density at t = 2.5: {far:.4f}")
ax.set(xlabel="t", ylabel="p(t)", xlim=(-4.5, 4.5), ylim=(0, None))
ax.set_title("same mean, same variance, six values of α")
ax.legend(loc="upper left")
plt.show()

# %%
# In the plane
# ------------
# The same family with a covariance matrix. The lines are at 10, 30, 50, 70 and 90 % of the peak;
# the shaded ellipse is the support. The Gaussian has none: its outermost line is not its end.

covariance = torch.tensor([[1.0, 0.6], [0.6, 0.8]])
figure, axes = plt.subplots(1, 3, figsize=(7, 2.7), layout="constrained", sharey=True)
for number, (ax, alpha) in enumerate(zip(axes, (1.0, 1.5, 2.0), strict=True)):
    p = MultivariateBetaGaussian.from_moments(torch.zeros(2), covariance, alpha=alpha)
    viz.plot_density(p, ax=ax, limits=((-3.2, 3.2), (-3.2, 3.2)), color=f"C{number}")
    ax.set_title(f"α = {alpha:g}")
    ax.label_outer()
plt.show()

# %%
# Other shapes
# ------------
# A triangular density is the sparse counterpart of the Laplace density. A mixture is exactly zero
# between its parts, and its support is the union of theirs.

parts = BetaGaussian.from_support(torch.tensor([-2.5, 1.4]), torch.tensor([-0.5, 2.6]))
two = Mixture(Categorical(torch.tensor([0.6, 0.4])), parts)
figure, axes = plt.subplots(1, 2, figsize=(7, 2.5), layout="constrained", sharey=True)
shown = {"triangular": Triangular(0.0, 1.0), "mixture of two": two}
for ax, (title, p) in zip(axes, shown.items(), strict=True):
    viz.plot_density(p, ax=ax, limits=(-3.5, 3.5)).set_title(title)
    ax.label_outer()
plt.show()
