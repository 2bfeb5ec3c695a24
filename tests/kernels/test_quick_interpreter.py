"""The quick interpreter of these tests computes what Triton's own does: every kernel, launch by launch, bit by bit."""

import numpy as np
import pytest
import torch

import contmax

pytest.importorskip("triton", reason="Triton's kernels need triton: pip install 'contmax[gpu]'")

from fuzz.compiled import _calls
from triton.runtime import interpreter

import quick_interpreter
from contmax.kernels.attention import _sizes
from kernels.test_compiled_code import launched_kernels


@pytest.fixture
def small_calls(monkeypatch):
    """Sizes at which every kernel is launched, but few of its programs: the stock interpreter takes a minute for more."""
    monkeypatch.setattr(_calls, "QUERIES", 32)
    monkeypatch.setattr(_calls, "KEYS", 150)
    monkeypatch.setattr(_sizes, "_FEW_KEYS", 0)


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the kernels are compiled, and not interpreted")
def test_every_launch_leaves_the_numbers_of_the_stock_interpreter(small_calls, filled_memory):
    quick, stock = launches(is_quick=True), launches(is_quick=False)
    assert [name for name, _ in quick] == [name for name, _ in stock]
    assert {name for name, _ in quick} == launched_kernels()
    for (name, found), (_, expected) in zip(quick, stock, strict=True):
        for x, y in zip(found, expected, strict=True):
            assert torch.equal(x.nan_to_num(nan=7.0), y.nan_to_num(nan=7.0)), name
