"""
Densities from heavy tails to a box
===================================

One score, :math:`f(t) = -t^2/2`, and one parameter, α. Below 1 the tails are heavy, at 1 the density is the Gaussian,
above 1 it is zero outside an interval, and at ∞ it is flat.
"""

import matplotlib.pyplot as plt

from contmax import viz
from contmax.densities import BetaGaussian

# %%
# ``half_width`` is the half-width of the support: infinite up to α = 1.

figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
for number, alpha in enumerate((0.6, 1.0, 1.5, 2.0, float("inf"))):
    density = BetaGaussian(loc=0.0, scale=1.0, alpha=alpha)
    viz.plot_density(density, ax=axes, limits=(-4, 4), color=f"C{number}")
    axes.lines[-1].set_label(f"α = {alpha:g}, half-width {float(density.half_width):.2f}".replace("inf", "∞"))
axes.legend(frameon=False)
plt.show()
