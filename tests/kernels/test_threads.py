"""Threads, forks and the cache: the compiled kernels in the places where compiled code usually goes wrong."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import contmax
from fresh import Program, run_each

numba = pytest.importorskip("numba", reason="numba is not installed: pip install 'contmax[cpu]'")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def run(x, alpha):
    x = x.clone().requires_grad_()
    p = contmax.entmax(x, alpha)
    (g,) = torch.autograd.grad(p, x, torch.linspace(-1, 1, x.numel()).view(x.shape))
    return p.detach(), g


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_the_number_of_threads_changes_no_bit(alpha, two_threads):
    x = torch.randn(300, 701)
    parallel = run(x, alpha)
    torch.set_num_threads(1)
    alone = run(x, alpha)
    assert all(torch.equal(a, b) for a, b in zip(parallel, alone, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_are_shared_by_as_many_threads_as_torch_would_use(threads, two_threads):
    from contmax.kernels.cpu._threads import over_rows

    torch.set_num_threads(threads)
    matrix, calls = np.zeros((301, 1000)), []
    meeting = threading.Barrier(threads)

    def kernel(rows, start, stop):
        meeting.wait(timeout=30)  # passed only if all of them are at work at the same time
        calls.append((start, stop, threading.get_ident()))
        rows[start:stop] += 1

    over_rows(kernel, matrix)
    assert (matrix == 1).all()
    assert len({thread for _, _, thread in calls}) == threads
    assert max(stop - start for start, stop, _ in calls) - min(stop - start for start, stop, _ in calls) <= 1


@pytest.mark.parametrize(
    ("shape", "work", "shares"),
    [((2, 32767), 1, 1), ((2, 32768), 1, 2), ((2, 4096), 8, 2), ((1, 10**6), 1, 1), ((0, 5), 1, 1), ((3, 10**5), 1, 3)],
)
def test_small_matrices_and_single_rows_are_not_shared(shape, work, shares, two_threads):
    from contmax.kernels.cpu._threads import over_rows

    torch.set_num_threads(4)
    calls = []
    over_rows(lambda matrix, start, stop: calls.append((start, stop)), np.empty(shape), work=work)
    assert len(calls) == shares
    assert sorted(calls)[0][0] == 0
    assert sorted(calls)[-1][1] == shape[0]


def test_what_fails_in_another_thread_is_raised(two_threads):
    from contmax.kernels.cpu._threads import over_rows

    def kernel(rows, start, stop):
        if start > 0:
            raise ArithmeticError("the second half")

    with pytest.raises(ArithmeticError, match="the second half"):
        over_rows(kernel, np.empty((200, 1000)))


def test_many_threads_may_call_at_once(two_threads):
    x = torch.randn(200, 512)
    expected = contmax.sparsemax(x)
    same = []

    def work():
        same.extend(torch.equal(contmax.sparsemax(x), expected) for _ in range(20))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert same == [True] * 80


class _Attended(Dataset):
    """A worker is given one thread and asks for two. Its rows are drawn before: torch's own threads do not survive."""

    def __init__(self):
        self.scores = torch.randn(6, 200, 400)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        torch.set_num_threads(2)
        return contmax.entmax(self.scores[index], 1.5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # "may deadlock", says Python 3.12: hence the test
def test_forked_workers_after_the_parent_used_its_threads(two_threads):
    data, flat = _Attended(), torch.zeros(200, 400)
    expected, before = [data[i] for i in range(6)], contmax.entmax(flat, 1.5)
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
    assert all(torch.equal(a, b) for a, b in zip(loader, expected, strict=True))
    # The parent's threads have outlived the fork. How 1/400 is rounded is for the vectors of a processor to say.
    after = contmax.entmax(flat, 1.5)
    assert torch.equal(after, before)
    torch.testing.assert_close(after, torch.full((200, 400), 1 / 400), rtol=4e-7, atol=0)


_USES_KERNELS = """
import sys
import torch, contmax
print(*(name in sys.modules for name in ("numba", "matplotlib", "torch._dynamo")))
contmax.entmax(torch.randn(4, 33, requires_grad=True), 1.5).sum().backward()
from contmax.kernels.rows._cpu_rows import backward_rows, forward_rows
for kernel in (forward_rows, backward_rows):
    print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
"""


def test_what_is_slow_to_import_waits_and_another_process_finds_the_compiled_code():
    run(torch.randn(4, 33), 1.5)  # compiled here, if it was not before
    (other,) = run_each([Program("another process", _USES_KERNELS)])
    assert other.complaint == ""
    assert other.printed.split() == ["False", "False", "False", "1", "0", "1", "0"]


def test_kernels_can_be_compiled_ahead(tmp_path, monkeypatch):
    from contmax.kernels import compile_ahead
    from contmax.kernels.attention import _cpu_listed
    from contmax.kernels.means import _cpu_means
    from contmax.kernels.rows import _cpu_rows

    monkeypatch.setattr(compile_ahead, "ProcessPoolExecutor", lambda mp_context: ThreadPoolExecutor(1))
    compile_ahead.compile_all()
    modules = (_cpu_rows, _cpu_listed, _cpu_means)
    dispatchers = [
        x for module in modules for x in vars(module).values() if isinstance(x, numba.core.dispatcher.Dispatcher)
    ]
    called = [kernel for kernel in dispatchers if kernel.stats.cache_path]
    assert len(called) >= 10
    for kernel in called:
        arrays = ([x for x in signature if isinstance(x, numba.types.Array)] for signature in kernel.signatures)
        dtypes = {next(str(x.dtype) for x in given if isinstance(x.dtype, numba.types.Float)) for given in arrays}
        name = kernel.py_func.__name__
        assert dtypes >= ({"float32"} if name == "plane_rows" else {"float32", "float64"}), name
