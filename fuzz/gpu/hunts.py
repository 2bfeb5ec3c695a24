"""Hunts: as many rows as the device can take, through maps and losses, each watched for hangs and looked at.

Of every pass one row in 64 is compared in float64; of all others it is asked that probabilities sum to one, and that
losses are numbers and not negative. Half of the cases go backward too, where all gradients must be finite.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

import contmax
from contmax.losses import entmax_loss
from fuzz.gpu._case import BF16, F16, F32, Case, WrongResultError
from fuzz.gpu._compare import require_losses, require_probabilities, require_sums
from fuzz.gpu._references import entmax64, loss64
from fuzz.gpu._scores import KINDS

_DTYPES = (BF16, F32, F16)
_ALPHAS = (1.5, 1.25, 1.7, 2.0, 4 / 3, 1.5, 1.05, 1.2)
# Kinds that are cheap to make, and of which every row has another support.
_KINDS = ("normal", "ties", "sharp", "normal", "flat", "blocks", "normal", "coarse")
_LONG_COLUMNS = (128256, 32000, 50257, 65536, 128256, 32769)
_SHORT_COLUMNS = (20, 8, 28, 5, 64, 13, 11, 100, 3, 30, 500, 9, 1000)
# One of so many rows is compared.
_ONE_OF = 64
# Numbers of a pass, and passes of a case.
_NUMBERS, _SHORT_NUMBERS, _PASSES = 2**29, 2**27, 8


def _hunt(
    case: Case,
    look: Callable[[Case, Tensor, float, Tensor], tuple[Tensor, Tensor]],
    columns: tuple[int, ...],
    numbers: int,
) -> None:
    """Passes of fresh rows of one shape, dtype and α, of another kind each."""
    dtype, alpha, width, first = *map(case.choose, (_DTYPES, _ALPHAS, columns)), case.random.randrange(len(_KINDS))
    if case.is_small:
        width, numbers = min(width, 300), 2**12
    rows, scale, backward = min(numbers // width, 10**7), case.random.uniform(0.4, 1.6), case.happens(0.5)
    x = torch.empty(rows, width, dtype=dtype, device=case.device)
    for number in range(_PASSES):
        kind = _KINDS[(first + number) % len(_KINDS)]
        case.describe(
            dtype, alpha, (rows, width), kind, f"scale {scale:.4g}, pass {number}", *["backward"][: int(backward)]
        )
        x.normal_(generator=case.generator).mul_(scale)
        KINDS[kind](x)
        places = case.sample(rows, width, one_of=_ONE_OF)
        result = look(case, x.detach().requires_grad_(backward), alpha, places)
        if backward:
            _require_finite_gradient(result)
        case.tried(rows, width)
        case.compared(len(places), width)


def _require_finite_gradient(result: tuple[Tensor, Tensor]) -> None:
    x, y = result
    # The cotangent of probabilities are themselves, that of losses is one number for all.
    (grad,) = torch.autograd.grad(y, x, y.detach() if y.dim() == 2 else torch.ones_like(y[:1]).expand(y.shape))
    # NaN and infinities make a sum that is not finite; so might a sum of large numbers, but gradients here are below 1.
    if not bool(grad.sum(dtype=F32).isfinite()):
        raise WrongResultError(f"{int((~grad.isfinite()).sum())} of {grad.numel()} gradients are not finite")


def _map(case: Case, x: Tensor, alpha: float, places: Tensor) -> tuple[Tensor, Tensor]:
    p = contmax.entmax(x, alpha)
    require_sums(p.detach(), x[:, 0].detach())
    require_probabilities(p.detach()[places], entmax64(x.detach()[places], alpha), alpha)
    return x, p


def _hard(case: Case, x: Tensor, alpha: float, places: Tensor) -> tuple[Tensor, Tensor]:
    ids = case.integers(x.shape[1], x.shape[0])
    q = torch.zeros(len(places), x.shape[1], dtype=torch.float64, device=x.device)
    q.scatter_(1, ids[places].unsqueeze(1), 1.0)
    return x, _losses(x, ids, q, alpha, places)


def _soft(case: Case, x: Tensor, alpha: float, places: Tensor) -> tuple[Tensor, Tensor]:
    target = torch.zeros_like(x, requires_grad=False)
    first, second = (case.integers(x.shape[1], x.shape[0], 1) for _ in range(2))
    target.scatter_(1, first, 0.5)
    target.scatter_add_(1, second, torch.full_like(second, 0.5, dtype=x.dtype))
    return x, _losses(x, target, target[places].double(), alpha, places)


def _losses(x: Tensor, target: Tensor, q: Tensor, alpha: float, places: Tensor) -> Tensor:
    loss = entmax_loss(x, target, alpha, dim=-1, reduction="none")
    found, some = loss.detach(), x.detach()[places]
    wrong = ~(found >= 0) | (found == torch.inf)
    if bool(wrong.any()):
        raise WrongResultError(
            f"{int(wrong.sum())} of {len(x)} losses are not finite or negative: {found[wrong][0].item()}"
        )
    want = loss64(some, q, alpha)[0]
    require_losses(found[places], want, 1 + some.double().abs().amax(-1))
    return loss


# Maps, losses of classes and losses of soft targets: of rows of at least 32,000 scores, and of millions of short rows.
_long = functools.partial(_hunt, columns=_LONG_COLUMNS)
_short = functools.partial(_hunt, columns=_SHORT_COLUMNS)
long_maps = functools.partial(_long, look=_map, numbers=_NUMBERS)
long_hard = functools.partial(_long, look=_hard, numbers=_NUMBERS)
long_soft = functools.partial(_long, look=_soft, numbers=_NUMBERS // 4)
short_maps = functools.partial(_short, look=_map, numbers=_SHORT_NUMBERS)
short_hard = functools.partial(_short, look=_hard, numbers=_SHORT_NUMBERS)
short_soft = functools.partial(_short, look=_soft, numbers=_SHORT_NUMBERS // 4)
