"""Convolutions over time, attention, a linear classifier."""

import dataclasses

from jsonargparse.typing import ClosedUnitInterval, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

import contmax
from contmax_lab.attention import Attended, Attention, Kind
from contmax_lab.contract import Batch


@dataclasses.dataclass(frozen=True)
class VowelsModel:
    """The network.

    Args:
        attention: over the frames, over the time interval, or both.
        alpha: 1 = softmax and Gaussian, 2 = sparsemax and truncated parabola.
        hidden_dim: channels of the convolutions.
        kernel_size: frames a convolution sees, odd.
        dropout: of the input channels and of what is attended to.
        functions: K, Gaussian basis functions of the continuous attention.
        width: their standard deviation, the utterance having length 1.
    """

    attention: Kind = "continuous"
    alpha: PositiveFloat = 2.0
    hidden_dim: PositiveInt = 48
    kernel_size: PositiveInt = 3
    dropout: ClosedUnitInterval = 0.3
    functions: PositiveInt = 16
    width: PositiveFloat = 0.1


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the network says of each example.

    Args:
        logits: shape (B, classes).
        attended: what it looked at.
    """

    logits: Tensor
    attended: Attended


class Listener(nn.Module):
    """Utterances → who speaks.

    Args:
        model: its configuration.
        channels: of a frame.
        classes: speakers.

    Example:
        >>> import torch
        >>> listener = Listener(VowelsModel(hidden_dim=8), channels=12, classes=9)
        >>> frames, mask = torch.zeros(2, 20, 12), torch.ones(2, 20, dtype=torch.bool)
        >>> listener({"frames": frames, "mask": mask}).logits.shape
        torch.Size([2, 9])
    """

    def __init__(self, model: VowelsModel, channels: int, classes: int) -> None:
        super().__init__()
        padding = model.kernel_size // 2
        self.first = nn.Conv1d(channels, model.hidden_dim, model.kernel_size, padding=padding)
        self.second = nn.Conv1d(model.hidden_dim, model.hidden_dim, model.kernel_size, padding=padding)
        self.dropout = nn.Dropout(model.dropout)
        basis = contmax.basis.GaussianBasis.linspace(model.functions, scale=model.width)
        self.attention = Attention(model.attention, model.hidden_dim, model.alpha, basis)
        self.classifier = nn.Linear(model.hidden_dim, classes)

    def forward(self, batch: Batch) -> Answer:
        """Answers to ``batch["frames"]`` (B, L, channels), of which ``batch["mask"]`` (B, L) says which are there."""
        mask = batch["mask"].unsqueeze(1)
        hidden = F.gelu(self.first(self.dropout(batch["frames"]).mT)) * mask
        hidden = F.gelu(self.second(self.dropout(hidden))) * mask
        attended = self.attention(hidden.mT, mask=batch["mask"])
        return Answer(self.classifier(self.dropout(attended.context)), attended)
