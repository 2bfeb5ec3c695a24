"""How good a classifier is where classes are rare: metrics that do not forget them, and the confusion matrix."""

import torch
from torch import Tensor

# Metrics that grow as a classifier gets better.
RISING = ("accuracy", "balanced_accuracy", "f1", "auroc", "auprc")


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
