"""From softmax to sparsemax in one picture and one table.

A query must find the two relevant items among 64 noisy ones and return the mean of their values. Attention with
softmax has to put some weight on all the noise; attention with exact zeros need not. The same small model is trained
with each map, and once with α learned. Run with `python examples/quickstart.py [STEPS]`; 800 steps take half a minute.
"""

import sys
import time
from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor, nn

import contmax

mpl.use("Agg")
from matplotlib import pyplot as plt

LENGTH, RELEVANT, WIDTH = 64, 2, 16
OUTPUT = Path("build/demo/quickstart.png")


def needles(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys (B, L, W), queries (B, W), values (B, L) and targets (B,): the mean value of the two relevant items."""
    query = torch.randn(batch, WIDTH, generator=generator)
    keys = torch.randn(batch, LENGTH, WIDTH, generator=generator)
    where = torch.rand(batch, LENGTH, generator=generator).argsort(-1)[:, :RELEVANT]
    relevant = torch.zeros(batch, LENGTH).scatter_(1, where, 1.0)
    keys = keys + 1.5 * relevant[..., None] * query[:, None]
    values = torch.randn(batch, LENGTH, generator=generator)
    return keys, query, values, (values * relevant).sum(-1) / RELEVANT


class Attention(nn.Module):
    """One head of dot-product attention whose map from scores to weights is given."""

    def __init__(self, attend: nn.Module) -> None:
        super().__init__()
        self.attend = attend
        self.project = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, keys: Tensor, query: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.attend((keys @ self.project(query)[..., None]).squeeze(-1))
        return (weights * values).sum(-1), weights


def train(attend: nn.Module, steps: int) -> tuple[Attention, float]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Attention(attend)
    optimizer = torch.optim.Adam(
        [{"params": model.project.parameters()}, {"params": attend.parameters(), "lr": 0.05}], lr=1e-2
    )
    start = time.perf_counter()
    for _ in range(steps):
        keys, query, values, target = needles(256, generator)
        loss = (model(keys, query, values)[0] - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, time.perf_counter() - start


def draw(x: Tensor, examples: dict[str, Tensor], path: Path) -> None:
    """Left: one score vector through every α. Right: what the trained models attend to in one sequence."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
    alphas = torch.linspace(0.5, 3.0, 251, dtype=torch.float64)
    path_of_p = contmax.entmax(x.double().expand(len(alphas), -1), alphas[:, None])
    for score, line in zip(x.tolist(), path_of_p.T, strict=True):
        alive = torch.where(line > 0, line, torch.nan)
        left.plot(alphas, alive, lw=2, label=f"score {score:+.1f}")
    for alpha, name in ((1.0, "softmax"), (1.5, "1.5-entmax"), (2.0, "sparsemax")):
        left.axvline(alpha, color="0.8", lw=1, zorder=0)
        left.text(alpha, 1.02, name, ha="center", fontsize=9, color="0.35")
    left.set(
        xlabel="α", ylabel="probability", ylim=(0, 1.0), title="One score vector, every α: lines end in exact zeros\n"
    )
    left.legend(frameon=False, fontsize=9)
    for row, (_, weights) in enumerate(examples.items()):
        base = len(examples) - 1 - row
        right.bar(range(LENGTH), 0.85 * weights / weights.max(), bottom=base, width=0.9, color=f"C{row}")
        right.axhline(base, color="0.7", lw=0.8)
    right.set_yticks([len(examples) - 1 - r + 0.35 for r in range(len(examples))], list(examples))
    right.tick_params(length=0)
    right.set(xlabel="position", title="What the trained models attend to (same sequence)\n", xlim=(-1, LENGTH))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 800
    maps = {
        "softmax": contmax.nn.Entmax(1.0),
        "1.5-entmax": contmax.nn.Entmax(1.5),
        "sparsemax": contmax.nn.Sparsemax(),
        "learned α": contmax.nn.Entmax(1.2, learnable=True),
    }
    keys, query, values, target = needles(4096, torch.Generator().manual_seed(2))
    print(f"Find {RELEVANT} relevant items among {LENGTH}: mean squared error on 4096 new sequences\n")
    print(f"{'map':<12}{'α':>7}{'error':>10}{'items attended':>17}{'seconds':>10}")
    examples = {}
    for name, attend in maps.items():
        model, seconds = train(attend, steps)
        with torch.no_grad():
            context, weights = model(keys, query, values)
        error = (context - target).square().mean().item()
        support = (weights > 0).sum(-1).double().mean().item()
        alpha = torch.as_tensor(getattr(attend, "alpha", 2.0)).item()
        print(f"{name:<12}{alpha:>7.2f}{error:>10.4f}{support:>17.1f}{seconds:>10.1f}")
        examples[name] = weights[0]
    draw(torch.tensor([1.5, 1.1, 0.5, -0.2]), examples, OUTPUT)
    print(f"\nPicture: {OUTPUT}")


if __name__ == "__main__":
    main()
