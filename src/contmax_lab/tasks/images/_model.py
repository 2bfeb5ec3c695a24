"""Convolutions, attention over the plane, a decision."""

import itertools

import torch
from torch import Tensor, nn

import contmax
from contmax_lab.contract import Batch
from contmax_lab.labelled import Answer, Decision, Targets, attention_over
from contmax_lab.tasks.images._settings import ImagesModel


class ImageReader(nn.Module):
    """Images → answers.

    Args:
        model: its configuration.
        size: of the images, pixels along a side.
        targets: classes or numbers.

    Example:
        >>> reader = ImageReader(ImagesModel(hidden_dim=8), 32, Targets(("cat", "dog")))
        >>> answer = reader({"pixels": torch.zeros(2, 3, 32, 32, dtype=torch.uint8)})
        >>> answer.scores.shape, answer.inside.shape
        (torch.Size([2, 2]), torch.Size([2, 16]))
    """

    def __init__(self, model: ImagesModel, size: int, targets: Targets) -> None:
        super().__init__()
        width = model.hidden_dim
        widths = [3, *(max(width >> (model.layers - 1 - layer), 8) for layer in range(model.layers - 1)), width]
        self.encoder = nn.Sequential(*(_layer(before, after) for before, after in itertools.pairwise(widths)))
        self.dropout = nn.Dropout(model.dropout)
        basis = contmax.basis.MultivariateGaussianBasis.covering(model.functions)
        self.attention = attention_over(basis, width, model)
        self.decision = Decision(self.attention.width, targets, size)

    def forward(self, batch: Batch) -> Answer:
        """Answers to ``batch["pixels"]``, bytes (B, 3, H, W)."""
        hidden = self.encode(batch["pixels"])
        grid = (hidden.shape[-2], hidden.shape[-1])
        context, heads = self.attention(hidden.flatten(2).mT, grid=grid)
        centres = _centres(grid, hidden).expand(len(hidden), -1, -1)
        mask = torch.ones(centres.shape[:-1], dtype=torch.bool, device=hidden.device)
        return Answer(self.decision(self.dropout(context)), self.decision.deviation, heads, centres, mask)

    def encode(self, pixels: Tensor) -> Tensor:
        """What is attended to, (B, hidden_dim, H', W')."""
        hidden: Tensor = self.encoder(pixels.float() / 127.5 - 1)
        return hidden


def _layer(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=2, padding=1),
        # Of each image by itself: what is said of one does not depend on its neighbours in the batch.
        nn.GroupNorm(1, after),
        nn.GELU(),
        nn.Conv2d(after, after, 3, padding=1),
        nn.GroupNorm(1, after),
        nn.GELU(),
    )


def _centres(grid: tuple[int, int], like: Tensor) -> Tensor:
    """Of the cells of the unit square, row by row, (HW, 2)."""
    lines = [(torch.arange(count, device=like.device) + 0.5) / count for count in grid]
    return torch.cartesian_prod(*lines)
