"""The task series: a network, pictures of where it looks, what it says of a new series."""

import dataclasses
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
from contmax_lab.tasks.series._data import Scale, Series, load, read_series

# Positions of the observations, (L,); channels and elapsed time, (L, C + 1).
Observed = tuple[Tensor, Tensor]


class SeriesReader(nn.Module):
    """Series → answers.

    Args:
        model: its configuration.
        scale: of the channels.
        targets: classes or numbers.

    Example:
        >>> from contmax_lab.tasks.series._data import Columns
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


def _draw(axis: Any, panel: Panel[Observed], row: int, theme: Theme) -> None:
    positions, values = panel.shown
    plot_series_attention(positions, values[:, :-1], ax=axis, limits=(0, 1))
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
    "Channels over time (thin lines) and what each model attends to (colour, one for each head). Bars are weights of "
    "single observations, curves are densities over continuous time; outside the shaded interval sparse attention is "
    "exactly zero.",
    size=(3.1, 1.7),
    least_width=5.0,
    shown=lambda series, place: (series.positions[place], series.values[place]),
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
        series = cast(Series, split)
        inputs = _padded([series.values[i] for i in indices], [series.positions[i] for i in indices])
        return {**inputs, "target": series.target[list(indices)]}

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
        (values,), (positions,) = scale.inputs([series])
        answer = model(_padded([values], [positions]))
        seen = series.time[answer.inside[0]]
        text = said(answer, info)
        when = f", between the times {float(seen[0]):.10g} and {float(seen[-1]):.10g}" if len(seen) else ""
        lines = [text, f"attended: {len(seen)} of {len(positions)} observations{when}"]
        panel = Panel(f"series {series.name}", text, (positions, values), answer)
        return Prediction("\n".join(lines), PICTURE.of_panels([[panel]]))


def _padded(values: Sequence[Tensor], positions: Sequence[Tensor]) -> Batch:
    lengths = torch.tensor([len(each) for each in positions])
    padded = pad_sequence(list(values), batch_first=True)
    mask = torch.arange(padded.shape[1]) < lengths.unsqueeze(-1)
    # Pad with the end of the interval, so that positions never fall.
    return {"values": padded, "positions": pad_sequence(list(positions), True, 1.0), "mask": mask}


TASK = SeriesTask()
