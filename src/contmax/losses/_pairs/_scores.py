"""Scores of a prediction at points, with those left out whose size no derivative survives."""

import math

import torch
from torch import Tensor

from contmax._typing import Bool, Float
from contmax.densities import Density

#: The logarithm of the size from which a score counts as −∞, because its derivatives might be infinite.
LOG_SCORE_MAX = 345.0


def finite_scores(
    prediction: Density, points: Float[Tensor, "..."], wanted: Bool[Tensor, "..."]
) -> tuple[Float[Tensor, "..."], Bool[Tensor, "..."]]:
    """Scores at the wanted points, and where they are of a size whose derivatives are finite too; elsewhere 0.

    Args:
        prediction: a density with a score, in float64.
        points: ``(*sample, *batch)`` or ``(*sample, *batch, N)``.
        wanted: which points count, ``(*sample, *batch)``.

    Returns:
        The scores, zero with zero gradient where they are left out, and where they were not.
    """
    with torch.no_grad():
        counts = wanted & (prediction.score(points) > -math.exp(LOG_SCORE_MAX))
    kept = counts.reshape(counts.shape + (1,) * len(prediction.event_shape))
    scores = prediction.score(torch.where(kept, points, prediction.mode.detach()))
    return torch.where(counts, scores, 0.0), counts
