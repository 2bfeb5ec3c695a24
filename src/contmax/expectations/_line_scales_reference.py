"""β-Gaussians of every α against Gaussian bases on the line by torch's operations, in float64 inside.

What compiled kernels are compared with, and where their higher derivatives come from.
"""

from typing import Any

import torch
from torch import Tensor

from contmax.densities import BetaGaussian
from contmax.expectations._plane_form import line_form
from contmax.expectations._scale_mean import mean_over_scales


def scale_mean_reference(loc: Any, scale: Any, centre: Any, width: Any, index: Any, number: Any) -> Tensor:
    """The same by torch, differentiable to every order; α is a tensor, or, where that is None, the number after it."""
    alpha = number if index is None else index
    wide = BetaGaussian(loc.double(), scale.double(), alpha, validate_args=False)
    form, size = line_form(wide.variance[..., None], wide.loc[..., None] - centre.double(), width.double())
    return (mean_over_scales(form, alpha, 1, loc.dtype == torch.float32) * size).to(loc.dtype)
