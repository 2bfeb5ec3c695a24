"""What the tests of continuous attention's way for the commonest calls share: inputs, and the ordinary way."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from contmax import nn
from contmax.basis import Basis, GaussianBasis, MultivariateGaussianBasis
from contmax.signal import _fused_context

PLACES = pytest.mark.parametrize("place", ["line", "plane"])


@contextlib.contextmanager
def ordinary() -> Iterator[None]:
    """A context in which no call goes this way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fused_context, "_constants", lambda *arguments, **options: None)
        yield


def basis_of(place: str) -> Basis:
    if place == "line":
        return GaussianBasis([0.0, 0.2, 0.5, 0.6, 1.0], [0.1, 0.3, 0.1, 0.5, 0.2])
    widths = torch.tensor([[[0.04, 0.01], [0.01, 0.02]]]) * torch.tensor([1.0, 2.0, 0.5, 1.5, 1.0]).reshape(5, 1, 1)
    return MultivariateGaussianBasis(torch.rand(5, 2, generator=torch.Generator().manual_seed(3)), widths)


def attention(place: str, alpha: float | Tensor = 2.0, **options: Any) -> nn.ContinuousAttention:
    return nn.ContinuousAttention(basis_of(place), alpha=alpha, grid=None if place == "line" else (3, 5), **options)


def inputs(place: str, batch: int = 3, channels: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Values, locations and scales; 15 observations."""
    values = torch.randn(batch, 15, channels)
    if place == "line":
        return values, torch.rand(batch), 0.05 + 0.3 * torch.rand(batch)
    factor = 0.3 * torch.randn(batch, 2, 2)
    return values, torch.rand(batch, 2), factor @ factor.mT + 0.02 * torch.eye(2)


def learned(place: str, **sizes: int) -> list[Tensor]:
    return [x.requires_grad_() for x in inputs(place, **sizes)]


def called(attend: nn.ContinuousAttention) -> Callable[..., Tensor]:
    return lambda values, loc, scale: attend(values, (loc, scale), need_density=False)[0]


def both_ways(function: Callable[[], Any]) -> tuple[Any, Any]:
    """What a function gives this way, then by the ordinary one."""
    ours = function()
    with ordinary():
        return ours, function()


def assert_the_same(ours: Sequence[Tensor | None], theirs: Sequence[Tensor | None]) -> None:
    """Up to rounding of the largest number of each example: sums are taken in another order."""
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert mine.shape == other.shape
            torch.testing.assert_close(*_in_units(mine, other), rtol=0, atol=5e-6, equal_nan=True)


def _in_units(mine: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Both, divided by the largest number of each example of the second, or by 1."""
    sizes = torch.where(other.isfinite(), other, 0).detach().abs().reshape(len(other), -1)
    unit = sizes.amax(1).clamp(min=1).reshape(-1, *[1] * (other.dim() - 1))
    return mine / unit, other / unit


def value_and_gradients(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], cotangent: Tensor | None = None
) -> tuple[Tensor, ...]:
    result = function(*tensors)
    wanted = [x for x in tensors if x.requires_grad]
    cotangent = torch.linspace(-1, 2, result.numel()).reshape(result.shape) if cotangent is None else cotangent
    return result, *torch.autograd.grad(result, wanted, cotangent)
