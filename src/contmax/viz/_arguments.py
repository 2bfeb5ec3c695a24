"""Checks of the arguments of pictures: tokens, weights, densities, members of batches, and Axes of matplotlib.

Functions import matplotlib when they draw, not when this module is imported.
"""

import importlib
import math
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from contmax._typing import Float

Index = int | tuple[int, ...]
# Characters to replace: control characters have no glyph, and lone surrogates cannot be encoded.
_CONTROLS = re.compile("[\x00-\x1f\x7f]")
_UNPRINTABLE = re.compile("[\x80-\x9f\ud800-\udfff\ufffe\uffff]")


def checked_tokens(name: str, tokens: Sequence[str]) -> list[str]:
    """The tokens as a list, checked to be strings and at least one."""
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
    """Raise an error if there are neither weights nor a density."""
    if weights is None and density is None:
        raise ValueError("no attention was given. Pass weights, density, or both.")


def require_density(density: object) -> None:
    """Raise an error unless `density` is a Distribution."""
    if not isinstance(density, Distribution):
        raise TypeError(
            f"density must be a density of contmax or a distribution of torch; got {type(density).__name__}. Numbers "
            "for single tokens or cells are weights."
        )


def drawable(values: Tensor, density: Distribution) -> Tensor:
    """The values of a density on the CPU, checked not to be NaN."""
    if bool(values.isnan().any()):
        raise ValueError(f"{type(density).__name__} has NaN values, so it cannot be drawn. Check its parameters.")
    return values.detach().cpu()


def checked_weights(
    weights: Any, shape: tuple[int, ...], meaning: str, index: Index = ()
) -> Float[Tensor, "..."] | None:
    """The weights in float64 on the CPU, checked and reshaped to `shape`; None for None.

    Args:
        weights: a tensor, an array or nested lists, ``(*batch, *shape)``, or None.
        shape: shape of the weights of one example; −1 is any length above zero.
        meaning: the shape in words, such as "one weight for each of 5 tokens".
        index: index into the batch; the batch that remains must have one member.
    """
    if weights is None:
        return None
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
    """`values[index]`, where the first dimensions of `values` are `batch`; `name` is for error messages."""
    places = (index,) if isinstance(index, int) else tuple(index)
    inside = len(places) <= len(batch) and all(-n <= i < n for i, n in zip(places, batch, strict=False))
    if not inside:
        raise IndexError(f"index {places} is not in the batch {tuple(batch)} of {name}.")
    return values[places] if places else values


def members(density: Distribution, index: Index) -> list[int]:
    """Positions in the flattened batch of the members at `index`; without an index, of all members."""
    batch = density.batch_shape
    return selected(torch.arange(math.prod(batch)).reshape(batch), batch, index, "density").flatten().tolist()


def scaled(values: Float[Tensor, "*rows n"]) -> Float[Tensor, "*rows n"]:
    """Each row divided by its largest value; rows of zeros are unchanged."""
    top = values.amax(-1, keepdim=True)
    return values / torch.where(top > 0, top, 1.0)


def visible(text: str) -> str:
    r"""The text with a symbol in place of every control character.

    Example:
        >>> visible("a\nb\x00"), visible("\ud800")
        ('a␊b␀', '�')
    """
    shown = _CONTROLS.sub(lambda found: "␡" if found[0] == "\x7f" else chr(0x2400 + ord(found[0])), text)
    return _UNPRINTABLE.sub("\ufffd", shown)


def require_matplotlib(module: str = "matplotlib") -> ModuleType:
    """The imported module; raises an error that says how to install matplotlib."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            "contmax.viz draws with matplotlib, which is not installed: pip install contmax[viz]"
        ) from error


def axes_for(ax: Any, width: float = 6.0, height: float = 3.0) -> Any:
    """The given Axes, or those of a new figure.

    Args:
        ax: Axes of matplotlib, or None.
        width, height: size of a new figure, in inches.
    """
    axes_class = require_matplotlib("matplotlib.axes").Axes
    if ax is None:
        pyplot = require_matplotlib("matplotlib.pyplot")
        return pyplot.subplots(figsize=(width, height), layout="constrained")[1]
    if not isinstance(ax, axes_class):
        raise TypeError(
            f"ax must be Axes of matplotlib; got {type(ax).__name__}. Pass one of those that plt.subplots() returns."
        )
    return ax


def literal(text: str) -> str:
    r"""The text for matplotlib: dollar signs, which begin formulas, are escaped; control characters are replaced.

    Example:
        >>> print(literal("5 $\x00"))
        5 \$�
    """
    # Few fonts have symbols for control characters; all fonts have the replacement character.
    shown = "".join("\ufffd" if 0x2400 <= ord(letter) <= 0x2421 else letter for letter in visible(text))
    return shown.replace("$", r"\$")


def name_tokens(ax: Any, tokens: Sequence[str], size: float) -> None:
    """Write tokens below the x axis: token l at l + 0.5."""
    places = [place + 0.5 for place in range(len(tokens))]
    ax.set_xticks(places, [literal(token) for token in tokens], rotation=60, ha="right", fontsize=size)
    ax.tick_params(axis="x", length=0, pad=1)
    for label in ax.get_xticklabels():
        label.set_rotation_mode("anchor")
