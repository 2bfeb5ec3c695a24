"""The finite Fenchel–Young losses as a module."""

from torch import Tensor

from contmax._typing import Bool, Float, Shaped
from contmax.losses import entmax_loss
from contmax.nn._alpha import AlphaModule


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
        return entmax_loss(
            scores,
            target,
            self.alpha,
            mask=mask,
            weight=self.weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses."""
        return (
            f"alpha={self._shown_alpha()}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, reduction={self.reduction!r}"
        )
