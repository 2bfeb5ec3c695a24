"""The model: a decoder as the authors build it, with the attention of the row."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax.nn import EntmaxAttention
from contmax_lab.tasks.lengths._problems import Kind, Problem

# Initial standard deviation of the weights, times the square root of the width: 0.02 for 256 channels.
_DEVIATION = 0.32
_EPSILON = 1e-6
# torch's softmax attention stores a bias for each pair of positions: with more keys than this, take queries in blocks.
_MOST_KEYS, _BLOCK = 4096, 1024


def normed(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x / √(mean of x²), times 1 + scale, computed in float32."""
    x = x.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _EPSILON) * (1 + scale)).to(dtype)


def added(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    """The residual stream x, float32, and what a part of a layer adds to it."""
    return x + normed(y, scale, torch.float32)


def fed_forward(
    x: Tensor, before: Tensor, gate: Tensor, up: Tensor, down: Tensor, after: Tensor, dtype: torch.dtype
) -> Tensor:
    """A feed-forward layer with a gate, between two norms; its products have the given dtype."""
    y = normed(x, before, dtype)
    hidden = F.gelu(F.linear(y, gate.to(dtype)), approximate="tanh") * F.linear(y, up.to(dtype))
    return added(x, F.linear(hidden, down.to(dtype)), after)


class Parts(NamedTuple):
    """The functions of a layer other than its attention; `compiled_parts` has them compiled."""

    normed: Callable[[Tensor, Tensor, torch.dtype], Tensor] = normed
    added: Callable[[Tensor, Tensor, Tensor], Tensor] = added
    fed_forward: Callable[..., Tensor] = fed_forward


@functools.cache
def compiled_parts() -> Parts:
    """The parts compiled by torch. Weights are arguments, so all layers of all models of one size share the code."""
    return Parts(*(torch.compile(part, dynamic=False) for part in Parts()))


class Layer(nn.Module):
    """Attention and a feed-forward layer, each between two norms and beside the identity."""

    learned_scales: Tensor

    def __init__(self, problem: Problem, kind: Kind) -> None:
        super().__init__()
        width = problem.width
        self.attention = EntmaxAttention(
            width,
            problem.heads,
            alpha=kind.alpha,
            learnable=kind.learned,
            bias=False,
            is_causal=True,
            alibi="half",
            length_scale="adaptive" if kind.scale == "adaptive" else kind.scale == "logarithm",
        )
        self.norms = nn.Parameter(torch.zeros(4, width))
        self.gate, self.up = (nn.Linear(width, problem.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(problem.inner, width, bias=False)
        if kind.scale == "logarithm":
            self._scale_by_logarithm()

    def _scale_by_logarithm(self) -> None:
        """λ(n) = β ln n in heads without positions, with a β that is learned and begins at 1; λ = 1 in the others."""
        scales = self.attention.length_scale
        assert scales is not None
        free = torch.arange(len(scales)) >= len(scales) // 2
        learned = torch.zeros_like(scales)
        learned[:, 1] = free
        self.register_buffer("learned_scales", learned)
        with torch.no_grad():
            scales[:, 0], scales[:, 1] = ~free, free
        scales.register_hook(lambda gradient: gradient * self.learned_scales)

    def forward(self, x: Tensor, parts: Parts, dtype: torch.dtype) -> Tensor:
        norms = self.norms.unbind()
        y = parts.normed(x, norms[0], dtype)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            y = self._attended(y)
        x = parts.added(x, y, norms[1])
        weights = (self.gate.weight, self.up.weight, self.down.weight)
        return parts.fed_forward(x, norms[2], *weights, norms[3], dtype)

    def _attended(self, y: Tensor) -> Tensor:
        alpha, length = self.attention.alpha, y.shape[1]
        if length <= _MOST_KEYS or isinstance(alpha, Tensor) or alpha != 1:
            output: Tensor = self.attention(y)
            return output
        ends = range(_BLOCK, length + _BLOCK, _BLOCK)
        blocks = (self.attention(y[:, end - _BLOCK : end], y[:, :end]) for end in ends)
        return torch.cat(list(blocks), 1)


class Network(nn.Module):
    """Symbols → logits of the next symbol.

    Args:
        problem: the sizes.
        kind: the attention.

    Example:
        >>> import dataclasses
        >>> from contmax_lab.tasks.lengths._problems import KINDS, PROBLEMS
        >>> small = dataclasses.replace(PROBLEMS["copy"], width=16, heads=2, inner=16)
        >>> Network(small, KINDS["asentmax"])(torch.zeros(3, 10, dtype=torch.long), last=4).shape
        torch.Size([3, 4, 36])
    """

    def __init__(self, problem: Problem, kind: Kind) -> None:
        super().__init__()
        count, width = problem.words + 4, problem.width
        self.symbols = nn.Parameter(torch.empty(count, width))
        self.layers = nn.ModuleList([Layer(problem, kind) for _ in range(problem.layers)])
        self.norm = nn.Parameter(torch.zeros(width))
        self.logits = nn.Parameter(torch.empty(count, width))
        self.parts = Parts()
        matrices: list[Tensor] = [self.symbols, self.logits]
        for module in self.modules():
            if isinstance(module, nn.Linear):
                matrices.append(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for matrix in matrices:
            nn.init.normal_(matrix, std=_DEVIATION / math.sqrt(width))

    def forward(self, tokens: Tensor, last: int | None = None) -> Tensor:
        """Logits (B, n, symbols) of the symbols that come after the last n ones; after all of them by default."""
        dtype = torch.bfloat16 if tokens.is_cuda else torch.float32
        # Use a matrix product, not a look-up: the derivative of a look-up adds numbers in an arbitrary order.
        chosen = (tokens.unsqueeze(-1) == torch.arange(len(self.symbols), device=tokens.device)).to(dtype)
        x = (chosen @ self.symbols.to(dtype)).float() * math.sqrt(self.symbols.shape[1])
        for layer in self.layers:
            x = layer(x, self.parts, dtype)
        x = self.parts.normed(x if last is None else x[:, -last:], self.norm, dtype)
        return F.linear(x, self.logits.to(dtype)).float()

    def attentions(self) -> list[EntmaxAttention]:
        """The attention of each layer."""
        return [layer.attention for layer in self.layers if isinstance(layer, Layer)]
