"""Compiled code is kept from one process to the next, until a file that it was made from changes."""

import inspect
import shutil
from pathlib import Path

import pytest
import torch

numba = pytest.importorskip("numba", reason="numba is not installed: pip install 'contmax[cpu]'")

from contmax.kernels import _numba_kernels as _kernels  # noqa: E402
from contmax.kernels import numba as cpu  # noqa: E402
from contmax.kernels.means import _cpu_means  # noqa: E402

FILES = sorted(path.name for path in Path(_kernels.__file__).parent.glob("*.py"))


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The kernels' files in a folder of their own, looked at in place of the originals."""
    for name in FILES:
        shutil.copy(Path(_kernels.__file__).parent / name, tmp_path / name)
    monkeypatch.setattr(_kernels, "__file__", str(tmp_path / "_kernels.py"))
    return tmp_path


def test_the_digest_changes_with_every_file(copied):
    before = _kernels._digest()
    assert _kernels._digest() == before
    seen = {before}
    for name in FILES:
        text = (copied / name).read_text()
        (copied / name).write_text(text + "\n# changed\n")
        seen.add(_kernels._digest())
        (copied / name).write_text(text)
    assert len(seen) == len(FILES) + 1
    assert _kernels._digest() == before


def test_every_kernel_holds_the_digest_of_the_present_files():
    kernels = [value for name, value in vars(_kernels).items() if name.endswith("_kernel")]
    assert len(kernels) >= 5
    for kernel in kernels:
        assert inspect.getclosurevars(kernel.py_func).nonlocals["digest"] == _kernels._digest()


@numba.njit
def _do_nothing(x, alpha, p, conjugate, start, stop):
    pass


def test_another_digest_is_compiled_anew_and_the_same_one_is_not(tmp_path, monkeypatch):
    # A kernel that compiles in no time stands in: what is tested is how the code is kept.
    monkeypatch.setattr(_kernels, "forward_rows", _do_nothing)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def compiled(digest):
        forward = _kernels._kernels(digest)[0]
        forward(0.0, 0.0, 0.0, 0.0, 0, 0)
        return sum(forward.stats.cache_misses.values()) == 1

    assert [compiled(digest) for digest in (1, 1, 2, 2, 1)] == [True, False, True, False, False]


def test_numbers_that_are_not_one_after_the_other_need_no_code_of_their_own():
    # A compilation takes ten seconds, and a strided array is another type.
    def use(alpha):
        p, _ = cpu.regularized_max_rows(torch.zeros(4, 3), alpha)
        cpu.pull_back_rows(p, p, alpha, needs_alpha=True)
        _cpu_means.line_scale_means(alpha, alpha, alpha, alpha[:2], alpha[:2], (4.0, 1.0, 1.0, 0.5, 0.5))
        return [len(kernel.signatures) for kernel in kernels]

    kernels = (_kernels.forward_kernel, _kernels.backward_kernel, _kernels.line_scale_kernel)
    before = use(torch.full((4,), 1.5))
    assert use(torch.tensor([1.5]).expand(4)) == before
    assert use(torch.full((8,), 1.5)[::2]) == before
