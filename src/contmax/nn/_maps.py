"""The finite maps and their loss as modules."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from contmax._typing import Bool, Float, Shaped
from contmax.losses import entmax_loss
from contmax.maps import entmax, sparsemax
from contmax.nn._module import AlphaModule, ShownModule, shape_of


class Sparsemax(ShownModule):
    r"""Sparsemax over an axis: :func:`contmax.sparsemax` as a module.

    Args:
        dim: the axis of the distribution.

    Example:
        >>> import torch, contmax
        >>> contmax.nn.Sparsemax()(torch.tensor([[1.0, 0.5, -1.0]]))
        tensor([[0.7500, 0.2500, 0.0000]])
    """

    _shown = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(
        self,
        scores: Float[Tensor, "..."],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        temperature: float | Tensor = 1.0,
    ) -> Float[Tensor, "..."]:
        """Probabilities of the shape of the scores."""
        return sparsemax(scores, self.dim, mask=mask, temperature=temperature)


class Entmax(AlphaModule):
    r"""α-entmax over an axis, with α fixed or learned, one for all or one per head.

    A learned α is 1 + sigmoid(a), bounded inside (1, 2): from nearly softmax to nearly sparsemax, decided by the data.
    The parameter a is in the state dict; so are fixed α's given per head.

    Args:
        alpha: α, or its starting value; a float, a tensor, or one value per head. A learned one must start inside
            (1, 2). A Parameter is learned as it is, without bounds.
        dim: the axis of the distribution.
        learnable: whether α is learned inside (1, 2).
        num_heads: number of heads, each with its own α; None for one α for all.
        head_dim: the axis of heads in the scores; 1 by default, as in scores (B, H, Q, L).

    Example:
        >>> import torch, contmax
        >>> attend = contmax.nn.Entmax(1.5, learnable=True, num_heads=4)
        >>> attend(torch.randn(2, 4, 5, 7)).shape
        torch.Size([2, 4, 5, 7])
        >>> attend
        Entmax(alpha=learnable(1.5, 1.5, 1.5, 1.5), dim=-1, learnable=True, num_heads=4, head_dim=1)

    Reference: Correia, Niculae & Martins 2019.
    """

    def __init__(
        self,
        alpha: float | Sequence[float] | Tensor = 1.5,
        dim: int = -1,
        *,
        learnable: bool = False,
        num_heads: int | None = None,
        head_dim: int | None = None,
    ) -> None:
        if num_heads is not None and not learnable and isinstance(alpha, int | float):
            alpha = [alpha] * num_heads
        super().__init__(alpha, learnable=learnable, num_heads=num_heads)
        shape, start = shape_of(alpha), self._start
        if num_heads is None and shape:
            raise ValueError(f"alpha has shape {shape} but num_heads is None. Pass one float, or one value per head.")
        if not learnable and start is not None and not 0 < start.min().item() <= start.max().item() < math.inf:
            raise ValueError(f"alpha must be positive and finite; got {alpha}. 1 is softmax, 2 is sparsemax.")
        self.dim, self.num_heads = dim, num_heads
        self.head_dim = 1 if head_dim is None else head_dim

    def forward(
        self,
        scores: Float[Tensor, "..."],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        temperature: float | Tensor = 1.0,
    ) -> Float[Tensor, "..."]:
        """Probabilities of the shape of the scores."""
        alpha = self.alpha
        if self.num_heads is not None:
            rank = scores.dim()
            if not -rank <= self.head_dim < rank or scores.shape[self.head_dim] != self.num_heads:
                raise ValueError(
                    f"scores of shape {tuple(scores.shape)} do not have {self.num_heads} heads along axis "
                    f"{self.head_dim}. Pass scores such as (B, H, Q, L), or set head_dim."
                )
        if isinstance(alpha, Tensor) and alpha.dim():
            alpha = alpha.view([-1 if d == self.head_dim % scores.dim() else 1 for d in range(scores.dim())])
        return entmax(scores, alpha, self.dim, mask=mask, temperature=temperature)

    def extra_repr(self) -> str:
        """The text of `repr` between the parentheses."""
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}, head_dim={self.head_dim}"
        return f"alpha={self._show('alpha')}, dim={self.dim}, learnable={self.alpha_logit is not None}{heads}"


class FenchelYoungLoss(AlphaModule):
    r"""The loss of α-entmax as a module: :func:`contmax.losses.entmax_loss`, in place of nn.CrossEntropyLoss (α = 1).

    Args:
        alpha: α > 0, a float or a tensor; a Parameter is learned as it is, without bounds.
        learnable: whether α is learned inside (1, 2), starting at `alpha`. The loss itself falls as α grows: learn it
            only with something that holds it back, such as an attention that shares it or a penalty.
        weight: one weight per class, (C,).
        ignore_index: class id of examples to ignore.
        label_smoothing: ε in [0, 1].
        reduction: "none", "sum" or "mean".

    Example:
        >>> import torch, contmax
        >>> loss = contmax.nn.FenchelYoungLoss(alpha=2.0)
        >>> loss(torch.tensor([[1.0, 0.5]]), torch.tensor([0]))
        tensor(0.0625)
    """

    _shown = ("alpha", "ignore_index", "label_smoothing", "reduction")
    weight: Tensor | None

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        *,
        learnable: bool = False,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(alpha, learnable=learnable)
        self.ignore_index, self.label_smoothing, self.reduction = ignore_index, label_smoothing, reduction
        self.register_buffer("weight", weight)

    def forward(
        self,
        scores: Float[Tensor, "..."],
        target: Shaped[Tensor, "..."],
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "..."]:
        """The loss of logits (N, C, …) against class ids (N, …) or soft targets (N, C, …)."""
        options: dict[str, Any] = {name: getattr(self, name) for name in self._shown}
        return entmax_loss(scores, target, mask=mask, weight=self.weight, **options)
