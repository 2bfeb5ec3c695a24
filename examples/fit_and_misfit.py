"""Three families fitted to samples of each of the three: the right one fits, and a Kolmogorov–Smirnov test says so.

The 3 × 3 figure of Martins et al. 2020 (appendix on Fenchel–Young losses), with 10,000 samples per column. A fit is
the minimiser of the Fenchel–Young loss. Run with `python examples/fit_and_misfit.py [FILE.png]`; needs scipy.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from scipy.stats import kstest

from contmax.densities import stats

mpl.use("Agg")
from matplotlib import pyplot as plt

FAMILIES = {
    "Gaussian": (stats.beta_gaussian, {"alpha": 1.0}),
    "truncated parabola": (stats.truncated_parabola, {}),
    "triangular": (stats.triangular, {}),
}


def main() -> None:
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "build/figures/fit_and_misfit.png")
    figure, grid = plt.subplots(3, 3, figsize=(11, 8), layout="constrained", sharey="col", sharex="col")
    print(f"{'fitted':<22}" + "".join(f"{'samples: ' + name:>32}" for name in FAMILIES))
    tables = {name: [] for name in FAMILIES}
    for column, (source, (family, options)) in enumerate(FAMILIES.items()):
        samples = family.rvs(10_000, random_state=column, loc=0.0, scale=1.0, **options)
        t = np.linspace(samples.min() - 0.3, samples.max() + 0.3, 600)
        for row, (name, (fitted, fixed)) in enumerate(FAMILIES.items()):
            loc, scale = fitted.fit(samples, **fixed)
            frozen = fitted(loc, scale, **fixed)
            test = kstest(samples, frozen.cdf)
            rejected = test.pvalue < 0.05
            axes = grid[row, column]
            axes.hist(samples, bins=60, density=True, color="0.85")
            axes.plot(t, frozen.pdf(t), color="C3" if rejected else "C0", lw=2)
            axes.text(
                0.03,
                0.95,
                f"D = {test.statistic:.4f}\np = {test.pvalue:.2g}",
                va="top",
                transform=axes.transAxes,
                fontsize=9,
            )
            axes.set(yticks=[])
            axes.spines[["top", "right", "left"]].set_visible(False)
            if row == 0:
                axes.set_title(f"samples: {source}")
            if column == 0:
                axes.set_ylabel(f"fitted: {name}")
            tables[name].append(f"D = {test.statistic:.4f}, p = {test.pvalue:.1e}")
    for name, cells in tables.items():
        print(f"{name:<22}" + "".join(f"{cell:>32}" for cell in cells))
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    print(f"Picture: {output}")


if __name__ == "__main__":
    main()
