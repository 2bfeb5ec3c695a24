"""The task physionet: its networks, AUROC and AUPRC, and a test that deletes the observations with most attention."""

from collections.abc import Sequence, Sized
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.channels import Boosting, Intervals, LinearStart, basis_of, network_of, paces
from contmax_lab.contract import Batch, Batches, Figure, ParameterGroup, Splits, Table, Task, TrainedRun, seedless
from contmax_lab.deletion import random_words
from contmax_lab.labelled import rank_areas
from contmax_lab.settings import ChannelsModel
from contmax_lab.tasks.physionet import SETTINGS, PhysionetData
from contmax_lab.tasks.physionet._figure import picture
from contmax_lab.tasks.physionet._reading import prepared
from contmax_lab.tasks.physionet._stays import Stays, load
from contmax_lab.tasks.physionet._table import PHYSIONET

# Share of the observations of a stay that the deletion test deletes.
_DELETED = 0.2
_TOGETHER = 512


class Physionet(Task, settings=SETTINGS):
    """Mortality in hospital from irregular series."""

    summary = "does a patient die in hospital, from 48 hours of irregular measurements?"
    curves = ("loss", "auroc", "auprc")
    rising = ("auroc", "auprc")
    load = seedless(load)

    def prepare(self, data: PhysionetData) -> str:
        """One small file of all stays, which is enough to train from."""
        folder = prepared(data)
        size = sum(path.stat().st_size for path in folder.iterdir())
        return f"{folder} has all that a training needs, {size / 1e6:.1f} MB; pass it as --data.path, on any machine"

    def build(self, model: ChannelsModel, splits: Splits) -> nn.Module:
        """The network that the settings name."""
        return network_of(model, basis_of(splits.info["data"].functions), splits.info["sizes"])

    def initialise(self, network: nn.Module, data: PhysionetData, model: ChannelsModel) -> None:
        """Solve for the linear part, or grow the trees, on the training stays."""
        train, valid, _ = load(data).info["stays"]
        died = train.cohort.died.float()
        if isinstance(network, Boosting):
            network.fit((train.summary, died), (valid.summary, valid.cohort.died.float()), data.fold)
        if isinstance(network, LinearStart):
            device = network.skip.weight.device
            with torch.no_grad():
                features = [
                    network.features({name: column.to(device) for name, column in train.batch(some).items()}).cpu()
                    for some in torch.arange(len(train)).split(_TOGETHER)
                ]
            network.solve(torch.cat(features), died, model.ridge)

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Summaries, and signals or observations."""
        return cast(Stays, split).batch(indices)

    def lengths(self, split: Sized) -> Sequence[int] | None:
        """Observations of each stay, where batches hold them."""
        stays = cast(Stays, split)
        if not stays.shows_observations:
            return None
        lengths: list[int] = stays.cohort.counts.sum(-1).tolist()
        return lengths

    def loss(self, output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy of each stay; all stays have weight 1."""
        losses = F.binary_cross_entropy_with_logits(output, batch["target"], reduction="none")
        return losses, torch.ones_like(losses)

    def parameter_groups(self, network: nn.Module) -> Sequence[ParameterGroup]:
        """Those of the networks for channels."""
        return paces(network)

    def measures(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Logits and deaths, from which `summarise` computes the areas under the curves."""
        return {"logits": output, "died": batch["target"]}

    def summarise(self, measures: dict[str, Tensor]) -> dict[str, float]:
        """The areas under the ROC curve and the precision–recall curve, and the means of the other measures."""
        logits, died = measures.pop("logits"), measures.pop("died") > 0.5
        auroc, auprc = rank_areas(logits, died)
        return {"auroc": auroc, "auprc": auprc, **super().summarise(measures)}

    def evaluate(self, model: nn.Module, batches: Batches, info: dict[str, Any]) -> dict[str, float]:
        """Loss and areas; for intervals also their lengths and, on the test stays, the result of the deletion test."""
        looks = batches.final and isinstance(model, Intervals)
        test: Stays = info["stays"][2]

        def deleted(batch: Batch) -> dict[str, Tensor]:
            is_test = looks and bool(batch["tested"].any())
            return _without(cast(Intervals, model), self, test, batch) if is_test else {}

        loss, found = self.measured(model, batches, deleted)
        metrics = {"loss": loss, **self.summarise(found)}
        if isinstance(model, Intervals):
            metrics |= _where(model)
        return metrics

    def answer(self, output: Tensor, batch: Batch, info: dict[str, Any]) -> str:
        """The probability of death."""
        outcome = "died" if float(batch["target"]) else "left hospital alive"
        return f"probability of death in hospital: {float(output.sigmoid()):.0%}; the patient {outcome}"

    def figures(self, runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> Sequence[Figure]:
        """One stay with its most important intervals, by the first run that has intervals."""
        chosen = [run for run in runs if isinstance(run.model, Intervals)]
        return [picture(chosen[0], examples)] if chosen else []

    def tables(self) -> Sequence[Table]:
        """Baselines, controls and four densities, in two groups of splits."""
        return (PHYSIONET,)


def _where(model: Intervals) -> dict[str, float]:
    """The mean length of the intervals in hours, weighted by their importance, and the mean of α."""
    importance = model.importance().detach()
    ends = model.interval_hours().detach()
    hours = float((importance * (ends[..., 1] - ends[..., 0])).sum() / importance.sum().clamp(min=1e-12))
    return {"interval_hours": hours, "alpha": float(model.alpha.detach().mean())}


def _without(model: Intervals, task: Physionet, test: Stays, batch: Batch) -> dict[str, Tensor]:
    """The change of the probability without a fifth of the observations: those with most attention, or random others.

    Last values, times and signals are computed again without the deleted observations.
    """
    mask = batch["mask"]
    count = (_DELETED * mask.sum(-1)).long()
    attended = random_words(count, mask, -model.relevance(batch))
    draws = torch.rand(mask.shape, generator=torch.Generator().manual_seed(0)).to(mask.device)
    before = model(batch).sigmoid()
    found = {}
    for name, gone in (("attended", attended), ("random", random_words(count, mask & ~attended, draws))):
        left = test.without(batch["place"].cpu(), gone.cpu())
        read = task.batch(left, range(len(left)))
        after = model({key: column.to(mask.device) for key, column in read.items()}).sigmoid()
        found[f"moved_without_{name}"] = (after - before).abs()
    return found


TASK = Physionet()
