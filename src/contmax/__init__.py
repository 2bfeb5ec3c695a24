"""Sparse and continuous attention for PyTorch.

Read from left to right, as the data flows::

    scores ──Ω_α──▶ p (a probability vector, or a density) ──E_p[ψ]──▶ r ──B──▶ context

=====================  ==================================================================================
`softmax`,             probability maps over an axis, with masks and temperatures; exact zeros for α > 1
`sparsemax`, `entmax`
`deformed`             β-logarithms and β-exponentials, Tsallis negentropies, escorts
`losses`               Fenchel–Young losses that fit those maps
`nn`                   the same as modules, with learnable α
`integrations`         `contmax.integrations.entmax`: drop-in for the `entmax` package
=====================  ==================================================================================
"""

from contmax import deformed as deformed
from contmax import losses as losses
from contmax import maps as maps
from contmax import nn as nn
from contmax.maps import entmax as entmax
from contmax.maps import softmax as softmax
from contmax.maps import sparsemax as sparsemax
