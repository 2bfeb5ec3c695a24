r"""
Where in the picture is the digit?
==================================

A digit lies at a random place among clutter. A network learns to read it from the label alone, and
looks at an ellipse of the picture. Does the ellipse find the digit?
"""

# %%
# Digits in clutter
# -----------------
# Canvases of 24 × 24 pixels: a scanned digit from scikit-learn (8 × 8 pixels), fragments of other
# digits, and noise. To keep the training short there are three digits to tell apart.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import contmax
from contmax import viz

plt.rcParams.update(viz.LIGHT.settings)
torch.manual_seed(0)
SIDE = 24

scans = load_digits(n_class=3)
pixels, digits = torch.tensor(scans.images, dtype=torch.float32) / 16, torch.tensor(scans.target)


def window(corner, side):
    rows, columns = (corner[:, axis, None] + torch.arange(side) for axis in (0, 1))
    return torch.arange(len(corner))[:, None, None], rows[:, :, None], columns[:, None]


def canvases(chosen):
    """A canvas for each chosen scan, its digit, and the centre of the digit in the unit square."""
    count = len(chosen)
    canvas = 0.1 * torch.randn(count, SIDE, SIDE)
    for _ in range(6):
        others = pixels[torch.randint(len(pixels), (count,))]
        fragments = others[window(torch.randint(5, (count, 2)), 4)]
        canvas[window(torch.randint(SIDE - 3, (count, 2)), 4)] += fragments
    corner = torch.randint(SIDE - 7, (count, 2))
    canvas[window(corner, 8)] = pixels[chosen]
    return canvas, digits[chosen], (corner + 4) / SIDE


# %%
# A network that looks at an ellipse
# ----------------------------------
# Two convolutions give a grid of 12 × 12 vectors. :class:`contmax.nn.ContinuousAttention` makes a
# signal on the plane of them, chooses an ellipse and averages the signal over it.


class Finder(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        )  # fmt: skip
        basis = contmax.basis.MultivariateGaussianBasis.covering(12)
        self.attend = contmax.nn.ContinuousAttention(basis, embed_dim=width, grid=(12, 12))
        self.decide = nn.Linear(width, 3)

    def forward(self, canvas):
        context, density = self.attend(self.encode(canvas[:, None]).flatten(2).mT)
        return self.decide(context), density


order = torch.randperm(len(pixels))
train, test = order[:400], order[400:]
finder = Finder()
optimizer = torch.optim.AdamW(finder.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=140)
for _ in range(140):
    canvas, digit, _ = canvases(train[torch.randint(len(train), (32,))])
    loss = nn.functional.cross_entropy(finder(canvas)[0], digit)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

# %%
# The ellipse, against the truth
# ------------------------------
# New canvases with scans that the network has never seen. The dashed square is where the digit was
# put. The outer ellipse is the support, the inner one holds half of the mass. Nothing asks for the
# whole digit: the ellipse covers what the network needs to tell three digits apart, and some are
# smaller or wider than the scan.

canvas, digit, centre = canvases(test)
with torch.no_grad():
    logits, density = finder.eval()(canvas)
away = (density.mean - centre).norm(dim=-1) * SIDE
inside = ((density.mean - centre).abs() <= 4 / SIDE).all(-1).float().mean()
print(f"correct: {(logits.argmax(-1) == digit).float().mean():.2f} of {len(test)}")
print(f"centre of the ellipse within the square: {inside:.2f} of all")
print(f"median distance of the centres: {away.median():.1f} pixels")

figure, axes = plt.subplots(2, 4, figsize=(7, 3.8), layout="constrained")
for row, ax in enumerate(axes.flat):
    viz.plot_image_attention(canvas[row].clamp(0, 1), density=density, index=row, ax=ax, color="C3")
    x, y = (centre[row].flip(0) - 4 / SIDE).tolist()
    ax.add_patch(plt.Rectangle((x, y), 8 / SIDE, 8 / SIDE, fill=False, ls="--", color="C2"))
    ax.set_title(f"reads {logits[row].argmax()}, is {digit[row]}", fontsize=9)
plt.show()
