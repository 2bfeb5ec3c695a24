r"""The mean of N(s) = N(μ; μ_j, Σ_j + V/s) over the law of the scale s, with derivatives to every order.

Near α = 1 the law of s is narrow, and its moments determine the mean. The moments are polynomials in η = 1/ν, smooth
through zero,

.. math:: E[(s-1)^{m+1}] = -\eta\,\big(m\,E[(s-1)^{m-1}] + (m+1)\,E[(s-1)^m]\big)

The moments times the coefficients of the Taylor series of N(s) about s = 1 give the mean over s. Coefficients are means
of N(s) over a circle about s = 1 (Cauchy's formula), so the mean is again a sum over nodes, which are fixed and have
polynomials in η as weights. Nothing is lost to cancellation, and at η = 0 the sum is N(1), the Gaussian.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax._autograd import apply
from contmax._backend import Backend, backend_of
from contmax._by_reference import may_be_differentiated
from contmax._eager import device_type, is_eager_cpu, is_exporting, is_exporting_to_onnx
from contmax._operator import operator
from contmax.expectations._matrix_form import MatrixForm
from contmax.expectations._plane_form import PlaneForm
from contmax.expectations._scale_law import Form, path_rule, scale_nodes, stirling_factor
from contmax.numerics import SINGLE, Complex, float64_of

# Most bytes of an intermediate tensor (pairs times nodes): it should fit in a CPU's cache; on an accelerator large
# tensors save launches.
_BLOCK_CPU, _BLOCK_ACCELERATOR = 2**18, 2**26
# Up to this |η| neglected moments and aliasing errors of the coefficients are below 1e-14 of the largest value.
NEAR_ONE = 4e-3
_MOMENTS, _NODES, _RADIUS = 16, 16, 0.3


def mean_over_scales(form: Form, alpha: float | Tensor, dim: int, single: bool) -> Tensor:
    """The mean of N(μ; μ_j, Σ_j + V/s) over the law of s that belongs to α, without the factor that `form` omits.

    Args:
        form: the Gaussian as a function of s, in float64 if α is a tensor or near one.
        alpha: α, a number, or a tensor whose shape is that of the pairs without the last dimension.
        dim: N, the dimension of the density.
        single: whether an error of 1e-7, not of 1e-13, is small enough.

    Returns:
        One value for each pair, differentiable in the numbers of the form and in α, through α = 1.
    """
    if is_exporting_to_onnx() and form.pairs.dtype == torch.float64:
        raise NotImplementedError(
            f"The expectation under a density with α = {alpha} needs complex numbers in float64, for which onnxruntime "
            "has no operations. Pass α = 1, 4/3, 3/2 or 2; on the plane, in float32, any number from 1.1 to 2."
        )
    if not isinstance(alpha, Tensor):
        order = scale_order(alpha, dim)
        return mean_near_one(form, 1 / order) if abs(order) * NEAR_ONE > 1 else _mean_away_from_one(form, order, single)
    gap = float64_of(alpha, form.pairs) - 1
    eta = (gap / (1 + (1 + dim / 2) * gap)).unsqueeze(-1).expand(form.pairs.shape)
    near = eta.abs() < NEAR_ONE
    away = _mean_away_from_one(form, 1 / torch.where(near, NEAR_ONE, eta), single)
    return torch.where(near, mean_near_one(form, torch.where(near, eta, 0.0)), away)


def scale_order(alpha: float, dim: int) -> float:
    """ν = 1/(α−1) + 1 + N/2 of a number α, infinite at one."""
    return math.inf if alpha == 1 else 1 / (alpha - 1) + 1 + dim / 2


def _mean_away_from_one(form: Form, order: float | Tensor, single: bool) -> Tensor:
    """The mean over the law of s with ν = ``order``, a number or a tensor of the shape of the pairs.

    The integral does not depend on the place of the nodes, so nodes are constants in derivatives, and the integrand
    alone is differentiated; its first derivatives are summed along with the value.
    """
    inputs = (*form, order) if isinstance(order, Tensor) else tuple(form)
    law = (isinstance(form, PlaneForm), None if isinstance(order, Tensor) else order, single)
    needs_slopes = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    with torch.no_grad():
        # One operator on a CPU, where fusion by torch.compile does not pay. Exported programs must not contain it.
        compute = scale_means if device_type(inputs[0]) == "cpu" and not is_exporting() else _in_blocks
        mean, *slopes = compute([x.detach() for x in inputs], *law, needs_slopes)
    # A trace without slopes skips `_Mean`: torch.compile confuses calls that have different numbers of arguments.
    if needs_slopes or not torch.compiler.is_compiling():
        mean = apply(_Mean, *law, mean, len(slopes), *slopes, *inputs)
    size = order.abs() if isinstance(order, Tensor) else abs(order)
    result: Tensor = mean * ((size / (2 * math.pi)) ** 0.5 * stirling_factor(order))
    return result


class _Mean(torch.autograd.Function):
    """Gives a computed mean its derivatives: computed slopes or, for higher derivatives, differentiable slopes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(plane: bool, order: float | None, single: bool, value: Tensor, count: int, *rest: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.law, ctx.count = inputs[:3], inputs[4]
        ctx.save_for_backward(*inputs[5:])
        ctx.save_for_forward(*inputs[5:])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # torch.utils.checkpoint allows one access
        slopes, inputs = saved[: ctx.count], saved[ctx.count :]
        # A compiled backward pass is not differentiated again: computed slopes are enough.
        if not slopes or (may_be_differentiated() and not torch.compiler.is_compiling()):
            _, *slopes = _integrate(inputs, True, *ctx.law)
        # Slopes in M and y have more dimensions than the cotangent, (*pairs).
        grads = [cotangent.reshape(*cotangent.shape, *(1,) * (x.dim() - cotangent.dim())) * x for x in slopes]
        return *(None,) * (5 + ctx.count), *grads

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        value, *slopes = _integrate(ctx.saved_tensors[ctx.count :], True, *ctx.law)
        total = torch.zeros_like(value)
        for slope, move in zip(slopes, tangents[5 + ctx.count :], strict=True):
            if move is not None:
                total = total + (slope * move).unsqueeze(-1).flatten(value.dim()).sum(-1)
        return total


def _means_like(
    inputs: Sequence[Tensor], plane: bool, _order: float | None, _single: bool, with_slopes: bool
) -> list[Tensor]:
    pairs = _form_and_order(inputs, plane, _order)[0].pairs
    return [x.new_empty(x.shape) for x in (pairs, *(inputs if with_slopes else ()))]


@operator("scale_means", _means_like)
def scale_means(
    inputs: Sequence[Tensor], plane: bool, order: float | None, single: bool, with_slopes: bool
) -> list[Tensor]:
    """The mean of each pair of a density and a function, and, `with_slopes`, its slope in each input.

    The inputs are the tensors of a `PlaneForm` (if `plane`) or `MatrixForm`, followed by ν if `order` is None.
    """
    takes_kernel = plane and single and order is not None and order > 0 and inputs[0].dtype == torch.float32
    if takes_kernel and is_eager_cpu(*inputs) and backend_of(inputs[0]) is Backend.NUMBA:
        from contmax.kernels.means import _cpu_means

        assert order is not None
        means = _cpu_means.plane_scale_means(inputs, order, SINGLE)
        # Clones, since results of an operator must not share memory.
        return [x.clone() for x in means[: 6 if with_slopes else 1]]
    return _in_blocks(inputs, plane, order, single, with_slopes)


def _in_blocks(
    inputs: Sequence[Tensor], plane: bool, order: float | None, single: bool, with_slopes: bool
) -> list[Tensor]:
    """`scale_means` by torch operations, a block of pairs at a time."""
    shape = _form_and_order(inputs, plane, order)[0].pairs.shape
    room = _BLOCK_CPU if device_type(inputs[0]) == "cpu" else _BLOCK_ACCELERATOR
    size = room // (path_rule(order is None or order < 0, single).nodes * inputs[0].element_size())
    # In a trace sizes may be symbolic, and pairs are not divided into blocks.
    if torch.compiler.is_compiling() or shape.numel() <= size:
        return _integrate(inputs, with_slopes, plane, order, single)
    flat = (x.reshape(-1, *x.shape[len(shape) :]).split(size) for x in inputs)
    parts = [_integrate(block, with_slopes, plane, order, single) for block in zip(*flat, strict=True)]
    joined = (torch.cat(piece) for piece in zip(*parts, strict=True))
    return [x.reshape(*shape, *x.shape[1:]) for x in joined]


def _integrate(
    inputs: Sequence[Tensor], with_slopes: bool, plane: bool, order: float | None, single: bool
) -> list[Tensor]:
    """The mean and its slopes by differentiable operations on the inputs; nodes are constants in derivatives."""
    with torch.no_grad():
        s, weights = scale_nodes(*_form_and_order([x.detach() for x in inputs], plane, order), single)
    form, nu = _form_and_order(inputs, plane, order)
    return list(form.integrate(s, weights, nu, with_slopes))


def _form_and_order(inputs: Sequence[Tensor], plane: bool, order: float | None) -> tuple[Form, float | Tensor]:
    """The form made of the first inputs, and ν: `order`, or the last input if `order` is None."""
    count = 5 if plane else 2
    return (PlaneForm if plane else MatrixForm)(*inputs[:count]), inputs[count] if order is None else order


def mean_near_one(form: Form, eta: float | Tensor) -> Tensor:
    """The mean of N(μ; μ_j, Σ_j + V/s) over the law of s near α = 1, without the factor that `form` omits.

    Args:
        form: the Gaussian as a function of s, in float64.
        eta: η = 1/ν, |η| ≤ NEAR_ONE, a number or a tensor that broadcasts to the pairs.

    Returns:
        One value for each pair, differentiable in the numbers of the form and in η.
    """
    like = form.pairs
    angle = (torch.arange(_NODES, dtype=like.dtype, device=like.device) + 0.5) * (math.pi / _NODES)
    angle = angle.view(_NODES, *(1,) * like.dim())
    nodes = Complex(1 + _RADIUS * angle.cos(), _RADIUS * angle.sin())
    real, imaginary = torch.zeros_like(angle), torch.zeros_like(angle)
    for m, moment in enumerate(_moments(eta)):
        # Nodes are on the upper half; the weights also count the lower half, by symmetry.
        share = moment * (_RADIUS**-m / _NODES)
        real, imaginary = real + share * (m * angle).cos(), imaginary - share * (m * angle).sin()
    return form.integrate(nodes, Complex(real, imaginary), 0.0)[0]


def _moments(eta: float | Tensor) -> list[float | Tensor]:
    """E[(s − 1)ᵐ] for m = 0, …, _MOMENTS."""
    moments: list[float | Tensor] = [1.0, -eta]
    for m in range(1, _MOMENTS):
        moments.append(-eta * (m * moments[m - 1] + (m + 1) * moments[m]))
    return moments
