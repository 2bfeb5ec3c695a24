"""The kernels as compiled code that is kept on disk from one process to the next.

numba looks at the file of a function to see whether what it kept is out of date, but not at the functions it calls. So
the kernels close over a digest of all files here: with any of them changed, they are compiled anew.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

from contmax.kernels.attention._cpu_listed import count_rows, gradient_heads, list_rows, mean_rows, product_rows
from contmax.kernels.means._cpu_line_scales import line_scale_rows
from contmax.kernels.means._cpu_plane import plane_rows
from contmax.kernels.means._cpu_windows import slope_rows, value_rows
from contmax.kernels.rows._cpu_rows import backward_rows, forward_rows


def _digest() -> int:
    folder = Path(__file__).parent
    paths = sorted([*folder.glob("cpu/*.py"), *folder.glob("*/_cpu_*.py")])
    sources = b"".join(path.read_bytes() for path in paths)
    return int.from_bytes(hashlib.sha256(sources).digest()[:4], "big")


def _kept(function: Callable[..., None]) -> Any:
    """The compiled function, kept on disk where there is a place to write."""
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return njit(nogil=True)(function)


def _kernels(digest: int) -> tuple[Any, ...]:
    def forward(x, alpha, p, gain, start, stop):  # type: ignore[no-untyped-def]
        if digest >= 0:
            forward_rows(x, alpha, p, gain, start, stop)

    def backward(p, g, alpha, grad, grad_alpha, start, stop):  # type: ignore[no-untyped-def]
        if digest >= 0:
            backward_rows(p, g, alpha, grad, grad_alpha, start, stop)

    def values(r, loc, half, numbers, centre, width, nodes, weights, start, stop):  # type: ignore[no-untyped-def]
        if digest >= 0:
            value_rows(r, loc, half, numbers, centre, width, nodes, weights, start, stop)

    def slopes(r, by, loc, half, numbers, centre, width, nodes, weights, start, stop):  # type: ignore[no-untyped-def]
        if digest >= 0:
            slope_rows(r, by, loc, half, numbers, centre, width, nodes, weights, start, stop)

    def plane(form, order, rule, out, start, stop):  # type: ignore[no-untyped-def]
        if digest >= 0:
            plane_rows(form, order, rule, out, start, stop)

    def line_scales(r, by, loc, scale, alpha, centre, width, rule, start, stop):  # type: ignore[no-untyped-def]
        if digest >= 0:
            line_scale_rows(r, by, loc, scale, alpha, centre, width, rule, start, stop)

    def counts(p, counts, start, stop):  # type: ignore[no-untyped-def]
        if digest >= 0:
            count_rows(p, counts, start, stop)

    def lists(p, places, masses, start, stop):  # type: ignore[no-untyped-def]
        if digest >= 0:
            list_rows(p, places, masses, start, stop)

    def means(out, places, masses, value, queries, group, start, stop):  # type: ignore[no-untyped-def]
        if digest >= 0:
            mean_rows(out, places, masses, value, queries, group, start, stop)

    def products(out, places, masses, g, value, queries, group, start, stop):  # type: ignore[no-untyped-def]
        if digest >= 0:
            product_rows(out, places, masses, g, value, queries, group, start, stop)

    def gradients(dk, dv, dq, places, masses, slopes, query, key, g, start, stop):  # type: ignore[no-untyped-def]
        if digest >= 0:
            gradient_heads(dk, dv, dq, places, masses, slopes, query, key, g, start, stop)

    rows = (forward, backward, values, slopes, plane, line_scales)
    return tuple(_kept(function) for function in (*rows, counts, lists, means, products, gradients))


(
    forward_kernel,
    backward_kernel,
    window_value_kernel,
    window_slope_kernel,
    plane_kernel,
    line_scale_kernel,
    count_kernel,
    list_kernel,
    listed_mean_kernel,
    listed_product_kernel,
    listed_gradient_kernel,
) = _kernels(_digest())
