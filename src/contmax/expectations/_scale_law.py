r"""The law of the scale: every β-Gaussian is a mixture of Gaussians with its own mean and shape.

With V the covariance of p and ν = 1/(α−1) + 1 + N/2,

    p(t) = ∫ N(t; μ, V/s) q(s) ds,      q(s) ∝ exp(ν(s − 1 − ln s))

For α < 1 (ν < 0) this is Student's t: s is positive and has a Gamma law. For α > 1 (ν > 0) the same formula holds with
s on a path in the complex plane that comes from below the negative axis, crosses the positive one and returns above it.
At α = 1 the law is concentrated at s = 1. Expectations of a Gaussian function under Gaussians have a closed form, so
E_p[ψ_j] is an integral over s alone, in any dimension: Σ w_q N(μ; μ_j, Σ_j + V/s_q).
"""

import math

import torch
from torch import Tensor

from contmax.expectations._matrix_form import MatrixForm
from contmax.expectations._plane_form import PlaneForm
from contmax.numerics import DOUBLE, SINGLE, Complex, Hyperbola, saddle_nodes

Form = PlaneForm | MatrixForm

_NEWTON_STEPS = 3
# On the half line, for an error of 1e-7 (True) or 1e-13: nodes, and −ln of the law's mass neglected at either end.
_HALF_LINE = {True: (32, 18.0), False: (80, 37.0)}
# From this |ν| on Stirling's series is exact to rounding; for smaller |ν|, differences of ln Γ do not cancel.
_STIRLING = 10.0
_STIRLING_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)


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
    """The rule on the path for α > 1; for a tensor ν as many nodes as on the half line, for accurate slopes in ν."""
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

    It starts at the lower of two estimates: `wide` is right for functions much wider than the density; `narrow`, which
    replaces Σ y²λ/(s+λ)² (see `_matrix_form`) by Σ y²/(λ̄+2s) with λ̄ = `spread`, is right for narrower functions.
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
    """Nodes and weights for α < 1, ln s = high − sinh w, where the Gamma law and its product with N(s) have mass.

    The law decays doubly exponentially in ln s for large s, and for small s exponentially in ln s, doubly so in w.
    """
    count, left_out = _HALF_LINE[single]
    near, _, spread, _ = gaussian.sizes()
    t = left_out / (size + 1)
    root = (2 * t).sqrt()
    # For functions far from the density the mass comes from small s, the widest Gaussians: the mean of s falls like
    # 1/distance², unless the function is wide itself. The mass at smaller s is negligible beside the largest r.
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
        return _stirling_number(order)
    x = order.abs()
    large = x >= _STIRLING
    inverse = 1 / torch.where(large, x, _STIRLING)
    square = inverse * inverse
    series = torch.zeros_like(square)
    for coefficient in reversed(_STIRLING_SERIES):
        series = series * square + coefficient
    small = torch.where(large, 1.0, x)
    direct = torch.lgamma(small) + small - (small - 0.5) * small.log() - 0.5 * math.log(2 * math.pi)
    return (torch.where(large, series * inverse, direct) * order.sign()).exp()


def _stirling_number(order: float) -> float:
    size = abs(order)
    log = sum(c / size ** (2 * j + 1) for j, c in enumerate(_STIRLING_SERIES))
    if size < _STIRLING:
        log = math.lgamma(size) + size - (size - 0.5) * math.log(size) - 0.5 * math.log(2 * math.pi)
    return math.exp(math.copysign(1, order) * log)
