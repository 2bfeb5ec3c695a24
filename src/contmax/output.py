r"""Measures of an output layer whose probabilities may be exactly zero, and prediction sets with coverage.

==========================  ==============================================================================
`epsilon_perplexity`        perplexity that an observed class of probability zero does not make infinite
`sparsemax_score`           1 − the sparsemax loss: 1 is certain and right, 0 is certain and wrong
`jensen_shannon_divergence` distance to the observed class, at most ln 2
`reliability`               how often the prediction is right, by its probability; the calibration error
`conformal_temperature`     the temperature at which the support of entmax has the coverage that you want
`prediction_sets`           these supports, as a mask
==========================  ==============================================================================

Probabilities p have C classes along `dim`; targets are class ids of the shape of p without `dim`. The first three are
the measures of Martins, Marinho & Martins 2020 (Sparse text generation).
"""

import dataclasses
import math

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu, require_float64, wide_dtype
from contmax._mask import require_mask
from contmax._typing import Bool, Float, Int
from contmax.losses._finite import class_ids
from contmax.maps._arguments import check_scores
from contmax.maps._threshold import below_maximum, last_in_support, or_one

_LOG_TWO = math.log(2)
# Temperatures are raised by this share. Otherwise rounding could exclude the class that determined the temperature.
_MARGIN = 1e-9


def epsilon_perplexity(
    probabilities: Float[Tensor, "..."],
    target: Int[Tensor, "..."],
    epsilon: float,
    *,
    dim: int = -1,
    mask: Bool[Tensor, "..."] | None = None,
    ignore_index: int = -100,
) -> Float[Tensor, ""]:
    r"""Perplexity of probabilities that are smoothed, so that a zero does not make it infinite.

    .. math:: \exp\Bigl(-\frac1N \sum_n \ln \frac{p_n(y_n) + \epsilon}{1 + \epsilon C}\Bigr)

    This mixes p with the uniform distribution, of weight εC/(1 + εC). To compare models, give each the ε that is best
    for it on validation data; ε = 0 is the perplexity itself.

    Args:
        probabilities: p, as :func:`contmax.entmax` gives them.
        target: class ids y.
        epsilon: ε ≥ 0.
        dim: the axis of the classes.
        mask: the mask that :func:`contmax.entmax` had: C counts these classes, and others stay at zero.
        ignore_index: class id of examples to ignore.

    Returns:
        A scalar, in at least float32; 1 if every example is ignored.

    Example:
        >>> import torch
        >>> from contmax.output import epsilon_perplexity
        >>> p = torch.tensor([[0.75, 0.25, 0.0], [0.0, 0.5, 0.5]])
        >>> epsilon_perplexity(p, torch.tensor([0, 0]), epsilon=0.01)
        tensor(11.8149)
    """
    if not 0 <= epsilon < math.inf:
        raise ValueError(
            f"epsilon must be a number ≥ 0; got {epsilon}. 0 is perplexity itself, 1e-6 is a usual choice."
        )
    p, ids, counted = _checked(probabilities, target, dim, ignore_index)
    require_mask(mask, probabilities.shape, "probabilities")
    mask = torch.ones_like(counted).unsqueeze(dim) if mask is None else mask
    allowed = mask.expand(probabilities.shape).movedim(dim, -1)
    smoothed = (_at(p, ids) + epsilon) / (1 + epsilon * allowed.sum(-1, dtype=p.dtype))
    smoothed = torch.where(_at(allowed, ids), smoothed, 0)
    return _reduced(-smoothed.log(), counted, "mean").exp()


def sparsemax_score(
    probabilities: Float[Tensor, "..."],
    target: Int[Tensor, "..."],
    *,
    dim: int = -1,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Float[Tensor, "..."]:
    r"""One minus the least sparsemax loss that scores with these probabilities can have; between 0 and 1.

    .. math:: s = 1 - \min_z \{L_2(z; y) : \mathrm{sparsemax}(z) = p\} = p(y) + \tfrac12 \sum_i p_i (1 - p_i)

    Certain and right is 1; certain and wrong is 0, and so is a row of zeros. It is 1 − half the Brier score, hence
    proper: in the mean nothing is better than the true probabilities.

    Args:
        probabilities, target, dim, ignore_index: as for :func:`epsilon_perplexity`.
        reduction: "mean" over the examples that are not ignored, or "none" (ignored examples are 0).

    Returns:
        A scalar, or with reduction "none" the shape of the target, in at least float32.

    Example:
        >>> import torch
        >>> from contmax.output import sparsemax_score
        >>> sparsemax_score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 0]))
        tensor(0.8750)
    """
    p, ids, counted = _checked(probabilities, target, dim, ignore_index)
    return _reduced(_at(p, ids) + (p * (1 - p)).sum(-1) / 2, counted, reduction)


def jensen_shannon_divergence(
    probabilities: Float[Tensor, "..."],
    target: Int[Tensor, "..."],
    *,
    dim: int = -1,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Float[Tensor, "..."]:
    r"""Jensen–Shannon divergence between the probabilities and the observed class; between 0 and ln 2.

    .. math:: \tfrac12 \mathrm{KL}(p \| m) + \tfrac12 \mathrm{KL}(e_y \| m)
              = \ln 2 + \tfrac12\bigl(p_y \ln p_y - (1 + p_y) \ln(1 + p_y)\bigr), \qquad m = \tfrac12 (p + e_y)

    Arguments and results are as for :func:`sparsemax_score`.

    Example:
        >>> import torch
        >>> from contmax.output import jensen_shannon_divergence
        >>> jensen_shannon_divergence(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]), reduction="none")
        tensor([0.0000, 0.6931])
    """
    p, ids, counted = _checked(probabilities, target, dim, ignore_index)
    observed = _at(p, ids)
    divergence = _LOG_TWO + (torch.xlogy(observed, observed) - (1 + observed) * observed.log1p()) / 2
    return _reduced(divergence.clamp(min=0), counted, reduction)


@dataclasses.dataclass(frozen=True)
class Reliability:
    """How often predictions are right, by the probability that they have: what :func:`reliability` returns.

    Attributes:
        confidence: mean probability of the predicted class in each bin, (bins,); 0 in empty bins, as are the others.
        accuracy: how often the predicted class is the observed one.
        share: the share of the examples.
    """

    confidence: Tensor
    accuracy: Tensor
    share: Tensor

    @property
    def calibration_error(self) -> Tensor:
        """The expected calibration error (ECE): the mean of ``|accuracy - confidence|`` over bins, by their shares."""
        return (self.share * (self.accuracy - self.confidence).abs()).sum()


def reliability(
    probabilities: Float[Tensor, "..."],
    target: Int[Tensor, "..."],
    *,
    bins: int = 15,
    dim: int = -1,
    ignore_index: int = -100,
) -> Reliability:
    """Accuracy of the most probable class by its probability, in bins of equal width, and the calibration error.

    The last bin holds the probabilities that are exactly 1, of which sparse maps have many.

    Args:
        probabilities, target, dim, ignore_index: as for :func:`epsilon_perplexity`.
        bins: number of bins of [0, 1].

    Example:
        >>> import torch
        >>> from contmax.output import reliability
        >>> p = torch.tensor([[1.0, 0.0], [0.6, 0.4], [0.55, 0.45]])
        >>> curve = reliability(p, torch.tensor([0, 0, 1]), bins=2)
        >>> curve.confidence[1], curve.accuracy[1], curve.calibration_error
        (tensor(0.7167), tensor(0.6667), tensor(0.0500))
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1; got {bins}. 15 is usual.")
    p, ids, counted = _checked(probabilities, target, dim, ignore_index)
    confidence, predicted = p.detach().max(-1)
    place = (confidence * bins).long().clamp(0, bins - 1).flatten()
    weight = counted.to(p.dtype).flatten()

    def total(values: Tensor) -> Tensor:
        return torch.zeros(bins, dtype=p.dtype, device=p.device).index_add(0, place, values.flatten() * weight)

    count = total(torch.ones_like(confidence))
    return Reliability(
        total(confidence) / or_one(count),
        total((predicted == ids).to(p.dtype)) / or_one(count),
        count / or_one(count.sum()),
    )


def conformal_temperature(
    scores: Float[Tensor, "..."],
    target: Int[Tensor, "..."],
    coverage: float,
    alpha: float = 1.5,
    *,
    dim: int = -1,
    mask: Bool[Tensor, "..."] | None = None,
    ignore_index: int = -100,
) -> Float[Tensor, ""]:
    r"""The temperature at which the support of α-entmax holds the true class of a new example with this probability.

    Class y is in the support of entmax(z/T) exactly for temperatures above

    .. math:: T_y = (\alpha - 1)\,\Bigl\lVert (z_j - z_y)_+ \Bigr\rVert_{1/(\alpha - 1)}

    which is the nonconformity score of split-conformal prediction: of n examples that took no part in the training, the
    ⌈(n + 1)·coverage⌉-th smallest T_y is returned (raised by 1e-9 of itself, against rounding). If new examples are
    exchangeable with these, P(y ∈ support) ≥ coverage, whatever the model; and ≤ coverage + 1/(n + 1) without ties.

    Args:
        scores: z, calibration examples with C classes along `dim`; −inf counts as masked.
        target: class ids.
        coverage: between 0 and 1, such as 0.9.
        alpha: α > 1; at 1 and below no probability is zero.
        dim, ignore_index: as for :func:`epsilon_perplexity`.
        mask: boolean, broadcastable to the scores; True = the class is possible. Other classes are never covered.

    Returns:
        A float64 scalar for :func:`prediction_sets`, or for ``contmax.entmax(scores, alpha, temperature=…)``.

    Raises:
        ValueError: if there are too few examples to promise this coverage, or too many with an impossible true class
            or NaN among the scores.

    Example:
        >>> import torch
        >>> from contmax.output import conformal_temperature, prediction_sets
        >>> scores, label = torch.randn(500, 10), torch.randint(10, (500,))
        >>> temperature = conformal_temperature(scores, label, coverage=0.9)
        >>> sets = prediction_sets(scores, temperature)
        >>> sets[torch.arange(500), label].double().mean() >= 0.9
        tensor(True)

    Reference: Campos, Calém, Sklaviadis, Figueiredo & Martins 2025 (Sparse activations as conformal predictors).
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be between 0 and 1; got {coverage}. Pass 0.9 for sets that miss one in ten.")
    z = _checked_scores(scores, alpha, dim, mask, "conformal_temperature")
    counted, ids = _checked_target(target, z, ignore_index)
    own = _at(z, ids).unsqueeze(-1)
    ahead = torch.where(z > own, z - own, 0)
    largest = or_one(ahead.amax(-1, keepdim=True))  # near α = 1 powers of the numbers themselves would overflow
    norm = torch.linalg.vector_norm(ahead / largest, ord=1 / (alpha - 1), dim=-1)
    needed = (alpha - 1) * largest.squeeze(-1) * norm
    # No set holds a class that is masked, and a row with NaN has an empty set.
    needed = torch.where(own.squeeze(-1) > -torch.inf, needed, torch.inf)[counted]
    rank = math.ceil((len(needed) + 1) * coverage - 1e-9)
    if rank > len(needed):
        least = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise ValueError(f"{len(needed)} examples cannot promise a coverage of {coverage}; pass at least {least}.")
    chosen = needed.kthvalue(rank).values
    if torch.isinf(chosen):
        raise ValueError(
            f"the true class is masked, or a score is NaN, in too many examples for a coverage of {coverage}. Pass a "
            "mask that allows it, and finite scores."
        )
    return (chosen * (1 + _MARGIN)).clamp(min=torch.finfo(torch.float32).tiny)


def prediction_sets(
    scores: Float[Tensor, "..."],
    temperature: float | Float[Tensor, ""],
    alpha: float = 1.5,
    *,
    dim: int = -1,
    mask: Bool[Tensor, "..."] | None = None,
) -> Bool[Tensor, "..."]:
    """The support of α-entmax at a temperature, a set of classes for each example, as a mask.

    ``contmax.entmax(scores, alpha, temperature=temperature) > 0`` is this set, less probabilities that round to zero;
    α near 1 and half precision have many. Here the set is found in float64, from the scores alone.

    Args:
        scores: z, C classes along `dim`; −inf counts as masked.
        temperature: from :func:`conformal_temperature`, with the α that it had.
        alpha, dim, mask: as for :func:`conformal_temperature`.

    Returns:
        A boolean tensor of the shape of the scores; empty sets where everything is masked.

    Example:
        >>> import torch
        >>> from contmax.output import prediction_sets
        >>> prediction_sets(torch.tensor([2.0, 1.5, -3.0]), temperature=1.0)
        tensor([ True,  True, False])
    """
    z = _checked_scores(scores, alpha, dim, mask, "prediction_sets")
    scale = torch.as_tensor(temperature, dtype=z.dtype, device=z.device)
    if is_eager_cpu(scale) and not bool((scale > 0).all()):
        raise ValueError(f"temperature must be positive; got {scale.min().item():g}. Pass conformal_temperature(…).")
    z = z / scale
    ordered = z.sort(descending=True).values
    last = last_in_support(ordered, torch.ones_like(ordered), alpha - 1)
    return ((z >= ordered.gather(-1, last)) & (z > -torch.inf)).movedim(-1, dim)


def _checked(p: Tensor, target: Tensor, dim: int, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities in at least float32 with the classes last, class ids, and which of them count."""
    check_scores(p, dim, "a measure of probabilities")
    p = p.movedim(dim, -1).to(wide_dtype(p.dtype))
    if is_eager_cpu(p) and p.numel():
        low, total = p.detach().min().item(), p.detach().sum(-1, dtype=torch.float64)
        off = torch.where((p.detach() == 0).all(-1), 0, total - 1).abs().max().item()
        if low < 0 or off > 1e-2:
            raise ValueError(
                f"probabilities must be ≥ 0 with sum 1 along dim {dim}; got minimum {low:g}, sums up to {off:g} "
                "away from 1. Pass contmax.entmax(scores)."
            )
    counted, ids = _checked_target(target, p, ignore_index)
    return p, ids, counted


def _checked_target(target: Tensor, like: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    if target.is_floating_point() or target.shape != like.shape[:-1]:
        raise ValueError(
            f"target must hold class ids (integers) of shape {tuple(like.shape[:-1])}; got {target.dtype} of shape "
            f"{tuple(target.shape)}. Pass dim= if the classes do not stand last."
        )
    return class_ids(target, ignore_index, like.shape[-1])


def _checked_scores(scores: Tensor, alpha: float, dim: int, mask: Tensor | None, name: str) -> Tensor:
    """Scores in float64 less their maximum, with the classes last and −inf where the mask is False."""
    check_scores(scores, dim, name)
    require_mask(mask, scores.shape)
    if not 1 < alpha < math.inf:
        raise ValueError(f"alpha must be above 1, where probabilities can be zero; got {alpha}. Pass 1.5 or 2.0.")
    require_float64(scores.device, name)
    z = scores.detach().double()
    z = z if mask is None else z.masked_fill(~mask, -torch.inf)
    return below_maximum(z.movedim(dim, -1), -1)


def _at(values: Tensor, ids: Tensor) -> Tensor:
    return values.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def _reduced(values: Tensor, counted: Tensor, reduction: str) -> Tensor:
    """The mean of the values that count (0 if none does), or the values with 0 for the others."""
    if reduction not in ("none", "mean"):
        raise ValueError(f"reduction must be 'none' or 'mean'; got {reduction!r}.")
    values = torch.where(counted, values, 0)
    return values if reduction == "none" else values.sum() / or_one(counted.sum())
