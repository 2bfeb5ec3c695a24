"""Attention by α-entmax against explicit scores in float64: masks, biases, lengths, groups of heads, every width."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

import contmax
from fuzz.gpu._case import BF16, F16, F32, Case, WrongResultError, shown
from fuzz.gpu._compare import require_close, require_close_in_norm
from fuzz.gpu._references import alpha_gradient64, distance_from_edge, entmax64, pulled_back64
from fuzz.gpu._scores import drawn_dtype

# Of outputs relative to the largest value, and of gradients in norm.
_OUTPUT = {F32: 3e-5, F16: 4e-3, BF16: 2.5e-2}
_GRADIENT = {F32: 3e-4, F16: 2e-2, BF16: 8e-2}
# Of the sum of absolute values that a gradient adds up.
_UNIT = {F32: 1e-5, F16: 1e-3, BF16: 8e-3}
# Closer to another support than this, in units of the scores' size, the gradient may be that of either support.
_EDGE = {F32: 1e-5, F16: 1e-3, BF16: 1e-3}
# Scores in float64 that are in memory at a time.
_MOST_SCORES = 2**24
# Pairs of a query and a key of one head, so that a case takes a second or two.
_MOST_PAIRS = 2**25


@dataclasses.dataclass
class _Given:
    """Arguments of a call: query (B, H, Q, d), key (B, G, L, d), value (B, G, L, c), and what comes with them."""

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: float | Tensor
    options: dict[str, Any]

    @property
    def leaves(self) -> list[Tensor]:
        tensors = [self.query, self.key, self.value]
        return [*tensors, self.alpha] if isinstance(self.alpha, Tensor) else tensors

    @property
    def alpha_of_heads(self) -> float | Tensor:
        return self.alpha.detach().view(-1, 1, 1) if isinstance(self.alpha, Tensor) else self.alpha


def short(case: Case) -> None:
    """Up to 1,024 keys: products of whole tiles in half precision, lists in float32."""
    queries, keys = _lengths(case, (1, 5, 33, 64, 65, 100, 200, 512), (1, 17, 63, 64, 100, 257, 512, 1000, 1024))
    _attend(case, case.choose((1, 1, 2, 4)), queries, keys)


def long(case: Case) -> None:
    """Up to 8,192 keys, of which few are listed, or all are dense where scores are flat."""
    queries, keys = _lengths(case, (1, 33, 100, 300), (1025, 2048, 3000, 4096, 4100, 8192))
    _attend(case, 1, queries, keys)


def sampled(case: Case) -> None:
    """Up to 65,536 keys and many queries; outputs and gradients of some queries are compared."""
    queries, keys = _lengths(case, (512, 2000, 4096), (4096, 16384, 32768, 65536))
    queries = min(queries, _MOST_PAIRS // keys)
    given = _drawn(case, 1, queries, keys, plain=True)
    output = contmax.entmax_attention(given.query, given.key, given.value, alpha=given.alpha, **given.options)
    heads = output.shape[1]
    case.tried(heads * queries, keys)
    count = max(1, min(queries, _MOST_SCORES // (heads * keys)))
    places = case.integers(queries, count).unique()
    scores, allowed = _scores(given, places)
    p = entmax64(scores, given.alpha_of_heads, allowed)
    value = _repeated(given.value, heads)
    _compare_outputs(output[:, :, places], p @ value, value, scores, output.dtype)
    g = torch.randn(output.shape, device=output.device, generator=case.generator).to(output.dtype)
    grads = torch.autograd.grad(output, given.leaves, g)
    slope = pulled_back64(p, g[:, :, places].double() @ value.mT, given.alpha_of_heads)
    clear = _clear_rows(scores, p, given, allowed, output.dtype)
    exact, terms = _product(slope, _repeated(given.key, heads), _scale(given))
    tolerance, unit = _GRADIENT[output.dtype] * _growth(scores), _UNIT[output.dtype]
    ours = grads[0][:, :, places][clear]
    require_close_in_norm("gradient of query", ours, exact[clear], tolerance, terms[clear], unit)
    for name, grad in zip(("key", "value", "α"), grads[1:], strict=False):
        if not bool(grad.isfinite().all()):
            raise WrongResultError(f"the gradient of {name} is not finite")
    case.compared(heads * len(places), keys)


def decoded(case: Case) -> None:
    """Few queries without gradients, and up to 65,536 keys."""
    queries, keys = _lengths(case, (1, 1, 2, 8, 31), (1, 100, 1024, 5000, 20000, 65536))
    given = _drawn(case, 2 if keys <= 5000 else 1, queries, keys, plain=keys > 5000)
    with torch.no_grad():
        output = contmax.entmax_attention(given.query, given.key, given.value, alpha=given.alpha, **given.options)
    rows = output.shape[:3].numel()
    case.tried(rows, keys)
    scores, allowed = _scores(given)
    value = _repeated(given.value, output.shape[1])
    _compare_outputs(output, entmax64(scores, given.alpha_of_heads, allowed) @ value, value, scores, output.dtype)
    case.compared(rows, keys)


def _lengths(case: Case, queries: tuple[int, ...], keys: tuple[int, ...]) -> tuple[int, int]:
    if case.is_small:
        return case.choose((1, 5, 40)), case.choose((1, 17, 70))
    return case.choose(queries), case.choose(keys)


def _drawn(case: Case, batch: int, queries: int, keys: int, plain: bool = False) -> _Given:
    """Arguments of every kind; `plain` ones have no masks and biases of the size of the scores."""
    dtype, heads, shared = drawn_dtype(case), case.choose((1, 2, 3)), case.choose((1, 1, 2, 4))
    widths = (16, 40, 64, 64, 80, 128) if dtype == F32 else (16, 33, 64, 64, 96, 128, 256)
    width, value_width = case.choose(widths), case.choose(widths)
    if case.is_small:
        width, value_width = case.choose((7, 16)), case.choose((5, 16))
    kind, sharp = (
        case.choose(("normal", "normal", "ties", "clusters", "equal")),
        case.choose((0.02, 1.0, 1.5, 3.0, 8.0)),
    )
    alpha = _alpha(case, heads * shared, plain)
    options = _options(case, batch, heads * shared, queries, keys, dtype, plain)
    case.describe(
        dtype, alpha if isinstance(alpha, float) else "α per head", (batch, heads * shared, queries, keys),
        f"groups of {shared}, widths {width} and {value_width}, {kind}, sharp {sharp:g}", *(
            f"{name} {tuple(x.shape) if isinstance(x, Tensor) else x}" for name, x in options.items()
        ),
    )  # fmt: skip
    query, key = case.normal(batch, heads * shared, queries, width), case.normal(batch, heads, keys, width)
    value = case.normal(batch, heads, keys, value_width)
    if kind == "ties":
        query, key = query.mul_(2).round_().div_(2), key.mul_(1.5).round_()
    elif kind == "clusters":
        centres = case.normal(1, 1, max(queries, keys) // 64 + 1, width).mul_(2).repeat_interleave(64, 2)
        query, key = query + centres[:, :, :queries], key.mul_(0.5) + centres[:, :, :keys]
    elif kind == "equal":
        key = key[:, :, :1].expand(key.shape)
    query = query.mul_(sharp)
    seen = _seen(options, keys, key)
    key, value = torch.where(seen, key, math.nan), torch.where(seen, value, math.nan)
    tensors = [_laid_out(case, x.to(dtype)).detach().requires_grad_() for x in (query, key, value)]
    return _Given(*tensors, alpha, {**options, "enable_gqa": shared > 1})


def _seen(options: dict[str, Any], keys: int, like: Tensor) -> Tensor:
    """Which keys some query may attend, (B or 1, 1, L, 1); the others are NaN, and must not matter."""
    seen = torch.ones(1, 1, keys, 1, dtype=torch.bool, device=like.device)
    if "lengths" in options:
        seen = torch.arange(keys, device=like.device)[:, None] < options["lengths"].view(-1, 1, 1, 1)
    if "mask" in options:
        pairs = options["mask"]
        of_keys = pairs.view((1,) * (4 - pairs.dim()) + pairs.shape).any(2).any(1)
        seen = seen & of_keys[:, None, :, None]
    return seen


def _alpha(case: Case, heads: int, plain: bool) -> float | Tensor:
    """In [1, 2]; beyond that, where no kernel of attention is, only for few scores."""
    if case.happens(0.25):
        return case.uniform(heads, low=1.02, high=2.0).requires_grad_()
    alphas = (1.05, 1.1, 1.25, 4 / 3, 1.5, 1.5, 1.5, 1.7, 1.9, 2.0, 2.0)
    return case.choose(alphas if plain else (*alphas, 1.0, 2.5))


def _options(
    case: Case, batch: int, heads: int, queries: int, keys: int, dtype: torch.dtype, plain: bool
) -> dict[str, Any]:
    """What may come with queries, keys and values."""
    options: dict[str, Any] = {"is_causal": case.happens(0.4)}
    if case.happens(0.25):
        # Also none at all, and more than there are.
        options["lengths"] = case.integers(keys + 20, batch)
    if case.happens(0.2):
        options["window"] = (case.choose((None, 0, 10, 300, keys)), case.choose((None, 0, 5, 200)))
    if case.happens(0.15):
        options["scale"] = case.choose((0.3, -0.2, 0.0))
    if case.happens(0.25) and not plain:
        shape = case.choose(((batch, 1, 1, keys), (queries, keys), (batch, heads, queries, keys)))
        options["mask"] = case.uniform(*shape) < case.choose((0.1, 0.5, 0.9))
    if case.happens(0.3):
        shapes: list[tuple[int, ...]] = [(heads, 1, queries + keys - 1)]
        shapes += [] if plain else [(heads, queries, keys), (heads, 1, keys)]
        bias = case.normal(*case.choose(shapes))
        options["bias"] = bias.to(case.choose((dtype, F32)))
    return options


def _laid_out(case: Case, x: Tensor) -> Tensor:
    """As it comes, with positions before heads in memory, or at an odd address."""
    layout = case.choose(("contiguous", "contiguous", "positions first", "offset"))
    if layout == "positions first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "offset":
        return x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    return x


def _attend(case: Case, batch: int, queries: int, keys: int) -> None:
    """Output and all gradients; rows next to another support get no cotangent, for there gradients jump."""
    given = _drawn(case, batch, queries, keys)
    output = contmax.entmax_attention(given.query, given.key, given.value, alpha=given.alpha, **given.options)
    heads, dtype = output.shape[1], output.dtype
    case.tried(batch * heads * queries, keys)
    scores, allowed = _scores(given)
    p = entmax64(scores, given.alpha_of_heads, allowed)
    value, key = _repeated(given.value, heads), _repeated(given.key, heads)
    _compare_outputs(output, p @ value, value, scores, dtype)
    clear = _clear_rows(scores, p, given, allowed, dtype)
    g = torch.randn(output.shape, device=output.device, generator=case.generator).to(dtype)
    g = torch.where(clear.unsqueeze(-1), g, 0)
    grads = torch.autograd.grad(output, given.leaves, g)
    wide = g.double()
    slope = pulled_back64(p, wide @ value.mT, given.alpha_of_heads)
    query = given.query.detach().double()
    exact = {
        "query": _product(slope, key, _scale(given)),
        "key": [_summed(x, given.key) for x in _product(slope.mT, query, _scale(given))],
        "value": [_summed(x, given.value) for x in _product(p.mT, wide)],
    }
    # Beyond α = 2 the least probability has the largest slope.
    steep = 10.0 if isinstance(given.alpha, float) and given.alpha > 2 else 1.0
    tolerance = steep * _GRADIENT[dtype] * _growth(scores)
    for (name, (theirs, terms)), ours in zip(exact.items(), grads, strict=False):
        require_close_in_norm(f"gradient of {name}", ours, theirs, tolerance, terms, _UNIT[dtype])
    if isinstance(given.alpha, Tensor):
        of_rows, size = alpha_gradient64(p, wide @ value.mT, given.alpha_of_heads)
        allowed_error = 3 * tolerance * size.sum((0, 2, 3)) + 1e-3
        require_close("gradient of α", grads[3][:, None], of_rows.sum((0, 2, 3))[:, None], allowed_error[:, None])
    case.compared(batch * heads * queries, keys)


def _scale(given: _Given) -> float:
    scale = given.options.get("scale")
    return given.query.shape[-1] ** -0.5 if scale is None else scale


def _product(a: Tensor, b: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """A product of matrices, and that of the absolute values."""
    return a @ b * scale, a.abs() @ b.abs() * abs(scale)


def _repeated(x: Tensor, heads: int) -> Tensor:
    """For every head of queries, with zeros for what is masked."""
    return x.detach().double().nan_to_num(0.0).repeat_interleave(heads // x.shape[1], 1)


def _summed(x: Tensor, like: Tensor) -> Tensor:
    """Gradients of all query heads as those of the heads of keys, which they share."""
    return x.unflatten(1, (like.shape[1], -1)).sum(2)


def _scores(given: _Given, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scores in float64 of all queries or of those at `places`, and which keys they may attend; (B, H, Q, L) each."""
    query, keys = given.query.detach().double(), given.key.shape[2]
    queries = query.shape[2]
    place = torch.arange(queries, device=query.device) if places is None else places
    scores = query[:, :, place] @ _repeated(given.key, query.shape[1]).mT * _scale(given)
    column = torch.arange(keys, device=query.device)
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if given.options["is_causal"]:
        allowed &= column <= place[:, None] + keys - queries
    if "window" in given.options:
        left, right = given.options["window"]
        ahead = column - (place[:, None] + keys - queries)
        allowed &= (ahead >= -(queries + keys if left is None else left)) & (
            ahead <= (keys if right is None else right)
        )
    if "lengths" in given.options:
        allowed &= column < given.options["lengths"].view(-1, 1, 1, 1)
    if "mask" in given.options:
        allowed &= given.options["mask"]
    bias = given.options.get("bias")
    if bias is not None:
        bias = bias.double()
        if queries > 1 and bias.shape[-1] == queries + keys - 1 and bias.shape[-2] == 1:
            bias = bias.squeeze(-2)[..., column - place[:, None] + queries - 1]
        scores = scores + bias
    return scores, allowed


def _growth(scores: Tensor) -> float:
    """Rounding grows with the scores; those of tests go up to about four."""
    return max(1.0, scores.abs().max().item() / 4)


def _compare_outputs(got: Tensor, want: Tensor, value: Tensor, scores: Tensor, dtype: torch.dtype) -> None:
    if got.dtype != dtype or not bool(got.isfinite().all()):
        raise WrongResultError(
            f"output: {shown(got.dtype)}, {int((~got.isfinite()).sum())} of {got.numel()} not finite"
        )
    allowed = _OUTPUT[dtype] * (_growth(scores) if dtype == F32 else 1.0) * max(1.0, value.abs().max().item())
    require_close("output", got.flatten(0, -2), want.flatten(0, -2), allowed)


def _clear_rows(scores: Tensor, p: Tensor, given: _Given, allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether the support of a row is beyond doubt, (B, H, Q)."""
    distance = distance_from_edge(scores, p, given.alpha_of_heads, allowed)
    size = 1e-2 + torch.where(allowed, scores, 0.0).abs().amax(-1)
    return (
        distance > _EDGE[dtype] * size if math.isfinite(float(size.max())) else torch.zeros_like(size, dtype=torch.bool)
    )
