"""Factorisations, which ONNX does not have, in operations that it has."""

import torch
from torch import Tensor


def eliminated(matrix: Tensor, right: Tensor) -> Tensor:
    """A⁻¹B for positive definite A by Gauss–Jordan elimination, one rank-one update for each of the K rows.

    The diagonal is scaled to one beforehand, so that no pivot is above one and rounding is that of a Cholesky factor.

    Args:
        matrix: A, (*batch, K, K), symmetric and positive definite.
        right: B, (*batch, K, M).

    Example:
        >>> eliminated(torch.tensor([[4.0, 2.0], [2.0, 5.0]]), torch.tensor([[2.0], [-3.0]]))
        tensor([[ 1.],
                [-1.]])
    """
    scale = matrix.diagonal(dim1=-2, dim2=-1).rsqrt().unsqueeze(-1)
    batch = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    parts = (matrix * scale * scale.mT).expand(*batch, -1, -1), (right * scale).expand(*batch, -1, -1)
    system = torch.cat(parts, -1)
    size = matrix.shape[-1]
    unit = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    for row in range(size):
        normed = system[..., row : row + 1, :] / system[..., row : row + 1, row : row + 1]
        # Less one in its own row, which the update then leaves normed instead of zero.
        column = system[..., :, row : row + 1] - unit[:, row : row + 1]
        system = system - column * normed
    return system[..., size:] * scale


def factored(matrix: Tensor) -> Tensor:
    """L of A = LLᵀ, column by column; NaN where A is not positive definite.

    Args:
        matrix: A, (*batch, N, N), symmetric.

    Example:
        >>> factored(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
        tensor([[2., 0.],
                [1., 2.]])
    """
    lower = torch.ones_like(matrix).tril()
    columns: list[Tensor] = []
    for index in range(matrix.shape[-1]):
        here = slice(index, index + 1)
        column = matrix[..., here] / matrix[..., here, here].sqrt() * lower[..., here]
        columns.append(column)
        matrix = matrix - column * column.mT
    return torch.cat(columns, -1)
