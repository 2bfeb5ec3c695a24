"""Which share of the mass lies below each of many draws: uniform, if the draws follow the law."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

_EVERY = 40


def shares(cdf: Callable[[Tensor], Tensor], draws: Tensor) -> np.ndarray:
    """P(T ≤ t) of all draws (n, *batch) in one list: at every 40th in order, and by straight lines in between.

    A distribution function increases, so that no share is off by more than 40/n: a tenth of what the test of
    Kolmogorov and Smirnov notices in 10⁵ draws, at a fortieth of the work.
    """
    ordered = draws.sort(0).values
    picked = torch.cat([ordered[:-1:_EVERY], ordered[-1:]])
    columns = (field.flatten(1).T.numpy() if field.ndim > 1 else field[None].numpy() for field in (ordered, picked))
    known = cdf(picked).reshape(len(picked), -1).T.numpy()
    return np.concatenate([np.interp(*column) for column in zip(*columns, known, strict=True)])
