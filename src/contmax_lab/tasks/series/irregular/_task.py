"""The task irregular: networks for channels on the tables of the task series, and the table of the task."""

from collections.abc import Sequence
from typing import Any, cast

from torch import nn

from contmax_lab.channels import Intervals, paces
from contmax_lab.contract import Batches, ParameterGroup, Splits, Table, seedless
from contmax_lab.tasks.series import SeriesModel
from contmax_lab.tasks.series._task import SeriesReader, SeriesTask
from contmax_lab.tasks.series.irregular import SETTINGS, IrregularData, IrregularModel
from contmax_lab.tasks.series.irregular._data import load
from contmax_lab.tasks.series.irregular._reader import ChannelsReader
from contmax_lab.tasks.series.irregular._table import IRREGULAR


class Irregular(SeriesTask, settings=SETTINGS):
    """Classes of series whose channels are observed at times of their own."""

    summary = "series of your own whose channels are observed at times of their own, or series of aeon with gaps"
    load = seedless(load)

    def build(self, model: SeriesModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        known = splits.info["scale"], splits.info["targets"]
        own = cast(IrregularModel, model)
        return SeriesReader(own, *known) if own.reads == "frames" else ChannelsReader(own, *known)

    def initialise(self, network: nn.Module, data: IrregularData, model: IrregularModel) -> None:
        """Solve for the linear part, or grow the trees, on the training series."""
        if isinstance(network, ChannelsReader):
            splits = load(data)
            parts = (self.batch(part, range(len(part))) for part in (splits.train, splits.valid))
            known, held_out = ({name: own.to(network.mean.device) for name, own in each.items()} for each in parts)
            network.fit(known, held_out, data.split)

    def parameter_groups(self, network: nn.Module) -> Sequence[ParameterGroup]:
        """Those of the networks for channels."""
        return paces(network) if isinstance(network, ChannelsReader) else super().parameter_groups(network)

    def evaluate(self, model: nn.Module, batches: Batches, info: dict[str, Any]) -> dict[str, float]:
        """The metrics of the task series, and of intervals the mean of α."""
        metrics = super().evaluate(model, batches, info)
        inner = getattr(model, "network", None)
        return {**metrics, "alpha": float(inner.alpha.mean())} if isinstance(inner, Intervals) else metrics

    def tables(self) -> Sequence[Table]:
        """Baselines, controls and four densities, on two sets, each with two shares dropped."""
        return (IRREGULAR,)


TASK = Irregular()
