"""Convolutions over the image, attention, a linear classifier."""

import dataclasses

import torch
from jsonargparse.typing import ClosedUnitInterval, PositiveFloat, PositiveInt
from torch import Tensor, nn

import contmax
from contmax_lab.attention import Attended, Attention, Kind
from contmax_lab.contract import Batch
from contmax_lab.data import DIGIT_CLASSES


@dataclasses.dataclass(frozen=True)
class DigitsModel:
    """The network.

    Args:
        attention: over the pixels, over the plane, or both.
        alpha: 1 = softmax and Gaussian, 2 = sparsemax and truncated paraboloid.
        hidden_dim: channels of the convolutions.
        dropout: between the convolutions and of what is attended to.
        functions: along each side of the grid of Gaussian basis functions, K = functions².
        width: their standard deviation, the image having sides of length 1.
    """

    attention: Kind = "continuous"
    alpha: PositiveFloat = 2.0
    hidden_dim: PositiveInt = 32
    dropout: ClosedUnitInterval = 0.2
    functions: PositiveInt = 8
    width: PositiveFloat = 0.08


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the network says of each example.

    Args:
        logits: shape (B, 10).
        attended: what it looked at.
    """

    logits: Tensor
    attended: Attended


class Reader(nn.Module):
    """Images → digits.

    Args:
        model: its configuration.

    Example:
        >>> Reader(DigitsModel(hidden_dim=8))({"pixels": torch.zeros(2, 8, 8)}).logits.shape
        torch.Size([2, 10])
    """

    def __init__(self, model: DigitsModel) -> None:
        super().__init__()
        width = model.hidden_dim
        # Every position sees 7 × 7 pixels; all 8 × 8 positions remain, to be attended to.
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.GELU(),
            nn.Dropout(model.dropout),
            nn.Conv2d(width, width, 3, padding=2, dilation=2),
            nn.BatchNorm2d(width),
            nn.GELU(),
        )
        self.dropout = nn.Dropout(model.dropout)
        basis = contmax.basis.MultivariateGaussianBasis.grid(model.functions, scale=model.width)
        self.attention = Attention(model.attention, model.hidden_dim, model.alpha, basis)
        self.classifier = nn.Linear(model.hidden_dim, DIGIT_CLASSES)

    def forward(self, batch: Batch) -> Answer:
        """Answers to ``batch["pixels"]`` (B, H, W)."""
        pixels = batch["pixels"]
        hidden = self.body(pixels.unsqueeze(1))
        # Whole positions are dropped: looking at a single one is not worth while.
        hidden = hidden * self.dropout(torch.ones_like(hidden[:, :1]))
        attended = self.attention(hidden.flatten(2).mT, grid=(pixels.shape[1], pixels.shape[2]))
        return Answer(self.classifier(self.dropout(attended.context)), attended)
