"""Cholesky factors of 2 × 2 matrices: what a library for large ones does in a dozen launches, in one."""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from contmax.kernels.triton._counting import blocks_of
from contmax.kernels.triton._kept import LAUNCHES, Launch
from contmax.kernels.triton._launch import laid_out

_BLOCK = 128


@triton.jit
def cholesky(a_11, a_21, a_22):
    """L of LLᵀ = A, from the lower triangle of A; inside in float64, which costs nothing here."""
    l_11 = tl.sqrt(a_11.to(tl.float64))
    l_21 = a_21.to(tl.float64) / l_11
    l_22 = tl.sqrt(a_22.to(tl.float64) - l_21 * l_21)
    return l_11.to(tl.float32), l_21.to(tl.float32), l_22.to(tl.float32)


@triton.jit
def cholesky_pulled_back(by_11, by_21, by_22, l_11, l_21, l_22):
    """The gradient of A, symmetric, from that of L: its three numbers."""
    by_22 = 0.5 * by_22 / l_22
    by_21 = (by_21 - 2.0 * l_21 * by_22) / l_11
    return 0.5 * (by_11 / l_11 - by_21 * l_21 / l_11), 0.5 * by_21, by_22


@triton.jit
def cholesky_fwd_kernel(tril_ptr, matrix_ptr, rows, ROWS: tl.constexpr):
    """L of LLᵀ = A."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    known = row < rows
    a_11 = tl.load(matrix_ptr + 4 * row, known, other=1.0)
    a_21 = tl.load(matrix_ptr + 4 * row + 2, known, other=0.0)
    a_22 = tl.load(matrix_ptr + 4 * row + 3, known, other=1.0)
    l_11, l_21, l_22 = cholesky(a_11, a_21, a_22)
    tl.store(tril_ptr + 4 * row, l_11, known)
    tl.store(tril_ptr + 4 * row + 1, tl.zeros([ROWS], tl.float32), known)
    tl.store(tril_ptr + 4 * row + 2, l_21, known)
    tl.store(tril_ptr + 4 * row + 3, l_22, known)


@triton.jit
def cholesky_bwd_kernel(by_matrix_ptr, cotangent_ptr, tril_ptr, rows, ROWS: tl.constexpr):
    """The gradient of A, symmetric, from that of L."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    known = row < rows
    l_11 = tl.load(tril_ptr + 4 * row, known, other=1.0)
    l_21 = tl.load(tril_ptr + 4 * row + 2, known, other=0.0)
    l_22 = tl.load(tril_ptr + 4 * row + 3, known, other=1.0)
    by_11 = tl.load(cotangent_ptr + 4 * row, known, other=0.0)
    by_21 = tl.load(cotangent_ptr + 4 * row + 2, known, other=0.0)
    by_22 = tl.load(cotangent_ptr + 4 * row + 3, known, other=0.0)
    by_11, by_21, by_22 = cholesky_pulled_back(by_11, by_21, by_22, l_11, l_21, l_22)
    tl.store(by_matrix_ptr + 4 * row, by_11, known)
    tl.store(by_matrix_ptr + 4 * row + 1, by_21, known)
    tl.store(by_matrix_ptr + 4 * row + 2, by_21, known)
    tl.store(by_matrix_ptr + 4 * row + 3, by_22, known)


def plane_cholesky(matrix: Tensor) -> Tensor:
    """L, (*batch, 2, 2), of matrices (*batch, 2, 2) in float32; NaN where one is not positive definite."""
    tril = torch.empty_like(matrix, memory_format=torch.contiguous_format)
    rows = matrix.numel() // 4
    if rows:
        _factors(rows)(tril, laid_out(matrix))
    return tril


def plane_cholesky_gradient(cotangent: Tensor, tril: Tensor) -> Tensor:
    """The gradient of the matrices from that of their factors, each (*batch, 2, 2)."""
    gradient = torch.empty_like(tril, memory_format=torch.contiguous_format)
    rows = tril.numel() // 4
    if rows:
        _gradients(rows)(gradient, laid_out(cotangent), laid_out(tril))
    return gradient


@functools.lru_cache(maxsize=LAUNCHES)
def _factors(rows: int) -> Launch:
    return Launch(cholesky_fwd_kernel, (blocks_of(rows, _BLOCK),), (rows,), {"ROWS": _BLOCK}, contracts=True)


@functools.lru_cache(maxsize=LAUNCHES)
def _gradients(rows: int) -> Launch:
    return Launch(cholesky_bwd_kernel, (blocks_of(rows, _BLOCK),), (rows,), {"ROWS": _BLOCK}, contracts=True)
