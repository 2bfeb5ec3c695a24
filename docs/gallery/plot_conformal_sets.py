r"""
Can the zeros of entmax serve as prediction sets?
=================================================

Sparse probabilities rule classes out. If we report all classes that are not ruled out, how often is
the true one among them? Choose the temperature on held-out examples, and the answer is: as often as
you ask for.
"""

# %%
# Blurred digits
# --------------
# Digits from scikit-learn, with so much noise that a linear classifier errs often. It is trained on
# one part; the rest is for calibrating and testing.

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import contmax
from contmax import viz

plt.rcParams.update(viz.LIGHT.settings)
random = np.random.default_rng(0)

images, digits = load_digits(return_X_y=True)
images = images / 16 + 0.45 * random.standard_normal(images.shape)
train = random.random(len(images)) < 0.4
model = LogisticRegression(C=0.1, max_iter=500).fit(images[train], digits[train])
scores, label = torch.tensor(model.decision_function(images[~train])), torch.tensor(digits[~train])
right = (scores.argmax(-1) == label).double().mean()
print(f"the classifier is right in {right:.3f} of {len(label)} cases")

# %%
# The support as a set
# --------------------
# At temperature τ, the set of an example is the support of :func:`contmax.entmax` of its scores:
# the hotter, the larger. So every class has a temperature at which it enters. It is known in closed
# form (Campos et al. 2025): with the scores of the classes that are ahead of class y, :math:`\tau_y
# = (\alpha - 1)\,\lVert (z_j - z_y)_+ \rVert_{1/(\alpha - 1)}`.


def entering_temperature(scores, alpha):
    ahead = (scores[:, None, :] - scores[:, :, None]).clamp(min=0)
    return (alpha - 1) * torch.linalg.vector_norm(ahead, ord=1 / (alpha - 1), dim=-1)


for alpha in (1.5, 2.0):
    inside = contmax.entmax(scores, alpha, temperature=2.0) > 0
    agree = inside == (entering_temperature(scores, alpha) < 2.0)
    print(f"α = {alpha}: formula and support agree in {agree.double().mean():.4f} of all cases")

# %%
# Calibration
# -----------
# Take the temperature that lets in the true class of a share of 1 − δ of the calibration examples
# (with a correction of one example, as conformal prediction has it). New examples then have their
# true class in the set with that probability at least. The same recipe works for sets of a softmax:
# all classes above a threshold, or the most probable ones until their sum reaches a limit. All four
# get the same scores and the same 100 random splits into halves.

softmax = contmax.softmax(scores)
greater = softmax[:, None, :] > softmax[:, :, None]
rules = {
    "entmax, α = 1.5": entering_temperature(scores, 1.5),
    "sparsemax": entering_temperature(scores, 2.0),
    "softmax, threshold": -softmax,
    "softmax, cumulative": (softmax[:, None] * greater).sum(-1) + softmax,
}
levels = torch.tensor([0.8, 0.85, 0.9, 0.95], dtype=torch.float64)
half = len(label) // 2
results = {name: [] for name in rules}
for split in range(100):
    order = torch.randperm(len(label), generator=torch.Generator().manual_seed(split))
    calibration, test = order[:half], order[half:]
    for name, entry in rules.items():
        needed = entry[calibration, label[calibration]].sort().values
        limit = needed[((half + 1) * levels).ceil().long() - 1]
        sets = entry[test, :, None] <= limit
        covered = sets[torch.arange(len(test)), label[test]].double().mean(0)
        results[name].append(torch.stack([covered, sets.sum(1).double().mean(0)]))

# %%
# Left: the coverage that was asked for and that was had (mean and middle nine tenths of the
# splits). Right: how many classes a set holds on average; fewer is better. All four keep what they
# promise. Supports and thresholds give sets of about the same size; cumulative sums give larger
# ones here. What the support adds is a probability to go with each set, one that is zero outside
# it.

figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.3), layout="constrained")
left.plot([0.78, 0.97], [0.78, 0.97], color=viz.LIGHT.line, lw=3, zorder=0)
for number, (name, measured) in enumerate(results.items()):
    covered, size = torch.stack(measured).unbind(1)
    low, high = covered.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64), dim=0)
    mean, shift = covered.mean(0), 0.004 * (number - 1.5)
    style = {"marker": "os^D"[number], "ms": 4}
    left.errorbar(levels + shift, mean, (mean - low, high - mean), ls="", label=name, **style)
    right.plot(levels, size.mean(0), **style)
    print(f"{name:20} asked 0.90: covered {mean[2]:.3f}, {size.mean(0)[2]:.2f} classes")
left.set(xlabel="coverage asked for", ylabel="coverage had")
right.set(xlabel="coverage asked for", ylabel="classes in a set")
right.set_xticks(levels)
figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
plt.show()

# %%
# Some digits of the last split, ordered by the size of their sets at 90 %: the probabilities of
# 1.5-entmax at the calibrated temperature. Classes without a bar are ruled out: their probability
# is exactly zero. The true class is orange, if it has a bar at all.

temperature = torch.quantile(rules["entmax, α = 1.5"][calibration, label[calibration]], 0.9)
probability = contmax.entmax(scores[test[:60]], 1.5, temperature=temperature)
shown = (probability > 0).sum(-1).argsort(stable=True)[4::11]
figure, grid = plt.subplots(2, 6, figsize=(7, 2.6), layout="constrained", height_ratios=(1.3, 1))
for column, (example, bars) in enumerate(zip(test[shown], probability[shown], strict=True)):
    picture = images[~train][example].reshape(8, 8)
    grid[0, column].imshow(picture, cmap="gray_r", vmin=-0.5, vmax=1.5)
    grid[0, column].set_axis_off()
    colours = ["C1" if digit == label[example] else "C0" for digit in range(10)]
    grid[1, column].bar(range(10), bars.tolist(), color=colours)
    grid[1, column].set(ylim=(0, 1), xticks=[0, 5, 9], yticks=[])
plt.show()
