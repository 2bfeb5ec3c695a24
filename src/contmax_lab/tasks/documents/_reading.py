"""What a network says of reviews, where it looked, and the deletion test: is what it attends to what it needs?"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from contmax.densities import BetaGaussian
from contmax_lab.tasks.documents._data import PADDING

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


def deletion_test(
    read: Callable[[Tensor], Reading], tokens: Tensor, reading: Reading, draws: Tensor
) -> dict[str, Shortened]:
    """What is said of the selected words, of the others, and of random ones and the others.

    Args:
        read: from numbers of words (B, L), padded with 0, to a reading.
        tokens: of the whole reviews, (B, L).
        reading: of the whole reviews.
        draws: a random number in [0, 1) for each word, (B, L).

    Returns:
        ``kept``, ``removed``, ``random_kept``, ``random_removed``.
    """
    mask, selected = reading.mask, reading.selected
    choose = random_words if reading.density is None else random_stretch
    drawn = choose(selected.sum(-1), mask, draws)
    left = {
        "kept": selected,
        "removed": mask & ~selected,
        "random_kept": drawn,
        "random_removed": mask & ~drawn,
    }
    return {name: Shortened(read(only(tokens, words)).logits, words.sum(-1)) for name, words in left.items()}


def only(tokens: Tensor, words: Tensor) -> Tensor:
    """Reviews of these words alone, in their order, padded with 0 to the longest; at least one column.

    Example:
        >>> only(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[True, False, True], [False, True, False]]))
        tensor([[5, 7],
                [9, 0]])
    """
    count = words.sum(-1, keepdim=True)
    longest = max(int(count.max()), 1)
    first = (~words).int().argsort(dim=-1, stable=True)[:, :longest]
    return torch.where(torch.arange(longest, device=tokens.device) < count, tokens.gather(-1, first), PADDING)


def random_stretch(count: Tensor, mask: Tensor, draws: Tensor) -> Tensor:
    """So many neighbouring words of each review, every place being as likely, (B, L).

    Args:
        count: of words, (B,).
        mask: which places hold a word, (B, L): all before the padding.
        draws: in [0, 1), (B, L); the first of each review decides.
    """
    places = (mask.sum(-1) - count + 1).to(draws.dtype)
    start = (draws[:, 0] * places).floor().unsqueeze(-1)
    steps = torch.arange(mask.shape[-1], device=mask.device)
    return (steps >= start) & (steps < start + count.unsqueeze(-1)) & mask


def random_words(count: Tensor, mask: Tensor, draws: Tensor) -> Tensor:
    """So many words of each review, every set being as likely: those with the smallest draws, (B, L).

    Args:
        count: of words, (B,).
        mask: which places hold a word, (B, L).
        draws: in [0, 1), (B, L).
    """
    rank = torch.where(mask, draws, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
    return (rank < count.unsqueeze(-1)) & mask
