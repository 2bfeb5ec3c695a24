"""Special functions, solvers and quadrature: the leaf everything continuous stands on."""

from contmax.numerics._complex import Complex as Complex
from contmax.numerics._contour import DOUBLE as DOUBLE
from contmax.numerics._contour import SINGLE as SINGLE
from contmax.numerics._contour import Hyperbola as Hyperbola
from contmax.numerics._contour import SaddlePath as SaddlePath
from contmax.numerics._contour import hyperbola_nodes as hyperbola_nodes
from contmax.numerics._contour import saddle_path as saddle_path
from contmax.numerics._float64 import float64_of as float64_of
from contmax.numerics._gamma_ratio import log_gamma_ratio as log_gamma_ratio
from contmax.numerics._gamma_ratio import log_gamma_ratio_slope as log_gamma_ratio_slope
from contmax.numerics._principal_axes import principal_axes as principal_axes
from contmax.numerics._quadrature import gauss_legendre as gauss_legendre
from contmax.numerics._quadrature import graded_rule as graded_rule
from contmax.numerics._quadrature import grading as grading
from contmax.numerics._quadrature import legendre_antiderivative as legendre_antiderivative
from contmax.numerics._quadrature import legendre_basis as legendre_basis
from contmax.numerics._quadrature import legendre_coefficients as legendre_coefficients
from contmax.numerics._quadrature import legendre_slope as legendre_slope
from contmax.numerics._quadrature import legendre_sum as legendre_sum
from contmax.numerics._quadrature import unit_gauss_legendre as unit_gauss_legendre
from contmax.numerics._radial import radial_density as radial_density
from contmax.numerics._radial import radial_quantile as radial_quantile
from contmax.numerics._radial import radial_shares as radial_shares
from contmax.numerics._root import implicit_root as implicit_root
from contmax.numerics._root import monotone_root as monotone_root
