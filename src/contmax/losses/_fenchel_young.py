"""Continuous Fenchel–Young losses: the cost of predicting one density where another is the truth."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Laplace, MultivariateNormal, Normal, StudentT, Uniform

from contmax._eager import is_eager_cpu
from contmax._mask import broadcasts_to
from contmax._typing import Bool, Float
from contmax.densities import Empirical, LineDensity, MultivariateBetaGaussian
from contmax.densities._density import Density, parameter_dtypes
from contmax.expectations._expectation import PairRegistry
from contmax.losses._finite import check_options, reduced, weighted

Loss = Callable[[Any, Any], Tensor]

# Safe values of a target's parameters in unlabelled examples, and the families of targets that receive them there.
_HARMLESS = {"low": 0.0, "high": 1.0, "loc": 0.0, "scale": 1.0, "df": 3.0}
_HARMLESS_FAMILIES = (Uniform, Normal, Laplace, StudentT, LineDensity)

_LOSSES = PairRegistry(
    "Fenchel–Young loss",
    "Pass a density of contmax as prediction, or register the pair with contmax.losses.register_fenchel_young.",
)


def fenchel_young(
    prediction: Distribution,
    target: Distribution | Tensor,
    *,
    mask: Bool[Tensor, "..."] | None = None,
    weight: Float[Tensor, "..."] | None = None,
    reduction: str = "none",
) -> Float[Tensor, "..."]:
    r"""The Fenchel–Young loss between the score of a prediction and a target.

    .. math:: L_{\Omega_\alpha}(f; p) = \Omega_\alpha^*(f) + \Omega_\alpha(p) - E_p[f]

    where f is the score whose Ω_α-map is the prediction, and α is that of the prediction. It is convex in f, its
    gradient in the canonical parameters is :math:`E_{\hat p}[\phi] - E_p[\phi]`, and it is zero exactly when the
    prediction is the target. At α = 1 it is the Kullback–Leibler divergence of the prediction from the target.

    The loss is convex in the canonical parameters (``from_canonical``), so fitting them converges if the steps are
    small enough to keep the quadratic one negative. It is not convex in (loc, log scale): from a distant start,
    gradient descent on these first widens the density and may then take very long to move it. Start close to the
    target there, for example with ``from_moments``.

    A target without a density has no Ω_α. The loss leaves this constant out, which has no gradient, and may be
    negative: an observation t costs :math:`\Omega_\alpha^*(f) - f(t)`, samples the weighted mean of that.

    Args:
        prediction: a density that has α, ``score(t)`` and ``conjugate()``, such as a β-Gaussian, ``Triangular``,
            ``LocationScale``, your own ``LineDensity`` or a ``regularized_prediction``; or torch's ``Normal``,
            ``MultivariateNormal`` and ``Laplace``, whose index is α = 1.
        target: another density, which may be a torch distribution, whose batch shape broadcasts with that of the
            prediction; a tensor of observations ``(*sample, *batch)`` or ``(*sample, *batch, N)``; or
            ``contmax.densities.Empirical``.
        mask: boolean, broadcastable to the batch; True = this example is labelled. Elsewhere the loss and its gradient
            are exactly zero. There the target may hold anything, even NaN, if it is uniform, normal, Laplace,
            Student-t, a density of contmax other than a mixture, samples, observations, or a product of these (torch
            rejects NaN parameters unless you pass ``validate_args=False``).
        weight: weight of each example, ≥ 0, broadcastable to the batch; an example of weight 0 counts as unlabelled.
        reduction: "none", "sum" or "mean"; the mean is weighted, over the labelled examples, and 0 if there are none.

    Returns:
        Shape of the broadcast batch, or a scalar. For a β-Gaussian prediction there are closed forms, accurate also
        where prediction and target nearly agree, for β-Gaussian targets of any index and dimension, Gaussian, uniform,
        triangular, Laplace and Student-t targets, products of these, observations and samples; likewise for a
        triangular prediction and a triangular target. Other pairs on the line are integrated numerically, to 1e-10 for
        a target that is bounded, and smooth between the ends of its support, its mean and its mode (for a mixture,
        those of each component). For a ``regularized_prediction`` as target of a β-Gaussian the loss is as accurate as
        the target itself. +∞, with zero gradient, where E_p[f] or Ω_α(p) is not finite.

    Raises:
        TypeError: if an argument is neither a distribution nor, as target, a floating-point tensor.
        ValueError: if shapes do not fit, an observation is not finite, a weight is negative or not finite, or
            ``reduction`` is unknown.
        NotImplementedError: if there is no loss for such a pair; see :func:`register_fenchel_young`.

    Example:
        >>> import torch
        >>> from contmax.densities import TruncatedParabola
        >>> from contmax.losses import fenchel_young
        >>> p = TruncatedParabola(torch.tensor([0.0, 1.0]), 1.0)
        >>> fenchel_young(p, TruncatedParabola(0.0, 1.0))
        tensor([0.0000, 0.5000])
        >>> fenchel_young(p, torch.distributions.Uniform(-1.0, 1.0), reduction="mean")
        tensor(0.2736)
        >>> fenchel_young(p, torch.tensor(0.5))
        tensor([0.2319, 0.2319])

        Intervals that are known for some examples only:

        >>> start, end = torch.tensor([-1.0, float("nan")]), torch.tensor([1.0, float("nan")])
        >>> spans = torch.distributions.Uniform(start, end, validate_args=False)
        >>> fenchel_young(p, spans, mask=start.isfinite())
        tensor([0.0236, 0.0000])

    References:
        Blondel, Martins & Niculae 2020; Martins et al. 2020, Sec. on continuous Fenchel–Young losses.
    """
    check_options(None, 0.0, reduction, 0)
    shape = _checked_shape(prediction, target)
    weight = _checked_weight(mask, weight, shape)
    if weight is not None:
        target = _harmless_where_unlabelled(target, weight > 0, len(prediction.event_shape))
    if isinstance(target, Tensor) and is_eager_cpu(target) and not bool(torch.isfinite(target).all()):
        bad = int((~torch.isfinite(target)).sum())
        raise ValueError(
            f"observations must be finite; got {bad} NaN or infinite of {target.numel()} entries. "
            "Leave missing observations out, or pass mask=target.isfinite()."
        )
    losses = loss_between(prediction, target)
    losses = losses.expand(torch.broadcast_shapes(shape, losses.shape))
    # Losses are computed in float64 and rounded once, to the common dtype of all parameters.
    dtypes = [*parameter_dtypes(prediction), *parameter_dtypes(target)]
    dtype = functools.reduce(torch.promote_types, dtypes) if dtypes else losses.dtype
    # A loss that overflows in this dtype becomes infinite, with zero gradient.
    losses = torch.where(losses.abs() > torch.finfo(dtype).max, losses.detach(), losses).to(dtype)
    if weight is None:
        return reduced(losses, losses.new_ones(()).expand(losses.shape), reduction)
    weight = weight.to(losses.dtype).expand(losses.shape)
    return reduced(weighted(losses, weight), weight, reduction)


def register_fenchel_young(prediction_type: type, target_type: type) -> Callable[[Loss], Loss]:
    """Decorator that registers the loss of a pair of types with :func:`fenchel_young`.

    The most specific match by subclass is used, as in ``torch.distributions.register_kl``. An ambiguous match warns and
    takes the one more specific in the prediction; registering the pair itself settles it.

    Args:
        prediction_type: a subclass of ``Distribution``.
        target_type: a subclass of ``Distribution``, or ``Tensor`` for observations.

    Returns:
        A decorator for a function of prediction and target that returns losses, which broadcast to the common batch.

    Raises:
        TypeError: if the types are not as described.

    Example:
        >>> import torch
        >>> from torch.distributions import Cauchy
        >>> from contmax.losses import fenchel_young, register_fenchel_young
        >>> class Score(Cauchy):
        ...     pass
        >>> @register_fenchel_young(Score, torch.Tensor)
        ... def observed(prediction, target):
        ...     return -prediction.log_prob(target)
        >>> fenchel_young(Score(0.0, 1.0), torch.tensor(0.0))
        tensor(1.1447)
    """
    for name, given, allowed in (
        ("prediction_type", prediction_type, Distribution),
        ("target_type", target_type, (Distribution, Tensor)),
    ):
        if not isinstance(given, type) or not issubclass(given, allowed):
            raise TypeError(f"{name} must be a subclass of Distribution; got {given!r}. Pass the class itself.")

    return _LOSSES.register(prediction_type, target_type)


def loss_between(prediction: Distribution, target: Distribution | Tensor) -> Tensor:
    """The loss registered for the two types, before rounding and reduction; a registered loss may call it as well."""
    losses: Tensor = _LOSSES.find(type(prediction), type(target))(prediction, target)
    return losses


def _checked_weight(mask: Tensor | None, weight: Tensor | None, shape: torch.Size) -> Tensor | None:
    """Weights of the examples, 0 where an example is unlabelled; None without mask and weight."""
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, True = labelled; got {mask.dtype}. Pass mask.bool().")
    for name, given in (("mask", mask), ("weight", weight)):
        if given is not None and not broadcasts_to(given, shape):
            raise ValueError(
                f"{name} must broadcast to the losses, of shape {tuple(shape)}; got shape {tuple(given.shape)}. "
                "Pass one entry per example."
            )
    if weight is None:
        return None if mask is None else mask.to(torch.float64)
    weight = weight if mask is None else torch.where(mask, weight, 0.0)
    if is_eager_cpu(weight) and not bool((weight.isfinite() & (weight >= 0)).all()):
        raise ValueError(
            f"weight must be finite and not negative; got a minimum of {float(weight.detach().min()):g}. "
            "Pass 0 for an example that does not count."
        )
    return weight


def _checked_shape(prediction: Distribution, target: Distribution | Tensor) -> torch.Size:
    """The broadcast batch shape of prediction and target; raises if their types or shapes do not fit."""
    given: object = prediction
    if not isinstance(given, Distribution):
        got = type(given).__name__
        raise TypeError(f"prediction must be a distribution; got {got}. Pass a density of contmax.densities.")
    event = prediction.event_shape
    if isinstance(target, Tensor):
        if not target.is_floating_point():
            raise TypeError(f"observations must be floating point; got {target.dtype}. Pass target.float().")
        axes = target.ndim - len(event)
        batch = target.shape[:axes]
        if tuple(target.shape[axes:]) != tuple(event):
            raise ValueError(
                f"observations must have {event[-1]} coordinates in their last dimension; got shape "
                f"{tuple(target.shape)}. Pass a tensor of shape (..., {event[-1]})."
            )
    elif isinstance(target, Distribution):
        batch = target.batch_shape
        if target.event_shape != event:
            raise ValueError(
                f"prediction and target must live in the same space; got event shapes {tuple(event)} and "
                f"{tuple(target.event_shape)}. Wrap a batch of coordinates in Independent(target, 1)."
            )
    else:
        raise TypeError(
            f"target must be a distribution or a tensor of observations; got {type(target).__name__}. "
            "Pass torch.as_tensor(target)."
        )
    try:
        shape: torch.Size = torch.broadcast_shapes(prediction.batch_shape, batch)
    except RuntimeError:
        raise ValueError(
            f"a target of batch shape {tuple(batch)} does not broadcast with a prediction of batch shape "
            f"{tuple(prediction.batch_shape)}. Put sample dimensions in front of the batch."
        ) from None
    return shape


def _harmless_where_unlabelled(target: Distribution | Tensor, labelled: Tensor, event_dims: int) -> Any:
    """The target, broadcast with `labelled`, with safe constant parameters in unlabelled examples.

    A target of a family whose safe parameters are unknown is returned unchanged. The parameters of unlabelled examples
    may be NaN, or the ends of an interval of length 0. Masking only the loss would give NaN gradients there: zero times
    an infinite derivative.

    Example:
        >>> spans = Uniform(torch.tensor([0.2, float("nan")]), torch.tensor([0.6, 0.0]), validate_args=False)
        >>> _harmless_where_unlabelled(spans, torch.tensor([True, False]), 0).high
        tensor([0.6000, 1.0000])
    """
    if isinstance(target, Tensor):
        return torch.where(labelled.reshape(labelled.shape + (1,) * event_dims), target, 0.0)
    if isinstance(target, Independent):
        axes = target.reinterpreted_batch_ndims
        labelled = labelled.reshape(labelled.shape + (1,) * axes)
        return Independent(_harmless_where_unlabelled(target.base_dist, labelled, 0), axes, validate_args=False)
    if isinstance(target, MultivariateBetaGaussian | MultivariateNormal):
        given: Tensor = target.scale_tril
        eye = torch.eye(given.shape[-1], dtype=given.dtype, device=given.device)
        loc = torch.where(labelled[..., None], target.loc, 0.0)
        tril = torch.where(labelled[..., None, None], given, eye)
        if isinstance(target, MultivariateNormal):
            return MultivariateNormal(loc, scale_tril=tril, validate_args=False)
        return MultivariateBetaGaussian(loc, scale_tril=tril, alpha=target.alpha, validate_args=False)
    if isinstance(target, Empirical):
        known = labelled.unsqueeze(-1)
        samples = torch.where(known.unsqueeze(-1) if target.event_shape else known, target.samples, 0.0)
        weights = torch.where(known, target.weights, 1.0)
        return Empirical(samples, weights, event_dim=len(target.event_shape), validate_args=False)
    if not isinstance(target, _HARMLESS_FAMILIES):
        return target
    shape = torch.broadcast_shapes(target.batch_shape, labelled.shape)
    new: Any = copy.copy(target if target.batch_shape == shape else target.expand(shape))
    for name in _HARMLESS.keys() & vars(new).keys():
        setattr(new, name, torch.where(labelled, getattr(new, name), _HARMLESS[name]))
    if isinstance(new, Density):
        new._rebind()
    return new
