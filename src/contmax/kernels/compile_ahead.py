"""``python -m contmax.kernels.compile_ahead`` compiles every CPU kernel into numba's cache on disk, several at a time.

For images and test machines: otherwise every process that starts before the cache is filled compiles all kernels.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch

from contmax.kernels import rows
from contmax.kernels.attention import _cpu_listed as listed
from contmax.kernels.means import _cpu_means

# Nodes, end, stretch, lean and curvature of some path of scales.
_PATH = (4.0, 1.0, 1.0, 0.5, 0.5)


def _rows_forward(dtype: torch.dtype) -> None:
    rows.on_cpu().entmax_rows(torch.zeros(2, 3, dtype=dtype), 1.5)


def _rows_backward(dtype: torch.dtype) -> None:
    p = torch.full((2, 2), 0.5, dtype=dtype)
    rows.on_cpu().entmax_rows_backward(p, p, 1.5, needs_alpha=True)


def _windows(dtype: torch.dtype) -> None:
    two = torch.ones(2, dtype=dtype)
    _cpu_means.window_values(two, two, two, two, 1.0, 1.0, (two, two), with_slopes=True)


def _plane(dtype: torch.dtype) -> None:
    if dtype == torch.float32:
        _cpu_means.plane_scale_means(list(torch.ones(5, 2)), 2.0, _PATH)


def _line_scales(dtype: torch.dtype) -> None:
    two = torch.ones(2, dtype=dtype)
    _cpu_means.line_scale_means(two, two, 1.5, two, two, _PATH)


def _lists(dtype: torch.dtype) -> None:
    p = torch.eye(2, dtype=dtype).reshape(1, 2, 2)
    lists = listed.listed_weights(p, 2)
    assert lists is not None
    listed.listed_means(*lists, p)
    slopes = listed.listed_products(*lists, p, p)
    listed.add_listed_gradients(p.clone(), p.clone(), (*lists, slopes), p, p, p)


_KERNELS = (_rows_forward, _rows_backward, _windows, _plane, _line_scales, _lists)


def _compile(use: Callable[[torch.dtype], None]) -> None:
    """Compile both precisions in turn: two processes would overwrite the index of a kernel in numba's cache."""
    for dtype in (torch.float32, torch.float64):
        use(dtype)


def compile_all() -> None:
    """Compile the kernels that are not in the cache yet."""
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, _KERNELS))


if __name__ == "__main__":
    compile_all()
