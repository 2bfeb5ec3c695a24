"""r = E_p[ψ] of β-Gaussians of every α against Gaussian bases on the line, by the mean over the law of the scale.

A β-Gaussian is a mixture of Gaussians of different scales, and `_scale_mean` defines the law of the scale. The
computation is in float64, with 12 to 32 nodes for float32 arguments and 40 to 80 for float64. On a CPU numba's kernel
computes values and slopes in one pass. torch.compile sees one operator, because the law of the scale would add hundreds
of operations to a graph: they would take longer to compile than most models, and run slower than the kernel. On a GPU
Triton's kernels take every α. All other calls, and higher derivatives, use the torch reference.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor
from torch.compiler import is_compiling

from contmax._backend import Backend
from contmax._eager import is_eager_cpu, require_float64
from contmax._operator import operator
from contmax.densities import BetaGaussian
from contmax.expectations._chunks import Fewest, in_chunks
from contmax.expectations._expectation import FORMULAS, Formula, expectation_by
from contmax.expectations._gaussian_forms import line_form
from contmax.expectations._scale_mean import mean_over_scales, path_rule
from contmax.kernels import means

# A pair of a density and a basis function takes about 12 kB of memory while gradients are computed.
_FEWEST_PAIRS = Fewest(on_cpu=2**12, elsewhere=2**15, saved=2**7)
_FEWEST_PAIRS_OF_INDEX = _FEWEST_PAIRS._replace(saved=2**12)


def scale_mean_expectation(
    loc: Tensor, scale: Tensor, alpha: float | Tensor, centre: Tensor, width: Tensor, backend: Backend
) -> Tensor:
    """r from (μ, σ, α, μ_j, σ_j): (*batch), (*batch), a number or (*batch), (K,), (K,) → (*batch, K).

    All but α have one dtype, float32 or float64.
    """
    index, number = (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
    tensors, known = (loc, scale, index, centre, width), None
    # Numba's kernel takes no tensor that torch.vmap has wrapped; in a trace the operator is called instead.
    takes = backend is Backend.NUMBA and (is_compiling() or is_eager_cpu(*tensors))
    if takes and _has_no_heavy_tails(index, number):
        with torch.no_grad():
            known = line_scale_means(*tensors, number)
    if known is not None or backend is Backend.TRITON:
        return expectation_by(means.ANY_ALPHA, number, *tensors, known=known)
    reference = partial(scale_mean_reference, number=number)
    fewest = _FEWEST_PAIRS if index is None else _FEWEST_PAIRS_OF_INDEX
    return in_chunks(reference, (loc, scale, index), (centre, width), loc.dim(), fewest)


def _has_no_heavy_tails(index: Tensor | None, number: float) -> bool:
    """Whether all α ≥ 1 and none is NaN: for α < 1 the law of the scale needs nodes that the kernel does not have.

    In a trace the values of a tensor α are not known: the result is True, and the operator tests them when it runs.
    """
    if index is None:
        return number >= 1
    return is_compiling() or (index.numel() > 0 and float(index.detach().min()) >= 1)


def _means_like(
    loc: Tensor, _scale: Tensor, _index: Tensor | None, centre: Tensor, _width: Tensor, _number: float
) -> tuple[Tensor, Tensor]:
    functions = centre.shape[0]
    return loc.new_empty(*loc.shape, functions), loc.new_empty(*loc.shape, 4, functions)


@operator("line_scale_means", _means_like, shared=("centre", "width"))
def line_scale_means(
    loc: Tensor, scale: Tensor, index: Tensor | None, centre: Tensor, width: Tensor, number: float
) -> tuple[Tensor, Tensor]:
    """r, (*batch, K), and ∂r/∂(μ, σ, σ_j, α), (*batch, 4, K), by numba's kernel, or by torch if an α is below one."""
    if _has_no_heavy_tails(index, number):
        from contmax.kernels.means import _cpu_means

        rule = path_rule(index is not None, loc.dtype == torch.float32)
        return _cpu_means.line_scale_means(loc, scale, number if index is None else index, centre, width, rule)
    # Slopes need torch.autograd, which records nothing inside an operator. (torch.func fails under a dispatch mode,
    # such as torch's counter of operations.) Recording and modes are states of a thread, so compute in a new thread.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_values_and_slopes, loc, scale, index, centre, width, number).result()


def _values_and_slopes(
    loc: Tensor, scale: Tensor, index: Tensor | None, centre: Tensor, width: Tensor, number: float
) -> tuple[Tensor, Tensor]:
    """`line_scale_means` by torch. Each r has its own copies of parameters, so the gradients of Σ r are the slopes."""
    shape = (*loc.shape, centre.shape[0])
    mu, sigma = (x.unsqueeze(-1).expand(shape).clone().requires_grad_() for x in (loc, scale))
    alpha = None if index is None else index.unsqueeze(-1).expand(shape).clone().requires_grad_()
    mu_j, sigma_j = (x.expand(shape).unsqueeze(-1).clone().requires_grad_() for x in (centre, width))
    r = scale_mean_reference(mu, sigma, alpha, mu_j, sigma_j, number).squeeze(-1)
    wanted = [x for x in (mu, sigma, sigma_j, alpha) if x is not None]
    slopes = [slope.reshape(shape).to(r.dtype) for slope in torch.autograd.grad(r.sum(), wanted)]
    return r.detach(), torch.stack(slopes if index is not None else [*slopes, torch.zeros_like(slopes[0])], -2)


def scale_mean_reference(
    loc: Tensor, scale: Tensor, index: Tensor | None, centre: Tensor, width: Tensor, number: float
) -> Tensor:
    """r by torch, differentiable to every order; α is `index`, or `number` if `index` is None."""
    alpha = number if index is None else index
    require_float64(loc.device, "This expectation")
    wide = BetaGaussian(loc.double(), scale.double(), alpha, validate_args=False)
    form, size = line_form(wide.variance[..., None], wide.loc[..., None] - centre.double(), width.double())
    return (mean_over_scales(form, alpha, 1, loc.dtype == torch.float32) * size).to(loc.dtype)


FORMULAS[means.ANY_ALPHA] = Formula(scale_mean_reference)
