"""The task series: a network, pictures of where it looks, what it says of a new series."""

import dataclasses
import datetime
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import contmax
from contmax.viz import plot_series_attention
from contmax_lab.contract import Batch, Prediction, Splits, seedless
from contmax_lab.drawing import Theme
from contmax_lab.errors import LabError, UsageError
from contmax_lab.labelled import Answer, Decision, LabelledTask, Panel, PanelPicture, Targets, attention_over, said
from contmax_lab.tasks.series import SETTINGS, SeriesModel
from contmax_lab.tasks.series._data import load
from contmax_lab.tasks.series._reading import read_series
from contmax_lab.tasks.series._scale import Scale, Series

# Positions of the observations, (L,); channels, (L, C); which of them were observed, (L, C).
Observed = tuple[Tensor, Tensor, Tensor]


class SeriesReader(nn.Module):
    """Series → answers.

    Args:
        model: its configuration.
        scale: of the channels.
        targets: classes or numbers.

    Example:
        >>> from contmax_lab.tasks.series._columns import Columns
        >>> scale = Scale(Columns("id", "time", "label", ("level",)), (0.0,), (1.0,), 1.0)
        >>> reader = SeriesReader(SeriesModel(hidden_dim=8), scale, Targets(("no", "yes")))
        >>> mask, positions = torch.ones(2, 9, dtype=torch.bool), torch.rand(2, 9).sort().values
        >>> batch = {"values": torch.randn(2, 9, 2), "observed": mask.unsqueeze(-1), "positions": positions}
        >>> reader({**batch, "mask": mask, "static": torch.zeros(2, 0)}).scores.shape
        torch.Size([2, 2])
    """

    def __init__(self, model: SeriesModel, scale: Scale, targets: Targets) -> None:
        super().__init__()
        width = model.hidden_dim
        # Of channels that have gaps the network also sees where they were observed.
        self.gaps = [channel for channel, gap in enumerate(scale.gaps) if gap]
        # Channels, elapsed time, position, gaps.
        self.first = nn.Conv1d(len(scale.centres) + 2 + len(self.gaps), width, model.kernel_size, padding="same")
        self.second = nn.Conv1d(width, width, model.kernel_size, padding="same")
        self.dropout = nn.Dropout(model.dropout)
        basis = contmax.basis.GaussianBasis.covering(model.functions)
        self.attention = attention_over(basis, width, model)
        static = sum(own.width for own in scale.static)
        self.decision = Decision(self.attention.width + static, targets, dataclasses.astuple(scale))

    def forward(self, batch: Batch) -> Answer:
        """Answers to series.

        Args:
            batch: ``values`` (B, L, C + 1), channels and elapsed time; ``observed`` (B, L, C), which channels were;
                ``positions`` (B, L); ``mask`` (B, L), which observations are there; ``static`` (B, S).
        """
        mask, positions, observed = batch["mask"], batch["positions"], batch["observed"]
        there = mask.unsqueeze(1)
        # Whatever stands where nothing was observed, even NaN, matters to nothing.
        channels = torch.where(observed, batch["values"][..., :-1], 0.0)
        shown = observed[..., self.gaps].to(channels)
        inputs = torch.cat([channels, batch["values"][..., -1:], positions.unsqueeze(-1), shown], -1).mT * there
        hidden = F.gelu(self.first(inputs)) * there
        hidden = hidden + F.gelu(self.second(self.dropout(hidden))) * there
        context, heads = self.attention(hidden.mT, mask=mask, positions=positions)
        scores = self.decision(torch.cat([self.dropout(context), batch["static"]], -1))
        return Answer(scores, self.decision.deviation, heads, positions, mask, self.decision.targets)


def _draw(axis: Any, panel: Panel[Observed], row: int, theme: Theme) -> None:
    positions, values, observed = panel.shown
    axis.set_xlim(0, 1)
    for channel, seen in zip(values.unbind(1), observed.unbind(1), strict=True):
        # A line goes through the observed values of its channel, however many others were observed in between.
        if seen.any():
            plot_series_attention(positions[seen], channel[seen], ax=axis, limits=(0, 1))
    if not len(positions):
        axis.set_yticks([])
        axis.text(0.5, 0.5, "no observation", ha="center", va="center", transform=axis.transAxes)
        return
    for number, head in enumerate(panel.answer.heads):
        own, colour = axis.twinx(), theme.colour(row + number)
        plot_series_attention(positions, None, head.weights, head.density, ax=own, limits=(0, 1), color=colour)


def _finish(axes: list[Any], columns: int) -> None:
    for axis in axes[:-columns]:
        axis.set_xticklabels([])
    for axis in axes[-columns:]:
        axis.set_xlabel("time, as a share of the series")


PICTURE = PanelPicture[Observed](
    "Where the models look over time",
    "Channels over time (thin lines, dots where there is one value) and what each model attends to (colour, one for "
    "each head). Bars are weights of "
    "single observations, curves are densities over continuous time; outside the shaded interval sparse attention is "
    "exactly zero.",
    size=(3.1, 1.7),
    least_width=5.0,
    shown=lambda series, place: (series.positions[place], series.values[place][:, :-1], series.observed[place]),
    most=3,
    draw=_draw,
    finish=_finish,
    whole_text=True,
)


class SeriesTask(LabelledTask, settings=SETTINGS):
    """Classes or numbers of series."""

    summary = "series of your own with their labels, classes or numbers, by attention over time"
    knows: ClassVar = {"scale": Scale.of_plain}
    load = seedless(load)

    def build(self, model: SeriesModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        return SeriesReader(model, splits.info["scale"], splits.info["targets"])

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Observations and their positions, padded; which of them are there; targets."""
        series, chosen = cast(Series, split), list(indices)
        values, observed, positions = (
            pad_sequence([own[i] for i in chosen], batch_first=True, padding_value=padding)
            # Pad with the end of the interval, so that positions never fall.
            for own, padding in ((series.values, 0.0), (series.observed, 0.0), (series.positions, 1.0))
        )
        if not positions.shape[1]:
            # No series of the batch has an observation; a convolution needs one step, which the mask takes away.
            values, observed = (F.pad(each, (0, 0, 0, 1)) for each in (values, observed))
            positions = F.pad(positions, (0, 1), value=1.0)
        lengths = torch.tensor([len(series.positions[i]) for i in chosen])
        mask = torch.arange(positions.shape[1]) < lengths.unsqueeze(-1)
        batch = {"values": values, "observed": observed, "positions": positions, "mask": mask}
        return {**batch, "static": series.static[chosen], "target": series.target[chosen]}

    def lengths(self, split: Sized) -> Sequence[int]:
        """Observations of each series."""
        return [len(positions) for positions in cast(Series, split).positions]

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """Where the models look in some validation series."""
        return [PICTURE.of_runs(runs, examples)]

    def ask(self, model: nn.Module, info: dict[str, Any], words: Sequence[str]) -> Prediction:
        """The label of the one series in a table, and when it was attended."""
        if len(words) != 1:
            raise UsageError("pass the path of a table with one series, e.g. contmax predict RUN new.csv")
        scale, path = cast(Scale, info["scale"]), Path(words[0])
        series, *more = read_series(path, scale.columns, labelled=False)
        if more:
            raise LabError(f"{path} has {1 + len(more)} series ({series.name}, {more[0].name} …); pass one of them")
        one = scale.part([series], torch.zeros(1))
        answer = model(self.batch(one, [0]))
        seen = series.time[answer.inside[0, : len(series.time)]]
        text = said(answer, info)
        ends = [_moment(float(time), scale) for time in seen[:: max(len(seen) - 1, 1)][:2]]
        when = f", between the times {ends[0]} and {ends[-1]}" if ends else ""
        lines = [text, f"attended: {len(seen)} of {len(series.time)} observations{when}"]
        if unknown := [name for name, told in zip(scale.columns.static, series.static, strict=True) if not told]:
            lines.append(f"not known: {', '.join(unknown)}")
        panel = Panel(f"series {series.name}", text, PICTURE.shown(one, 0), answer)
        return Prediction("\n".join(lines), PICTURE.of_panels([[panel]]))


def _moment(time: float, scale: Scale) -> str:
    """A time as a table would have it; durations in seconds."""
    if scale.clock == "date":
        return datetime.datetime.fromtimestamp(time, datetime.UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    return f"{time:.10g}" + (" s" if scale.clock == "duration" else "")


TASK = SeriesTask()
