"""The task: batches of series, and what a model says of a new one."""

from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from contmax_lab.contract import Batch, Prediction, Splits
from contmax_lab.errors import UsageError
from contmax_lab.labelled import LabelledTask, Panel, Targets, said
from contmax_lab.tasks.series._data import Scale, Series, load
from contmax_lab.tasks.series._model import SeriesReader
from contmax_lab.tasks.series._settings import SeriesData, SeriesModel


class SeriesTask(LabelledTask):
    """Classes or numbers of series."""

    name = "series"
    summary = "series of your own with their labels, classes or numbers, by attention over time"
    data_config: ClassVar[type] = SeriesData
    model_config = SeriesModel
    recipe_file = Path(__file__).with_name("recipe.yaml")

    def load(self, data: Any, seed: int) -> Splits:
        """The split has a seed of its own, so that seeds of the training share it."""
        return load(data)

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
        from contmax_lab.tasks.series._figures import followed_series

        return [followed_series(runs, examples)]

    def ask(self, model: nn.Module, info: dict[str, Any], words: Sequence[str]) -> Prediction:
        """The label of the one series in a table, and when it was attended."""
        from contmax_lab.tasks.series._figures import PICTURE
        from contmax_lab.tasks.series._reading import only, read_series

        if len(words) != 1:
            raise UsageError("pass the path of a table with one series, e.g. contmax predict RUN new.csv")
        scale, path = cast(Scale, info["scale"]), Path(words[0])
        series = only(read_series(path, scale.columns, labelled=False), path)
        (values,), (positions,) = scale.inputs([series])
        answer = model(_padded([values], [positions]))
        seen = series.time[answer.inside[0]]
        text = said(answer, info)
        when = f", between the times {float(seen[0]):.10g} and {float(seen[-1]):.10g}" if len(seen) else ""
        lines = [text, f"attended: {len(seen)} of {len(positions)} observations{when}"]
        panel = Panel(f"series {series.name}", text, (positions, values), answer)
        return Prediction("\n".join(lines), PICTURE.of_panels([[panel]]))

    def known(self, info: dict[str, Any]) -> dict[str, Any]:
        """Labels, columns and scale."""
        return {"targets": info["targets"].plain(), "scale": info["scale"].plain()}

    def informed(self, known: dict[str, Any]) -> dict[str, Any]:
        """The opposite of `known`."""
        targets = Targets.of_plain(known["targets"])
        return {"targets": targets, "classes": targets.classes, "scale": Scale.of_plain(known["scale"])}


def _padded(values: Sequence[Tensor], positions: Sequence[Tensor]) -> Batch:
    lengths = torch.tensor([len(each) for each in positions])
    padded = pad_sequence(list(values), batch_first=True)
    mask = torch.arange(padded.shape[1]) < lengths.unsqueeze(-1)
    # Behind the end of a series stands the end of the interval, so that positions never fall.
    return {"values": padded, "positions": pad_sequence(list(positions), True, 1.0), "mask": mask}


TASK = SeriesTask()
