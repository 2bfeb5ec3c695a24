"""α of a module: a number, a tensor, or learned inside (1, 2); saved, moved and shown in one way."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax._precision import wide_dtype

# A learned α stays this far from the ends of (1, 2), so that neither rounding nor a long training reaches them.
_MARGIN = 1e-4


class ShownModule(torch.nn.Module):
    """A module whose `repr` shows the attributes in `_shown`, and a grid that it was made with."""

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
        # `to_empty` loses the values of a parameter or a buffer. α on the meta device has none.
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
        # In half precision 1.0001 is 1.
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

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        # State dicts of earlier versions have a given α under these names.
        for old in ("alpha", "fixed_alpha"):
            if prefix + old in state_dict:
                state_dict[prefix + "given_alpha"] = state_dict.pop(prefix + old)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

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
