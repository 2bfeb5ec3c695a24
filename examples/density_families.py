"""The sparse families beside their dense counterparts: on the line, and on the plane.

The first figure of Martins et al. 2020. Run with `python examples/density_families.py [FILE.png]`.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import torch
from torch.distributions import Laplace, Normal

from contmax.densities import BetaGaussian, MultivariateBetaGaussian, Triangular, TruncatedParabola

mpl.use("Agg")
from matplotlib import pyplot as plt

SCALE_MATRIX = torch.tensor([[1.0, 0.45], [0.45, 0.6]])


def draw_line(axes, t, curves, title):
    for label, density, style in curves:
        values = density.log_prob(t).exp()
        axes.plot(t, values, label=label, **style)
        if style.get("lw") == 2.2:
            axes.fill_between(t, values, alpha=0.12, color=style["color"])
    axes.set(title=title, xlim=(t[0], t[-1]), ylim=(0, 1.2 * axes.get_ylim()[1]), yticks=[])
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_plane(axes, density, title):
    side = torch.linspace(-3.2, 3.2, 241)
    points = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)
    values = density.log_prob(points).exp()
    axes.imshow(values, extent=(-3.2, 3.2, -3.2, 3.2), origin="lower", cmap="Blues", vmin=0)
    axes.contour(side, side, values, levels=6, colors="0.3", linewidths=0.5)
    if density.alpha > 1:
        angle = torch.linspace(0, 2 * torch.pi, 200)
        circle = torch.stack([angle.cos(), angle.sin()])
        edge = density.radius * torch.linalg.cholesky(SCALE_MATRIX) @ circle
        axes.plot(*edge, color="C3", lw=1.5, label="edge of the support")
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set(title=title, xticks=[], yticks=[])


def main() -> None:
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "build/figures/density_families.png")
    figure, grid = plt.subplots(2, 3, figsize=(12, 7), layout="constrained")
    t = torch.linspace(-4, 4, 801)
    dense, sparse = {"color": "0.45", "lw": 1.5, "ls": "--"}, {"color": "C0", "lw": 2.2}
    draw_line(
        grid[0, 0],
        t,
        [
            ("Gaussian, α = 1", Normal(0.0, 1.0), dense),
            ("truncated parabola, α = 2", TruncatedParabola(0.0, 1.0), sparse),
        ],
        "score −t²/2",
    )
    draw_line(
        grid[1, 0],
        t,
        [("Laplace, α = 1", Laplace(0.0, 1.0), dense), ("triangular, α = 2", Triangular(0.0, 1.0), sparse)],
        "score −|t|",
    )
    line = [
        (f"α = {alpha:g}", BetaGaussian(0.0, 1.0, alpha), {"color": plt.cm.viridis(shade), "lw": 1.6})
        for alpha, shade in ((0.7, 0.0), (1.0, 0.25), (4 / 3, 0.45), (1.5, 0.6), (2.0, 0.75), (4.0, 0.95))
    ]
    line[2] = ("α = 4/3", *line[2][1:])
    draw_line(grid[1, 1], t, line, "the β-Gaussian line, score −t²/2")
    draw_plane(grid[0, 1], MultivariateBetaGaussian(torch.zeros(2), SCALE_MATRIX, 1.0), "Gaussian on the plane")
    draw_plane(grid[0, 2], MultivariateBetaGaussian(torch.zeros(2), SCALE_MATRIX, 2.0), "truncated paraboloid")
    draw_plane(grid[1, 2], MultivariateBetaGaussian(torch.zeros(2), SCALE_MATRIX, 4 / 3), "α = 4/3 on the plane")
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    print(f"Picture: {output}")


if __name__ == "__main__":
    main()
