r"""
Which stretch of the text decides?
==================================

A classifier reads a short review and learns from the label alone whether it is favourable. Its
attention is an interval of the text. Does the interval find the words that carry the verdict?
"""

# %%
# Reviews with a known verdict
# ----------------------------
# Each review is made of neutral words, with one run of two to six words of praise or blame
# somewhere in it. The model is told the label, never the place.

import matplotlib.pyplot as plt
import torch
from torch import nn

import contmax
from contmax import viz
from contmax.densities import TruncatedParabola

plt.rcParams.update(viz.LIGHT.settings)
torch.manual_seed(0)

neutral = "we watched the film at home on a friday with two friends and tea while it rained".split()
opinion = [
    "dull tedious clumsy shallow lifeless badly written tired noisy mess".split(),
    "moving brilliant tender funny gripping beautifully acted warm clever gem".split(),
]
words = sorted({*neutral, *opinion[0], *opinion[1]})
number = {word: place for place, word in enumerate(words)}
LENGTH = 24


def reviews(count):
    """Word numbers (count, 24), labels, and where in [0, 1] the verdict begins and ends."""
    text = torch.tensor([number[word] for word in neutral])
    text = text[torch.randint(len(neutral), (count, LENGTH))]
    label, size = torch.randint(2, (count,)), torch.randint(2, 7, (count,))
    start = (torch.rand(count) * (LENGTH - size + 1)).long()
    verdicts = torch.tensor([[number[word] for word in side] for side in opinion])
    spoken = verdicts[label[:, None], torch.randint(verdicts.shape[1], (count, LENGTH))]
    place = torch.arange(LENGTH)
    inside = (place >= start[:, None]) & (place < (start + size)[:, None])
    return torch.where(inside, spoken, text), label, start / LENGTH, (start + size) / LENGTH


# %%
# A reader with continuous attention
# ----------------------------------
# Word vectors become a signal over the text; :class:`contmax.nn.ContinuousAttention` chooses an
# interval and averages the signal over it; a linear layer decides.


class Reader(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Embedding(len(words), width)
        basis = contmax.basis.GaussianBasis.covering(LENGTH)
        self.attend = contmax.nn.ContinuousAttention(basis, embed_dim=width)
        self.decide = nn.Linear(width, 2)

    def forward(self, text):
        context, density = self.attend(self.embed(text))
        return self.decide(context), density


reader = Reader()
optimizer = torch.optim.Adam(reader.parameters(), lr=0.01)
for _ in range(250):
    text, label, *_ = reviews(64)
    loss = nn.functional.cross_entropy(reader(text)[0], label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# The interval, against the truth
# -------------------------------
# On new reviews, how much of the found and the true interval do they have in common (intersection
# over union)? For comparison, the same for intervals of the right average length at random places.

text, label, low, high = reviews(2000)
with torch.no_grad():
    logits, density = reader.eval()(text)
truth = TruncatedParabola.from_support(low, high)
guess = TruncatedParabola((1 - 4 / LENGTH) * torch.rand(2000) + 2 / LENGTH, truth.scale.mean())
print(f"correct: {(logits.argmax(-1) == label).float().mean():.3f}")
overlap = density.iou(truth)
print(f"in common: {overlap.mean():.2f}; by chance {guess.iou(truth).mean():.2f}")

figure, axes = plt.subplots(3, 1, figsize=(7, 5.7), layout="constrained")
for row, ax in enumerate(axes):
    tokens = [words[number] for number in text[row]]
    viz.plot_text_attention(tokens, density=density, index=row, ax=ax, colors=("C0", "C0"))
    ax.set_ylim(top=1.15 * ax.get_ylim()[1])
    ax.axvspan(LENGTH * low[row], LENGTH * high[row], ymin=0.94, color="C1", clip_on=False)
    verdict = "favourable" if logits[row].argmax() else "unfavourable"
    ax.set_title(f"{verdict}; {overlap[row]:.0%} in common with the true place (bar)")
plt.show()
