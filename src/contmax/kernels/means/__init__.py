"""E_p[ψ] of Gaussian functions ψ under β-Gaussians p, contexts of values, gates and masked means; see README.md."""

from contmax.kernels.means._operators import ANY_ALPHA as ANY_ALPHA
from contmax.kernels.means._operators import INTERVAL as INTERVAL
from contmax.kernels.means._operators import LINE as LINE
from contmax.kernels.means._operators import PLANE as PLANE
from contmax.kernels.means._operators import gates_are_compiled as gates_are_compiled
from contmax.kernels.means._operators import gaussian_mean_gradients as gaussian_mean_gradients
from contmax.kernels.means._operators import gaussian_means as gaussian_means
