"""Shared parts of modules: α, given or learned inside (1, 2), the text of `repr`, and checks of arguments."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import ParamSpec

import torch
from torch import Tensor

from contmax._eager import in_dtype, refuse_tracing, wide_dtype, without_autocast
from contmax.basis import Basis
from contmax.signal._observations import as_grid

_P = ParamSpec("_P")
# The least distance of a learned α from the ends of (1, 2), so that neither rounding nor long training reaches an end.
_MARGIN = 1e-4


class ShownModule(torch.nn.Module):
    """A module whose `repr` shows the attributes in `_shown`, and its `grid` if it was made with a grid."""

    _shown: tuple[str, ...] = ()
    grid: tuple[int, ...] | None = None

    def extra_repr(self) -> str:
        """The text of `repr` between the parentheses."""
        names = self._shown if self.grid is None else (*self._shown, "grid")
        return ", ".join(f"{name}={self._show(name)}" for name in names)

    def _show(self, name: str) -> str:
        value = getattr(self, name)
        return f"{value:g}" if isinstance(value, float) else repr(value)


class AlphaModule(ShownModule):
    r"""A module with an α, given or learned.

    .. math:: \alpha = 1 + \varepsilon + (1 - 2\varepsilon)\,\mathrm{sigmoid}(a), \qquad \varepsilon = 10^{-4}

    A learned α lies between nearly softmax and nearly sparsemax; its parameter a is ``alpha_logit`` in the state dict.
    A given α is a number, or a tensor that is saved and moved with the module as ``given_alpha``; a Parameter that is
    given is learned as it is, without bounds.
    """

    alpha_logit: torch.nn.Parameter | None
    given_alpha: float | Tensor

    def __init__(
        self, alpha: float | Sequence[float] | Tensor, *, learnable: bool = False, num_heads: int | None = None
    ) -> None:
        super().__init__()
        if num_heads is not None and shape_of(alpha) not in ((), (num_heads,)):
            raise ValueError(
                f"alpha must have shape () or ({num_heads},), one per head; got {shape_of(alpha)}, and num_heads is "
                f"{num_heads}."
            )
        self.register_parameter("alpha_logit", None)
        # `reset_parameters` restores α from `start` after `to_empty` has discarded the value of α. A tensor on the meta
        # device has no value, so there is none to restore.
        meta = isinstance(alpha, Tensor) and alpha.is_meta
        start = None if meta else torch.as_tensor(alpha, dtype=torch.float64, device="cpu").detach().clone()
        if learnable:
            if start is None or not 1 + _MARGIN < start.min().item() <= start.max().item() < 2 - _MARGIN:
                raise ValueError(f"a learned alpha must start inside (1, 2); got {alpha}. Pass alpha=1.5.")
            start = torch.logit((start - 1 - _MARGIN) / (1 - 2 * _MARGIN))
            start = start if num_heads is None else start.expand(num_heads)
            self.alpha_logit = torch.nn.Parameter(_on_default_device(start))
        elif isinstance(alpha, Sequence):
            self.register_buffer("given_alpha", _on_default_device(torch.tensor(alpha, device="cpu")))
        elif isinstance(alpha, Tensor) and not isinstance(alpha, torch.nn.Parameter):
            self.register_buffer("given_alpha", alpha)
        else:
            self.given_alpha = alpha
        self._start = start

    @property
    def alpha(self) -> float | Tensor:
        """The current α."""
        if self.alpha_logit is None:
            return self.given_alpha
        # Compute in at least float32: half precision would round 1.0001 to 1.
        wide = self.alpha_logit.to(wide_dtype(self.alpha_logit.dtype))
        return 1 + _MARGIN + (1 - 2 * _MARGIN) * torch.sigmoid(wide)

    @alpha.setter
    def alpha(self, value: float | Tensor) -> None:
        if self.alpha_logit is not None:
            raise AttributeError(
                f"alpha is learned here and cannot be set to {value}. Make the module with learnable=False."
            )
        self.given_alpha = value

    def reset_parameters(self) -> None:
        """Restore the α the module was made with, after `to_empty` has replaced its tensors.

        Raises:
            RuntimeError: if that value is not known: it was a tensor on the meta device.
        """
        stored = self.given_alpha if self.alpha_logit is None else self.alpha_logit
        if not isinstance(stored, Tensor):
            return
        if self._start is None:
            raise RuntimeError(
                "alpha was given as a tensor on the meta device, so its value is not known. Load a state dict."
            )
        with torch.no_grad():
            stored.copy_(self._start)

    def _show(self, name: str) -> str:
        alpha = self.alpha
        if name != "alpha" or not isinstance(alpha, Tensor):
            return super()._show(name)
        learned = self.alpha_logit is not None or isinstance(alpha, torch.nn.Parameter)
        kind = "learnable" if learned else "tensor"
        if alpha.is_meta or alpha.numel() > 8:
            return f"{kind} of shape {tuple(alpha.shape)}"
        return f"{kind}({', '.join(f'{a:.4g}' for a in alpha.detach().reshape(-1).tolist())})"


def shape_of(alpha: float | Sequence[float] | Tensor) -> tuple[int, ...]:
    """The shape of an α."""
    return tuple(alpha.shape if isinstance(alpha, Tensor) else torch.tensor(alpha, device="cpu").shape)


def _on_default_device(numbers: Tensor) -> Tensor:
    return numbers.to(torch.get_default_device(), torch.get_default_dtype(), copy=True)


def basis_comes_last(init: Callable[_P, None]) -> Callable[_P, None]:
    """Wrap a constructor whose last positional argument is a basis: the error for a wrong order shows the right one."""
    names = [name for name, x in inspect.signature(init).parameters.items() if x.kind is x.POSITIONAL_OR_KEYWORD]

    @functools.wraps(init)
    def checked(*arguments: _P.args, **options: _P.kwargs) -> None:
        module, *given = arguments
        misplaced = [isinstance(x, Basis) != (place == len(names) - 2) for place, x in enumerate(given)]
        if any(misplaced) or len(arguments) > len(names) or not isinstance(options.get("basis"), Basis | None):
            kinds = ", ".join(type(x).__name__ for x in given)
            raise TypeError(
                f"{type(module).__name__} got ({kinds}), which is not the order of its arguments. Call "
                "ContinuousAttention(basis, embed_dim=64), CombinedAttention(discrete, basis), or "
                "MultiheadContinuousAttention(64, 8, basis)."
            )
        init(*arguments, **options)

    return checked


def check_query(query: Tensor | None, query_dim: int | None, values: Tensor) -> None:
    """Raise ValueError for a missing or unexpected query, or a query of wrong shape."""
    if query is None and query_dim is None:
        return
    if query is None or query_dim is None:
        got, fix = ("no query", "a query") if query is None else ("a query", "query_dim=… at construction, or no query")
        raise ValueError(f"The module was made with query_dim={query_dim} but got {got}. Pass {fix}.")
    batch = values.shape[0]
    if query.dim() not in (2, 3) or query.shape[0] != batch or query.shape[-1] != query_dim:
        raise ValueError(
            f"query must have shape (B, {query_dim}) or (B, Q, {query_dim}) with B = {batch}; got {tuple(query.shape)}."
        )


def check_keys(keys: Tensor | None, values: Tensor) -> None:
    """Raise ValueError unless the keys have the batch and length of the values; channels may differ."""
    if keys is not None and (keys.dim() != 3 or keys.shape[:2] != values.shape[:2]):
        raise ValueError(
            f"keys must have shape (B, L, channels) with the B and L of the values, {tuple(values.shape[:2])}; got "
            f"{tuple(keys.shape)}."
        )


def checked_grid(grid: tuple[int, ...] | None, dim: int) -> tuple[int, ...] | None:
    """The grid as a tuple, or None; raises ValueError or TypeError unless it has a size for each axis of the domain."""
    grid = as_grid(grid)
    if grid is not None and len(grid) != dim:
        raise ValueError(f"grid must have {dim} sizes, one for each axis of the basis; got {grid}.")
    return grid


def check_values(values: Tensor, channels: int, name: str) -> None:
    """Raise ValueError unless the values have shape (B, L, channels)."""
    # In torch.jit.trace sizes are tensors, and the check would fail with a misleading message.
    refuse_tracing()
    if values.dim() != 3 or values.shape[-1] != channels:
        raise ValueError(
            f"{name} must have shape (B, L, {channels}); got {tuple(values.shape)}. Pass x[None] for one sequence."
        )


def with_queries(keys: Tensor, queries: Tensor | None) -> Tensor:
    """Keys (B, L, d) plus queries: (B, L, d) for queries (B, d), (B, Q, L, d) for queries (B, Q, d)."""
    if queries is None:
        return keys
    return keys + queries.unsqueeze(1) if queries.dim() == 2 else keys.unsqueeze(1) + queries.unsqueeze(2)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, n, H·d) → (B, H, n, d)."""
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads).transpose(1, 2)


def wide_linear(linear: torch.nn.Linear, x: Tensor) -> Tensor:
    """An affine map in at least float32, even under autocast: half precision is too coarse for positions."""
    dtype = wide_dtype(x.dtype)
    bias = None if linear.bias is None else in_dtype(linear.bias, dtype)
    with without_autocast(x):
        return torch.nn.functional.linear(in_dtype(x, dtype), in_dtype(linear.weight, dtype), bias)
