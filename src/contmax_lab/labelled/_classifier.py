"""Tasks that tell classes apart: metrics that do not forget rare ones, and the confusion matrix, also as a picture."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from contmax_lab.contract import Batches, Figure, Task, TrainedRun
from contmax_lab.drawing import Theme, new_axes, plain_text

# A larger matrix is neither read nor drawn.
_MOST_CLASSES = 100
# Metrics that grow as a classifier gets better.
RISING = ("accuracy", "balanced_accuracy", "f1", "auroc", "auprc")
_OF_CLASSES = ("scores", "target", "rarest")


def class_measures(scores: Tensor, target: Tensor, rarest: int) -> dict[str, Tensor]:
    """What a `Classifier` measures of each example.

    Args:
        scores: of the classes, log-odds up to a constant for each example, (B, C).
        target: classes, (B,).
        rarest: of two classes, the one that the auprc is about.
    """
    right = (scores.argmax(-1) == target).float()
    return {"accuracy": right, "scores": scores, "target": target, "rarest": torch.full_like(target, rarest)}


class Classifier(Task):
    """A task whose `measures` are those of `class_measures` and perhaps others, of which means are taken.

    Where it has no classes but numbers, it measures something else. Its splits name their classes, ``info["classes"]``.
    """

    rising = RISING

    def summarise(self, measures: dict[str, Tensor]) -> dict[str, float]:
        """Accuracy and all of `class_metrics`, then the means of what else is measured."""
        means = super().summarise({name: found for name, found in measures.items() if name not in _OF_CLASSES})
        if "scores" not in measures:
            return means
        scores, target, rarest = (measures[name] for name in _OF_CLASSES)
        return {"accuracy": means.pop("accuracy"), **class_metrics(scores, target, int(rarest[0])), **means}

    def evaluate(self, model: nn.Module, batches: Batches, info: dict[str, Any]) -> dict[str, float]:
        """The loss and all metrics; of final weights, results also get the confusion matrix."""
        loss, found = self.measured(model, batches)
        classes: Sequence[str] = info["classes"]
        if batches.final and 0 < len(classes) <= _MOST_CLASSES:
            counts = confusion(found["scores"], found["target"]).tolist()
            batches.tell("confusion", {"classes": [*classes], "counts": counts})
        return {"loss": loss, **self.summarise(found)}


def class_metrics(scores: Tensor, target: Tensor, rarest: int) -> dict[str, float]:
    r"""Balanced accuracy, F1, and the areas below the ROC and the precision-recall curve.

    .. math:: \text{balanced accuracy} = \operatorname{mean}_c R_c, \quad
              \text{f1} = \operatorname{mean}_c \frac{2 P_c R_c}{P_c + R_c}, \quad
              \text{auroc} = \operatorname{mean}_c \Pr(s_c^+ > s_c^-) + \tfrac12 \Pr(s_c^+ = s_c^-)

    with the precision P_c and the recall R_c of class c, and the scores s_c of its examples (+) and of all others (−).
    The auprc is the average precision, :math:`\sum_k (R_k - R_{k-1}) P_k` over the thresholds k: of the rarer one of
    two classes, or the mean over more than two. A class without examples counts in no mean; f1 counts it where it is
    answered. An area is left out where no class has both examples and others.

    Args:
        scores: of the examples, log-odds up to a constant for each, (B, C).
        target: their classes, (B,).
        rarest: of two classes, the one that the auprc is about.

    Example:
        >>> scores = torch.tensor([[2.0, 0.0], [1.0, 0.0], [1.0, 0.5], [0.0, 1.0]])
        >>> class_metrics(scores, torch.tensor([0, 0, 1, 1]), rarest=1)
        {'balanced_accuracy': 0.75, 'f1': 0.733..., 'auroc': 1.0, 'auprc': 1.0}
    """
    counts = confusion(scores, target).double()
    right, true, said = counts.diagonal(), counts.sum(1), counts.sum(0)
    metrics = {
        "balanced_accuracy": float((right / true)[true > 0].mean()),
        "f1": float((2 * right / (true + said))[true + said > 0].mean()),
    }
    ranked = log_odds(scores)
    present = ((true > 0) & (true < len(target))).nonzero().flatten().tolist()
    areas = {c: rank_areas(ranked[:, c], target == c) for c in present}
    if areas:
        metrics["auroc"] = sum(roc for roc, _ in areas.values()) / len(areas)
        one = [rarest] if scores.shape[1] == 2 else present
        metrics["auprc"] = sum(areas[c][1] for c in one) / len(one)
    return metrics


def log_odds(scores: Tensor) -> Tensor:
    """log p − log (1 − p) of each class, (B, C): in the order of p, and apart where p rounds to 1.

    Example:
        >>> log_odds(torch.tensor([[200.0, 0.0], [100.0, 0.0]])).tolist()
        [[200.0, -200.0], [100.0, -100.0]]
    """
    logits = scores.double()
    logs = logits.log_softmax(-1)
    best = logits.argmax(-1, keepdim=True)
    # p ≤ 1/2 but for the likeliest class, of which 1 − p is summed over the others.
    others = logits.scatter(-1, best, -torch.inf).logsumexp(-1, keepdim=True)
    return (logs - torch.log1p(-logs.exp())).scatter(-1, best, logits.gather(-1, best) - others)


def confusion(scores: Tensor, target: Tensor) -> Tensor:
    """How many examples of each class, in rows, the classifier takes for which class, in columns; (C, C).

    Example:
        >>> confusion(torch.tensor([[2.0, 0.0], [1.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 0, 1])).tolist()
        [[1, 1], [1, 0]]
    """
    count = scores.shape[1]
    return torch.bincount(target * count + scores.argmax(-1), minlength=count * count).view(count, count)


def rank_areas(scores: Tensor, positive: Tensor) -> tuple[float, float]:
    """The areas below the ROC and the precision-recall curve, by thresholds that are the distinct scores.

    Args:
        scores: (B,).
        positive: which examples are of the class, (B,); some are and some are not.

    Example:
        >>> rank_areas(torch.tensor([0.1, 0.7, 0.9]), torch.tensor([False, True, True]))
        (1.0, 1.0)
    """
    order = scores.argsort(descending=True, stable=True)
    falling = scores[order]
    hits = positive[order].double().cumsum(0)
    # Equal scores are above a threshold together.
    last = torch.cat([falling[1:] != falling[:-1], torch.ones(1, dtype=torch.bool)])
    hits, shown = hits[last], (torch.arange(len(scores), dtype=torch.float64) + 1)[last]
    misses = shown - hits
    steps, heights = torch.diff(misses, prepend=misses.new_zeros(1)), torch.cat([hits.new_zeros(1), hits])
    roc = (steps * (heights[1:] + heights[:-1]) / 2).sum() / (hits[-1] * misses[-1])
    average = (torch.diff(hits, prepend=hits.new_zeros(1)) * hits / shown).sum() / hits[-1]
    return float(roc), float(average)


_COLUMNS = 3
# Up to this many classes, numbers in the cells and all names can be read.
_READABLE = 12
_LONGEST_NAME = 14


def confusion_figures(trained: Sequence[TrainedRun]) -> list[Figure]:
    """One figure with the confusion matrix of each run, or none where no results have one.

    Args:
        trained: runs of one task.
    """
    found = [(entry.label, entry.results["confusion"]) for entry in trained if entry.results.get("confusion")]
    if not found:
        return []
    split = "test" if all("test" in stored for _, stored in found) else "valid"
    matrices = [(label, stored[split]) for label, stored in found]
    caption = (
        f"Counts of {'test' if split == 'test' else 'validation'} examples: what they are, row by row, and what the "
        "model takes them for, column by column. The colour is the share of the row, so that a rare class is seen as "
        "well as a frequent one."
    )
    return [Figure("Confusion matrix", lambda theme: _draw(matrices, theme), caption)]


def _draw(matrices: Sequence[tuple[str, dict[str, Any]]], theme: Theme) -> Any:
    columns = min(len(matrices), _COLUMNS)
    figure, axes = new_axes(-(-len(matrices) // columns), columns, width=max(3.4 * columns, 4.2), height=3.2)
    for axis, (label, stored) in zip(axes, matrices, strict=False):
        _draw_one(axis, stored["counts"], [plain_text(_short(name)) for name in stored["classes"]], theme)
        axis.set_title(plain_text(label), fontsize=8)
    for axis in axes[len(matrices) :]:
        axis.set_visible(False)
    return figure


def _draw_one(axis: Any, counts: Sequence[Sequence[int]], names: Sequence[str], theme: Theme) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    shares = [[count / max(sum(row), 1) for count in row] for row in counts]
    colours = LinearSegmentedColormap.from_list("shares", [theme.plate, theme.colour(0)])
    axis.imshow(shares, cmap=colours, vmin=0, vmax=1)
    readable = len(names) <= _READABLE
    for row, line in enumerate(counts if readable else ()):
        for column, count in enumerate(line):
            # On a dark cell the colour of the paper is the one that can be read.
            ink = theme.plate if shares[row][column] > 0.6 else theme.ink
            axis.text(column, row, str(count), ha="center", va="center", color=ink, fontsize=8)
    ticks = range(0, len(names), 1 if readable else -(-len(names) // _READABLE))
    shown = [names[tick] for tick in ticks]
    axis.set_xticks(ticks, shown, rotation=45 if max(map(len, shown)) > 4 else 0, fontsize=8)
    axis.set_yticks(ticks, shown, fontsize=8)
    axis.set_xlabel("answer")
    axis.set_ylabel("label")


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
