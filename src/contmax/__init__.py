"""Sparse and continuous attention for PyTorch.

Read from left to right, as the data flows::

    scores ──Ω_α──▶ p (a probability vector, or a density) ──E_p[ψ]──▶ r ──B──▶ context

===========================  ============================================================================
`softmax`, `sparsemax`,      probability maps over an axis, with masks and temperatures; exact zeros for
`entmax`                     α > 1
`entmax_attention`           scaled_dot_product_attention with exact zeros
`densities`                  densities on the line and in space: truncated parabolas and paraboloids, other
                             β-Gaussians, triangular and location–scale families, mixtures
`regularized_prediction`     the density of an arbitrary score on an interval, a box, nodes or knots
`basis`, `expectation`       basis functions ψ, and their means under a density
`fit_signal`,                from observations to a continuous signal, at once or as a stream; how densely they
`SignalAccumulator`,         lie
`fit_intensity`
`continuous_attention`       all of it in one call: observations and a density → context
`losses`                     Fenchel–Young losses, finite and continuous
`nn`                         modules
`output`                     measures of sparse output layers, prediction sets with coverage
`deformed`                   β-logarithms and β-exponentials, Tsallis negentropies, escorts
`integrations`               `contmax.integrations.entmax`: drop-in for the `entmax` package; transformers; JAX
`viz`                        `import contmax.viz`: pictures and pages of densities and attention
`clear_caches`               empty all caches of the library
===========================  ============================================================================

Each part is loaded when it is first used, so that ``import contmax`` is quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contmax import attention as attention
    from contmax import basis as basis
    from contmax import deformed as deformed
    from contmax import densities as densities
    from contmax import domains as domains
    from contmax import expectations as expectations
    from contmax import integrations as integrations
    from contmax import losses as losses
    from contmax import maps as maps
    from contmax import nn as nn
    from contmax import output as output
    from contmax import prediction as prediction
    from contmax._caches import clear_caches as clear_caches
    from contmax.attention import KeyPages as KeyPages
    from contmax.attention import entmax_attention as entmax_attention
    from contmax.expectations import expectation as expectation
    from contmax.maps import entmax as entmax
    from contmax.maps import softmax as softmax
    from contmax.maps import sparsemax as sparsemax
    from contmax.prediction import regularized_prediction as regularized_prediction
    from contmax.signal import Signal as Signal
    from contmax.signal import SignalAccumulator as SignalAccumulator
    from contmax.signal import continuous_attention as continuous_attention
    from contmax.signal import fit_intensity as fit_intensity
    from contmax.signal import fit_signal as fit_signal

# Name → the module that defines it. Type checkers read the imports above; a test checks that both agree.
_DEFINED_IN = {
    "clear_caches": "_caches",
    "entmax_attention": "attention",
    "KeyPages": "attention",
    "expectation": "expectations",
    "entmax": "maps",
    "softmax": "maps",
    "sparsemax": "maps",
    "regularized_prediction": "prediction",
    "Signal": "signal",
    "SignalAccumulator": "signal",
    "continuous_attention": "signal",
    "fit_intensity": "signal",
    "fit_signal": "signal",
}
_MODULES = (
    "attention",
    "basis",
    "deformed",
    "densities",
    "domains",
    "expectations",
    "integrations",
    "losses",
    "maps",
    "nn",
    "output",
    "prediction",
)


def __getattr__(name: str) -> Any:
    """Import a public module, or a name from its module, on first use. Python caches modules; this caches names."""
    if name in _MODULES:
        return importlib.import_module(f"contmax.{name}")
    if name in _DEFINED_IN:
        found = getattr(importlib.import_module(f"contmax.{_DEFINED_IN[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'contmax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_DEFINED_IN})
