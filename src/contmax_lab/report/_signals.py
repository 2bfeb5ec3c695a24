"""How well the bases of trained models follow the features that are attended to."""

import contextlib
import inspect
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import contmax
from contmax.nn import ContinuousAttention, MultiheadContinuousAttention

# Below it, a signal misses so much that more functions are worth a try.
_ENOUGH = 0.8


@contextlib.contextmanager
def watched_signals(model: nn.Module) -> Iterator[list[float]]:
    """The explained variance of every signal that continuous attention fits meanwhile, in the order of the calls.

    Args:
        model: with any number of continuous attentions; a combined or a multihead one counts as such.

    Example:
        >>> attend = ContinuousAttention(contmax.basis.GaussianBasis.covering(16), embed_dim=4)
        >>> with watched_signals(attend) as shares:
        ...     context, density = attend(torch.ones(2, 50, 4))
        >>> shares
        [1.0, 1.0]
    """
    shares: list[float] = []

    def watch(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        call = inspect.signature(module.forward).bind(*arguments, **keywords).arguments
        shares.extend(_explained(module, call).tolist())

    watched = [part for part in model.modules() if isinstance(part, ContinuousAttention | MultiheadContinuousAttention)]
    with contextlib.ExitStack() as hooks:
        for part in watched:
            hooks.callback(part.register_forward_pre_hook(watch, with_kwargs=True).remove)
        yield shares


@torch.no_grad()
def _explained(module: Any, call: dict[str, Any]) -> Tensor:
    positions, mask = call.get("positions"), call.get("mask")
    grid = call.get("grid") or (module.grid if positions is None else None)
    signal = contmax.fit_signal(
        call["values"], module.basis, positions=positions, grid=grid, mask=mask, penalty=module.penalty
    )
    return signal.explained_variance()


def signals_note(shares: Sequence[tuple[str, Sequence[float]]]) -> str:
    """A sentence on the explained variance of the signals of each run; empty if no run has any.

    Args:
        shares: labels of the runs, each with those of its signals.

    Example:
        >>> signals_note([("gates", [0.97, 0.99]), ("softmax", [])])
        'The basis explains 98 % of the variance of the features in the examples drawn here; below about 80 %, try ...'
    """
    means = [(label, f"{100 * statistics.fmean(found):.0f} %") for label, found in shares if found]
    if not means:
        return ""
    listed = means[0][1] if len(means) == 1 else ", ".join(f"{percent} ({label})" for label, percent in means)
    return (
        f"The basis explains {listed} of the variance of the features in the examples drawn here; below about "
        f"{100 * _ENOUGH:.0f} %, try more functions or a smaller penalty."
    )
