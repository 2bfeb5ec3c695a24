"""The finite maps and their loss for JAX: `pip install contmax[jax]`.

They work under `jax.jit`, `jax.vmap`, `jax.grad`, `jax.jvp` and `jax.hessian`. A derivative is written once, as a
`jax.custom_jvp` rule: JAX transposes the rule for reverse mode and differentiates it for second order. With
`jax.custom_vjp` forward mode would raise an error, and with it `jax.hessian`.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike

_STEPS, _STEPS_BEYOND_TWO = 14, 10  # until Newton's method has converged, for α ≤ 2 and α > 2, as in contmax.maps


def entmax(
    scores: ArrayLike,
    alpha: ArrayLike = 1.5,
    axis: int = -1,
    *,
    mask: ArrayLike | None = None,
    temperature: ArrayLike = 1.0,
) -> Array:
    r"""α-entmax for JAX: softmax at α = 1, sparser as α grows, sparsemax at α = 2; as :func:`contmax.entmax`.

    Args:
        scores: x, floating-point, any shape; −inf counts as masked.
        alpha: α > 0, a number, or an array that broadcasts to the scores with size 1 along `axis`; differentiable.
            A number is quicker, since the method is then chosen once. The values of an array are not checked.
        axis: the axis of the distribution.
        mask: boolean, broadcastable to the scores; True = may be attended.
        temperature: T > 0, a number or an array that broadcasts to the scores; differentiable.

    Returns:
        Probabilities of the shape and dtype of the scores; half precision is computed in float32 and rounded once. A
        slice with nothing to attend is zero, with zero gradient.

    Example:
        >>> import jax.numpy as jnp
        >>> from contmax.integrations.jax import entmax
        >>> entmax(jnp.array([1.0, 0.0, -1.5]), alpha=2.0, temperature=2.0)
        Array([0.75, 0.25, 0.  ], dtype=float32)
    """
    x, index, method = _checked("entmax", scores, alpha, axis, mask)
    if not (isinstance(temperature, float | int) and temperature == 1):
        if isinstance(temperature, float | int) and not temperature > 0:
            raise ValueError(f"temperature must be positive; got {temperature}. Pass 1.0 to leave scores as they are.")
        scale = jnp.broadcast_to(jnp.asarray(temperature, x.dtype), jnp.shape(scores))
        scale, x = jnp.maximum(jnp.moveaxis(scale, axis, -1), jnp.finfo(x.dtype).tiny), _below_maximum(x)
        # A quotient of −∞, as of the most negative number by T < 1, would make the derivative in T NaN.
        masked = jax.lax.stop_gradient(x / scale) == -jnp.inf
        x = jnp.where(masked, -jnp.inf, jnp.where(masked, 0, x) / scale)
    return jnp.moveaxis(_map(x, index, method), -1, axis).astype(jnp.asarray(scores).dtype)


def sparsemax(
    scores: ArrayLike, axis: int = -1, *, mask: ArrayLike | None = None, temperature: ArrayLike = 1.0
) -> Array:
    """Euclidean projection of the scores onto the simplex: :func:`entmax` at α = 2, with the same arguments.

    Example:
        >>> import jax.numpy as jnp
        >>> from contmax.integrations.jax import sparsemax
        >>> sparsemax(jnp.array([1.0, 0.5, -1.0]))
        Array([0.75, 0.25, 0.  ], dtype=float32)
    """
    return entmax(scores, 2.0, axis, mask=mask, temperature=temperature)


def entmax_loss(
    scores: ArrayLike, target: ArrayLike, alpha: ArrayLike = 1.5, axis: int = -1, *, mask: ArrayLike | None = None
) -> Array:
    r"""The Fenchel–Young loss of α-entmax for JAX, one number per example: cross-entropy at α = 1.

    .. math:: L_\alpha(z; y) = \Omega_\alpha^*(z) + \Omega_\alpha(y) - \langle z, y\rangle \ge 0

    Its gradient in z is entmax(z) − y. As in optax, the caller takes the mean, over the examples that count.

    Args:
        scores: logits z with the classes along `axis`; −inf counts as masked.
        target: class ids in [0, C) (integers, the shape of the scores without `axis`), or probabilities (the shape of
            the scores; divided by their sum; differentiable).
        alpha, axis, mask: as for :func:`entmax`.

    Returns:
        Losses of the shape of the scores without `axis`; an impossible target has infinite loss, with finite gradient.

    Example:
        >>> import jax.numpy as jnp
        >>> from contmax.integrations.jax import entmax_loss
        >>> entmax_loss(jnp.array([[1.0, 0.5]]), jnp.array([0]), alpha=2.0)
        Array([0.0625], dtype=float32)
    """
    z, index, method = _checked("entmax_loss", scores, alpha, axis, mask)
    z, y = _below_maximum(z), jnp.asarray(target)  # keeps the digits of the losses where logits are large
    finite, negentropy, is_soft = jnp.where(z == -jnp.inf, 0, z), 0.0, jnp.issubdtype(y.dtype, jnp.floating)
    if y.shape != (jnp.shape(scores) if is_soft else z.shape[:-1]):
        raise ValueError(
            f"target must be class ids (integers) of shape {z.shape[:-1]} or probabilities (floating-point) of shape "
            f"{jnp.shape(scores)}; got {y.dtype} of shape {y.shape}. Pass axis= if the classes do not stand last."
        )
    if is_soft:
        y = jnp.moveaxis(y, axis, -1).astype(z.dtype)
        y = y / _or_one(jax.lax.stop_gradient(y.sum(-1, keepdims=True)))
        negentropy, linear = _negentropy(y, index), (y * finite).sum(-1)
        impossible = ((y > 0) & (z == -jnp.inf)).any(-1) | (z == -jnp.inf).all(-1)
    else:
        linear = jnp.take_along_axis(finite, y[..., None], -1)[..., 0]
        impossible = (jnp.take_along_axis(z, y[..., None], -1) == -jnp.inf)[..., 0]
    losses = _conjugate(z, index, method) + negentropy - linear
    losses = losses - jax.lax.stop_gradient(jnp.minimum(losses, 0))  # negative only by rounding
    return jnp.where(impossible, jnp.inf, losses).astype(jnp.asarray(scores).dtype)


def _checked(
    name: str, scores: ArrayLike, alpha: ArrayLike, axis: int, mask: ArrayLike | None
) -> tuple[Array, Array, str]:
    """Scores in at least float32 and −inf where masked, α with size 1, both along the last axis; the method for α."""
    x, allowed = jnp.asarray(scores), jnp.asarray(True if mask is None else mask)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{name} takes real floating-point scores; got {x.dtype}. Pass scores.astype(jnp.float32).")
    if not -x.ndim <= axis < x.ndim or x.shape[axis] == 0:
        raise ValueError(f"{name} needs at least one score along axis {axis}; got shape {x.shape}. Skip such inputs.")
    if allowed.dtype != jnp.bool_:
        raise TypeError(f"mask must be boolean, True = may be attended; got {allowed.dtype}. Pass mask.astype(bool).")
    x = jnp.where(jnp.broadcast_to(allowed, x.shape), x.astype(jnp.promote_types(x.dtype, jnp.float32)), -jnp.inf)
    if isinstance(alpha, float | int):
        if not 0 < alpha < math.inf:
            raise ValueError(f"alpha must be positive and finite; got {alpha}. 1 is softmax, 2 is sparsemax.")
        method = "softmax" if alpha == 1 else "Newton" if alpha <= 2 else "sort"
        return jnp.moveaxis(x, axis, -1), jnp.full((1,) * x.ndim, alpha, x.dtype), method
    index, x = jnp.asarray(alpha, x.dtype), jnp.moveaxis(x, axis, -1)
    index = jnp.moveaxis(index.reshape((1,) * (x.ndim - index.ndim) + index.shape), axis, -1)
    if any(n not in (1, size) for n, size in zip(index.shape, (*x.shape[:-1], 1), strict=True)):
        raise ValueError(
            f"alpha of shape {jnp.shape(alpha)} does not fit scores of shape {jnp.shape(scores)}: it must broadcast to "
            f"them with size 1 along axis {axis}. One alpha per head of (B, H, Q, L) scores: (H, 1, 1)."
        )
    return x, index, "any"


def _below_maximum(x: Array) -> Array:
    top = jax.lax.stop_gradient(x.max(-1, keepdims=True))
    return x - jnp.where(top == -jnp.inf, 0, top)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
@functools.partial(jax.jit, static_argnums=2)
def _map(x: Array, alpha: Array, method: str) -> Array:
    """p along the last axis. `method` "any" decides by the values of α; the others are for a fixed α."""
    if method == "softmax":
        weight = jnp.exp(_below_maximum(x))
        return weight / _or_one(weight.sum(-1, keepdims=True))
    if method == "any":
        return jnp.where(alpha > 2, _by_sorting(x, jnp.maximum(alpha, 2)), _by_newton(x, jnp.minimum(alpha, 2)))
    return _by_newton(x, alpha) if method == "Newton" else _by_sorting(x, alpha)


@functools.partial(_map.defjvp, symbolic_zeros=True)
def _map_jvp(method: str, primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    r"""dp = J(dx − D dα), J = diag(s) − s sᵀ/Σs, with s = p^{2−α} and D = ∂/∂α log_{2−α}(p).

    The point of largest s is the anchor a. J v depends on c = v − v_a only, and its entry a is minus the sum of the
    others. So the largest s, which for α > 2 may exceed every range, takes no part in a product; others are bounded.
    """
    x, alpha = primals
    p = _map(x, alpha, method)
    inside = p > 0
    log_p = jnp.log(jnp.where(inside, p, 1))
    log_s = (2 - alpha) * log_p
    anchor = jax.lax.stop_gradient(jnp.where(inside, log_s, -jnp.inf)).argmax(-1, keepdims=True)
    mass = jnp.where(inside, jnp.exp(log_s - jnp.take_along_axis(log_s, anchor, -1)), 0)
    share = mass / _or_one(mass.sum(-1, keepdims=True))
    is_anchor = jnp.arange(p.shape[-1]) == anchor
    others, largest = inside & ~is_anchor, 0.5 * math.log(jnp.finfo(p.dtype).max)
    s = jnp.where(others, jnp.exp(jnp.minimum(jnp.where(others, log_s, 0), largest)), 0)
    moved = jnp.zeros_like(p)
    if not isinstance(tangents[0], SymbolicZero):
        moved = s * jnp.where(inside, tangents[0] - jnp.take_along_axis(tangents[0], anchor, -1), 0)
    if not isinstance(tangents[1], SymbolicZero):
        moved = moved - jnp.where(others, _alpha_rate(p, alpha, log_p, s, anchor, largest), 0) * tangents[1]
    moved = jnp.where(others, moved - share * moved.sum(-1, keepdims=True), 0)
    return p, jnp.where(inside, moved - is_anchor * moved.sum(-1, keepdims=True), 0)


def _alpha_rate(p: Array, alpha: Array, log_p: Array, s: Array, anchor: Array, largest: float) -> Array:
    """s (D − D_a); where |y| > 1, computed as p (expm1(d)(1 − y_a) − d)/ε², without overflow or cancellation."""
    y, at_anchor = (alpha - 1) * log_p, (alpha - 1) * jnp.take_along_axis(log_p, anchor, -1)
    near = (jnp.abs(y) <= 1) & (jnp.abs(at_anchor) <= 1)
    curvature = log_p**2 * _series([1 / (math.factorial(n) * (n + 2)) for n in range(20)], y)
    small = s * (curvature - jnp.take_along_axis(curvature, anchor, -1))
    d = jnp.minimum(jnp.where(near, 0, at_anchor - y), largest)
    return jnp.where(near, small, p * (jnp.expm1(d) * (1 - at_anchor) - d) / jnp.where(near, 1, alpha - 1) ** 2)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _conjugate(z: Array, alpha: Array, method: str) -> Array:
    """Ω*(z) = ⟨z, p⟩ − Ω(p) along the last axis, for logits with maximum 0."""
    p = _map(z, alpha, method)
    return (jnp.where(p > 0, z, 0) * p).sum(-1) - _negentropy(p, alpha)


@functools.partial(_conjugate.defjvp, symbolic_zeros=True)
def _conjugate_jvp(method: str, primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    """dΩ* = ⟨p, dz⟩ − ∂Ω(p)/∂α dα, by the envelope theorem."""
    z, alpha = primals
    p, change = _map(z, alpha, method), jnp.zeros(z.shape[:-1], z.dtype)
    if not isinstance(tangents[0], SymbolicZero):
        change = change + jnp.where(p > 0, p * tangents[0], 0).sum(-1)
    if not isinstance(tangents[1], SymbolicZero):
        change = change - jax.jvp(lambda index: _negentropy(p, index), (alpha,), (tangents[1],))[1]
    return _conjugate(z, alpha, method), change


def _negentropy(p: Array, alpha: Array) -> Array:
    """Ω_α(p) = Σ p log_{2−α}(p)/α of probabilities along the last axis; a zero contributes 0, with zero derivative."""
    log_p = jnp.log(jnp.where(p > 0, p, 1))
    y = (alpha - 1) * log_p
    far = jnp.where(jnp.abs(y) <= 1, 1, y)
    series = _series([1 / math.factorial(n + 1) for n in range(20)], y)
    return (p * log_p * jnp.where(jnp.abs(y) <= 1, series, jnp.expm1(far) / far) / alpha).sum(-1)


def _series(coefficients: list[float], y: Array) -> Array:
    """Σ cₙ yⁿ for |y| ≤ 1, c₀ elsewhere. The derivatives of a series are exact at 0, unlike those of a quotient."""
    return jnp.polyval(jnp.array(coefficients[::-1], y.dtype), jnp.where(jnp.abs(y) <= 1, y, 0))


def _by_newton(x: Array, alpha: Array) -> Array:
    """p for α ≤ 2: Newton's method on the power mean (Σ p)^{α−1}, whose iterates climb to the normaliser A."""
    epsilon, smallest, shifted = alpha - 1, jnp.finfo(x.dtype).tiny, _below_maximum(x)

    def log_p(normaliser: Array) -> Array:
        v = shifted - normaliser
        y = jnp.maximum(epsilon * v, -1)
        log1p = jnp.where(jnp.abs(y) < 0.25, jnp.log1p(y), jnp.log(1 + y))  # farther out XLA's log1p loses two digits
        return jnp.where(epsilon == 0, v, log1p / _or_one(epsilon))

    def step(_: int, normaliser: Array) -> Array:
        log = log_p(normaliser)
        total = jnp.exp(log).sum(-1, keepdims=True)
        slope = jnp.where(log == -jnp.inf, 0, jnp.exp(log * (2 - alpha))).sum(-1, keepdims=True)
        log_total = jnp.log(jnp.maximum(total, smallest))
        mean = jnp.where(epsilon == 0, log_total, jnp.expm1(-epsilon * log_total) / _or_one(-epsilon))
        return normaliser + total / jnp.maximum(slope, smallest) * mean

    return jnp.exp(log_p(jax.lax.fori_loop(0, _STEPS, step, jnp.zeros_like(shifted[..., :1] * epsilon))))


def _by_sorting(x: Array, alpha: Array) -> Array:
    """p for α > 2, as `sorted_probabilities` of contmax: bisect for the support, solve for its least probability v."""
    epsilon, order = alpha - 1, jnp.argsort(-x, axis=-1)
    z = jnp.take_along_axis(x, order, -1)

    def log_base(lowest: Array) -> Array:
        return (jnp.log(jnp.maximum(z - lowest, 0)) + jnp.log(epsilon)) / epsilon

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        (low, high), middle = bounds, (sum(bounds) + 1) // 2
        lowest = jnp.take_along_axis(z, middle, -1)
        fits = (jnp.exp(log_base(lowest)).sum(-1, keepdims=True) < 1) & (lowest > -jnp.inf)
        return jnp.where(fits, middle, low), jnp.where(fits, high, middle - 1)

    first = jnp.zeros_like(z[..., :1] * alpha, jnp.int32)
    last, _ = jax.lax.fori_loop(0, z.shape[-1].bit_length(), halve, (first, first + (z.shape[-1] - 1)))
    inside = (jnp.arange(z.shape[-1]) <= last) & (z > -jnp.inf)
    logs = jnp.where(inside, log_base(jnp.take_along_axis(z, last, -1)), -jnp.inf)
    base = jnp.exp(logs)
    room = jnp.maximum(1 - base.sum(-1, keepdims=True), jnp.finfo(x.dtype).tiny)
    count = _or_one(inside.sum(-1, keepdims=True, dtype=x.dtype))
    low, high = jnp.log(room / count), jnp.log(jnp.minimum(room, 1 / count))

    def tail(log_v: Array) -> Array:
        return jnp.log1p(jnp.exp(-epsilon * jnp.abs(log_v - logs))) / epsilon

    def step(_: int, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        log_v, low, high = state
        growth = jnp.where(base > 0, base * jnp.expm1(jnp.maximum(log_v - logs, 0) + tail(log_v)), jnp.exp(log_v))
        filled = jnp.where(inside, growth, 0).sum(-1, keepdims=True)
        log_p = jnp.maximum(logs, log_v) + tail(log_v)
        slope = jnp.where(inside, jnp.exp(log_p + epsilon * (log_v - log_p)), 0).sum(-1, keepdims=True) / filled
        error = jnp.log(filled / room)
        low, high = jnp.where(error < 0, log_v, low), jnp.where(error < 0, high, log_v)
        moved = log_v - error / slope
        return jnp.where((moved >= low) & (moved <= high), moved, (low + high) / 2), low, high

    log_v, _, _ = jax.lax.fori_loop(0, _STEPS_BEYOND_TWO, step, (high, low, high))
    p = jnp.where(inside, jnp.exp(jnp.maximum(logs, log_v) + tail(log_v)), 0)
    in_order = jnp.take_along_axis(p, jnp.argsort(order, axis=-1), -1)
    return jnp.where(jnp.isnan(x).any(-1, keepdims=True), jnp.nan, in_order)


def _or_one(total: Array) -> Array:
    return jnp.where(total == 0, 1, total)
