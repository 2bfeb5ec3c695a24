"""How E_p[ψ] on the plane changes with a density, of every pair of a block, in float32."""

import triton
import triton.language as tl

from contmax.kernels.means._gpu_lengths import STEEPEST
from contmax.kernels.means._gpu_plane_form import form_numbers
from contmax.kernels.means._gpu_scale_path import mean_and_slopes

INVERSE_2PI = tl.constexpr(0.15915494309189535)


@triton.jit
def pair_slopes(
    form,
    first,
    lower,
    second,
    norm,
    order,
    stretch,
    most,
    share,
    step,
    rises,
    runs,
    GAUSSIAN: tl.constexpr,
    NODES: tl.constexpr,
):
    """The mean of each pair, without its factors, and ∂r/∂(μ₁, μ₂, t₁₁, t₂₁, t₂₂), T the factor of the variance."""
    k_11, k_21, k_22, y_1, y_2, size, p, q = form
    a, b, c, n, g = form_numbers(form)
    if GAUSSIAN:
        value = tl.exp(-0.5 * (n + g))
        by_n, by_g = -0.5 * value, -0.5 * value
        whole = value * (0.5 - 0.5 * (n + g))
        by_trace, by_det = -whole, -whole
    else:
        value, by_a, by_b, by_c, by_n, by_g = mean_and_slopes(
            a, b, c, n, g, order, stretch, most, share, step, rises, runs, NODES
        )
        # How the value changes with the logarithm of a, which scales all five numbers and the factor of the form.
        whole = 0.5 * value + a * by_a + b * by_b + c * by_c + n * by_n + g * by_g
        by_trace, by_det = by_b - whole, by_c - whole
    # In K and y, each with the factor 2 size² of a square.
    by_k11 = a * k_11 * (by_trace + k_22 * k_22 * by_det) - by_g * p * y_2
    by_k22 = a * k_22 * (by_trace + k_11 * k_11 * by_det) + by_g * q * y_1
    by_k21 = a * k_21 * by_trace + by_g * p * y_1
    by_y1 = size * (by_n * y_1 + by_g * (p * k_21 + q * k_22))
    by_y2 = size * (by_n * y_2 - by_g * p * k_11)
    # Through y = L_j⁻¹d and K = L_j⁻¹T.
    scale = 2.0 * norm * size * INVERSE_2PI / (first * second)
    by_y1, by_k11 = by_y1 - lower / second * by_y2, by_k11 - lower / second * by_k21
    by_1, by_2 = _bounded(scale * by_y1 / first), _bounded(scale * by_y2 / second)
    by_11, by_21 = _bounded(scale * by_k11 / first), _bounded(scale * by_k21 / second)
    return value, by_1, by_2, by_11, by_21, _bounded(scale * by_k22 / second)


@triton.jit
def _through_cholesky(by_11, by_21, by_22, l_11, l_21, l_22):
    """The gradient of A, symmetric, from that of L: its three numbers."""
    by_22 = 0.5 * by_22 / l_22
    by_21 = (by_21 - 2.0 * l_21 * by_22) / l_11
    return 0.5 * (by_11 / l_11 - by_21 * l_21 / l_11), 0.5 * by_21, by_22


@triton.jit
def through_root(by_11, by_21, by_22, l_11, l_21, l_22, root, power, MATRIX: tl.constexpr):
    """The gradient of L, or with MATRIX of Σ = LLᵀ, as four numbers, from that of T = √v L; √v is a power of l₁₁l₂₂."""
    turned = power * (by_11 * l_11 + by_21 * l_21 + by_22 * l_22)
    by_11, by_21, by_22 = root * (by_11 - turned / l_11), root * by_21, root * (by_22 - turned / l_22)
    above = tl.zeros_like(by_21)
    if MATRIX:
        by_11, by_21, by_22 = _through_cholesky(by_11, by_21, by_22, l_11, l_21, l_22)
        above = by_21
    return by_11, above, by_21, by_22


@triton.jit
def _bounded(slope):
    # Minima and maxima would lose NaN.
    return tl.where(slope > STEEPEST, STEEPEST, tl.where(slope < -STEEPEST, -STEEPEST, slope))
