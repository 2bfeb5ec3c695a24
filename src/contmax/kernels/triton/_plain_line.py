"""The commonest expectations on the line, a density for each sequence: each way by one launch.

As for the commonest maps (`_plain_rows`), what is known of a kind of densities is asked once, and kept.
"""

import functools

import torch
from torch import Tensor

from contmax.kernels.triton._kept import LAUNCHES, ReadyLaunch
from contmax.kernels.triton._launch import laid_out
from contmax.kernels.triton._line import launch_of_gradients, launch_of_values, line_gradients, rule_of


class PlainLine:
    """r of so many densities (μ, σ) against functions (μ_j, σ_j) that are not learned, and its gradients.

    Tensors are of float32 and on one device: the caller has made sure.

    Args:
        rows: how many densities.
        columns: how many functions.
        k: 1/(α−1), one of 0, …, 4 and ∞.
        device: of all tensors.
    """

    def __init__(self, rows: int, columns: int, k: float, device: torch.device) -> None:
        self._shape, self._k = (rows, columns), k
        # That of a CPU, where the interpreter runs, has no number.
        self._device = -1 if device.index is None else device.index
        self._rule = rule_of(k, device)
        self._values = ReadyLaunch(launch_of_values(rows, columns, k, raised=True), self._device)
        gradients = launch_of_gradients(rows, columns, (columns, 1), k, raised=True, needs_basis=False)
        self._gradients = ReadyLaunch(gradients, self._device)

    def values(self, loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor) -> Tensor:
        """r, (rows, columns)."""
        r = loc.new_empty(self._shape)
        self._values(r, laid_out(loc), laid_out(scale), laid_out(centre), laid_out(width), self._rule)
        return r

    def gradients(
        self, cotangent: Tensor, loc: Tensor, scale: Tensor, centre: Tensor, width: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Those of loc and scale, (rows,) each, from that of r."""
        for x in (cotangent, loc, scale, centre, width):
            if x.dtype is not torch.float32 or x.get_device() != self._device:  # hooks of users brought back others
                return line_gradients(cotangent, loc, scale, centre, width, self._k, True, False)[:2]
        loc, scale = laid_out(loc), laid_out(scale)
        by_loc, by_scale = torch.empty_like(loc), torch.empty_like(scale)
        # The third would be for the functions; the kernel does not touch it.
        tensors = (by_loc, by_scale, by_loc, laid_out(cotangent), loc, scale, laid_out(centre), laid_out(width))
        self._gradients(*tensors, self._rule)
        return by_loc, by_scale


@functools.lru_cache(maxsize=LAUNCHES)
def plain_line(rows: int, columns: int, k: float, device: torch.device) -> PlainLine:
    """What is kept for such densities."""
    return PlainLine(rows, columns, k, device)
