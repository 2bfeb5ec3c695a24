"""Expectations by torch's operations take memory that does not grow faster than their result."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import contmax
from contmax import _backend
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.expectations import _chunks, _line_gaussian, _line_scales, _space_gaussian

F64 = torch.float64


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


LINE = GaussianBasis.linspace(4, scale=(0.1, 0.3), learnable=True).double()
# Enough functions that the result outweighs what each density needs for itself, such as a Cholesky factor.
PLANE = MultivariateGaussianBasis.grid(3, scale=0.3, learnable=True).double()
SPACE = MultivariateGaussianBasis(torch.rand(12, 3), 0.1 * torch.eye(3), learnable=True).double()


def on_the_line(alpha):
    return lambda loc, scale, _: contmax.expectation(BetaGaussian(loc[..., 0], scale[..., 0], alpha), LINE)


def heavy_tails_on_the_line(loc, scale, index):  # not for the compiled kernel
    density = BetaGaussian(loc[..., 0], scale[..., 0], index - 0.5, validate_args=False)
    return contmax.expectation(density, LINE)


def in_space(alpha, basis):
    def r(loc, scale, index):
        dim = basis.event_dim
        density = MultivariateBetaGaussian(
            loc[..., :dim], torch.diag_embed(scale[..., :dim]), index if alpha is None else alpha, validate_args=False
        )
        return contmax.expectation(density, basis)

    return r


RULES = {
    "line, α = 2": (on_the_line(2.0), LINE),
    "line, α = 1.5": (on_the_line(1.5), LINE),
    "line, heavy tails": (heavy_tails_on_the_line, LINE),
    "plane, α = 1": (in_space(1.0, PLANE), PLANE),
    "plane, α = 2": (in_space(2.0, PLANE), PLANE),
    "plane, α > 2": (in_space(3.0, PLANE), PLANE),
    "plane, learned α": (in_space(None, PLANE), PLANE),
    "space, α = 1": (in_space(1.0, SPACE), SPACE),
    "space, α = 2": (in_space(2.0, SPACE), SPACE),
}


@pytest.fixture(params=RULES)
def rule(request, monkeypatch):
    """By torch's operations, as where no compiler is at hand."""
    monkeypatch.setattr(_backend.NUMBA, "works", False)
    return RULES[request.param]


@pytest.fixture
def cut(monkeypatch):
    """Set how many pairs a chunk has, and how many bytes all of them may keep for the backward pass."""

    def cut_into(pairs, most_kept=0):
        monkeypatch.setattr(_chunks, "_MOST_SAVED", most_kept)
        for module in (_line_scales, _line_gaussian, _space_gaussian):
            for name in ("_FEWEST_PAIRS", "_FEWEST_PAIRS_OF_INDEX"):
                if fewest := getattr(module, name, None):
                    monkeypatch.setattr(module, name, fewest._replace(on_cpu=pairs, elsewhere=pairs))

    return cut_into


def arguments(count, dtype=F64):
    shape = (2, count // 2)
    loc, scale = torch.rand(*shape, 3, dtype=dtype), 0.1 + torch.rand(*shape, 3, dtype=dtype)
    return [x.requires_grad_() for x in (loc, scale, 1.2 + torch.rand(shape, dtype=dtype))]


def value_and_gradients(rule, parameters):
    r = rule[0](*parameters)
    inputs = (*parameters, *rule[1].parameters())
    return r, *torch.autograd.grad(r.sin().sum(), inputs, materialize_grads=True)


def peak(rule, count, dtype):
    """In bytes, and those of the result."""
    parameters = arguments(count, dtype)
    with LiveMemory() as memory:
        r = value_and_gradients(rule, parameters)[0]
    return memory.peak, r.nbytes


def test_memory_grows_with_the_result(rule, cut):
    functions = value_and_gradients(rule, arguments(2))[0].shape[-1]  # tables are made once
    cut(4 * functions)  # two chunks and four
    (few, small), (many, large) = peak(rule, 8, F64), peak(rule, 16, F64)
    assert many - few <= 8 * (large - small)


def test_memory_of_compiled_kernels(cut):
    cut(36)
    basis = MultivariateGaussianBasis.grid(3, scale=0.3)
    rule = (in_space(2.0, basis), basis)
    (few, small), (many, large) = peak(rule, 8, torch.float32), peak(rule, 72, torch.float32)
    assert many - few <= 8 * (large - small)


@pytest.mark.parametrize("most_kept", [0, 2**20], ids=["computed again", "kept"])
def test_chunks_are_the_whole(rule, cut, most_kept):
    parameters = arguments(30)
    whole = value_and_gradients(rule, parameters)
    cut(28, most_kept)  # seven densities
    torch.testing.assert_close(value_and_gradients(rule, parameters), whole)


@pytest.mark.parametrize(("kept", "calls"), [(0, 5), (2**12, 5), (2**30, 10)])
def test_only_what_would_keep_much_is_computed_again(kept, calls):
    sizes = []

    def reference(loc, centre):
        sizes.append(len(loc))
        return loc.unsqueeze(-1) * centre

    loc, centre = torch.ones(10, requires_grad=True), torch.ones(3, requires_grad=True)
    r = _chunks.in_chunks(reference, (loc,), (centre,), 1, _chunks.Fewest(6, 6, kept))
    r.sum().backward()
    assert sizes == [2] * calls
    assert loc.grad.tolist() == [3.0] * 10
    assert centre.grad.tolist() == [10.0] * 3


def test_chunks_have_higher_derivatives_and_transforms(rule, cut):
    loc, scale, index = arguments(6)

    def r(loc, index):
        return rule[0](loc, scale.detach(), index)

    def answers():
        (first,) = torch.autograd.grad(r(loc, index).square().sum(), loc, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), loc)
        forward = torch.func.jvp(r, (loc.detach(), index.detach()), (torch.ones_like(loc), torch.ones_like(index)))[1]
        mapped = torch.func.vmap(r)(loc.detach().expand(2, 2, 3, 3), index.detach().expand(2, 2, 3))
        return first.detach(), second, forward.detach(), mapped.detach()

    whole = answers()
    cut(8)
    torch.testing.assert_close(answers(), whole)
