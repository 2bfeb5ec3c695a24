"""Launches over pairs of densities and basis functions, shared by the line and the plane.

A program takes a block of densities and a block of functions. Nothing of the size of pairs times nodes is stored: the
forward pass writes r, the backward pass computes each pair again and writes sums.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contmax.kernels.gpu._counting import blocks_of
from contmax.kernels.gpu._kept import LAUNCHES, Launch
from contmax.kernels.gpu._launch import laid_out, resolved


class Pairs:
    """The kernels of one family of densities, and what they are launched with.

    Args:
        forward: the kernel that computes r, and with SLOPES also ∂r/∂(μ, scale).
        backward: the kernel of the gradients.
        dim: N, 1 on the line and 2 on the plane.
        block: from the numbers of densities and functions to those of one program, and its warps.
        law: from k = 1/(α−1) to the numbers and the constants of compilation that both kernels take.
        rule: from k and a device to the tensors of nodes.
        basis_gradients: from the shares of all programs, (blocks, n, K), to the gradients of μ_j and σ_j or L_j.
        basis_numbers: n.
    """

    def __init__(
        self,
        forward: Any,
        backward: Any,
        dim: int,
        block: Callable[[int, int], tuple[int, int, int]],
        law: Callable[[float], tuple[tuple[float, ...], dict[str, Any]]],
        rule: Callable[[float, torch.device], tuple[Tensor, ...]],
        basis_gradients: Callable[[Tensor], tuple[Tensor, Tensor]],
        basis_numbers: int,
    ) -> None:
        self._forward, self._backward, self._dim, self._block, self._law = forward, backward, dim, block, law
        self.rule, self._basis_gradients, self._basis_numbers = rule, basis_gradients, basis_numbers
        self.launch_of_values = functools.lru_cache(maxsize=LAUNCHES)(self._launch_of_values)
        self._launch_of_gradients = functools.lru_cache(maxsize=LAUNCHES)(self._make_launch_of_gradients)

    def values(self, loc: Tensor, scale: Tensor, _: Tensor | None, centre: Tensor, width: Tensor, k: float) -> Tensor:
        """r, (*batch, K)."""
        columns = centre.shape[0]
        r = loc.new_empty(*loc.shape[: loc.dim() + 1 - self._dim], columns)
        if r.numel():
            parameters = (laid_out(loc), laid_out(scale), laid_out(centre), laid_out(width))
            launch = self.launch_of_values(loc.numel() // self._dim, columns, k)
            launch(r, *parameters, *self.rule(k, loc.device))
        return r

    def gradients(
        self,
        cotangent: Tensor,
        loc: Tensor,
        scale: Tensor,
        _: Tensor | None,
        centre: Tensor,
        width: Tensor,
        k: float,
        needs_basis: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of loc, scale, α, centre and width; of shape (0,) where there is none or none is needed."""
        rows, columns = loc.numel() // self._dim, centre.shape[0]
        parameters = (laid_out(loc), laid_out(scale), laid_out(centre), laid_out(width))
        by_loc, by_scale = torch.empty_like(parameters[0]), torch.empty_like(parameters[1])
        shares = None
        if needs_basis:
            shares = loc.new_empty(blocks_of(rows, self._block(rows, columns)[0]), self._basis_numbers, columns)
        cotangent = resolved(cotangent)
        matrix = cotangent if cotangent.dim() == 2 else cotangent.reshape(-1, columns)
        if rows:
            launch = self._launch_of_gradients(rows, columns, matrix.stride(), k, needs_basis)
            launch(by_loc, by_scale, shares, matrix, *parameters, *self.rule(k, loc.device))
        by_basis = (loc.new_empty(0), loc.new_empty(0)) if shares is None else self._basis_gradients(shares)
        return by_loc, by_scale, loc.new_empty(0), *by_basis

    def _launch_of_values(self, rows: int, columns: int, k: float, slopes: bool = False) -> Launch:
        """The launch for these numbers of densities and functions, with slopes for :mod:`_gpu_contexts`."""
        block_rows, block_columns, warps = self._block(rows, columns)
        grid = (blocks_of(rows, block_rows), blocks_of(columns, block_columns))
        numbers, constants = self._law(k)
        constants |= {"SLOPES": slopes, "ROWS": block_rows, "COLUMNS": block_columns}
        return Launch(self._forward, grid, (rows, columns, *numbers), constants, warps, contracts=True)

    def _make_launch_of_gradients(
        self, rows: int, columns: int, strides: tuple[int, ...], k: float, needs_basis: bool
    ) -> Launch:
        """The launch for cotangents with these strides."""
        block_rows, block_columns, warps = self._block(rows, columns)
        numbers, constants = self._law(k)
        constants |= {"BASIS": needs_basis, "ROWS": block_rows, "COLUMNS": block_columns}
        grid = (blocks_of(rows, block_rows),)
        return Launch(self._backward, grid, (rows, columns, *strides, *numbers), constants, warps, contracts=True)
