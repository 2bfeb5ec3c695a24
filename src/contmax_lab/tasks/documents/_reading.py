"""The answers of a network to reviews, where it attended, and the deletion test: does it need the attended words?"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from contmax.densities import BetaGaussian
from contmax_lab.deletion import only, random_stretch, random_words
from contmax_lab.labelled import heaviest, middles

# Where all weights are positive, the words that count as selected hold this share of the mass.
_MOST = 0.95


@dataclasses.dataclass(frozen=True)
class Shortened:
    """Logits for shortened reviews, of which `words` (B,) words are left; without words, a logit has no meaning."""

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
    def scores(self) -> Tensor:
        """Log-odds of negative and positive, up to a constant for each review, (B, 2)."""
        return torch.stack([torch.zeros_like(self.logits), self.logits], -1)

    @property
    def inside(self) -> Tensor:
        """Which words have a positive weight or lie where the density is positive, (B, L)."""
        inside = torch.zeros_like(self.mask) if self.weights is None else self.weights > 0
        if self.density is not None:
            inside = inside | self._in_support(self.density)
        return inside & self.mask

    @property
    def selected(self) -> Tensor:
        """Words with a positive weight or density, (B, L).

        Where weights or density are positive everywhere, the fewest words that hold 95 % of the mass.
        """
        selected = torch.zeros_like(self.mask)
        if self.weights is not None:
            weights = self.weights * self.mask
            selected = weights > 0 if self.sparse else heaviest(weights, _MOST * weights.sum(-1, keepdim=True))
        if self.density is not None:
            mass = self.density.density(middles(self.mask).mT).mT * self.mask
            endless = self.density.half_width.isinf().unsqueeze(-1)
            most = heaviest(mass, _MOST * mass.sum(-1, keepdim=True))
            selected = selected | torch.where(endless, most, self._in_support(self.density))
        return selected & self.mask

    def _in_support(self, density: BetaGaussian) -> Tensor:
        distance = (middles(self.mask) - density.loc.unsqueeze(-1)).abs()
        return distance < density.half_width.unsqueeze(-1)


def deletion_test(
    read: Callable[[Tensor], Reading], tokens: Tensor, reading: Reading, draws: Tensor
) -> dict[str, Shortened]:
    """Does a network need what it attends to? What it says of the selected words alone, and without them.

    Each time the rest is read as if it were the whole review. Beside it as many words chosen at random: a stretch of
    them where the attention is a density over the text, any words where it has weights alone.

    Args:
        read: from numbers of words (B, L), padded with 0, to a reading.
        tokens, reading: of the whole reviews, (B, L).
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
