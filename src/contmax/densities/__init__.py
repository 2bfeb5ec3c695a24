"""Ω_α-maps in closed form: sparse, Gaussian and heavy-tailed densities as torch distributions.

========================================  ==========================================================================
:class:`BetaGaussian`                     score −(t−μ)²/2σ² on the line, every α: Student-t, Gaussian, …, uniform
:class:`MultivariateBetaGaussian`         score −(t−μ)ᵀΣ⁻¹(t−μ)/2 in N dimensions, every α
:class:`TruncatedParabola`, ``…oid``      their members of index α = 2
:class:`Triangular`                       score −|t−μ|/b, α = 2
:class:`LocationScale`                    score −g'(|t−μ|/σ)/σ for any convex g, α = 2
:class:`Mixture`                          several of one family, with the union of their supports
:class:`Empirical`                        weighted samples
:class:`LineDensity`, :class:`LineLaw`    base classes for your own symmetric family on the line
``stats``                                 some of them with the interface of scipy.stats, loaded when it is used
========================================  ==========================================================================

The Laplace density (score −|t−μ|/b, α = 1) is torch's own ``Laplace``. Importing this package registers
Kullback–Leibler divergences with ``torch.distributions.kl_divergence``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from contmax.densities import _divergence as _divergence
from contmax.densities._beta_gaussian import BetaGaussian as BetaGaussian
from contmax.densities._beta_gaussian import TruncatedParabola as TruncatedParabola
from contmax.densities._density import Density as Density
from contmax.densities._line import LineDensity as LineDensity
from contmax.densities._line import LineLaw as LineLaw
from contmax.densities._line_rule import Landmarks as Landmarks
from contmax.densities._location_scale import LocationScale as LocationScale
from contmax.densities._location_scale import Triangular as Triangular
from contmax.densities._mixture import Empirical as Empirical
from contmax.densities._mixture import Mixture as Mixture
from contmax.densities._multivariate import MultivariateBetaGaussian as MultivariateBetaGaussian
from contmax.densities._multivariate import TruncatedParaboloid as TruncatedParaboloid

if TYPE_CHECKING:
    from contmax.densities import stats as stats


def __getattr__(name: str) -> Any:
    """Import ``contmax.densities.stats`` on its first use."""
    if name == "stats":
        return importlib.import_module("contmax.densities.stats")
    raise AttributeError(f"module 'contmax.densities' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "stats"})
