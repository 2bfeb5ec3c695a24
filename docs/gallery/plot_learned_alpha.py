r"""
Softmax or sparsemax: can the data decide?
==========================================

:math:`\alpha` can be learned like any weight, one for each head. Here four heads differ only in how
many items of a sequence matter to them. All start halfway between softmax (α = 1) and sparsemax (α
= 2).
"""

# %%
# Four heads, one question each
# -----------------------------
# A sequence has 64 items with values. To head h, some of them matter: 2, 4, 16 or 64. It gets a
# score for each item, 1 if the item matters and 0 if not, with a little noise, and is to return the
# mean of the values that matter. Scores are given and cannot be scaled, so that α is all there is
# to learn: how hard to choose.

import matplotlib.pyplot as plt
import torch

import contmax
from contmax import viz

plt.rcParams.update(viz.LIGHT.settings)
torch.manual_seed(0)
LENGTH = 64
matter = torch.arange(LENGTH) < torch.tensor([2, 4, 16, 64])[:, None]  # (heads, items)


def sequences(count):
    """Scores and values (count, heads, items), and answers (count, heads)."""
    scores, values = matter + 0.2 * torch.randn(count, 4, LENGTH), torch.randn(count, 4, LENGTH)
    return scores, values, (values * matter).sum(-1) / matter.sum(-1)


def errors(weights, values, answers):
    """Mean squared error of each head."""
    return ((weights * values).sum(-1) - answers).square().mean(0)


# %%
# :class:`contmax.nn.Entmax` holds an α for each head. Its gradient is exact, also through the items
# whose weight is zero.

normalize = contmax.nn.Entmax(1.5, learnable=True, num_heads=4, head_dim=1)
optimizer = torch.optim.Adam(normalize.parameters(), lr=0.05)
history = []
for _ in range(250):
    scores, values, answers = sequences(128)
    loss = errors(normalize(scores), values, answers).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(normalize.alpha.tolist())

# %%
# Where each head ended
# ---------------------
# Left: α during training. Right, as a check that knows nothing of gradients: the error on new
# sequences for every α from 1 to 2, and as dots what was learned. The fewer items matter, the
# larger the learned α; and the dots lie at or near the lowest points of their curves.

scores, values, answers = sequences(2000)
alphas = torch.linspace(1.0, 2.0, 21)
tried = [contmax.entmax(scores, alpha) for alpha in alphas.tolist()]
swept = torch.stack([errors(weights, values, answers) for weights in tried])
with torch.no_grad():
    weights = normalize(scores)
learned, reached = normalize.alpha.detach(), errors(weights, values, answers)
attended = (weights > 0).float().sum(-1).mean(0)

figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
for head, count in enumerate(matter.sum(-1).tolist()):
    best = alphas[swept[:, head].argmin()]
    print(f"{count:2d} matter: α = {learned[head]:.2f}, best of the sweep {best:.2f};", end=" ")
    print(f"{attended[head]:.1f} items attended")
    left.plot([alpha[head] for alpha in history], color=f"C{head}")
    right.plot(alphas, swept[:, head], color=f"C{head}", label=f"{count} of {LENGTH} matter")
    right.plot(learned[head], reached[head], "o", color=f"C{head}")
left.set(xlabel="step", ylabel="α", ylim=(1, 2), title="α during training")
right.set(xlabel="α", ylabel="squared error", yscale="log", title="error on new sequences")
figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()
