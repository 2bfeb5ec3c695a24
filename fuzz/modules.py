"""Modules: in every dtype finite outputs and gradients, and what is masked may hold anything."""

import torch
from hypothesis import strategies as st
from torch import Tensor

import contmax
from contmax.nn import (
    CombinedAttention,
    ContinuousAttention,
    DiscreteAttention,
    Entmax,
    EntmaxAttention,
    FenchelYoungLoss,
    GateHead,
    MomentHead,
    MultiheadContinuousAttention,
    PooledHead,
    Sparsemax,
    WindowHead,
)
from fuzz._campaign import target
from fuzz._rows import DTYPES, alphas, columns, dtypes, hidden, kinds, require, rows, seeds, wide_dtypes

BATCH, WIDTH = 16, 4


def _basis() -> contmax.basis.GaussianBasis:
    return contmax.basis.GaussianBasis.linspace(6, scale=(0.1, 0.5))


MODULES = {
    "discrete": lambda alpha: DiscreteAttention(WIDTH, alpha=alpha),
    "pooled": lambda alpha: ContinuousAttention(_basis(), alpha=alpha, head=PooledHead(WIDTH)),
    "moments": lambda alpha: ContinuousAttention(
        _basis(), alpha=alpha, head=MomentHead(DiscreteAttention(WIDTH, alpha=alpha))
    ),
    "gates": lambda alpha: ContinuousAttention(_basis(), alpha=alpha, head=GateHead(WIDTH)),
    "windows": lambda alpha: ContinuousAttention(
        _basis(), alpha=alpha, head=WindowHead(DiscreteAttention(WIDTH, alpha=alpha))
    ),
    "combined": lambda alpha: CombinedAttention(DiscreteAttention(WIDTH, alpha=alpha), _basis(), alpha=alpha),
    "multihead": lambda alpha: MultiheadContinuousAttention(WIDTH, 2, _basis(), alpha=alpha),
    "dot products": lambda alpha: EntmaxAttention(WIDTH, 2, alpha=alpha),
}
gentle = st.one_of(st.sampled_from([1.0, 1.5, 2.0, 4 / 3]), st.floats(1.0, 3.0))


def _context(name: str, module: torch.nn.Module, values: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    query = torch.ones(BATCH, 3, WIDTH, dtype=values.dtype)
    if name == "dot products":
        return module(query, values, mask=mask)
    if name == "multihead":
        return module(query, values, positions=positions, mask=mask)[0]
    where = {} if name == "discrete" else {"positions": positions}
    return module(values, mask=mask, **where)[0]


@target(
    "nn.attention",
    name=st.sampled_from(list(MODULES)),
    alpha=gentle,
    length=st.integers(1, 20),
    dtype=wide_dtypes,
    kind=st.sampled_from(["normal", "ties", "special", "wide"]),
    seed=seeds,
)
def attention_modules(name: str, alpha: float, length: int, dtype: str, kind: str, seed: int) -> int:
    """Finite for values up to 10⁴; NaN under the mask changes neither results nor gradients, those of weights too."""
    torch.manual_seed(seed)
    module = MODULES[name](alpha).to(DTYPES[dtype]).eval()
    values = rows(kind, BATCH * length, WIDTH, dtype, seed).clamp(-1e4, 1e4).view(BATCH, length, WIDTH)
    positions = torch.rand(BATCH, length, dtype=values.dtype)
    lengths = torch.randint(1, length + 1, (BATCH, 1))
    mask = torch.arange(length) < lengths
    mask[0] = False
    results = []
    for filler in (0.0, torch.nan):
        inputs = [hidden(values, mask[..., None]), hidden(positions, mask)]
        inputs = [x.detach().nan_to_num(filler).requires_grad_() for x in inputs]
        found = _context(name, module, *inputs, mask)
        wanted = [*inputs, *module.parameters()]
        slopes = torch.autograd.grad(found.square().mean(), wanted, allow_unused=True, materialize_grads=True)
        results.append([found, *slopes])
    names = ["context", "slope of values", "slope of positions", *dict(module.named_parameters())]
    for what, zeros, other in zip(names, *results, strict=True):
        shown = {"with_zeros": zeros, "with_nan": other, "alpha": alpha, "length": length}
        require(zeros.isfinite().all()[None], f"{what} is not finite", **shown)
        require((other == zeros).all()[None], f"{what} depends on what is masked", **shown)
    return BATCH


@target("nn.maps-and-losses", alpha=alphas, kind=kinds, width=columns, dtype=dtypes, seed=seeds)
def modules_are_their_functions(alpha: float, kind: str, width: int, dtype: str, seed: int) -> int:
    """Bit for bit."""
    x = rows(kind, 64, width, dtype, seed)
    target_ids = torch.arange(64) % width
    pairs = {
        "Sparsemax": (Sparsemax()(x), contmax.sparsemax(x)),
        "Entmax": (Entmax(alpha)(x), contmax.entmax(x, alpha)),
        "FenchelYoungLoss": (
            FenchelYoungLoss(alpha, reduction="none")(x, target_ids)[:, None],
            contmax.losses.entmax_loss(x, target_ids, alpha, reduction="none")[:, None],
        ),
    }
    for name, (module, function) in pairs.items():
        same = (module == function) | (module.isnan() & function.isnan())
        require(same.all(-1), name, scores=x, module=module, function=function, alpha=alpha)
    return 64 * len(pairs)
