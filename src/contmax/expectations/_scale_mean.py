r"""The law of the scale, and the mean of N(s) = N(μ; μ_j, Σ_j + V/s) over this law, with derivatives to every order.

Every β-Gaussian p is a mixture of Gaussians that have its mean and shape. With V the covariance of p and
ν = 1/(α−1) + 1 + N/2,

    p(t) = ∫ N(t; μ, V/s) q(s) ds,      q(s) ∝ exp(ν(s − 1 − ln s))

For α < 1 (ν < 0) this is Student's t: s is positive and has a Gamma law. For α > 1 (ν > 0) the same formula holds with
s on a path in the complex plane that comes from below the negative axis, crosses the positive one and returns above it.
At α = 1 the law is concentrated at s = 1. Expectations of a Gaussian function under Gaussians have a closed form, so
E_p[ψ_j] is an integral over s alone, in any dimension: Σ w_q N(μ; μ_j, Σ_j + V/s_q).

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

from contmax._autograd import apply, may_be_differentiated
from contmax._backend import Backend, backend_of
from contmax._eager import device_type, is_eager_cpu, is_exporting, is_exporting_to_onnx
from contmax._operator import operator
from contmax._smooth import polynomial
from contmax.expectations._gaussian_forms import Form, MatrixForm, PlaneForm
from contmax.numerics import DOUBLE, SINGLE, Complex, Hyperbola, float64_of, saddle_nodes

_NEWTON_STEPS = 3
# For s on the half line (α < 1) and an error of 1e-7 (True) or 1e-13 (False): the number of nodes, and −ln of the mass
# of the law that is neglected at either end.
_HALF_LINE = {True: (32, 18.0), False: (80, 37.0)}
# From this |ν| on Stirling's series is exact to rounding; for smaller |ν|, differences of ln Γ do not cancel.
_STIRLING = 10.0
_STIRLING_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
# Largest size of an intermediate tensor (pairs times nodes) in bytes: on a CPU it should fit in the cache, on an
# accelerator large tensors save kernel launches.
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
        # On a CPU call one operator, as fusion by torch.compile does not pay. An export must not contain our operators.
        compute = scale_means if device_type(inputs[0]) == "cpu" and not is_exporting() else _in_blocks
        mean, *slopes = compute([x.detach() for x in inputs], *law, needs_slopes)
    # A trace without slopes skips `_Mean`: torch.compile confuses calls that have different numbers of arguments.
    if needs_slopes or not torch.compiler.is_compiling():
        mean = apply(_Mean, *law, mean, len(slopes), *slopes, *inputs)
    size = order.abs() if isinstance(order, Tensor) else abs(order)
    result: Tensor = mean * ((size / (2 * math.pi)) ** 0.5 * stirling_factor(order))
    return result


class _Mean(torch.autograd.Function):
    """Gives a known mean its derivatives: known slopes, or differentiable slopes for higher derivatives."""

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
        # Give the cotangent, (*pairs), the rank of each slope, which may be higher.
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
        # Clone, since results of an operator must not share memory.
        return [x.clone() for x in means[: 6 if with_slopes else 1]]
    return _in_blocks(inputs, plane, order, single, with_slopes)


def _in_blocks(
    inputs: Sequence[Tensor], plane: bool, order: float | None, single: bool, with_slopes: bool
) -> list[Tensor]:
    """`scale_means` by torch operations, a block of pairs at a time."""
    shape = _form_and_order(inputs, plane, order)[0].pairs.shape
    room = _BLOCK_CPU if device_type(inputs[0]) == "cpu" else _BLOCK_ACCELERATOR
    size = room // (path_rule(order is None or order < 0, single).nodes * inputs[0].element_size())
    # In a trace take all pairs as one block, since sizes may be symbolic.
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
    # E[(s − 1)ᵐ] for m = 0, …, _MOMENTS.
    moments: list[float | Tensor] = [1.0, -eta]
    for m in range(1, _MOMENTS):
        moments.append(-eta * (m * moments[m - 1] + (m + 1) * moments[m]))
    for m, moment in enumerate(moments):
        # Nodes lie on the upper half of the circle; by symmetry, the weights also count its lower half.
        share = moment * (_RADIUS**-m / _NODES)
        real, imaginary = real + share * (m * angle).cos(), imaginary - share * (m * angle).sin()
    return form.integrate(nodes, Complex(real, imaginary), 0.0)[0]


def scale_nodes(gaussian: Form, order: float | Tensor, single: bool) -> tuple[Complex, Complex]:
    r"""Nodes s and weights w: the mean of f is :math:`\sqrt{|\nu|/2\pi}\,g` Σ Re w f(s) exp(ν(s − 1 − ln s)).

    g is the :func:`stirling_factor`; the first dimension of s and w runs over nodes.

    Args:
        gaussian: N(μ; μ_j, Σ_j + V/s) of every pair, whose mean over the law is wanted.
        order: ν, a number or a tensor that broadcasts to the pairs.
        single: whether an error of 1e-7, not of 1e-13, is small enough.
    """
    rule = path_rule(isinstance(order, Tensor), single)
    if not isinstance(order, Tensor):
        size = torch.full_like(gaussian.pairs, abs(order))
        return _path(gaussian, size, rule) if order > 0 else _half_line(gaussian, size, single)
    above = order > 0
    path = _path(gaussian, torch.where(above, order, 2.0 + gaussian.half_dim), rule)
    line = _half_line(gaussian, torch.where(above, 1.0, -order), single)
    nodes, weights = (
        Complex(torch.where(above, a.re, b.re), torch.where(above, a.im, b.im)) for a, b in zip(path, line, strict=True)
    )
    return nodes, weights


def path_rule(varies: bool, single: bool) -> Hyperbola:
    """The rule of the path for α > 1; for a tensor ν, which may have both signs, as many nodes as the half line has."""
    if varies:
        return Hyperbola(_HALF_LINE[single][0], DOUBLE.end, DOUBLE.stretch)
    return SINGLE if single else DOUBLE


def _path(gaussian: Form, order: Tensor, rule: Hyperbola) -> tuple[Complex, Complex]:
    """Nodes and weights for α > 1, on a path through the saddle point of the whole integrand."""
    rest = order - gaussian.half_dim
    saddle = _saddle(gaussian, order, rest)
    _, second, third = gaussian.slopes(saddle)
    return saddle_nodes(saddle, rest + second, 2 * rest + third, rule)


def _saddle(gaussian: Form, order: Tensor, rest: Tensor) -> Tensor:
    """The integrand's minimum on the positive axis, to a few percent of its width there, by Newton's method in ln s.

    The start is the lower of two estimates: `wide` is right for functions much wider than the density; `narrow`, which
    replaces Σ y²λ/(s+λ)² (see `MatrixForm`) by Σ y²/(λ̄+2s) with λ̄ = `spread`, is right for narrower functions.
    """
    near, middle, spread, volume = gaussian.sizes()
    lowest = rest / order
    share = (rest + volume) / order
    p = torch.add(near / (2 * order) - spread, share, alpha=2)
    root = torch.addcmul(p * p, share, spread, value=8).sqrt()
    narrow = torch.where(p > 0, (p + root) / 4, 2 * share * spread / (root - p))
    wide = 0.5 * share + (0.25 * share * share + middle / (2 * order)).sqrt()
    s = narrow.minimum(wide)
    for _ in range(_NEWTON_STEPS):
        first, second, _ = gaussian.slopes(s)
        total = rest + first
        step = (total / (order * s)).log() * total / (rest + second)
        s = (s * step.clamp(-2, 2).exp()).maximum(lowest)
    return s


def _half_line(gaussian: Form, size: Tensor, single: bool) -> tuple[Complex, Complex]:
    """Nodes s and weights for α < 1: ln s = high − sinh w with equidistant w.

    The nodes cover the s where the Gamma law and its product with N(s) have mass. In ln s the law decays doubly
    exponentially for large s, but only exponentially for small s; in w it decays doubly exponentially there too.
    """
    count, left_out = _HALF_LINE[single]
    near, _, spread, _ = gaussian.sizes()
    t = left_out / (size + 1)
    root = (2 * t).sqrt()
    # For functions far from the density the mass comes from small s, that is from wide Gaussians. There the mean of s
    # falls like 1/distance², unless the function itself is wide. Mass at smaller s is negligible beside the largest r.
    far = near * spread / (1 + spread).square()
    length = root.clamp(max=1) + t + torch.log1p(far / (2 * (size + 1))) + torch.log1p(t + root)
    high, step = torch.log1p(1 / size) + torch.log1p(t + root), length.asinh() / (count - 1)
    w = step * torch.arange(count, dtype=step.dtype, device=step.device).view(count, *(1,) * step.dim())
    s = torch.exp(high - w.sinh())
    zero = torch.zeros_like(s)
    return Complex(s, zero), Complex(s * step * w.cosh(), zero)


def stirling_factor(order: float | Tensor) -> float | Tensor:
    r"""The normaliser of the law of the scale: g(|ν|), or its inverse for ν < 0.

    .. math:: g(x) = \frac{\Gamma(x)\,e^x x^{1/2-x}}{\sqrt{2\pi}} = 1 + \frac1{12x} + \dots

    Args:
        order: ν, a number or a float64 tensor.

    Returns:
        A number for a number, a differentiable tensor for a tensor.
    """
    if not isinstance(order, Tensor):
        size = abs(order)
        log = sum(c / size ** (2 * j + 1) for j, c in enumerate(_STIRLING_SERIES))
        if size < _STIRLING:
            log = math.lgamma(size) + size - (size - 0.5) * math.log(size) - 0.5 * math.log(2 * math.pi)
        return math.exp(math.copysign(1, order) * log)
    x = order.abs()
    large = x >= _STIRLING
    inverse = 1 / torch.where(large, x, _STIRLING)
    series = polynomial(inverse * inverse, _STIRLING_SERIES)
    small = torch.where(large, 1.0, x)
    direct = torch.lgamma(small) + small - (small - 0.5) * small.log() - 0.5 * math.log(2 * math.pi)
    return (torch.where(large, series * inverse, direct) * order.sign()).exp()
