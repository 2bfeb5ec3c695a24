"""What the pictures are given, checked: tokens, weights, and which member of a batch is meant."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax._typing import Float

Index = int | tuple[int, ...]


def checked_tokens(name: str, tokens: Sequence[str]) -> list[str]:
    """The tokens as a list.

    Raises:
        ValueError: if there are none.
        TypeError: if they are one string, or not all strings.
    """
    if isinstance(tokens, str):
        raise TypeError(f"{name} must be a sequence of strings; got one string. Pass text.split().")
    listed = list(tokens)
    if not listed:
        raise ValueError(f"{name} must hold at least one token; got none.")
    wrong = next((token for token in listed if not isinstance(token, str)), None)
    if wrong is not None:
        raise TypeError(
            f"{name} must be strings; got {type(wrong).__name__}. Decode numbers with the tokenizer they come from."
        )
    return listed


def require_something(weights: object, density: object) -> None:
    """Refuse a picture of nothing."""
    if weights is None and density is None:
        raise ValueError("no attention was given. Pass weights, density, or both.")


def as_indices(index: Index) -> tuple[int, ...]:
    """The index as a tuple."""
    return (index,) if isinstance(index, int) else tuple(index)


def checked_weights(weights: Any, shape: tuple[int, ...], meaning: str, index: Index = ()) -> Float[Tensor, "..."]:
    """The weights in float64 on the CPU, of the shape asked for.

    Args:
        weights: a tensor, an array or nested lists, ``(*batch, *shape)``.
        shape: wanted; −1 stands for any length above zero.
        meaning: what the shape stands for, such as "one weight for each of 5 tokens".
        index: into the batch; what remains of it must have one member.

    Raises:
        ValueError: if the shape differs, or a weight is NaN, infinite or negative.
        IndexError: if the index is not in the batch.
    """
    given = torch.as_tensor(weights, dtype=torch.float64).detach().cpu()
    taken = selected(given, given.shape[: max(given.dim() - len(shape), 0)], index, "weights")
    core = tuple(taken.shape[max(taken.dim() - len(shape), 0) :])
    fits = len(core) == len(shape) and all(n == m or (m == -1 and n > 0) for n, m in zip(core, shape, strict=True))
    if not fits or taken.numel() != math.prod(core):
        raise ValueError(
            f"weights must be {meaning}; got shape {tuple(given.shape)}. Pass the weights of one example, or index= "
            "to choose one of a batch."
        )
    bad = ~(taken.isfinite() & (taken >= 0))
    if bool(bad.any()):
        value = float(taken[bad][0])
        raise ValueError(
            f"weights must be finite and not negative; got {value:g}. Pass attention weights after the softmax, and "
            "zeros where a mask has left nothing to attend to."
        )
    return taken.reshape(core)


def selected(values: Tensor, batch: torch.Size, index: Index, name: str) -> Tensor:
    """The values at the index of their first dimensions, which are a batch.

    Raises:
        IndexError: if it is not in the batch.
    """
    places = as_indices(index)
    inside = len(places) <= len(batch) and all(-n <= i < n for i, n in zip(places, batch, strict=False))
    if not inside:
        raise IndexError(f"index {places} is not in the batch {tuple(batch)} of {name}.")
    return values[places] if places else values


def scaled(values: Float[Tensor, "*rows n"]) -> Float[Tensor, "*rows n"]:
    """Each row divided by its largest value; a row of zeros stays as it is."""
    top = values.amax(-1, keepdim=True)
    return values / torch.where(top > 0, top, 1.0)
