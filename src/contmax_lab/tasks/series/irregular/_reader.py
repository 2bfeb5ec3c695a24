"""From the batches of the task series to those of the networks for channels, and back to its answers."""

import dataclasses

import torch
from torch import Tensor

from contmax_lab.attention import Attended
from contmax_lab.channels import (
    HOURS,
    Boosting,
    Intervals,
    LinearStart,
    Sizes,
    basis_of,
    network_of,
    observations,
    signals,
    warped,
    weights_and_intensity,
)
from contmax_lab.contract import Batch
from contmax_lab.errors import UsageError
from contmax_lab.labelled import Answer, KnowsItsData, Targets
from contmax_lab.tasks.series._scale import Scale
from contmax_lab.tasks.series.irregular import IrregularModel

# Numbers of a summary are clamped to this many deviations.
_LARGEST = 5.0


class ChannelsReader(KnowsItsData):
    """Series → answers, by a network for channels.

    The summary of a series is, of each channel, the last value, the logarithms of the count and of the time since;
    then the duration and what is static.

    Args:
        model: its configuration.
        scale: of the channels.
        targets: classes.

    Raises:
        UsageError: if the targets are numbers.

    Example:
        >>> from contmax_lab.tasks.series._columns import Columns
        >>> scale = Scale(Columns("id", "time", "label", ("level",)), (0.0,), (1.0,), 1.0)
        >>> reader = ChannelsReader(IrregularModel(), scale, Targets(("no", "yes")))
        >>> mask, positions = torch.ones(2, 9, dtype=torch.bool), torch.rand(2, 9).sort().values
        >>> batch = {"values": torch.randn(2, 9, 2), "observed": mask.unsqueeze(-1), "positions": positions}
        >>> reader({**batch, "mask": mask, "static": torch.zeros(2, 0)}).scores.shape
        torch.Size([2, 2])
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: IrregularModel, scale: Scale, targets: Targets) -> None:
        super().__init__(targets, dataclasses.astuple(scale))
        if not targets.classes:
            raise UsageError(
                "the task irregular tells classes apart, and the labels are numbers; pass --model.reads frames"
            )
        self.model, channels = model, len(scale.centres)
        static = 1 + sum(own.width for own in scale.static)
        numbers = 3 * channels + static
        outputs = len(targets.classes) if len(targets.classes) > 2 else 1
        self.basis = basis_of(model.functions)
        self.network = network_of(model, self.basis, Sizes(channels, numbers, static, outputs))
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("deviation", torch.ones(numbers))

    @torch.no_grad()
    def fit(self, train: Batch, valid: Batch, seed: int) -> None:
        """Learn the scale of summaries; solve for the linear part, or grow the trees.

        Args:
            train, valid: all series of these parts.
            seed: of random choices.
        """
        summary = self.described(train)["summary"]
        deviation = summary.std(0)
        self.mean.copy_(summary.mean(0))
        self.deviation.copy_(torch.where(deviation > 1e-6, deviation, 1.0))
        known, held_out = self.described(train), self.described(valid)
        if isinstance(self.network, Boosting):
            self.network.fit((known["summary"], train["target"]), (held_out["summary"], valid["target"]), seed)
        if isinstance(self.network, LinearStart):
            self.network.solve(self.network.features(known), train["target"], self.model.ridge)

    def described(self, batch: Batch) -> Batch:
        """What the networks take, computed from a batch of the task series."""
        mask, cells = batch["mask"], batch["observed"].mT
        counts = cells.sum(-1)
        ends = counts.flatten().cumsum(0).view_as(counts)
        group = torch.arange(counts.numel(), device=counts.device).repeat_interleave(counts.flatten())
        is_whole = self.model.time == "whole"
        elapsed = batch["positions"] if is_whole else batch["values"][..., -1]
        clock = HOURS * torch.where(mask, elapsed, 0.0).clamp(0, 1)
        hours = clock.unsqueeze(1).expand(cells.shape)[cells]
        values = batch["values"][..., :-1].mT[cells]

        def last(numbers: Tensor) -> Tensor:
            # One more number, so that there is one if nothing was observed.
            return torch.where(counts > 0, torch.cat([numbers, numbers.new_zeros(1)])[(ends - 1).clamp(min=0)], 0.0)

        latest = last(hours)
        since = clock.amax(-1, keepdim=True) - latest
        duration = torch.where(mask, batch["values"][..., -1], 0.0).amax(-1, keepdim=True)
        summary = torch.cat([last(values), counts.log1p(), since.log1p(), duration, batch["static"]], -1)
        found = {"summary": ((summary - self.mean) / self.deviation).clamp(-_LARGEST, _LARGEST)}
        position = hours / HOURS if is_whole else warped(latest.flatten()[group] - hours)
        if isinstance(self.network, Intervals) and self.model.weighing == "continuous":
            fits = weights_and_intensity(position, counts, self.basis, self.model.penalty)
            found["signals"] = signals(values, group, *fits)
        return {**found, **observations(values, position, hours, group, counts)}

    def forward(self, batch: Batch) -> Answer:
        """Answers to series, as those of the task series; the weight of a time is that of its observations together."""
        described = self.described(batch)
        logits = self.network(described)
        scores = torch.stack([torch.zeros_like(logits), logits], -1) if logits.dim() == 1 else logits
        heads = []
        if isinstance(self.network, Intervals) and not self.training:
            each = torch.zeros(batch["observed"].mT.shape, device=scores.device)
            each[batch["observed"].mT] = self.network.relevance(described)[described["mask"]]
            heads = [Attended(described["summary"], each.sum(1))]
        return Answer(scores, scores.new_ones(()), heads, batch["positions"], batch["mask"], self.targets)
