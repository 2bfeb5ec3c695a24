"""Convolutions over the observations, attention over time, a decision."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional as F

import contmax
from contmax_lab.contract import Batch
from contmax_lab.labelled import Answer, Decision, Targets, attention_over
from contmax_lab.tasks.series._data import Scale
from contmax_lab.tasks.series._settings import SeriesModel


class SeriesReader(nn.Module):
    """Series → answers.

    Args:
        model: its configuration.
        scale: of the channels.
        targets: classes or numbers.

    Example:
        >>> from contmax_lab.tasks.series._reading import Columns
        >>> scale = Scale(Columns("id", "time", "label", ("level",)), (0.0,), (1.0,), 1.0)
        >>> reader = SeriesReader(SeriesModel(hidden_dim=8), scale, Targets(("no", "yes")))
        >>> mask, positions = torch.ones(2, 9, dtype=torch.bool), torch.rand(2, 9).sort().values
        >>> reader({"values": torch.randn(2, 9, 2), "positions": positions, "mask": mask}).scores.shape
        torch.Size([2, 2])
    """

    def __init__(self, model: SeriesModel, scale: Scale, targets: Targets) -> None:
        super().__init__()
        width = model.hidden_dim
        # Channels, elapsed time, position.
        self.first = nn.Conv1d(len(scale.centres) + 2, width, model.kernel_size, padding="same")
        self.second = nn.Conv1d(width, width, model.kernel_size, padding="same")
        self.dropout = nn.Dropout(model.dropout)
        basis = contmax.basis.GaussianBasis.covering(model.functions)
        self.attention = attention_over(basis, width, model)
        self.decision = Decision(self.attention.width, targets, dataclasses.astuple(scale))

    def forward(self, batch: Batch) -> Answer:
        """Answers to ``values`` (B, L, C + 1) at ``positions`` (B, L), ``mask`` (B, L) saying which are there."""
        mask, positions = batch["mask"], batch["positions"]
        there = mask.unsqueeze(1)
        inputs = torch.cat([batch["values"], positions.unsqueeze(-1)], -1).mT * there
        hidden = F.gelu(self.first(inputs)) * there
        hidden = hidden + F.gelu(self.second(self.dropout(hidden))) * there
        context, heads = self.attention(hidden.mT, mask=mask, positions=positions)
        return Answer(self.decision(self.dropout(context)), self.decision.deviation, heads, positions, mask)
