"""Special functions, solvers and quadrature: the leaf everything continuous stands on."""

from ._complex import Complex as Complex
from ._contour import DOUBLE as DOUBLE
from ._contour import SINGLE as SINGLE
from ._contour import Hyperbola as Hyperbola
from ._contour import SaddlePath as SaddlePath
from ._contour import hyperbola_nodes as hyperbola_nodes
from ._contour import saddle_path as saddle_path
from ._float64 import float64_of as float64_of
from ._gamma_ratio import log_gamma_ratio as log_gamma_ratio
from ._gamma_ratio import log_gamma_ratio_slope as log_gamma_ratio_slope
from ._principal_axes import principal_axes as principal_axes
from ._quadrature import gauss_legendre as gauss_legendre
from ._quadrature import graded_rule as graded_rule
from ._quadrature import grading as grading
from ._quadrature import legendre_antiderivative as legendre_antiderivative
from ._quadrature import legendre_basis as legendre_basis
from ._quadrature import legendre_coefficients as legendre_coefficients
from ._quadrature import legendre_slope as legendre_slope
from ._quadrature import legendre_sum as legendre_sum
from ._quadrature import unit_gauss_legendre as unit_gauss_legendre
from ._radial import radial_density as radial_density
from ._radial import radial_quantile as radial_quantile
from ._radial import radial_shares as radial_shares
from ._root import implicit_root as implicit_root
from ._root import monotone_root as monotone_root
