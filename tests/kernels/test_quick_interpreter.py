"""The quick interpreter of these tests computes what Triton's own does: every kernel, launch by launch, bit by bit."""

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
    monkeypatch.setattr(_calls, "KEYS", 150)
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


def launches(is_quick):
    """Kernel and tensors of each launch, after it."""
    seen, run = [], interpreter.GridExecutor.__call__

    def noted(self, *arguments, **options):
        run(self, *arguments, **options)
        tensors = [x.detach().clone() for x in arguments if isinstance(x, torch.Tensor)]
        seen.append((self.fn.__name__, tensors))

    torch.manual_seed(0)
    contmax.clear_caches()
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr("contmax._backend.TRITON_DEVICES", {"cpu"})
        patch.setattr(interpreter.GridExecutor, "__call__", noted)
        quick_interpreter.lose_nan(patch)
        if is_quick:
            quick_interpreter.make_quick(patch)
        _calls.few()
    return seen


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
def test_every_launch_leaves_the_numbers_of_the_stock_interpreter(small_calls, filled_memory):
    quick, stock = launches(is_quick=True), launches(is_quick=False)
    assert [name for name, _ in quick] == [name for name, _ in stock]
    assert {name for name, _ in quick} == launched_kernels()
    for (name, found), (_, expected) in zip(quick, stock, strict=True):
        for x, y in zip(found, expected, strict=True):
            assert torch.equal(x.nan_to_num(nan=7.0), y.nan_to_num(nan=7.0)), name
