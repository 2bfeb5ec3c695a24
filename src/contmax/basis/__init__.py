"""ψ: basis functions on the line, in the plane and in space; a signal is a sum of them."""

from contmax.basis._basis import Basis as Basis
from contmax.basis._families import BSplineBasis as BSplineBasis
from contmax.basis._families import CosineBasis as CosineBasis
from contmax.basis._families import PowerBasis as PowerBasis
from contmax.basis._families import RectangularBasis as RectangularBasis
from contmax.basis._families import SineBasis as SineBasis
from contmax.basis._gaussian import GaussianBasis as GaussianBasis
from contmax.basis._multivariate import MultivariateGaussianBasis as MultivariateGaussianBasis
