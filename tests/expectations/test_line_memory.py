"""Expectations for every α by torch's operations take memory that does not grow faster than their result."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import contmax
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax.expectations import _line_scales_chunks


class LiveMemory(TorchDispatchMode):
    """The most bytes that tensors made in this context have held at one time."""

    def __init__(self):
        super().__init__()
        self.peak, self._now, self._sizes = 0, 0, {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self._sizes:
                self._sizes[storage._cdata] = storage.nbytes()
                self._now += storage.nbytes()
                self.peak = max(self.peak, self._now)
                weakref.finalize(storage, self._free, storage._cdata)
        return result

    def _free(self, key):
        self._now -= self._sizes.pop(key, 0)


BASIS = GaussianBasis.linspace(4, scale=(0.1, 0.3), learnable=True).double()


def arguments(count):
    shape = (2, count // 2)
    loc, scale = torch.rand(shape, dtype=torch.float64), 0.1 + torch.rand(shape, dtype=torch.float64)
    # Heavy tails are not for the compiled kernel.
    return [x.requires_grad_() for x in (loc, scale, 0.7 + torch.rand(shape, dtype=torch.float64))]


def value_and_gradients(parameters):
    r = contmax.expectation(BetaGaussian(*parameters, validate_args=False), BASIS)
    return r, *torch.autograd.grad(r.sin().sum(), (*parameters, *BASIS.parameters()))


def peak(count):
    parameters = arguments(count)
    with LiveMemory() as memory:
        r = value_and_gradients(parameters)[0]
    return memory.peak, r.nbytes


def test_memory_grows_with_the_result(monkeypatch):
    monkeypatch.setattr(_line_scales_chunks, "_LEAST_CPU", 32)
    value_and_gradients(arguments(8))  # tables are made once
    (few, small), (many, large) = peak(16), peak(144)
    assert many - few <= 8 * (large - small)


@pytest.mark.parametrize("count", [30, 46])
def test_chunks_are_the_whole(count, monkeypatch):
    parameters = arguments(count)
    whole = value_and_gradients(parameters)
    monkeypatch.setattr(_line_scales_chunks, "_LEAST_CPU", 28)  # seven densities
    torch.testing.assert_close(value_and_gradients(parameters), whole)


def test_chunks_have_higher_derivatives_and_transforms(monkeypatch):
    monkeypatch.setattr(_line_scales_chunks, "_LEAST_CPU", 8)
    loc, scale, index = arguments(6)

    def r(loc, index):
        return contmax.expectation(BetaGaussian(loc, scale.detach(), index, validate_args=False), BASIS)

    def answers():
        (first,) = torch.autograd.grad(r(loc, index).square().sum(), index, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), loc)
        forward = torch.func.jvp(r, (loc.detach(), index.detach()), (torch.ones_like(loc), torch.ones_like(index)))[1]
        return first.detach(), second, forward.detach()

    chunked = answers()
    monkeypatch.setattr(_line_scales_chunks, "_LEAST_CPU", 10**6)
    torch.testing.assert_close(chunked, answers())
