"""Launches over pairs of a density p and a Gaussian basis function ψ, shared by the line and the plane.

A program takes a block of densities, and in the forward pass a block of functions, in the backward pass all functions.
Nothing of the size of pairs times quadrature nodes is stored: the forward pass writes r = E_p[ψ] of each pair, the
backward pass computes each pair again and writes sums.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contmax._caches import cached
from contmax.kernels import blocks_of
from contmax.kernels.gpu._cached_launch import Launch
from contmax.kernels.gpu._launch import laid_out, resolved

# Five tensors: μ and scale of the densities; α, or None if it is a number; μ_j and width of the functions, σ_j on the
# line and the Cholesky factor L_j on the plane. `means.gaussian_means` has the shapes.
Parameters = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]
# The gradients of the five tensors of `Parameters`, in the same order.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """The kernels of one family of densities, and functions that compute their arguments and launches."""

    forward: Any  # the kernel of r, and with SLOPES also of ∂r/∂(μ, scale)
    backward: Any  # the kernel of the gradients
    dim: int  # N, 1 on the line and 2 on the plane
    basis_numbers: int  # how many numbers a program writes for the gradients of each basis function
    # Maps the total numbers of densities and basis functions to the numbers of both in one program, and its warps.
    block: Callable[[int, int], tuple[int, int, int]]
    # Maps k = 1/(α−1) to the last arguments of both kernels, and to their compile-time constants.
    law: Callable[[float], tuple[tuple[float, ...], dict[str, Any]]]
    # Maps k and a device to the tensors of quadrature nodes that both kernels take.
    rule: Callable[[float, torch.device], tuple[Tensor, ...]]
    # Maps what programs wrote, (programs, basis_numbers, functions), to the gradients of μ_j and of σ_j or L_j.
    basis_gradients: Callable[[Tensor], tuple[Tensor, Tensor]]

    def values(self, given: Parameters, k: float) -> Tensor:
        """r = E_p[ψ], (*batch, K), for K functions; k is 1/(α−1)."""
        loc, scale, _, centre, width = given
        columns = centre.shape[0]
        r = loc.new_empty(*loc.shape[: loc.dim() + 1 - self.dim], columns)
        if r.numel():
            parameters = (laid_out(loc), laid_out(scale), laid_out(centre), laid_out(width))
            launch = launch_of(self, loc.numel() // self.dim, columns, k, SLOPES=False)
            launch(r, *parameters, *self.rule(k, loc.device))
        return r

    def gradients(self, cotangent: Tensor, given: Parameters, k: float, needs_basis: bool) -> Gradients:
        """Gradients of loc, scale, α, centre and width; that of α is empty, the last two too unless `needs_basis`."""
        loc, scale, _, centre, width = given
        rows, columns = loc.numel() // self.dim, centre.shape[0]
        parameters = (laid_out(loc), laid_out(scale), laid_out(centre), laid_out(width))
        by_loc, by_scale = torch.empty_like(parameters[0]), torch.empty_like(parameters[1])
        shares = None
        if needs_basis:
            shares = loc.new_empty(blocks_of(rows, self.block(rows, columns)[0]), self.basis_numbers, columns)
        cotangent = resolved(cotangent)
        matrix = cotangent.reshape(-1, columns)
        if rows:
            launch = launch_of(self, rows, columns, k, matrix.stride(), BASIS=needs_basis)
            launch(by_loc, by_scale, shares, matrix, *parameters, *self.rule(k, loc.device))
        by_basis = (loc.new_empty(0), loc.new_empty(0)) if shares is None else self.basis_gradients(shares)
        return by_loc, by_scale, loc.new_empty(0), *by_basis


@cached
def launch_of(family: Pairs, rows: int, columns: int, k: float, strides: tuple[int, ...] = (), **kinds: bool) -> Launch:
    """The launch for `rows` densities and `columns` functions: of `backward` if `strides` of cotangents are given.

    `kinds` is the constant SLOPES of the forward kernel, or BASIS of the backward kernel.
    """
    block_rows, block_columns, warps = family.block(rows, columns)
    grid: tuple[int, ...] = (blocks_of(rows, block_rows), blocks_of(columns, block_columns))
    numbers, constants = family.law(k)
    constants |= kinds | {"ROWS": block_rows, "COLUMNS": block_columns}
    kernel, grid = (family.backward, grid[:1]) if strides else (family.forward, grid)
    return Launch(kernel, grid, (rows, columns, *strides, *numbers), constants, warps, contracts=True)
