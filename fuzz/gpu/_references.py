r"""What is right, in float64 and by torch's own operations: bisection on the normaliser, derivatives in closed form.

With ε = α − 1 and scores y ≤ 0 less their maximum, p = [1 + ε(y − A)]₊^{1/ε}, where A ≥ 0 makes Σ p = 1. Nothing here
is shared with the kernels: no Newton steps, no lists, no float32.
"""

import math

import torch
from torch import Tensor

# Halvings of the bracket of A, after which it is as narrow as float64 can tell.
_HALVINGS = 64
# Closer to α = 1 than this, float64 cannot tell entmax from softmax.
_NEAR_ONE = 1e-12


def column_of(alpha: float | Tensor, x: Tensor) -> Tensor:
    """α of each row of x, (…, 1), in float64."""
    index = torch.as_tensor(alpha, dtype=torch.float64, device=x.device)
    return index.expand(*x.shape[:-1], 1)


def below_maximum(x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scores in float64 less the maximum of their row, −inf where masked; and that maximum, (…, 1)."""
    x = x.detach().double()
    if mask is not None:
        x = x.masked_fill(~mask, -math.inf)
    top = x.amax(-1, keepdim=True)
    return x - torch.where(top == -math.inf, 0.0, top), top


def entmax64(x: Tensor, alpha: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """α-entmax along the last axis for α ≥ 1: NaN for rows with NaN or +inf, zeros for rows with nothing to attend.

    Args:
        x: scores (…, n), any dtype.
        alpha: α, a number or (…, 1).
        mask: True = may be attended, of the shape of the scores.
    """
    y, top = below_maximum(x, mask)
    broken = top.isnan() | (top == math.inf)
    y = torch.where(broken, 0.0, y).flatten(0, -2)
    epsilon = (column_of(alpha, x) - 1).flatten(0, -2)
    inside = y > torch.where(epsilon > _NEAR_ONE, -1 / epsilon.clamp(min=_NEAR_ONE), -math.inf)
    # Scores that cannot have mass are left out: sharp rows of many columns become short ones.
    row, column = inside.nonzero(as_tuple=True)
    place = inside.cumsum(-1)[row, column] - 1
    few = y.new_full((y.shape[0], int(inside.sum(-1).max()) if y.numel() else 0), -math.inf)
    few[row, place] = y[row, column]
    p = torch.zeros_like(y)
    p[row, column] = _probabilities(few, epsilon)[row, place]
    return torch.where(broken, math.nan, p.view(x.shape))


def _probabilities(y: Tensor, epsilon: Tensor) -> Tensor:
    """p of rows y ≤ 0, (R, m), with −inf for what has no mass; ε is (R, 1)."""
    if y.shape[-1] == 0:
        return y
    near = epsilon.abs() < _NEAR_ONE
    e = torch.where(near, 1.0, epsilon)
    low, high = torch.zeros_like(e), -torch.expm1(-e * math.log(y.shape[-1])) / e + 1e-12
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        exceeds = _weights(y, middle, e).sum(-1, keepdim=True) > 1
        low, high = torch.where(exceeds, middle, low), torch.where(exceeds, high, middle)
    p = _weights(y, 0.5 * (low + high), e)
    p = p / p.sum(-1, keepdim=True).clamp(min=1e-300)
    soft = y.exp()
    return torch.where(near, soft / soft.sum(-1, keepdim=True).clamp(min=1e-300), p)


def _weights(y: Tensor, normaliser: Tensor, epsilon: Tensor) -> Tensor:
    """[1 + ε(y − A)]₊^{1/ε}, through log1p, which keeps the digits near α = 1."""
    base = (y - normaliser) * epsilon
    has_mass = base > -1
    power = torch.exp(torch.log1p(torch.where(has_mass, base, 0.0)) / epsilon)
    return torch.where(has_mass, power, 0.0)


def distance_from_edge(x: Tensor, p: Tensor, alpha: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """How close a row comes to another support: the least |1 + ε(y − A)| of its scores, (…); p is `entmax64` of x.

    At α = 1 there is no edge, and the distance is 1.
    """
    y, _ = below_maximum(x, mask)
    epsilon = column_of(alpha, x) - 1
    largest = p.amax(-1, keepdim=True)
    root = (largest**epsilon + epsilon * y).abs()
    return torch.where(epsilon.squeeze(-1) < _NEAR_ONE, 1.0, root.nan_to_num(1.0, math.inf).amin(-1))


def escort64(p: Tensor, alpha: float | Tensor) -> Tensor:
    """s = p^{2−α} where p > 0, else 0."""
    positive = p > 0
    return torch.where(positive, torch.where(positive, p, 1.0) ** (2 - column_of(alpha, p)), 0.0)


def pulled_back64(p: Tensor, g: Tensor, alpha: float | Tensor) -> Tensor:
    """The gradient of the scores, s (g − ⟨g⟩), from probabilities and their cotangent in float64; ⟨·⟩ is under s."""
    s = escort64(p, alpha)
    return s * (g - _mean(s, g))


def alpha_gradient64(p: Tensor, g: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of α of each row, −Σ s D (g − ⟨g⟩) with D = ∂/∂α log_{2−α} p; and the sum of its terms' sizes."""
    index = column_of(alpha, p)
    epsilon = index - 1
    s = escort64(p, alpha)
    log_p = torch.where(p > 0, p, 1.0).log()
    z = epsilon * log_p
    # (1 − (1 − z) eᶻ)/ε², by its series where that cancels.
    series = log_p.square() * (0.5 + z * (1 / 3 + z * (1 / 8 + z * (1 / 30 + z / 144))))
    safe = torch.where(epsilon.abs() < _NEAR_ONE, 1.0, epsilon)
    rate = torch.where(z.abs() < 1e-3, series, (1 - (1 - z) * z.exp()) / safe.square())
    terms = s * rate * (g - _mean(s, g))
    sizes = s * rate * (g - g.mean(-1, keepdim=True)).abs()
    return -terms.sum(-1, keepdim=True), sizes.sum(-1, keepdim=True)


def _mean(s: Tensor, g: Tensor) -> Tensor:
    mass = s.sum(-1, keepdim=True)
    return (s * g).sum(-1, keepdim=True) / torch.where(mass > 0, mass, 1.0)


def negentropy64(p: Tensor, alpha: float | Tensor) -> Tensor:
    """Ω_α(p) = Σ p (p^{α−1} − 1) / (α(α−1)), Σ p ln p at α = 1; (…)."""
    index = column_of(alpha, p)
    epsilon = index - 1
    log_p = torch.where(p > 0, p, 1.0).log()
    safe = torch.where(epsilon.abs() < _NEAR_ONE, 1.0, epsilon)
    deformed = torch.where(epsilon.abs() < _NEAR_ONE, log_p, torch.expm1(epsilon * log_p) / safe)
    return (p * deformed).sum(-1) / index.squeeze(-1)


def inner64(y: Tensor, q: Tensor) -> Tensor:
    """⟨y, q⟩ with 0·(−inf) = 0."""
    return torch.where(q > 0, y * q, 0.0).sum(-1)


def loss64(
    x: Tensor, q: Tensor, alpha: float | Tensor, mask: Tensor | None = None, smoothing: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Ω*(x) + (1−s) Ω(q) − ⟨x, r⟩ with r = (1−s) q + s u, u uniform on the classes that the mask allows.

    Args:
        x: scores (…, n).
        q: the targets, probabilities of the shape of the scores, in float64.
        alpha: as above.
        mask: as above.
        smoothing: s.

    Returns:
        Losses (…), p − r and r (…, n). A row with nothing to attend has infinite loss.
    """
    y, top = below_maximum(x, mask)
    p = entmax64(x, alpha, mask)
    allowed = torch.ones_like(y) if mask is None else mask.expand(y.shape).double()
    expected = (1 - smoothing) * q + smoothing * allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
    conjugate = inner64(y, p) - negentropy64(p, alpha)
    loss = conjugate + (1 - smoothing) * negentropy64(q, alpha) - inner64(y, expected)
    loss = torch.where((top == -math.inf).squeeze(-1), math.inf, loss)
    return torch.where(p.isnan().any(-1), math.nan, loss), p - expected, expected
