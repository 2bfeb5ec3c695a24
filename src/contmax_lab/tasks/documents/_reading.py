"""What a network says of reviews, and where it looked."""

import dataclasses

import torch
from torch import Tensor

from contmax.densities import BetaGaussian

# Of what is positive everywhere, the words that count as selected hold so much of the mass.
_MOST = 0.95


@dataclasses.dataclass(frozen=True)
class Shortened:
    """What the network says of reviews when only some of their words are left.

    Args:
        logits: of being positive, (B,); those of a review without words mean nothing.
        words: how many are left, (B,).
    """

    logits: Tensor
    words: Tensor


@dataclasses.dataclass(frozen=True)
class Reading:
    """What the network says of each review, and where it looked.

    Args:
        logits: of being positive, (B,).
        mask: which places hold a word, (B, L).
        weights: of the words, (B, L); None without discrete attention.
        density: over the text as the unit interval, of batch shape (B,); None without continuous attention.
        sparse: whether a weight can be zero; those of softmax and of gates are positive.
        shortened: the deletion test, by the name of what is left; empty where it was not asked for.
    """

    logits: Tensor
    mask: Tensor
    weights: Tensor | None = None
    density: BetaGaussian | None = None
    sparse: bool = True
    shortened: dict[str, Shortened] = dataclasses.field(default_factory=dict)

    @property
    def inside(self) -> Tensor:
        """Which words have a positive weight or lie where the density is positive, (B, L)."""
        inside = torch.zeros_like(self.mask) if self.weights is None else self.weights > 0
        if self.density is not None:
            inside = inside | self._in_support(self.density)
        return inside & self.mask

    @property
    def selected(self) -> Tensor:
        """Which words are attended, where that may not be all by construction, (B, L).

        Those with a positive weight or density. Of weights, or of a density, that are positive everywhere: the fewest
        words that hold 95 % of the mass.
        """
        selected = torch.zeros_like(self.mask)
        if self.weights is not None:
            selected = self.weights > 0 if self.sparse else _heaviest(self.weights * self.mask)
        if self.density is not None:
            mass = self.density.density(self._positions().mT).mT * self.mask
            endless = self.density.half_width.isinf().unsqueeze(-1)
            selected = selected | torch.where(endless, _heaviest(mass), self._in_support(self.density))
        return selected & self.mask

    def _in_support(self, density: BetaGaussian) -> Tensor:
        distance = (self._positions() - density.loc.unsqueeze(-1)).abs()
        return distance < density.half_width.unsqueeze(-1)

    def _positions(self) -> Tensor:
        """Middles of the words in the unit interval, (B, L)."""
        return (self.mask.cumsum(-1) - 0.5) / self.mask.sum(-1, keepdim=True)


def _heaviest(mass: Tensor) -> Tensor:
    """The fewest words that hold most of the mass of their review, (B, L)."""
    falling, order = mass.sort(dim=-1, descending=True, stable=True)
    heavier = falling.cumsum(-1) - falling
    taken = heavier < _MOST * mass.sum(-1, keepdim=True)
    return torch.zeros_like(taken).scatter(-1, order, taken)
