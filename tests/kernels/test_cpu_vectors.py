"""The vector code that the rows are made of: elementary functions, and packing entries above a threshold."""

import re

import numpy as np
import pytest

numba = pytest.importorskip("numba", reason="numba is not installed: pip install 'contmax[cpu]'")

from contmax.kernels.cpu import _elementary as fast  # noqa: E402
from contmax.kernels.cpu import _lanes  # noqa: E402
from contmax.kernels.rows import _cpu_evaluate, _cpu_solve  # noqa: E402

DTYPES = [np.float32, np.float64]


@numba.njit
def _log(x, y):
    for i in range(x.size):
        y[i] = fast.log(x[i])


@numba.njit
def _exp(x, y):
    for i in range(x.size):
        y[i] = fast.exp(x[i])


def _ulps(function, reference, x):
    """Largest error in units in the last place of the result."""
    y, exact = np.empty_like(x), reference(x.astype(np.longdouble))
    function(x, y)
    return (abs(y - exact) / np.spacing(abs(exact).astype(x.dtype))).max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_agrees_with_libm(dtype):
    rng, info = np.random.default_rng(0), np.finfo(dtype)
    wide = np.exp(rng.uniform(np.log(info.tiny) + 1, np.log(info.max) - 1, 100_000))
    x = np.concatenate([wide, rng.uniform(0, 2, 100_000), 1 + rng.uniform(-1e-3, 1e-3, 100_000)]).astype(dtype)
    assert _ulps(_log, np.log, x) < 2.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_agrees_with_libm(dtype):
    rng, lowest = np.random.default_rng(0), -86 if dtype == np.float32 else -699
    x = np.concatenate([rng.uniform(lowest, 80, 100_000), rng.uniform(-1, 1, 100_000), [0.0]]).astype(dtype)
    assert _ulps(_exp, np.exp, x) < 2.5
    y = np.empty(3, dtype)
    _exp(np.array([-1e4, -np.inf, 0.0], dtype), y)
    assert y.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 8, 9, 15, 16, 17, 33, 280])
def test_packing_and_unpacking_a_row(dtype, n):
    rng = np.random.default_rng(n)
    key, other = rng.standard_normal((2, 3, n)).astype(dtype)
    key[0, 0] = np.nan  # not above anything
    packed, beside = np.empty((2, n + 16), dtype), np.empty((2, n + 16), dtype)
    spread = np.full((3, n), np.nan, dtype)
    size, row, half = np.uint64(n), np.uint64(1), dtype(0.5)
    for r in range(3):
        start, above = np.uint64(r * n), key[r] > 0.5
        kept = _lanes.compress_above(key, start, size, half, packed, row, other, beside)
        assert kept == above.sum() == _lanes.compress_above(key, start, size, half, packed, row)
        np.testing.assert_array_equal(packed[1, :kept], key[r][above])
        np.testing.assert_array_equal(beside[1, :kept], other[r][above])
        _lanes.expand_above(key, start, size, half, beside, row, dtype(2), spread, start)
    np.testing.assert_array_equal(spread, np.where(key > 0.5, 2 * other, 0))


def _llvm_of(function, *arguments) -> str:
    """What LLVM has made of a numba function for these arguments."""
    function(*arguments)
    return function.inspect_llvm(function.signatures[0])


def test_the_loops_over_scores_are_vectorised_whatever_the_version_of_python():
    zero, n, v = np.uint64(0), np.uint64(64), np.zeros((1, 64), np.float32)
    programs = [
        _llvm_of(_cpu_evaluate.sums, v, zero, n, np.float32(0), 1.0, 0.3, 1 / 0.3, 0),
        _llvm_of(_cpu_evaluate.weights, v, zero, np.zeros(1, _cpu_solve.ROW)[0], v),
    ]
    for program in programs:
        (own,) = set(re.findall(r"define (?!linkonce).*@(_ZN7contmax\w+)\(", program))
        called = set(re.findall(r"call .*@(_ZN7contmax\w+)\(", program))
        # A loop with a call in it is not vectorised, takes 15 times as long, and rounds otherwise.
        assert called <= {own}
        # Four ways in which p is computed from the root, each with a loop of its own.
        assert len(re.findall(r"^vector\.body\w*:", program, re.MULTILINE)) >= 4
