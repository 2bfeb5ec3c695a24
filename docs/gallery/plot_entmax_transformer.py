r"""
What changes in a transformer when attention has exact zeros?
=============================================================

:class:`contmax.nn.EntmaxAttention` stands where ``torch.nn.MultiheadAttention`` would. We train the
same small transformer twice, with softmax (α = 1) and with 1.5-entmax, and look at what its heads
attend to.
"""

# %%
# A task with a known answer
# --------------------------
# The transformer reads twelve letters and writes them in reverse order. At place i of 0 to 11 it
# should look at place 11 − i and nowhere else, so that we know which weights are of use.

import matplotlib.pyplot as plt
import torch
from torch import nn

import contmax
from contmax import viz

plt.rcParams.update(viz.LIGHT.settings)
LENGTH, LETTERS, WIDTH = 12, 20, 32


class Transformer(nn.Module):
    """One block: attention, then a feed-forward layer, both with a residual connection."""

    def __init__(self, alpha):
        super().__init__()
        self.letter = nn.Embedding(LETTERS, WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.attend = contmax.nn.EntmaxAttention(WIDTH, num_heads=2, alpha=alpha)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.forward_layer = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.write = nn.Linear(WIDTH, LETTERS)

    def forward(self, letters):
        x = self.letter(letters) + self.place
        attended, weights = self.attend(self.norms[0](x), need_weights=True)
        x = x + attended
        x = x + self.forward_layer(self.norms[1](x))
        return self.write(self.norms[2](x)), weights


# %%
# Two trainings
# -------------
# They differ in α and in nothing else.


def train(alpha):
    torch.manual_seed(0)
    model = Transformer(alpha)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        letters = torch.randint(LETTERS, (64, LENGTH))
        loss = nn.functional.cross_entropy(model(letters)[0].mT, letters.flip(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


trained = {name: train(alpha) for name, alpha in (("softmax", 1.0), ("1.5-entmax", 1.5))}

# %%
# The weights
# -----------
# Rows are the places that are written, columns the places that are read. White cells are exactly
# zero; every other cell has a colour, on a logarithmic scale, so that small weights show. Both
# models reverse the letters. Softmax keeps a little weight everywhere, which it cannot take away;
# 1.5-entmax ends with one place per row, or very few.

letters = torch.randint(LETTERS, (500, LENGTH), generator=torch.Generator().manual_seed(1))
figure, grid = plt.subplots(2, 2, figsize=(6, 5), layout="constrained", sharex=True, sharey=True)
for row, (name, model) in zip(grid, trained.items(), strict=True):
    with torch.no_grad():
        logits, weights = model(letters)
    correct = (logits.argmax(-1) == letters.flip(-1)).float().mean()
    useful = weights.flip(-1).diagonal(dim1=-2, dim2=-1).mean()
    zeros = (weights == 0).float().mean()
    print(f"{name}: {correct:.3f} of the letters are right, {zeros:.2f} of the weights are zero,")
    print(f"    and {useful:.3f} of the weight is on the right place")
    for head, ax in enumerate(row):
        shown = torch.where(weights[0, head] > 0, weights[0, head], torch.nan)
        picture = ax.imshow(shown.numpy(), norm="log", vmin=1e-4, vmax=1, cmap="viridis_r")
        ax.set_title(f"{name}, head {head + 1}")
        ax.set(xticks=range(0, LENGTH, 3), yticks=range(0, LENGTH, 3))
figure.colorbar(picture, ax=grid, label="weight", extend="min", shrink=0.7)
figure.supxlabel("place that is read", fontsize=9)
figure.supylabel("place that is written", fontsize=9)
plt.show()
