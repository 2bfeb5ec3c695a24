"""What every basis is: a module that evaluates K functions on an N-dimensional domain."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from contmax._typing import Float


class Basis(torch.nn.Module, ABC):
    r"""K basis functions ψ: ℝᴺ → ℝᴷ. A signal is V(t) = Bψ(t), a context c = B·E_p[ψ].

    A basis with N = 1 takes points t of any shape (…) and returns (…, K); one with N > 1 takes (…, N).
    Its constants are buffers, or parameters if it was made with ``learnable=True``.
    """

    num_functions: int
    """K, the number of basis functions."""
    event_dim: int = 1
    """N, the dimension of the domain."""

    @abstractmethod
    def forward(self, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """ψ(t): (…) → (…, K) for N = 1, (…, N) → (…, K) for N > 1."""

    @property
    def breakpoints(self) -> Float[Tensor, " M"] | None:
        """Points where some ψ_j (N = 1) is not smooth, so that a quadrature rule can split there; None if all are."""
        return None

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Lowest and highest corner of the box that the functions stand in, () for N = 1, (N,) for N > 1.

        Where attention has to choose points of its own it chooses them here. [0, 1]ᴺ unless a basis knows better.
        """
        shape = () if self.event_dim == 1 else (self.event_dim,)
        return torch.zeros(shape), torch.ones(shape)

    @property
    def needs_gradient(self) -> bool:
        """Whether some constant of the basis is being learned."""
        return any(p.requires_grad for p in self.parameters())

    def _keep(self, name: str, value: Tensor, learnable: bool) -> None:
        """Register a constant as a parameter or as a buffer."""
        if learnable:
            self.register_parameter(name, torch.nn.Parameter(value.detach().clone()))
        else:
            self.register_buffer(name, value)


def floating(value: object, name: str) -> Tensor:
    """A finite floating-point tensor in the default dtype, or in its own if it has one."""
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.get_default_dtype())
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.get_default_dtype())
    if not bool(tensor.detach().isfinite().all()):
        raise ValueError(f"{name} must be finite; got NaN or infinity in a tensor of shape {tuple(tensor.shape)}.")
    return tensor


def require_positive(value: Tensor, name: str, advice: str) -> Tensor:
    """The value itself, or a ValueError that says how far it is from positive."""
    if value.numel() and bool((value.detach() <= 0).any()):
        lowest = value.detach().min().item()
        raise ValueError(
            f"{name} must be positive; got min {lowest:g} in a tensor of shape {tuple(value.shape)}. {advice}"
        )
    return value


def evenly(num: int, widths: int, low: float, high: float) -> Tensor:
    """`num` centres shared by `widths` widths, linearly spaced in [low, high]; a single one stands in the middle."""
    if num < 1 or num % widths:
        raise ValueError(
            f"num must be a positive multiple of the number of widths; got {num} functions for {widths} widths. "
            f"Pass {max(1, num // widths) * widths} or {(num // widths + 1) * widths}."
        )
    if not low < high:
        raise ValueError(f"low must be below high; got [{low}, {high}].")
    each = num // widths
    centres = torch.linspace(low, high, each) if each > 1 else torch.tensor([(low + high) / 2])
    return centres.to(torch.get_default_dtype()).repeat(widths)
