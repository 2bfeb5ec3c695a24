"""One domain of each kind, with scores and predictions on them, for the tests of predictions."""

import functools

import torch

import contmax
from contmax.domains import Box, Interval, Knots, Nodes

F64 = torch.float64
LINE = Interval(torch.tensor(-2.0, dtype=F64), 2.0)
KNOTS = Knots(torch.tensor([-2.0, -1.0, 0.3, 0.8, 2.0], dtype=F64))
NODES = Nodes(torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=F64), torch.tensor([1.0, 0.5, 2.0, 0.3], dtype=F64))
PLANE = Box(torch.full((2,), -1.0, dtype=F64), torch.ones(2, dtype=F64), resolution=4)
LINES = [LINE, KNOTS]
ALL = [LINE, KNOTS, NODES, PLANE]
ALPHAS = [0.7, 1.0, 1.5, 2.0, 3.0]


def wave(t):
    """Two scores, one of them with several peaks."""
    x = t if t.dim() == 1 else t.sum(-1)
    return torch.stack([2 * (3 * x).sin() + 0.3 * x, -1.5 * (x - 0.2).square()])


@functools.cache  # several tests look at the same prediction, which none of them changes
def predict(domain, alpha):
    return contmax.regularized_prediction(wave, domain, alpha)
