"""``python -m contmax.kernels.compile_ahead`` compiles every CPU kernel into numba's cache on disk, several at a time.

Use it in container images and on test machines: each process that starts before the cache is filled compiles them all.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import Tensor

from contmax.kernels import rows
from contmax.kernels.attention import _cpu_listed as listed
from contmax.kernels.cpu._compiled import kept
from contmax.kernels.means import _cpu_means
from contmax.kernels.rows import _cpu_rows

# An arbitrary `contmax.numerics.Hyperbola`: nodes, end, stretch, lean, curvature.
_PATH = (4.0, 1.0, 1.0, 0.5, 0.5)


def _lists(two: Tensor) -> None:
    p = torch.diag(two)[None]
    lists = listed.listed_weights(p, 2)
    assert lists is not None
    listed.listed_means(*lists, p)
    slopes = listed.listed_products(*lists, p, p)
    listed.add_listed_gradients(p.clone(), p.clone(), (*lists, slopes), p, p, p)


# Calls on the tensor (1, 1), which together compile every kernel.
_USES: tuple[Callable[[Tensor], object], ...] = (
    lambda two: rows.on_cpu().entmax_rows(two.diag(), 1.5),
    lambda two: rows.on_cpu().entmax_rows_backward(two.diag(), two.diag(), 1.5, needs_alpha=True),
    lambda two: _cpu_means.window_values(two, two, two, two, 1.0, 1.0, (two, two)),
    lambda two: two.dtype == torch.float32 and _cpu_means.plane_scale_means([two] * 5, 2.0, _PATH),
    lambda two: _cpu_means.line_scale_means(two, two, 1.5, two, two, _PATH),
    _lists,
)


def compiled_code() -> tuple[str | None, bool]:
    """The folder of numba's cache, None if none can be written; and whether it holds kernels of the present sources."""
    return kept(_cpu_rows.forward_rows)


def _compile(use: int) -> None:
    """Compile _USES[use] in both precisions in one process: two processes would overwrite each other's cache index."""
    for dtype in (torch.float32, torch.float64):
        _USES[use](torch.ones(2, dtype=dtype))


def compile_all() -> None:
    """Compile the kernels that are not in the cache yet."""
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, range(len(_USES))))


if __name__ == "__main__":
    compile_all()
