r"""
How do I predict an interval instead of a number?
=================================================

Tomorrow has a lowest and a highest temperature. A network predicts a density with bounded support,
and its support *is* the predicted interval: no quantile has to be chosen.
"""

# %%
# Four years of Seattle
# ---------------------
# Daily minima and maxima from the package ``vega-datasets``. The features of a day are the minima
# and maxima of the three days before, and the season. The last year is for testing; the three
# before it are for training.

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from vega_datasets import data

from contmax import viz
from contmax.densities import TruncatedParabola
from contmax.losses import fenchel_young

plt.rcParams.update(viz.LIGHT.settings)
torch.manual_seed(0)

table = np.genfromtxt(data.seattle_weather.filepath, delimiter=",", skip_header=1, usecols=(3, 2))
degrees = torch.tensor(table, dtype=torch.float32)  # (days, 2): lowest, highest
degrees[:, 1] = torch.maximum(degrees[:, 1], degrees[:, 0] + 0.1)  # an interval has a length
season = torch.arange(len(degrees)) * 2 * torch.pi / 365.25
before = torch.cat([degrees[lag : len(degrees) - 3 + lag] for lag in range(3)], -1)
features = torch.cat([(before - 12) / 8, season.sin()[3:, None], season.cos()[3:, None]], -1)
low, high = degrees[3:].T
test = torch.arange(len(features)) >= len(features) - 365

# %%
# A network that predicts a density
# ---------------------------------
# It returns a centre and a half-width. The target is the density that has the true interval as
# support; the Fenchel–Young loss compares the two, and is finite even where they do not touch.

network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))


def predicted(features):
    centre, width = network(features).unbind(-1)
    centre, half_width = 12 + 8 * centre, 4 * nn.functional.softplus(width)
    return TruncatedParabola.from_support(centre - half_width, centre + half_width)


optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=0.05)
days = torch.where(~test)[0]
for _ in range(300):
    batch = days[torch.randint(len(days), (128,))]
    target = TruncatedParabola.from_support(low[batch], high[batch])
    loss = fenchel_young(predicted(features[batch]), target, reduction="mean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# How good are the intervals?
# ---------------------------
# On the year held out we print what share of the true interval is inside the predicted one, what
# share of the two together both have in common (intersection over union), and how wide it is. For
# comparison: linear least squares for both ends from the same features, the same but all widened
# alike to the width of the density, and yesterday's interval.

with torch.no_grad():
    interval = predicted(features[test])
design = torch.cat([features, torch.ones(len(features), 1)], -1)
ends = design[test] @ torch.linalg.lstsq(design[~test], degrees[3:][~test]).solution
truth, yesterday = degrees[3:][test], degrees[2:-1][test]
ours = torch.stack([interval.mean - interval.half_width, interval.mean + interval.half_width], -1)
widened = ends + (ours - ends).diff(dim=-1).mean() / 2 * torch.tensor([-1.0, 1.0])
rows = {"density": ours, "least squares": ends, "… widened": widened, "yesterday": yesterday}
for name, guess in (rows | {"truth": truth}).items():
    inside = (torch.minimum(guess, truth)[:, 1] - torch.maximum(guess, truth)[:, 0]).clamp(min=0)
    union = torch.maximum(guess, truth)[:, 1] - torch.minimum(guess, truth)[:, 0]
    covered, common = (inside / (truth[:, 1] - truth[:, 0])).mean(), (inside / union).mean()
    width = guess.diff(dim=-1).mean()
    print(f"{name:14} {covered:.2f} covered, {common:.2f} in common, {width:4.1f} °C wide")

# %%
# By what they have in common the guesses hardly differ on these data. The density covers more of
# the day than least squares because it is wider: its support takes in the doubt about where the
# interval will lie. Least squares covers as much once all its intervals are widened by the right
# amount; the density has found that amount by itself.

figure, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
shown = slice(150, 210)
day = np.arange(shown.stop - shown.start)
mean, half = interval.mean[shown], interval.half_width[shown]
ax.fill_between(day, mean - half, mean + half, alpha=0.25, lw=0, label="predicted: the support")
ax.plot(day, mean)
ax.vlines(day, *truth[shown].T, color=viz.LIGHT.ink, lw=2, label="observed: lowest to highest")
ax.set(xlabel="day (sixty days of the summer of 2015)", ylabel="°C", ylim=(None, 42))
ax.legend(ncols=2, loc="upper left")
plt.show()
