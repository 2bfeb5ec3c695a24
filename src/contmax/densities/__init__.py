"""Ω_α-maps in closed form: sparse, Gaussian and heavy-tailed densities as torch distributions.

========================================  ==========================================================================
:class:`BetaGaussian`                     score −(t−μ)²/2σ² on the line, every α: Student-t, Gaussian, …, uniform
:class:`MultivariateBetaGaussian`         the same in N dimensions
:class:`TruncatedParabola`, ``…oid``      their members of index α = 2
:class:`Triangular`                       score −|t−μ|/b, α = 2
:class:`LocationScale`                    score −g'(|t−μ|/σ)/σ for any convex g, α = 2
:class:`Mixture`                          several of one family, with the union of their supports
:class:`Empirical`                        weighted samples
:class:`LineDensity`, :class:`LineLaw`    base classes for your own symmetric family on the line
========================================  ==========================================================================

The Laplace density (score −|t−μ|/b, α = 1) is torch's own ``Laplace``. Importing this package registers
Kullback–Leibler divergences with ``torch.distributions.kl_divergence``.
"""

from . import _divergence as _divergence
from ._beta_gaussian import BetaGaussian as BetaGaussian
from ._density import Density as Density
from ._empirical import Empirical as Empirical
from ._landmarks import Landmarks as Landmarks
from ._line import LineDensity as LineDensity
from ._line import LineLaw as LineLaw
from ._location_scale import LocationScale as LocationScale
from ._mixture import Mixture as Mixture
from ._multivariate import MultivariateBetaGaussian as MultivariateBetaGaussian
from ._paraboloid import TruncatedParabola as TruncatedParabola
from ._paraboloid import TruncatedParaboloid as TruncatedParaboloid
from ._triangular import Triangular as Triangular
