"""The loss of a linear layer without its logits: values, and gradients of hidden vectors, weight and bias."""

import math

import torch
from torch import Tensor

from contmax.losses import linear_entmax_loss
from fuzz.gpu._case import BF16, F16, F32, Case, WrongResultError
from fuzz.gpu._compare import require_close, require_close_in_norm
from fuzz.gpu._references import loss64
from fuzz.gpu._scores import drawn_dtype

_IGNORED = -100
# Logits in float64 that are in memory at a time.
_MOST_LOGITS = 2**25
# In norm: the logits are rounded to the dtype of the layer, and the few that differ move a probability by that.
_GRADIENTS = {F32: 1e-3, F16: 2e-2, BF16: 6e-2}


def linear(case: Case) -> None:
    """Tokens from one to thousands, classes up to 128,256; sharp logits have few classes with mass, flat ones all."""
    dtype, alpha = drawn_dtype(case), case.choose((1.05, 1.2, 1.25, 4 / 3, 1.5, 1.5, 1.7, 2.0, 2.5))
    sizes = ((5, 40, 300), (8, 16, 33)) if case.is_small else ((1, 33, 512, 2048, 5000), (32, 100, 256, 1024))
    tokens, width = (case.choose(options) for options in sizes)
    classes = case.choose((10, 200) if case.is_small else (10, 1000, 32000, 50257, 128256))
    sharp, smoothing, has_bias = case.choose((0.05, 1.0, 3.0)), case.choose((0.0, 0.0, 0.1)), case.happens(0.3)
    form = case.choose(("normal", "ties"))
    case.describe(
        dtype, alpha, (tokens, width, classes), form, f"sharp {sharp:g}, smoothing {smoothing:g}, bias {has_bias}"
    )
    hidden, weight = case.normal(tokens, width), case.normal(classes, width).mul_(sharp / width**0.5)
    if form == "ties":
        # Whole classes and tokens are alike, so that logits are equal to the last bit.
        weight, hidden = (
            weight[torch.arange(classes, device=case.device) % 50],
            hidden[: tokens // 2 + 1].repeat(2, 1)[:tokens],
        )
    bias = case.normal(classes).to(dtype).requires_grad_() if has_bias else None
    ids = torch.where(case.uniform(tokens) < 0.1, _IGNORED, case.integers(classes, tokens))
    hidden = torch.where((ids == _IGNORED).unsqueeze(1), math.nan, hidden)
    hidden, weight = (x.to(dtype).requires_grad_() for x in (hidden, weight))
    places = case.sample(tokens, classes)[: max(1, _MOST_LOGITS // classes)]
    # Only the tokens that are compared have a cotangent: so the gradient of the weight is theirs alone.
    g = torch.zeros(tokens, device=case.device).index_copy_(0, places, case.normal(len(places)))
    options = {"ignore_index": _IGNORED, "label_smoothing": smoothing, "reduction": "none"}
    loss = linear_entmax_loss(hidden, weight, ids, alpha, bias=bias, **options)
    leaves = [x for x in (hidden, weight, bias) if x is not None]
    found = torch.autograd.grad(loss, leaves, g.to(loss.dtype))
    case.tried(tokens, classes)
    if not bool((loss >= 0).all()):
        raise WrongResultError(f"{int((~(loss >= 0)).sum())} of {tokens} losses are negative or NaN")
    _compare(case, leaves, ids, alpha, smoothing, loss, found, g.to(loss.dtype), places)


def _compare(
    case: Case,
    leaves: list[Tensor],
    ids: Tensor,
    alpha: float,
    smoothing: float,
    loss: Tensor,
    found: tuple[Tensor, ...],
    g: Tensor,
    places: Tensor,
) -> None:
    """Against logits that are computed in float64 and rounded once, as a layer in half precision rounds them."""
    dtype = leaves[0].dtype
    hidden, weight, *bias = (x.detach().double() for x in leaves)
    hidden = hidden.nan_to_num(0.0)
    logits = hidden[places] @ weight.mT
    logits = (logits + bias[0] if bias else logits).to(dtype).double()
    q = torch.zeros_like(logits).scatter_(1, ids[places].clamp(min=0).unsqueeze(1), 1.0)
    want, residual, _ = loss64(logits, q, alpha, None, smoothing)
    kept = ids[places] != _IGNORED
    unit = torch.finfo(dtype).eps
    size = 1 + logits.abs().amax(-1)
    allowed = (4 * unit + 3e-5) * size + 4 * unit * want.abs()
    require_close("loss", loss[places].unsqueeze(1), torch.where(kept, want, 0.0).unsqueeze(1), allowed.unsqueeze(1))
    slope = torch.where(kept, g[places].double(), 0.0).unsqueeze(1) * residual
    exact = [torch.zeros_like(hidden).index_copy_(0, places, slope @ weight), slope.mT @ hidden[places], slope.sum(0)]
    tolerance = _GRADIENTS[dtype] * (1 if alpha <= 2 else 3)
    for name, ours, theirs in zip(("hidden", "weight", "bias"), found, exact, strict=False):
        require_close_in_norm(f"gradient of {name}", ours, theirs, tolerance)
    case.compared(len(places), weight.shape[0])
