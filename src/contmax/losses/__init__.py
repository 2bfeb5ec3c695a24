"""Fenchel–Young losses: convex, zero exactly when the prediction is the target, gradient = prediction − target."""

from contmax.losses._finite import entmax_loss as entmax_loss
from contmax.losses._finite import sparsemax_loss as sparsemax_loss
