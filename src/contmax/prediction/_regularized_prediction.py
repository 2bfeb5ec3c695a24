"""The public function `regularized_prediction`, which dispatches on the class of the domain, and argument checks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu, require_float64
from contmax._typing import Float
from contmax.prediction._prediction import Prediction

Score = Callable[[Tensor], Tensor] | Tensor
Rule = Callable[[Any, Any, Any], Prediction]

_RULES: dict[type, Rule] = {}


def read_score(
    score: Score, points: Tensor, domain: object, alpha: Float[Tensor, "..."]
) -> tuple[Float[Tensor, "*batch n"], torch.dtype]:
    """Float64 values of the score at the points, for the common batch of scores and α, and the dtype of results.

    A callable gets the points in their dtype, and once more in the dtype of its result if that is wider. So a score
    with float64 parameters is read at float64 points, whatever the dtype of the domain is.

    Args:
        score: callable from points to values (*batch, n), or a tensor of such values.
        points: (n,) or (n, N).
        domain: the domain of the points, for error messages.
        alpha: α, a float64 tensor.
    """
    if isinstance(score, Tensor):
        values = score
    elif callable(score):
        values = _called(score, points)
        wider = torch.promote_types(values.dtype, points.dtype)
        if wider != points.dtype:
            values = _called(score, points.to(wider))
    else:
        raise TypeError(
            f"score must be a callable on points or a tensor of values; got {type(score).__name__}. "
            "Pass a function of t, or its values at domain.nodes."
        )
    _check_values(values, points, domain)
    try:
        batch = torch.broadcast_shapes(values.shape[:-1], alpha.shape)
    except RuntimeError:
        raise ValueError(
            f"alpha of shape {tuple(alpha.shape)} does not broadcast with a batch of scores of shape "
            f"{tuple(values.shape[:-1])}. Pass one alpha, or one per score."
        ) from None
    return values.expand(*batch, -1).double(), torch.promote_types(values.dtype, points.dtype)


def checked_alpha(alpha: float | int | Tensor, device: torch.device) -> Float[Tensor, "..."]:
    """α as a float64 tensor, checked to be positive and finite."""
    require_float64(device, "A prediction")
    if isinstance(alpha, Tensor):
        if not alpha.is_floating_point():
            raise TypeError(f"a tensor alpha must be floating-point; got {alpha.dtype}. Pass alpha.float() or a float.")
        if is_eager_cpu(alpha) and not bool(((alpha > 0) & (alpha < torch.inf)).all()):
            raise ValueError(
                f"alpha must be positive and finite; got min {float(alpha.min()):g}, max {float(alpha.max()):g}."
            )
        return alpha.double()
    if isinstance(alpha, bool) or not isinstance(alpha, (float, int)):
        raise TypeError(f"alpha must be a number or a tensor; got {type(alpha).__name__}. Pass for example alpha=2.0.")
    if not 0 < alpha < torch.inf:
        raise ValueError(f"alpha must be positive and finite; got {alpha}. 1 is exponential, 2 is the sparse map.")
    return torch.full((), alpha, dtype=torch.float64, device=device)


def _called(score: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    values = score(points)
    if not isinstance(values, Tensor):
        raise TypeError(f"score must return a tensor; got {type(values).__name__}. Use torch operations on t.")
    return values


def _check_values(values: Tensor, points: Tensor, domain: object) -> None:
    count = points.shape[0]
    if not values.is_floating_point():
        raise TypeError(f"score must be real and floating-point; got {values.dtype}. Pass values.float().")
    if values.dim() == 0 or values.shape[-1] != count:
        raise ValueError(
            f"score must have one value per point in its last dimension, {count} on {domain!r}; got shape "
            f"{tuple(values.shape)}. Points come as {tuple(points.shape)}; a batch of scores goes in front."
        )
    if is_eager_cpu(values) and not bool((values < torch.inf).all()):
        bad = ~(values < torch.inf)
        first = points[bad.reshape(-1, count).any(0).nonzero()[0, 0]].tolist()
        raise ValueError(
            f"score must not be NaN or +inf; got {int(bad.sum())} such of {bad.numel()} values, first at t = {first}. "
            "−inf is allowed and means no mass."
        )


def regularized_prediction(score: Score, domain: Any, alpha: float | int | Tensor = 2.0) -> Prediction:
    r"""The Ω_α-map: the density that trades a high score against a low Tsallis negentropy.

    .. math::
        \hat p = \arg\max_p\; E_p[f(t)] - \Omega_\alpha(p), \qquad
        \hat p(t) = \exp_{2-\alpha}(f(t) - A) = [(\alpha-1)(f(t)-\lambda)]_+^{1/(\alpha-1)}

    with A (and λ = A − 1/(α−1)) such that :math:`\int \hat p = 1`. α = 1 is the exponential (Gibbs) density,
    α > 1 has a bounded support {f > λ}, α = 2 is the projection of the score.

    ====================  =================================================  ==========================================
    domain                how                                                accuracy (float64, relative)
    ====================  =================================================  ==========================================
    ``Interval``          ends of the support located, cells refined         1e-10 for 1 ≤ α ≤ 4
    ``Box``, 2-D          graded rule from end to end of the support         1e-5, smooth scores; derivatives 1e-4
    ``Box``, 3-D          graded rule from end to end of the support         1e-3, smooth scores
    ``Knots``             closed form for every α                            1e-12; moments 1e-9
    ``Nodes``             the finite map :func:`contmax.entmax`, weighted    1e-12 (α > 2: 1e-9)
    ====================  =================================================  ==========================================

    On a box, smooth means smooth on each cell, and derivatives are good to 1e-3 where the support has holes or several
    parts. Steps and narrow peaks are not smooth: with 16 cells per axis a step on a square has a density 1 % off, a
    disc 2 %. Interval and Box therefore compare a callable score with its interpolant between the nodes (on eager CPU
    tensors). Beyond 1e-9 of the mass on an interval, 1e-4 in a plane and 1e-2 in space they warn and say how much is
    misplaced; beyond a tenth they raise an error. Features of a score that show at none of the nodes are missed: see
    ``contmax.domains``.

    On an accelerator nothing waits for the device, except on a box, whose draws are repeated by rejection until there
    are enough.

    Values, gradients and second derivatives in whatever the score depends on, and in α, are those of the integrals,
    including the movement of the support: the Jacobian of :math:`r = E_p[\psi]` in the parameters of a linear score is
    the generalised covariance :math:`\int_{\mathrm{supp}} p^{2-\alpha}(\phi - \nabla A)\psi`.

    Args:
        score: f, a callable from points (n,), or (n, N) in a box, to values with the points in the last dimension and
            any batch in front, (\*batch, n); or those values at ``domain.nodes``. −inf means no mass (for knots: on
            both adjacent segments); a score that is −inf everywhere has zero density, A = −∞ and NaN for draws.
        domain: an Interval, Box, Nodes or Knots of contmax.domains, or your own domain: see
            :func:`contmax.prediction.register_prediction`.
        alpha: α > 0, a number, or a tensor that broadcasts with the batch; differentiable, also through 1.

    Returns:
        A distribution with that batch shape: density, log_prob, mean, variance, covariance_matrix, mode, entropy,
        tsallis_negentropy, conjugate, threshold, normalizer, expectation, sample, support, on a line also cdf, icdf and
        rsample. The dtype is the wider one of domain and score; computations are in float64.

    Raises:
        ValueError: for a score with NaN or +inf, or of the wrong shape, α that is not positive, a score that the cells
            of the domain do not resolve, or no density with this α: for α < 1 a peak so sharp that its mass stays
            below one.
        TypeError: for anything that is not a score, a domain or a number.

    Example:
        >>> import torch, contmax
        >>> p = contmax.regularized_prediction(lambda t: -(t**2) / 2, contmax.domains.Interval(-4.0, 4.0), alpha=2.0)
        >>> p.threshold, p.variance, p.support.cells
        (tensor(-0.6552), tensor(0.2621), tensor([[-1.1447,  1.1447]]))
        >>> p.density(torch.tensor([0.0, 1.0, 2.0]))
        tensor([0.6552, 0.1552, 0.0000])
        >>> scores = torch.tensor([[0.0, 1.0, 0.5], [2.0, 0.0, 0.0]])
        >>> contmax.regularized_prediction(scores, contmax.domains.Knots(torch.tensor([0.0, 1.0, 3.0]))).mean
        tensor([1.5800, 0.3333])

    Reference: Martins et al. 2020, Def. 1 and the propositions on A_α and the Jacobian.
    """
    for kind in type(domain).__mro__:
        if kind in _RULES:
            return _RULES[kind](score, domain, alpha)
    known = ", ".join(sorted(kind.__name__ for kind in _RULES))
    raise TypeError(
        f"domain must be one of {known}, or of a class derived from these; got {type(domain).__name__}. Pass for "
        "example contmax.domains.Interval(0.0, 1.0), or register your class with "
        "contmax.prediction.register_prediction."
    )


def register_prediction(domain_type: type) -> Callable[[Rule], Rule]:
    r"""Decorator that makes :func:`contmax.regularized_prediction` accept your own domain class.

    The decorated function takes score, domain and α as :func:`contmax.regularized_prediction` got them and returns a
    :class:`Prediction`, in most cases by calling it with a domain of contmax.domains. For a class without its own rule,
    that of its nearest ancestor is used.

    Args:
        domain_type: the class of the domain.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        TypeError: for anything that is not a class.

    Example:
        Two intervals that do not touch, as one interval on which the gap between them has score −∞:

        >>> import torch, contmax
        >>> from contmax.domains import Interval
        >>> class TwoIntervals:
        ...     def __init__(self, first, second):
        ...         self.whole, self.gap = Interval(first[0], second[1]), (first[1], second[0])
        >>> @contmax.prediction.register_prediction(TwoIntervals)
        ... def predict_on_two_intervals(score, domain, alpha):
        ...     low, high = domain.gap
        ...     def with_gap(t):
        ...         return torch.where((t > low) & (t < high), -torch.inf, score(t))
        ...     return contmax.regularized_prediction(with_gap, domain.whole, alpha)
        >>> p = contmax.regularized_prediction(torch.zeros_like, TwoIntervals((0.0, 1.0), (3.0, 4.0)), alpha=1.5)
        >>> p.mean, p.support.cells
        (tensor(2.), tensor([[0., 1.], [3., 4.]]))

        A circle, as 360 nodes with a degree of arc each:

        >>> class Circle:
        ...     def __init__(self, radius):
        ...         angle = torch.arange(360) * torch.pi / 180
        ...         points = radius * torch.stack([angle.cos(), angle.sin()], -1)
        ...         self.nodes = contmax.domains.Nodes(points, torch.full((360,), radius * torch.pi / 180))
        >>> @contmax.prediction.register_prediction(Circle)
        ... def predict_on_circle(score, domain, alpha):
        ...     return contmax.regularized_prediction(score, domain.nodes, alpha)
        >>> contmax.regularized_prediction(lambda t: t[:, 0], Circle(2.0), alpha=2.0).mode
        tensor([2., 0.])
    """
    if not isinstance(domain_type, type):
        raise TypeError(f"domain_type must be a class; got {domain_type!r}. Pass the class itself, not an instance.")

    def decorator(rule: Rule) -> Rule:
        _RULES[domain_type] = rule
        return rule

    return decorator
