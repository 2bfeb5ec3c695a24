"""Principal axes of an ellipsoid from a factor of its matrix, without waiting for a device."""

import torch
from torch import Tensor

from contmax._typing import Float

# Jacobi's method converges quadratically: for a few dimensions five or six sweeps reach working precision.
_SWEEPS = 8


def principal_axes(factor: Float[Tensor, "*batch N N"]) -> Float[Tensor, "*batch N N"]:
    r"""V, orthogonal, such that the columns of FV are orthogonal and descend in length.

    The columns of FV are the semi-axes of the ellipsoid :math:`\{Fu : \|u\| \le 1\}`, and their lengths the singular
    values of F. One-sided Jacobi rotations find them to high relative accuracy, the short ones of a needle too, where
    the eigenvalues of FFᵀ would have lost them; and unlike torch.linalg.svd they never wait for a device.

    Args:
        factor: F, of full rank.

    Returns:
        V, without gradient. A singular value is stationary in V: the lengths of the columns of FV have its gradient.

    Example:
        >>> factor = torch.tensor([[2.0, 0.0], [1.0, 1.0]])
        >>> (factor @ principal_axes(factor)).norm(dim=-2)
        tensor([2.2882, 0.8740])
    """
    with torch.no_grad():
        size = factor.shape[-1]
        turned = list(factor.detach().unbind(-1))
        eye = torch.eye(size, dtype=factor.dtype, device=factor.device).expand(factor.shape)
        axes = list(eye.unbind(-1))
        for _ in range(_SWEEPS if size > 2 else 1):
            for i in range(size):
                for j in range(i + 1, size):
                    cosine, sine = _rotation(turned[i], turned[j])
                    for columns in (turned, axes):
                        left, right = columns[i], columns[j]
                        columns[i], columns[j] = cosine * left + sine * right, cosine * right - sine * left
        lengths = torch.stack([column.square().sum(-1) for column in turned], -1)
        order = lengths.argsort(-1, descending=True).unsqueeze(-2).expand(factor.shape)
        return torch.stack(axes, -1).gather(-1, order)


def _rotation(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine that make two columns orthogonal, by the smaller of the two angles that do."""
    overlap = (left * right).sum(-1, keepdim=True)
    difference = left.square().sum(-1, keepdim=True) - right.square().sum(-1, keepdim=True)
    # With two columns turning by half the polar angle would do; the form with a tangent keeps small angles exact.
    reach = difference.abs() + torch.hypot(difference, 2 * overlap)
    tangent = torch.where(reach > 0, 2 * overlap / torch.where(reach > 0, reach, 1.0), 0.0)
    tangent = torch.where(difference < 0, -tangent, tangent)
    cosine = torch.rsqrt(1 + tangent.square())
    return cosine, cosine * tangent
