"""Where heads and components of a mixture look before they have learned anything: each at a place of its own."""

from typing import Any

import torch
from torch import Tensor

from contmax._precision import in_dtype

# Preferences are no narrower than this share of an axis, however many there are: content must be able to win.
_NARROWEST = 1 / 4


class PreferredPlaces(torch.nn.Module):
    r"""A term of the scores that begins by sending every head and component to another part of the unit cube.

    .. math:: -\tfrac12\,\kappa_{hm}\,\|u - c_{hm}\|^2

    Without it all of them begin with the same density, the whole domain. c and κ are learned; a state dict of an
    earlier version has none of them, and gives κ = 0.

    Args:
        num_heads: H.
        num_components: M.
        dim: N.
    """

    def __init__(self, num_heads: int, num_components: int, dim: int) -> None:
        super().__init__()
        self.centers = torch.nn.Parameter(torch.empty(num_heads, num_components, dim))
        self.closeness = torch.nn.Parameter(torch.empty(num_heads, num_components))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Spread the places evenly over the cube; the components of a head lie far apart."""
        heads, components, dim = self.centers.shape
        places = _spread_over_cube(heads * components, dim).reshape(components, heads, dim).transpose(0, 1)
        sharpness = min((heads * components) ** (1 / dim), 1 / _NARROWEST)
        with torch.no_grad():
            self.centers.copy_(places)
            # None at all for a single one.
            self.closeness.fill_(sharpness**2 - 1)

    def forward(self, points: Tensor) -> Tensor:
        """What the places add to the scores of points of the unit cube, (A,) or (A, N): (H, M, A)."""
        centers, closeness = in_dtype(self.centers, points.dtype), in_dtype(self.closeness, points.dtype)
        points = points if points.dim() == 2 else points.unsqueeze(-1)
        distances = (points - centers.unsqueeze(-2)).square().sum(-1)
        return -0.5 * closeness.unsqueeze(-1) * distances

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, metadata: Any, *arguments: Any) -> None:
        if metadata.get("version") is None:
            state_dict.setdefault(prefix + "centers", self.centers.detach())
            state_dict.setdefault(prefix + "closeness", torch.zeros_like(self.closeness))
        super()._load_from_state_dict(state_dict, prefix, metadata, *arguments)

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        heads, components, dim = self.centers.shape
        return f"num_heads={heads}, num_components={components}, dim={dim}"


def _spread_over_cube(count: int, dim: int) -> Tensor:
    """Points (count, N), even over the unit cube: midpoints on the line, a sequence of low discrepancy beyond."""
    index = torch.arange(count, dtype=torch.float64, device="cpu")
    if dim == 1:
        return ((index + 0.5) / count).unsqueeze(-1)
    # Roberts' generalised golden ratio: the root of x^(N+1) = x + 1.
    ratio = 1.5
    for _ in range(50):
        ratio = (1 + ratio) ** (1 / (dim + 1))
    steps = torch.tensor([ratio**-axis for axis in range(1, dim + 1)], dtype=torch.float64, device="cpu")
    return (0.5 + index.unsqueeze(-1) * steps) % 1
