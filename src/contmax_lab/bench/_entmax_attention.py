"""The suite `entmax-attention`: entmax attention against scaled_dot_product_attention, on one thread."""

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import contmax
from contmax_lab.bench._figure import Figure
from contmax_lab.bench._suite import Suite
from contmax_lab.bench._timing import Effort, Ratio, interleaved

_TIME = "forward + backward: time / scaled_dot_product_attention"


def _figures(effort: Effort) -> Iterator[Figure]:
    shape = (1, 2, 64, 16) if effort.small else (1, 8, 1024, 64)
    inputs = [torch.randn(shape, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3)]
    cotangent = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    for is_causal in (False, True):
        softmax = _pass(inputs, cotangent, functools.partial(scaled_dot_product_attention, is_causal=is_causal))
        for alpha in (1.5, 2.0):
            entmax = _pass(inputs, cotangent, _entmax(alpha, is_causal))
            times = interleaved({"torch": softmax, "contmax": entmax}, effort)
            ratio = Ratio.of(times["contmax"], times["torch"])
            details = {"minimum": ratio.minimum, "rounds": ratio.rounds}
            row = f"{shape}, {'causal' if is_causal else 'not causal'}"
            yield Figure(_TIME, row, f"α = {alpha:g}", ratio.median, at_most=2.0, details=details)


def _entmax(alpha: float, is_causal: bool) -> Callable[..., Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = contmax.entmax_attention(query, key, value, alpha=alpha, is_causal=is_causal)
        assert isinstance(output, Tensor)
        return output

    return attend


def _pass(inputs: list[Tensor], cotangent: Tensor, attend: Callable[..., Tensor]) -> Callable[[], object]:
    return lambda: torch.autograd.grad(attend(*inputs), inputs, cotangent)


ENTMAX_ATTENTION = Suite("entmax-attention", _figures)
