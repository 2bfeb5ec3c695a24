"""The task series: a network, pictures of where it looks, what it says of a new series."""

import dataclasses
import datetime
import functools
from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import contmax
from contmax.viz import plot_series_attention
from contmax_lab.contract import Batch, FileAnswer, Prediction, Splits, seedless
from contmax_lab.data import TableRow, read_rows, table_kind
from contmax_lab.drawing import Theme
from contmax_lab.errors import LabError, UsageError
from contmax_lab.files import unplain
from contmax_lab.labelled import (
    Answer,
    Decision,
    Input,
    LabelledTask,
    Panel,
    PanelPicture,
    Targets,
    answered,
    attended_interval,
    attention_over,
    numbered,
    said,
    told_of,
)
from contmax_lab.tasks.series import SETTINGS, SeriesModel
from contmax_lab.tasks.series._data import load
from contmax_lab.tasks.series._reading import OneSeries, each_series, read_series
from contmax_lab.tasks.series._scale import Scale, Series

_ENDS = ("from", "to")
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
    knows: ClassVar = {"scale": functools.partial(unplain, Scale)}
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
            raise LabError(f"{path} has {1 + len(more)} series ({series.name}, {more[0].name} …); leave out --figure")
        one = scale.part([series], torch.zeros(1))
        answer = model(self.batch(one, [0]))
        seen = series.time[answer.inside[0, : len(series.time)]]
        text = said(answer, info)
        ends = [_moment(float(time), scale) for time in seen[:: max(len(seen) - 1, 1)][:2]]
        when = f", between the times {ends[0]} and {ends[-1]}" if ends else ""
        lines = [text, f"attended: {len(seen)} of {len(series.time)} observations{when}"]
        if unknown := _not_known(series, scale):
            lines.append(f"not known: {unknown}")
        panel = Panel(f"series {series.name}", text, PICTURE.shown(one, 0), answer)
        return Prediction("\n".join(lines), PICTURE.of_panels([[panel]]))

    def holds_many(self, path: Path, info: dict[str, Any]) -> bool:
        """Whether it is a table with more than one series."""
        if not info or not table_kind(path):
            return False
        series = cast(Scale, info["scale"]).columns.series
        names = (row.fields[series].strip() for row in read_rows(path, [series]) if isinstance(row, TableRow))
        first = next(names, "")
        return any(name != first for name in names)

    def predict_file(
        self, model: nn.Module, info: dict[str, Any], path: Path, column: str = "", keep: Sequence[str] = ()
    ) -> Iterator[FileAnswer]:
        """The label of every series of a table; of continuous attention, the times between which it looks."""
        scale, classes = cast(Scale, info["scale"]), info["classes"]
        if column or keep:
            raise UsageError("series have the columns of the training table; leave out --column and --keep")

        def answer(series: list[OneSeries]) -> list[dict[str, Any]]:
            batch = self.batch(scale.part(series, torch.zeros(len(series))), range(len(series)))
            output = model(batch)
            told = told_of(output, classes)
            if scale.columns.static:
                for each, own in zip(told, series, strict=True):
                    each["not known"] = _not_known(own, scale)
            for head, found in enumerate(output.heads):
                _add_times(
                    told, series, attended_interval(found), scale, *(numbered(n, head, output.heads) for n in _ENDS)
                )
            return told

        return answered(_inputs(path, scale), answer)


def _inputs(path: Path, scale: Scale) -> Iterator[Input[OneSeries]]:
    """The series of a table; times or static columns of another kind than in training are a problem of one series."""
    for found in each_series(path, scale.columns):
        name, problem = found if isinstance(found, tuple) else (found.name, None)
        if isinstance(found, OneSeries):
            try:
                scale.part([found], torch.zeros(1))
            except LabError as error:
                problem = error
        told = str(problem).removeprefix(f"{path}, ") if problem else ""
        yield Input({scale.columns.series: name}, None if isinstance(found, tuple) or problem else found, told)


def _not_known(series: OneSeries, scale: Scale) -> str:
    """The static columns that a series has no value of."""
    return ", ".join(name for name, told in zip(scale.columns.static, series.static, strict=True) if not told)


def _add_times(
    told: list[dict[str, Any]], series: list[OneSeries], ends: Any, scale: Scale, first: str, last: str
) -> None:
    """The times at which an interval of each series begins and ends; none where it lies outside of the series."""
    if ends is None:
        return
    for each, own, low, high in zip(told, series, *(end.tolist() for end in ends), strict=True):
        is_there = len(own.time) and low < 1 and high > 0
        begin, span = (float(own.time[0]), float(own.time[-1] - own.time[0])) if is_there else (0.0, 0.0)
        for name, end in ((first, max(low, 0.0)), (last, min(high, 1.0))):
            each[name] = _moment(begin + end * span, scale) if is_there else ""


def _moment(time: float, scale: Scale) -> str:
    """A time as a table would have it; durations in seconds."""
    if scale.clock == "date":
        return datetime.datetime.fromtimestamp(time, datetime.UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    return f"{time:.10g}" + (" s" if scale.clock == "duration" else "")


TASK = SeriesTask()
