"""The picture on the first page: ``python docs/figures/first_picture.py`` trains two small models and draws it.

It writes first-picture-light.png and first-picture-dark.png beside itself, in about a minute on one core.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributions import Uniform

import contmax
from contmax import viz

HERE = Path(__file__).parent
WORDS = ["the", "acting", "is", "a", "wonderful", "surprise", ",", "not", "dull"]
SCORES = torch.tensor([-0.6, 1.0, -0.4, -0.8, 1.6, 1.3, -1.2, 0.3, 0.5])
SIDE = 24


def bursts(count, length=120, burst=22):
    """Series of noise with a burst of one of two kinds; the kinds; where the bursts are."""
    kind, begin = torch.randint(2, (count,)), torch.randint(length - burst, (count,))
    step = torch.arange(length)
    inside = (step >= begin[:, None]) & (step < begin[:, None] + burst)
    values = torch.randn(count, length, 2)
    values[..., 0] += 3 * inside
    values[..., 1] += 2 * inside * (2 * kind - 1)[:, None]
    return values, kind, Uniform(begin / length, (begin + burst) / length)


class Listener(nn.Module):
    """Tells which kind of burst it was, from an interval of the series."""

    def __init__(self):
        super().__init__()
        self.attend = contmax.nn.ContinuousAttention(contmax.basis.GaussianBasis.covering(32), embed_dim=2)
        self.decide = nn.Linear(2, 2)

    def forward(self, values):
        context, density = self.attend(values)
        return self.decide(context), density


def clutter(scans, digits, chosen):
    """Canvases with a digit somewhere among pieces of others; the digits; their centres."""
    count = len(chosen)
    canvas = 0.1 * torch.randn(count, SIDE, SIDE)
    for _ in range(6):
        piece = scans[torch.randint(len(scans), (count,))][_window(torch.randint(5, (count, 2)), 4)]
        canvas[_window(torch.randint(SIDE - 3, (count, 2)), 4)] += piece
    corner = torch.randint(SIDE - 7, (count, 2))
    canvas[_window(corner, 8)] = scans[chosen]
    return canvas, digits[chosen], (corner + 4) / SIDE


def _window(corner, side):
    rows, columns = (corner[:, axis, None] + torch.arange(side) for axis in (0, 1))
    return torch.arange(len(corner))[:, None, None], rows[:, :, None], columns[:, None]


class Finder(nn.Module):
    """Reads the digit from an ellipse of the canvas."""

    def __init__(self, width=24):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        )  # fmt: skip
        basis = contmax.basis.MultivariateGaussianBasis.covering(12)
        head = contmax.nn.GateHead(width, dim=2, least_half_width=4 / SIDE)
        self.attend = contmax.nn.ContinuousAttention(basis, head=head, grid=(12, 12))
        self.decide = nn.Linear(width, 3)

    def forward(self, canvas):
        context, density = self.attend(self.encode(canvas[:, None]).flatten(2).mT)
        return self.decide(context), density


def trained(model, draw, steps, rate):
    """The model after some steps on what `draw` gives."""
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps)
    for _ in range(steps):
        inputs, answers, _ = draw()
        loss = nn.functional.cross_entropy(model(inputs)[0], answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def draw_words(ax, theme):
    weights = {"softmax": contmax.softmax(SCORES), "sparsemax": contmax.sparsemax(SCORES)}
    for number, (name, p) in enumerate(weights.items()):
        places = torch.arange(len(WORDS)) + 0.4 * number - 0.2
        colour = theme.observed if number == 0 else theme.colour(0)
        ax.bar(places, p, width=0.4, color=colour, label=name)
    zero = weights["sparsemax"] == 0
    ax.set_xticks(range(len(WORDS)), WORDS, rotation=55, ha="right", rotation_mode="anchor")
    for label, unseen in zip(ax.get_xticklabels(), zero, strict=True):
        label.set_color(theme.soft if unseen else theme.ink)
        label.set_alpha(0.55 if unseen else 1.0)
    ax.set(title="Words: exact zeros", yticks=(0, 0.2, 0.4), ylabel="weight")
    ax.legend(frameon=False, loc="upper left")


def draw_series(ax, theme, values, density, truth, index):
    time = (torch.arange(values.shape[1]) + 0.5) / values.shape[1]
    viz.plot_series_attention(time, values[index], density=density, index=index, ax=ax, color=theme.colour(1))
    ax.axvspan(float(truth.low[index]), float(truth.high[index]), 0, 0.035, color=theme.colour(4), lw=0)
    ax.set(
        title="Time: an interval, learned from labels alone",
        xlabel="time (green: the burst that tells the answer)",
        yticks=(),
    )
    for twin in ax.figure.axes:
        if twin is not ax and twin.bbox.bounds == ax.bbox.bounds:
            twin.set_yticks(())
            twin.set_ylabel("")


def draw_image(ax, theme, canvas, density, centre, index):
    viz.plot_image_attention(canvas[index].clamp(0, 1), density=density, index=index, ax=ax, color=theme.colour(1))
    x, y = (centre[index].flip(0) - 4 / SIDE).tolist()
    ax.add_patch(plt.Rectangle((x, y), 8 / SIDE, 8 / SIDE, fill=False, ls="--", lw=1.5, color=theme.colour(4)))
    ax.set(title="Space: an ellipse, likewise", xlabel="green: the digit to read", xticks=(), yticks=())


def main():
    torch.manual_seed(0)
    listener = trained(Listener(), lambda: bursts(64), steps=200, rate=0.05)
    raw = load_digits(n_class=3)
    scans, digits = torch.tensor(raw.images, dtype=torch.float32) / 16, torch.tensor(raw.target)
    train, test = torch.randperm(len(scans)).split([400, len(scans) - 400])
    finder = trained(Finder(), lambda: clutter(scans, digits, train[torch.randint(400, (32,))]), steps=250, rate=0.02)
    values, _, truth = bursts(201)
    canvas, _, centre = clutter(scans, digits, test)
    with torch.no_grad():
        interval, ellipse = listener(values)[1], finder(canvas)[1]
    overlap = interval.iou(truth)
    print(f"overlap with the true intervals, median: {overlap.median():.2f}")
    # Typical ones, not the best: the medians.
    of_series = int(overlap.argsort()[len(overlap) // 2])
    distance = (ellipse.mean - centre).norm(dim=-1)
    print(f"distance from the digit's centre, median: {distance.median() * SIDE:.1f} pixels")
    of_image = int(distance.argsort()[len(distance) // 2])
    for theme in viz.THEMES:
        with viz.drawn_in(theme):
            figure, axes = plt.subplots(1, 3, figsize=(11, 3.3), width_ratios=(1.1, 1.5, 0.85), layout="constrained")
            draw_words(axes[0], theme)
            draw_series(axes[1], theme, values, interval, truth, of_series)
            draw_image(axes[2], theme, canvas, ellipse, centre, of_image)
            figure.savefig(HERE / f"first-picture-{theme.name}.png", dpi=150)
            plt.close(figure)


if __name__ == "__main__":
    main()
