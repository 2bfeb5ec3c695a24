"""Deformed logarithm, exponential, negentropy and escort against mpmath and float64."""

import math

import mpmath
import torch
from hypothesis import strategies as st
from torch import Tensor

from contmax.deformed import escort, exp_beta, log_beta, tsallis_negentropy
from fuzz._campaign import target
from fuzz._rows import TOLERANCE, alphas, close, columns, kinds, require, rows, seeds, wide_dtypes

ROWS = 1024
betas = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 0.5, 1 + 1e-7, 1 - 1e-7, -1.0, 3.0]), st.floats(-50, 50))


def _no_nan(function, u: Tensor, index: float, **shown) -> Tensor:
    u = u.clone().requires_grad_()
    value = function(u, index)
    (slope,) = torch.autograd.grad(value.nan_to_num(0, 0, 0).sum(), u)
    flat = ~value.isnan() & ~slope.isnan()
    require(flat.reshape(flat.shape[0], -1).all(-1), "NaN, or a gradient that is NaN", u=u, value=value, slope=slope)
    return value.detach()


@target("deformed.exp-log", beta=betas, kind=kinds, dtype=wide_dtypes, seed=seeds)
def exponential_and_logarithm(beta: float, kind: str, dtype: str, seed: int) -> int:
    """No NaN; close to mpmath; one undoes the other where numbers allow."""
    u = rows(kind, ROWS, 1, dtype, seed)
    value = _no_nan(exp_beta, u, beta)
    require((value >= 0).all(-1), "negative", u=u, value=value, beta=beta)
    logarithm = _no_nan(log_beta, u.abs(), beta)
    ordered = u.abs().sort(0).indices[:, 0]
    steps = logarithm[ordered, 0].double().clamp(-1e300, 1e300).diff()
    slack = 1e-6 * logarithm[ordered[1:], 0].double().abs().clamp(-1e300, 1e300) + 1e-12
    require(steps >= -slack, "the logarithm falls", beta=beta, u=u[ordered[1:], 0])
    for place in range(3):
        exact = _exact_log(float(u[place].abs()), beta)
        # The power itself, larger by the factor 1 − β, is what may overflow.
        fits = abs(exact) * max(abs(1 - beta), 1.0) < torch.finfo(u.dtype).max / 2
        error = abs(float(logarithm[place]) - exact) if fits else 0.0
        # A power is e to the power of something, which is rounded: the more digits it has before the point, the more.
        exponent = abs(1 - beta) * abs(math.log(float(u[place].abs()) or 1.0))
        digits = max(8 * TOLERANCE[u.dtype], 2 * torch.finfo(u.dtype).eps * exponent)
        allowed = digits * max(abs(exact), 1.0)
        require(
            torch.tensor(error <= allowed)[None], "log differs from mpmath", u=u[place][None], beta=beta, exact=exact
        )
    return ROWS


def _exact_log(u: float, beta: float) -> float:
    with mpmath.workdps(60):
        x, gap = mpmath.mpf(u), 1 - mpmath.mpf(beta)
        if u == 0:
            return float(-1 / gap) if gap > 0 else float("-inf")
        value = mpmath.log(x) if gap == 0 else (x**gap - 1) / gap
        return float(value)


@target("deformed.negentropy", alpha=alphas, kind=kinds, width=columns, dtype=wide_dtypes, seed=seeds)
def negentropy_and_escort(alpha: float, kind: str, width: int, dtype: str, seed: int) -> int:
    """On probabilities: between that of the uniform one and 0, close to float64; escorts are probabilities."""
    p = torch.softmax(rows(kind, ROWS, width, "float64", seed), -1)
    p = p.to(rows("grid", 1, 1, dtype, 0).dtype)
    value = tsallis_negentropy(p, alpha)
    tolerance = TOLERANCE[p.dtype]
    require(value.isfinite(), "not finite", p=p, value=value, alpha=alpha)
    exact = tsallis_negentropy(p.double() / p.double().sum(-1, keepdim=True), alpha)
    scale = exact.abs().clamp(min=1.0)
    require(
        close(value[:, None], exact[:, None], 8 * tolerance * scale[:, None]), "differs from float64", p=p, value=value
    )
    q = escort(p, alpha)
    require(
        ((q.double().sum(-1) - 1).abs() <= tolerance * max(1, width / 4)) & (q >= 0).all(-1), "escort", p=p, escort=q
    )
    return 2 * ROWS
