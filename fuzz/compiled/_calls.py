"""Calls of public functions that launch every kernel: `few` each of them once or so, `many` in most of its forms.

The tensors are small, and on the CPU. Which kernel takes them depends on their shapes and dtypes alone.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import contmax
from contmax import losses, nn
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# ε = α − 1 = 1/k for k = 2, and for k = 1, 3, 4 kernels multiply where they take logarithms for all others.
COMMONEST, QUICK, OTHERS = 1.5, (2.0, 4 / 3, 1.25), (1.7, 1.0001)
BEYOND_TWO = 2.5
# Rows that fit on the chip, many of them in a program or one; rows that do not; rows whose backward pass does not.
SHORT, MIDDLE, LONG, LONG_BACKWARD = 5, 700, 40_000, 10_000
# Queries, and keys of which there are so many that those with mass are listed.
QUERIES, KEYS = 64, 1100


def few() -> None:
    """Every kernel, for α = 1.5 where that is open."""
    for columns in (SHORT, LONG):
        map_of_rows(columns, COMMONEST, F32)
        losses_of_rows(columns, COMMONEST, F32)
    map_of_rows(SHORT, BEYOND_TWO, F32)
    linear_loss(BF16, COMMONEST)
    attention(BF16, COMMONEST, keys=KEYS, is_causal=True)
    attention(BF16, COMMONEST, keys=KEYS, window=(300, 0))
    decoding(BF16, COMMONEST)
    decoding(BF16, COMMONEST, return_certificate=True)
    decoding(BF16, COMMONEST, key_budget=64)
    contexts(COMMONEST)
    line_of_any_alpha(1.7)


def many() -> None:
    """`few`, then other α, one for each row or head, masks, smoothing, dtypes, and widths of heads."""
    few()
    for dtype in (F32, BF16, F16):
        alphas = (COMMONEST, *QUICK, *OTHERS, BEYOND_TWO, per_row()) if dtype == F32 else (COMMONEST, OTHERS[0])
        for columns, alpha in itertools.product((SHORT, MIDDLE, LONG), alphas):
            map_of_rows(columns, alpha, dtype)
            losses_of_rows(columns, alpha, dtype)
        map_of_rows(LONG_BACKWARD, COMMONEST, dtype)
        linear_loss(dtype, COMMONEST, smoothing=0.1)
        attentions(dtype)
        decodings(dtype)
    for columns, alpha in itertools.product((SHORT, LONG), (COMMONEST, OTHERS[0], per_row())):
        mask = torch.ones(2, columns, dtype=torch.bool)
        map_of_rows(columns, alpha, BF16, mask)
        losses_of_rows(columns, alpha, BF16, mask, smoothing=0.1)
    for alpha in (2.0, OTHERS[0]):
        linear_loss(BF16, alpha, has_bias=False)
    for alpha in (1.25, 2.0):
        contexts(alpha)
    for index in (0.8, 1.1, torch.tensor([0.7, 1.6])):
        line_of_any_alpha(index)


def per_row() -> Tensor:
    """α of each of two rows, to be learned."""
    return torch.tensor([[1.3], [2.5]], requires_grad=True)


def differentiated(output: Tensor, *inputs: Any) -> None:
    """The backward pass too; what comes out has no meaning."""
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    torch.autograd.grad(output.sum(), leaves, allow_unused=True)


def leaf(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    """Zeros to differentiate by."""
    return torch.zeros(*shape, dtype=dtype, requires_grad=True)


def map_of_rows(columns: int, alpha: float | Tensor, dtype: torch.dtype, mask: Tensor | None = None) -> None:
    """α-entmax of two rows."""
    x = leaf(2, columns, dtype=dtype)
    differentiated(contmax.entmax(x, alpha, mask=mask), x, alpha)


def losses_of_rows(
    columns: int, alpha: float | Tensor, dtype: torch.dtype, mask: Tensor | None = None, smoothing: float = 0.0
) -> None:
    """Losses of two rows, of hard and of soft targets."""
    x, soft = leaf(2, columns, dtype=dtype), torch.full((2, columns), 1 / columns, requires_grad=mask is None)
    for target in (torch.zeros(2, dtype=torch.int64), soft):
        loss = losses.entmax_loss(x, target, alpha, mask=mask, label_smoothing=smoothing)
        differentiated(loss, x, target, alpha)


def linear_loss(dtype: torch.dtype, alpha: float, *, has_bias: bool = True, smoothing: float = 0.0) -> None:
    """The loss of a layer of 5,000 classes."""
    hidden, weight, bias = leaf(3, 16, dtype=dtype), leaf(5000, 16, dtype=dtype), leaf(5000, dtype=dtype)
    target = torch.zeros(3, dtype=torch.int64)
    given = {"bias": bias} if has_bias else {}
    loss = losses.linear_entmax_loss(hidden, weight, target, alpha, label_smoothing=smoothing, **given)
    differentiated(loss, hidden, weight, bias)


def attention(
    dtype: torch.dtype,
    alpha: float | Tensor,
    *,
    keys: int,
    widths: tuple[int, int] = (16, 16),
    groups: int = 2,
    **options: Any,
) -> None:
    """Attention of two heads; widths of queries and of values."""
    query = leaf(1, 2, QUERIES, widths[0], dtype=dtype)
    key, value = (leaf(1, groups, keys, width, dtype=dtype) for width in widths)
    output = contmax.entmax_attention(query, key, value, alpha=alpha, enable_gqa=groups == 1, **options)
    differentiated(output, query, key, value, alpha)


def attentions(dtype: torch.dtype) -> None:
    """Few and many keys, all α, everything that changes scores, heads in groups and of several widths."""
    per_head = torch.tensor([1.2, 1.8], requires_grad=True)
    few_keys, many_keys = 150, KEYS if dtype == F32 else 5000
    alphas = (COMMONEST, *QUICK, OTHERS[0], per_head) if dtype != F16 else (COMMONEST,)
    for alpha in alphas:
        attention(dtype, alpha, keys=many_keys, is_causal=True)
    attention(dtype, COMMONEST, keys=few_keys, is_causal=True)
    for keys in (few_keys, many_keys):
        attention(dtype, per_head, keys=keys, window=(50, 3))
    changes = {"mask": torch.ones(QUERIES, many_keys, dtype=torch.bool), "bias": torch.zeros(1, QUERIES, many_keys)}
    attention(dtype, per_head, keys=many_keys, lengths=torch.tensor([70]), **changes)
    shapes: Sequence[tuple[int, int]] = ((20, 20), (64, 64), (128, 128), (64, 32), (1, 3))
    for widths in shapes if dtype == BF16 else shapes[:2]:
        attention(dtype, COMMONEST, keys=many_keys, widths=widths)
    attention(dtype, COMMONEST, keys=10_000, groups=1, is_causal=True)


def decoding(dtype: torch.dtype, alpha: float | Tensor, *, width: int = 16, keys: int = 300, **options: Any) -> None:
    """Two queries of eight heads that share four heads of keys, without gradients."""
    query, key = (torch.zeros(1, heads, n, width, dtype=dtype) for heads, n in ((8, 2), (4, keys)))
    contmax.entmax_attention(query, key, key, alpha=alpha, enable_gqa=True, **options)


def decodings(dtype: torch.dtype) -> None:
    """Every α, everything that changes scores, widths of heads, and caches so long that more warps solve a row."""
    for alpha in (COMMONEST, *QUICK, OTHERS[0], torch.linspace(1, 2, 8)):
        decoding(dtype, alpha, is_causal=True)
    changes = {"mask": torch.ones(2, 300, dtype=torch.bool), "bias": torch.zeros(8, 1, 301)}
    for certified in (False, True):
        told = {"return_certificate": certified}
        decoding(dtype, OTHERS[0], lengths=torch.tensor([70]), **changes, **told)
        for width in (20, 64, 128) if dtype == F32 else (64, 128, 256):
            decoding(dtype, COMMONEST, width=width, **told)
        decoding(dtype, COMMONEST, keys=140_000, **told)
    decoding(dtype, OTHERS[0], key_budget=64, **changes)


def contexts(alpha: float) -> None:
    """Continuous attention on the line and in the plane: predicted and given densities, a mask, several queries."""
    for basis, grid in ((GaussianBasis.covering(32), None), (MultivariateGaussianBasis.covering(6), (5, 6))):
        attend = nn.ContinuousAttention(basis, embed_dim=8, grid=grid, alpha=alpha)
        values = leaf(2, 30, 8)
        differentiated(attend(values)[0], values, *attend.parameters())
        loc = leaf(2) if grid is None else leaf(2, 2)
        scale = (torch.ones(2) if grid is None else torch.eye(2).repeat(2, 1, 1)).requires_grad_()
        differentiated(attend(values, (loc, scale))[0], values, loc, scale)
        several = (loc.unsqueeze(1), scale.unsqueeze(1))
        differentiated(attend(values, several)[0], values, loc, scale)
        differentiated(attend(values, several, mask=torch.ones(2, 30, dtype=torch.bool))[0], values, loc, scale)


def line_of_any_alpha(alpha: float | Tensor) -> None:
    """Expectations of a basis on the line under β-Gaussians, learned basis and all."""
    loc, scale = leaf(2), torch.ones(2, requires_grad=True)
    basis = GaussianBasis(torch.zeros(7), torch.ones(7), learnable=True)
    mean = contmax.expectation(BetaGaussian(loc, scale, alpha, validate_args=False), basis)
    differentiated(mean, loc, scale, alpha, *basis.parameters())
