"""Modules: stateful shells around the functions of the library, no mathematics of their own."""

from contmax.nn._losses import FenchelYoungLoss as FenchelYoungLoss
from contmax.nn._maps import Entmax as Entmax
from contmax.nn._maps import Sparsemax as Sparsemax
