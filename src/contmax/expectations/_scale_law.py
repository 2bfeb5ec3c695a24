r"""The law of the scale: every β-Gaussian is a mixture of Gaussians with its own mean and shape.

With V the covariance of p and ν = 1/(α−1) + 1 + N/2,

    p(t) = ∫ N(t; μ, V/s) q(s) ds,      q(s) ∝ exp(ν(s − 1 − ln s))

For α < 1 (ν < 0) this is Student's t: s is positive and has a Gamma law. For α > 1 (ν > 0) the same formula holds with
s on a path in the complex plane that comes from below the negative axis, crosses the positive one and returns above it.
At α = 1 the law is concentrated at s = 1. Expectations of a Gaussian function under Gaussians have a closed form, so
E_p[ψ_j] is an integral over s alone, in any dimension: Σ w_q N(μ; μ_j, Σ_j + V/s_q).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from contmax.expectations._matrix_form import MatrixForm
from contmax.expectations._plane_form import PlaneForm
from contmax.numerics import DOUBLE, SINGLE, Complex, Hyperbola, SaddlePath, saddle_path

Form = PlaneForm | MatrixForm

_NEWTON_STEPS = 3
# For an error of 1e-7 (True) or 1e-13: nodes on the half line, and −ln of the mass of the law neglected at either end.
_HALF_LINE = {True: (32, 18.0), False: (80, 37.0)}
# From this |ν| on Stirling's series is exact to rounding; for smaller |ν|, differences of ln Γ do not cancel.
_STIRLING = 10.0
_STIRLING_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)


class HalfLine(NamedTuple):
    """The largest ln s, and the step between nodes in w, with ln s = high + sinh w.

    To the right the law ends as a double exponential, to the left only as a power of s, which sinh makes as short.
    """

    high: Tensor
    step: Tensor

    def nodes(self, count: int) -> tuple[Complex, Complex]:
        """Nodes s and weights, with a first dimension of nodes."""
        grid = torch.arange(count, dtype=self.high.dtype, device=self.high.device)
        w = -self.step * grid.view(count, *(1,) * self.high.dim())
        s = torch.exp(self.high + w.sinh())
        zero = torch.zeros_like(s)
        return Complex(s, zero), Complex(s * self.step * w.cosh(), zero)


class EitherLaw(NamedTuple):
    """The path where α > 1, the half line where α < 1."""

    above: Tensor
    vertex: Tensor
    size: Tensor
    bend: Tensor
    high: Tensor
    step: Tensor


Law = SaddlePath | HalfLine | EitherLaw


def place_scales(gaussian: Form, order: float | Tensor, single: bool, like: Tensor) -> Law:
    """The path or half line of the scale for these pairs.

    Args:
        gaussian: the Gaussian that is averaged over the law.
        order: ν, a number or a tensor that broadcasts to the pairs.
        single: whether an error of 1e-7, not of 1e-13, is small enough.
        like: a tensor of the shape, dtype and device of the pairs.

    Returns:
        Tensors of the shape of the pairs that :func:`scale_nodes` expands.
    """
    if not isinstance(order, Tensor):
        if order > 0:
            return _path(gaussian, torch.full_like(like, order), SINGLE if single else DOUBLE)
        return _half_line(gaussian, torch.full_like(like, -order), single)
    above = (order > 0).expand(like.shape)
    path = _path(gaussian, torch.where(above, order, 2.0 + gaussian.half_dim), _dense(single))
    return EitherLaw(above, *path, *_half_line(gaussian, torch.where(above, 1.0, -order), single))


def count_nodes(law: Law, single: bool) -> int:
    """The number of nodes of a law."""
    return (SINGLE if single else DOUBLE).nodes if isinstance(law, SaddlePath) else _HALF_LINE[single][0]


def scale_nodes(law: Law, single: bool) -> tuple[Complex, Complex]:
    r"""Nodes and weights: the mean of f is :math:`\sqrt{|\nu|/2\pi}\,g` Σ Re w f(s) exp(ν(s − 1 − ln s)).

    g is the :func:`stirling_factor`; the first dimension of both is that of the nodes.
    """
    if isinstance(law, SaddlePath):
        return law.nodes(SINGLE if single else DOUBLE)
    count, _ = _HALF_LINE[single]
    if isinstance(law, HalfLine):
        return law.nodes(count)
    path = SaddlePath(law.vertex, law.size, law.bend).nodes(_dense(single))
    line = HalfLine(law.high, law.step).nodes(count)
    first, second = (
        Complex(torch.where(law.above, a.re, b.re), torch.where(law.above, a.im, b.im))
        for a, b in zip(path, line, strict=True)
    )
    return first, second


def path_rule(varies: bool, single: bool) -> Hyperbola:
    """The path for α > 1: dense if ν varies, as its derivative needs."""
    return _dense(single) if varies else SINGLE if single else DOUBLE


def _dense(single: bool) -> Hyperbola:
    """A path with as many nodes as the half line."""
    return Hyperbola(_HALF_LINE[single][0], DOUBLE.end, DOUBLE.stretch)


def _path(gaussian: Form, order: Tensor, rule: Hyperbola) -> SaddlePath:
    """α > 1: through the saddle point of the whole integrand."""
    rest = order - gaussian.half_dim
    saddle = _saddle(gaussian, order, rest)
    return saddle_path(saddle, rest + gaussian.slopes(saddle)[1], 2 * rest + gaussian.third_slope(saddle), rule)


def _saddle(gaussian: Form, order: Tensor, rest: Tensor) -> Tensor:
    """The minimum of the integrand on the positive axis, to a few percent of its width, by Newton's method in ln s.

    It starts at the lower of two estimates: `wide` is right for functions much wider than the density; `narrow`, in
    which Σ d²λ/(s+λ)² is replaced by Σ d²/(λ̄+2s) with λ̄ = `spread`, is right for narrower functions.
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
        first, second = gaussian.slopes(s)
        total = rest + first
        step = (total / (order * s)).log() * total / (rest + second)
        s = (s * step.clamp(-2, 2).exp()).maximum(lowest)
    return s


def _half_line(gaussian: Form, size: Tensor, single: bool) -> HalfLine:
    """α < 1: all but a negligible part of the Gamma law, and of what it meets, in ln s."""
    count, left_out = _HALF_LINE[single]
    near, _, spread, _ = gaussian.sizes()
    t = left_out / (size + 1)
    root = (2 * t).sqrt()
    centre = torch.log1p(1 / size)
    # Far from the density the mass comes from the widest Gaussians: the mean of s falls like 1/distance², as far as
    # the function is not itself wide. The mass below is negligible beside the largest expectation anyway.
    far = near * spread / (1 + spread).square()
    length = root.clamp(max=1) + t + torch.log1p(far / (2 * (size + 1))) + torch.log1p(t + root)
    return HalfLine(centre + torch.log1p(t + root), length.asinh() / (count - 1))


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
