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
    FenchelYoungLoss,
    MomentHead,
    MultiheadContinuousAttention,
    PooledHead,
    Sparsemax,
)
from fuzz._campaign import target
from fuzz._rows import DTYPES, alphas, columns, dtypes, kinds, require, rows, seeds, wide_dtypes

BATCH, WIDTH = 16, 4


def _basis() -> contmax.basis.GaussianBasis:
    return contmax.basis.GaussianBasis.linspace(6, scale=(0.1, 0.5))


MODULES = {
    "discrete": lambda alpha: DiscreteAttention(WIDTH, alpha=alpha),
    "pooled": lambda alpha: ContinuousAttention(_basis(), alpha=alpha, head=PooledHead(WIDTH)),
    "moments": lambda alpha: ContinuousAttention(
        _basis(), alpha=alpha, head=MomentHead(DiscreteAttention(WIDTH, alpha=alpha))
    ),
    "combined": lambda alpha: CombinedAttention(DiscreteAttention(WIDTH, alpha=alpha), _basis(), alpha=alpha),
    "multihead": lambda alpha: MultiheadContinuousAttention(WIDTH, 2, _basis(), alpha=alpha),
}
gentle = st.one_of(st.sampled_from([1.0, 1.5, 2.0, 4 / 3]), st.floats(1.0, 3.0))


def _context(name: str, module: torch.nn.Module, values: Tensor, mask: Tensor) -> Tensor:
    arguments = (values[:, :3].nan_to_num(0, 0, 0), values) if name == "multihead" else (values,)
    return module(*arguments, mask=mask)[0]


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
    """Finite for values up to 10⁴, the same whatever stands under the mask, gradients of all parameters finite."""
    torch.manual_seed(seed)
    module = MODULES[name](alpha).to(DTYPES[dtype])
    values = rows(kind, BATCH * length, WIDTH, dtype, seed).clamp(-1e4, 1e4).view(BATCH, length, WIDTH)
    lengths = torch.randint(1, length + 1, (BATCH, 1))
    mask = torch.arange(length) < lengths
    mask[0] = False
    other = torch.where(mask[..., None], values, 7.0)
    found, again = _context(name, module, values, mask), _context(name, module, other, mask)
    flat = found.flatten(1)
    require(flat.isfinite().all(-1), "not finite", found=flat, values=values, alpha=alpha)
    if name != "multihead":  # its queries are the first values themselves
        size = 1e-4 * (1 + flat.detach().abs().amax(-1))
        require((flat - again.flatten(1)).abs().amax(-1) <= size, "depends on what is masked", found=flat, alpha=alpha)
    found.square().mean().backward()
    for key, parameter in module.named_parameters():
        slope = parameter.grad
        if slope is not None:
            require(slope.isfinite().all()[None], f"gradient of {key}", alpha=alpha, length=length)
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
