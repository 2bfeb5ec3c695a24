"""Fenchel–Young losses over rows of logits, and of a linear layer over a large vocabulary: see README.md."""

from contmax.kernels.losses._operators import LinearLoss as LinearLoss
from contmax.kernels.losses._operators import Supports as Supports
from contmax.kernels.losses._operators import row_losses as row_losses
from contmax.kernels.losses._operators import row_losses_backward as row_losses_backward
