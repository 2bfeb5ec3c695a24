"""The quick interpreter of these tests computes what Triton's own does: every kernel, launch by launch, bit by bit."""

import copy
import functools

import numpy as np
import pytest
import torch

import contmax

pytest.importorskip("triton", reason="Triton's kernels need triton: pip install 'contmax[gpu]'")

import triton
import triton.language as tl
from fuzz.compiled import _calls
from triton.runtime import interpreter

import quick_interpreter
from contmax.kernels.attention import _sizes
from contmax.kernels.gpu import _launch
from kernels.test_compiled_code import launched_kernels
from row_checks import short_rows_by_lists


@pytest.fixture
def small_calls(monkeypatch):
    """Sizes at which every kernel is launched, but few of its programs, and numbers that are not all the same."""

    def leaf(*shape, dtype=torch.float32):
        return torch.randn(shape).to(dtype).requires_grad_()

    monkeypatch.setattr(_calls, "leaf", leaf)
    monkeypatch.setattr(_calls, "QUERIES", 32)
    monkeypatch.setattr(_calls, "KEYS", 70)
    monkeypatch.setattr(_calls, "decoding", functools.partial(_calls.decoding, keys=140))
    monkeypatch.setattr(_calls, "LONG", 1300)
    monkeypatch.setattr(_sizes, "_FEW_KEYS", 0)
    with short_rows_by_lists(600, _launch.CHUNK, (1024, 256), _launch._SHORT):
        yield


@pytest.fixture
def filled_memory():
    """Memory that nobody has written to holds NaN, and not what was there before."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def launches(monkeypatch):
    """Kernel and tensors, after the quick and after the stock interpreter, of the first launch of each form of it.

    Forms differ in dtypes and in what is constant when a kernel is compiled. A stock launch takes five quick ones.
    """
    compared, forms, run = [], set(), interpreter.GridExecutor.__call__

    def run_by_both(self, *arguments, **options):
        arguments = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
        named = {**dict(zip(self.arg_names, arguments, strict=False)), **options}
        constants = [(name, named[name]) for name in self.constexprs if name in named]
        form = self.fn, *constants, *(x.dtype for x in arguments if isinstance(x, torch.Tensor))
        # Tensors that share memory share it in the copy too.
        copies = copy.deepcopy(arguments) if form not in forms else None
        with pytest.MonkeyPatch.context() as patch:
            quick_interpreter.make_quick(patch)
            run(self, *arguments, **options)
        if copies is not None:
            forms.add(form)
            run(self, *copies, **options)
            compared.append((self.fn.__name__, copy.deepcopy(arguments), copies))

    monkeypatch.setattr("contmax._backend.TRITON_DEVICES", {"cpu"})
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", run_by_both)
    quick_interpreter.lose_nan(monkeypatch)
    contmax.clear_caches()
    return compared


@triton.jit
def half_of_those_before(x, y):
    return x * 0.5 + y


@triton.jit
def larger_and_its_place(x, i, y, j):
    return tl.maximum(x, y), tl.where(x >= y, i, j)


@triton.jit
def reduced_rows(x_ptr, sum_ptr, largest_ptr, place_ptr, total_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    place = row[:, None] * COLUMNS + column[None, :]
    x = tl.load(x_ptr + place)
    of_rows = tl.reduce(x, 1, half_of_those_before)
    largest, places = tl.reduce((x, place), 0, larger_and_its_place)
    tl.store(sum_ptr + row, of_rows)
    tl.store(largest_ptr + column, largest)
    tl.store(place_ptr + column, places)
    tl.store(total_ptr, tl.reduce(of_rows, 0, half_of_those_before))


needs_the_interpreter = pytest.mark.skipif(
    torch.cuda.is_available(), reason="on a GPU the kernels are compiled, and not interpreted"
)


@needs_the_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_functions_of_kernels_reduce_rows_and_columns_in_their_order(dtype):
    x, found = torch.randn(4, 8).to(dtype), []
    for is_quick in (True, False):
        results = [torch.empty(4, dtype=dtype), torch.empty(8, dtype=dtype), torch.empty(8, dtype=torch.int32)]
        results.append(torch.empty(1, dtype=dtype))
        with pytest.MonkeyPatch.context() as patch:
            if is_quick:
                quick_interpreter.make_quick(patch)
            reduced_rows[(1,)](x, *results, ROWS=4, COLUMNS=8)
        found.append(results)
    assert all(torch.equal(quick, stock) for quick, stock in zip(*found, strict=True))
    assert torch.equal(found[0][1], x.amax(0))
    assert torch.equal(found[0][2], 8 * x.argmax(0).int() + torch.arange(8, dtype=torch.int32))


@pytest.mark.filterwarnings("ignore")
@needs_the_interpreter
def test_every_launch_leaves_the_numbers_of_the_stock_interpreter(small_calls, filled_memory, launches):
    with np.errstate(all="ignore"):
        _calls.few()
    assert {name for name, *_ in launches} == launched_kernels()
    for name, *sides in launches:
        for found, expected in zip(*sides, strict=True):
            if isinstance(found, torch.Tensor):
                assert torch.equal(found.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0)), name
