"""The task physionet: its networks, AUROC and AUPRC, a test by deletion, and a picture of where a model looks."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import contmax
from contmax_lab.contract import (
    Batch,
    Batches,
    Figure,
    Metric,
    ParameterGroup,
    Repetition,
    Row,
    Splits,
    Table,
    Task,
    TrainedRun,
    seedless,
)
from contmax_lab.deletion import random_words
from contmax_lab.drawing import Theme
from contmax_lab.labelled import rank_areas
from contmax_lab.packages import require
from contmax_lab.tasks.physionet import SETTINGS, PhysionetData, PhysionetModel
from contmax_lab.tasks.physionet._baselines import Boosting, GruD, LinearStart, Logistic, Mtan
from contmax_lab.tasks.physionet._intervals import Intervals
from contmax_lab.tasks.physionet._reading import HOURS, VARIABLES, hours_of, prepared
from contmax_lab.tasks.physionet._stays import FOLDS, Stays, load

# The linear part, which is solved for before the training, has a tenth of the learning rate.
_PACE_OF_START = 0.1
# Share of the observations of a stay that the deletion test deletes.
_DELETED = 0.2
_TOGETHER = 512


# How many variables are drawn, and how many intervals of each.
_MOST, _INTERVALS = 5, 2
_POINTS = 200


def picture(run: TrainedRun, examples: Sequence[int] = ()) -> Figure:
    """Observations of a stay over its hours, and the intervals that the model looks at.

    Args:
        run: a run whose model has intervals.
        examples: the first is drawn; by default a validation stay with many observations whose patient died.
    """
    model, stays = cast(Intervals, run.model), cast(Stays, run.splits.valid)
    counts = stays.cohort.counts.sum(-1)
    stay = examples[0] if examples else int((counts * (stays.cohort.died == 1)).argmax())
    own, _ = stays.cohort.part(torch.tensor([stay]))
    with torch.no_grad():
        probability = float(model(stays.batch([stay])).sigmoid()) if len(stays.signals) else float("nan")
        importance = model.importance()
        seen = own.counts[0] > 1
        chosen = (importance.sum(-1) * seen).topk(min(_MOST, max(int(seen.sum()), 1))).indices.tolist()
        ends = model.interval_hours()
    last = own.last(own.minutes, 0.0)[0] / 60

    def draw(theme: Theme) -> Any:
        pyplot = require("matplotlib.pyplot", "Drawing figures")
        figure, axes = pyplot.subplots(len(chosen), 1, sharex=True, figsize=(7.0, 1.25 * len(chosen)), squeeze=False)
        for axis, variable in zip(axes[:, 0], chosen, strict=True):
            mine = own.variable == variable
            axis.plot(own.minutes[mine] / 60, own.values[mine], ".-", color=theme.soft, linewidth=0.7, markersize=4)
            axis.set_ylabel(VARIABLES[variable])
            axis.set_xlim(0, HOURS)
            heights = axis.twinx()
            heights.set_yticks([])
            for turn, head in enumerate(importance[variable].topk(min(_INTERVALS, model.heads)).indices.tolist()):
                near, far = (float(end) for end in ends[variable, head])
                hours = torch.linspace(near, max(far, near + 1e-3), _POINTS)
                shown = _height(model, variable, head, hours)
                clock = last[variable] - hours
                colour = theme.colour(turn)
                heights.fill_between(clock, 0, shown, color=colour, alpha=0.3, linewidth=0)
                heights.plot(clock, shown, color=colour, linewidth=1)
            heights.set_ylim(0, None)
        axes[-1, 0].set_xlabel("hours since admission")
        figure.align_ylabels(axes[:, 0])
        return figure

    outcome = "died" if int(own.died) else "left hospital alive"
    return Figure(
        "Hours that the model looks at",
        draw,
        f"One stay of the validation part; the model gives a probability of death of {probability:.0%}; the patient "
        f"{outcome}. Dots: what was measured. Colours: the two intervals of each variable that the linear decision "
        "weighs most; outside of them, for α > 1, the density is exactly zero. They lie before the last observation of "
        "the variable, which is why they differ between variables.",
    )


@torch.no_grad()
def _height(model: Intervals, variable: int, head: int, hours: torch.Tensor) -> torch.Tensor:
    """The density per hour, up to a factor, at hours before the last observation."""
    position = torch.log1p(hours) / torch.log1p(torch.tensor(HOURS))
    alpha = float(model.alpha[variable])
    own = contmax.densities.BetaGaussian.from_moments(
        model.location[variable, head], model.scale[variable, head].square(), alpha
    )
    inside = hours < float(hours_of(torch.ones(())))
    return own.density(position) / (1 + hours) * inside


_SEEDS = 5
_BOOSTING, _CONTROL = "Summary, gradient boosting", "Intervals, weights of observations"


# The learning rates and dropouts that every network tries.
_RATES = tuple(
    (f"--training.learning_rate={rate}", f"--model.dropout={dropout}")
    for rate, dropout in ((0.001, 0.4), (0.003, 0.4), (0.003, 0.6))
)
_RIDGES = tuple((f"--model.ridge={ridge}",) for ridge in (0.007, 0.02, 0.06))
_TREES = tuple((f"--model.leaves={leaves}",) for leaves in (4, 8, 16))


def _ours(name: str, variant: str) -> Row:
    return Row(f"Intervals, continuous, α {name}", variant, against=(_CONTROL, _BOOSTING), tries=_RATES)


PHYSIONET = Table(
    name="physionet",
    title="Mortality in intensive care from irregular series (PhysioNet/CinC Challenge 2012)",
    rows=(
        Row("Summary, logistic regression", "logistic", tries=_RIDGES),
        Row(_BOOSTING, "boosting", tries=_TREES),
        Row("GRU-D on hours", "gru-d", tries=_RATES),
        Row("mTAN", "mtan", tries=_RATES),
        Row("Intervals, attention with time features", "scores", tries=_RATES),
        Row(_CONTROL, "kernel", tries=_RATES),
        Row("Intervals, weights × Δt", "kernel-dt", tries=_RATES),
        _ours("= 1", "gaussian"),
        _ours("= 1.5", "biweight"),
        _ours("= 2", "parabola"),
        _ours("learned", "learned-alpha"),
    ),
    repetitions=(
        *(
            Repetition(
                f"b-{fold}", ("--data.sets=ab", "--data.split=folds", f"--data.fold={fold}", f"--seed={fold}"), ("B",)
            )
            for fold in range(FOLDS)
        ),
        *(
            Repetition(f"a-{seed}", ("--data.sets=a", "--data.split=mtan", f"--seed={seed}"), ("A",))
            for seed in range(_SEEDS)
        ),
    ),
    metrics=(
        Metric("test.auroc", "AUROC", digits=3, compared=True),
        Metric("test.auprc", "AUPRC", digits=3, compared=True),
        Metric("timing.seconds_per_epoch", "s per epoch", digits=2, spread=False),
        Metric("test.moved_without_attended", "p moves, looked at deleted", digits=3, spread=False),
        Metric("test.moved_without_random", "p moves, others deleted", digits=3, spread=False),
        Metric("test.interval_hours", "interval, hours", digits=1, spread=False),
        Metric("test.alpha", "α", digits=2, spread=False),
    ),
    notes=(
        "B: all 8,000 stays of sets a and b, 1,122 of which end with death in hospital; five folds with the same share "
        "of deaths, each of which tests once; of the other stays a fifth is for validation. A: set a alone, the split "
        "of the code of mTAN (seeds 42 and 11; 2,560, 640 and 800 stays, in the order of the records), five seeds of "
        "the training; its deviations are those of the training alone: with 800 test stays another split may differ by "
        ".02. Scales, cuts and logarithms are those of the training stays.",
        "Every row tries three settings in every cell, and the one with the least loss on the validation stays counts, "
        "at its best epoch: the networks learning rates .001 and .003 with dropout .4, and .003 with .6; logistic "
        "regression the penalties .007, .02, .06; boosting 4, 8, 16 leaves, with as many of 300 trees as are best. "
        "Widths, epochs (8, GRU-D 12, mTAN 16) and initial intervals were chosen before, from validation figures of "
        "single folds of B; the intervals were looked at more often than the baselines.",
        "Summary: of each of the 37 variables the last value, the logarithm of the count and of the time since, and "
        "what is static. Intervals: of each variable three learned intervals of the time before its own last "
        "observation; the mean of the value, and of what is above and below half a deviation, and the intensity of the "
        "observations in each; a linear decision, solved for before the training as logistic regression, to which a "
        "hidden layer is added. Continuous: means of a ridge fit of eight Gaussians under a density. Weights of "
        "observations: the same frame, with Gaussian weights at the observations that sum to 1. × Δt: these times the "
        "span that an observation stands for. Attention with time features: softmax weights by a small network of "
        "value, variable and time.",
        "GRU-D and mTAN (mTAND-Enc) are re-implementations, 64 wide, with 48 steps and reference points, smaller than "
        "the published ones; they see what is static at the end, and learn from batches of 64 stays, others of 128.",
        "p moves: a fifth of the observations of each test stay is deleted as if they had not been made, those that "
        "are looked at most (density, or weight, times the weights of the linear decision), or as many of the others "
        "at random; the mean change of the probability of death. interval: length of the intervals in hours, each by "
        "its importance; of α = 1 four deviations.",
        "s per epoch: one core, with evaluation, other trainings running beside; of logistic regression and boosting "
        "the whole fit.",
    ),
    baseline=_BOOSTING,
    overlap=1 / (FOLDS - 1),
    shown=("B", "A"),
    published={
        "mTAND-Full, published": {"A": {"test.auroc": 0.858}, "B": {}},
        "mTAND-Enc, published": {"A": {"test.auroc": 0.854}, "B": {}},
    },
)


class Physionet(Task, settings=SETTINGS):
    """Mortality in hospital from irregular series."""

    summary = "does a patient die in hospital, from 48 hours of irregular measurements?"
    reproduces = (PHYSIONET,)
    curves = ("loss", "auroc", "auprc")
    rising = ("auroc", "auprc")
    load = seedless(load)

    def prepare(self, data: PhysionetData) -> str:
        """One small file of all stays, which is enough to train from."""
        folder = prepared(data)
        size = sum(path.stat().st_size for path in folder.iterdir())
        return f"{folder} has all that a training needs, {size / 1e6:.1f} MB; pass it as --data.path, on any machine"

    def build(self, model: PhysionetModel, splits: Splits) -> nn.Module:
        """The network that the settings name."""
        if model.kind == "intervals":
            return Intervals(model, splits.info["data"], splits.info["numbers"])
        if model.kind == "logistic":
            return Logistic(splits.info["numbers"])
        kinds = {"boosting": Boosting, "gru-d": GruD, "mtan": Mtan}
        return kinds[model.kind](model)

    def initialise(self, network: nn.Module, data: PhysionetData, model: PhysionetModel) -> None:
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

    def loss(self, output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy of each stay; all stays have weight 1."""
        losses = F.binary_cross_entropy_with_logits(output, batch["target"], reduction="none")
        return losses, torch.ones_like(losses)

    def parameter_groups(self, network: nn.Module) -> Sequence[ParameterGroup]:
        """Three groups: the linear part and the places of intervals, without weight decay, and the other parameters."""
        named = dict(network.named_parameters())
        start = [name for name in named if name.startswith("skip.")]
        places = [name for name in named if name in ("location", "log_scale", "index.alpha_logit")]
        rest = [named[name] for name in named if name not in (*start, *places)]
        return (
            ParameterGroup([named[name] for name in start], learning_rate=_PACE_OF_START, weight_decay=0.0),
            ParameterGroup([named[name] for name in places], weight_decay=0.0),
            ParameterGroup(rest),
        )

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
