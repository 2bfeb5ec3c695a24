"""Texts with some words deleted: those that a model attends to, or random ones; words are numbers, padded with 0."""

import torch
from torch import Tensor


def only(tokens: Tensor, words: Tensor) -> Tensor:
    """Texts of these words alone, in their order, padded with 0 to the longest; at least one column.

    Example:
        >>> only(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[True, False, True], [False, True, False]]))
        tensor([[5, 7],
                [9, 0]])
    """
    count = words.sum(-1, keepdim=True)
    longest = max(int(count.max()), 1)
    first = (~words).int().argsort(dim=-1, stable=True)[:, :longest]
    return torch.where(torch.arange(longest, device=tokens.device) < count, tokens.gather(-1, first), 0)


def random_stretch(count: Tensor, mask: Tensor, draws: Tensor) -> Tensor:
    """A stretch of `count` (B,) words of each text, (B, L); its first draw in [0, 1) decides where."""
    places = (mask.sum(-1) - count + 1).to(draws.dtype)
    start = (draws[:, 0] * places).floor().unsqueeze(-1)
    steps = torch.arange(mask.shape[-1], device=mask.device)
    return (steps >= start) & (steps < start + count.unsqueeze(-1)) & mask


def random_words(count: Tensor, mask: Tensor, draws: Tensor) -> Tensor:
    """The `count` (B,) words of each text with the smallest draws, (B, L): every set is as likely."""
    rank = torch.where(mask, draws, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
    return (rank < count.unsqueeze(-1)) & mask
