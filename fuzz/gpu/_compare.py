"""How close is close enough: tolerances by dtype, and comparisons that say what was wrong in one line.

Half precision is computed in float32 and rounded once: a probability is off by 2⁻⁹ (bfloat16) or 2⁻¹² (float16) of
itself, and four digits are all that the kernels compute for it.
"""

import math

import torch
from torch import Tensor

from fuzz.gpu._case import BF16, F16, F32, WrongResultError
from fuzz.gpu._references import column_of

# Relative, and relative to one.
TOLERANCE = {F32: (2e-5, 3e-6), F16: (6e-3, 1e-3), BF16: (2e-2, 2e-3)}
# Of the largest probability of a row: where all are small, the tolerance is not larger than they are.
_SHARE_OF_LARGEST = 0.03
# Of a sum of probabilities.
_SUM = {F32: 1e-4, F16: 2e-3, BF16: 1e-2}
# Half of the least float16: smaller probabilities are zero in it.
_LEAST_F16 = 2.0**-25


def require_close(what: str, got: Tensor, want: Tensor, allowed: Tensor | float) -> None:
    """Raise unless |got − want| ≤ allowed; NaN and infinities must be where they belong."""
    got, want = got.detach().double(), want.detach().double()
    if got.shape != want.shape:
        raise WrongResultError(f"{what}: shape {tuple(got.shape)} instead of {tuple(want.shape)}")
    off = (got - want).abs()
    same = (got == want) | (got.isnan() & want.isnan())
    wrong = ~(same | (off <= allowed))
    if not bool(wrong.any()):
        return
    first = tuple(wrong.nonzero()[0].tolist())
    worst = off.nan_to_num(math.inf)[wrong].max().item()
    raise WrongResultError(
        f"{what}: {int(wrong.sum())} of {wrong.numel()} wrong, in {int(wrong.flatten(1).any(1).sum())} of "
        f"{wrong.shape[0]} rows; first at {first}: {got[first].item():.7g} instead of {want[first].item():.7g}, worst "
        f"off by {worst:.3g}"
    )


def require_close_in_norm(
    what: str, got: Tensor, want: Tensor, tolerance: float, terms: Tensor | None = None, unit: float = 0.0
) -> None:
    """Raise unless the difference is small beside the whole, and no number of it is large beside the largest.

    Where numbers are sums that may cancel, `terms` are the sums of absolute values, of which `unit` may be rounding.
    """
    got, want = got.detach().double(), want.detach().double()
    if got.shape != want.shape:
        raise WrongResultError(f"{what}: shape {tuple(got.shape)} instead of {tuple(want.shape)}")
    if not bool(got.isfinite().all()):
        raise WrongResultError(f"{what}: {int((~got.isfinite()).sum())} of {got.numel()} not finite")
    if got.numel() == 0:
        return
    rounding = torch.zeros_like(want) if terms is None else unit / tolerance * terms
    error = ((got - want).norm() / (want.norm() + rounding.norm() + 1e-3 * math.sqrt(want.numel()))).item()
    worst = ((got - want).abs().max() / (want.abs().max() + rounding.max() + 1e-3)).item()
    if not (error <= tolerance and worst <= 20 * tolerance):
        raise WrongResultError(
            f"{what}: off by {error:.3g} in norm, worst {worst:.3g} of the largest; tolerance {tolerance:.3g}"
        )


def require_probabilities(got: Tensor, want: Tensor, alpha: float | Tensor) -> None:
    """Rows (R, n) of p in any dtype against `entmax64`.

    Beyond α = 2 a probability has an infinite slope at the edge of the support, and p^{α−1} is compared instead, which
    moves with the scores.
    """
    relative, absolute = TOLERANCE[got.dtype]
    power = (column_of(alpha, want) - 1).clamp(min=1.0)
    least = _LEAST_F16 if got.dtype == F16 else 0.0
    want = want.double()
    near = _SHARE_OF_LARGEST * want.amax(-1, keepdim=True).nan_to_num(0.0)
    # Where p is rounded to zero, so are its powers.
    allowed = relative * power * want**power + near.clamp(max=absolute) + least**power
    require_close("p", got.double() ** power, want**power, allowed.nan_to_num(0.0))


def require_sums(p: Tensor, top: Tensor) -> None:
    """All rows of p (*batch, n) sum to one, but to zero where the largest score is −inf, and to NaN where it is bad."""
    sums = p.sum(-1, dtype=F32)
    want = torch.where(top == -math.inf, 0.0, torch.where(top.isnan() | (top == math.inf), math.nan, 1.0))
    allowed = _SUM[p.dtype] + (p.shape[-1] * _LEAST_F16 if p.dtype == F16 else 0.0)
    require_close("Σ p", sums.flatten()[:, None], want.flatten()[:, None], allowed)


def require_losses(got: Tensor, want: Tensor, size: Tensor) -> None:
    """Losses (R,) in any dtype; they are differences of numbers of this size. One next to overflow may be infinite."""
    relative, absolute = TOLERANCE[got.dtype]
    most = 0.98 * torch.finfo(got.dtype).max
    got, want = got.detach().double().clamp(max=most), want.clamp(max=most)
    allowed = relative * want.abs() + 3 * TOLERANCE[F32][0] * size + absolute
    require_close("loss", got.unsqueeze(-1), want.unsqueeze(-1), allowed.nan_to_num(0.0).unsqueeze(-1))
