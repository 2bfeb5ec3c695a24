"""Fenchel–Young losses: convex, zero exactly when the prediction is the target, gradient = prediction − target."""

from contmax.losses import _pairs as _pairs
from contmax.losses._fenchel_young import fenchel_young as fenchel_young
from contmax.losses._fenchel_young import register_fenchel_young as register_fenchel_young
from contmax.losses._finite import entmax_loss as entmax_loss
from contmax.losses._finite import sparsemax_loss as sparsemax_loss
from contmax.losses._linear import linear_entmax_loss as linear_entmax_loss
