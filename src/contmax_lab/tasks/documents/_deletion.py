"""The deletion test: is what a network attends to what it needs?

The words that it selects are kept alone, and are left out; each time the rest is read as if it were the whole review.
Beside it the same with as many words chosen at random: a stretch of them where the attention is a density over the
text, any words where it has weights alone.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from contmax_lab.tasks.documents._prepared import PADDING
from contmax_lab.tasks.documents._reading import Reading, Shortened


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
