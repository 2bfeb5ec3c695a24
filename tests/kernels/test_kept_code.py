"""Compiled code is cached from one process to the next, until a file that it was made from changes."""

import shutil
from pathlib import Path

import pytest
import torch

numba = pytest.importorskip("numba", reason="numba is not installed: pip install 'contmax[cpu]'")

from contmax import kernels  # noqa: E402
from contmax.kernels import rows  # noqa: E402
from contmax.kernels.attention import _cpu_listed  # noqa: E402
from contmax.kernels.cpu import _compiled  # noqa: E402
from contmax.kernels.means import _cpu_means  # noqa: E402
from contmax.kernels.rows import _cpu_rows  # noqa: E402

NAMES = {
    _cpu_rows: ("forward_rows", "backward_rows"),
    _cpu_listed: ("count_rows", "list_rows", "mean_rows", "product_rows", "gradient_heads"),
    _cpu_means: ("line_scale_rows", "plane_rows", "window_rows"),
}
KERNELS = {name: getattr(module, name) for module, names in NAMES.items() for name in names}
FOLDER = Path(kernels.__file__).parent


def test_the_digest_changes_with_every_file(tmp_path):
    sources = [path for path in FOLDER.glob("*/*.py") if path.parent.name == "cpu" or path.name.startswith("_cpu_")]
    assert {Path(kernel.py_func.__code__.co_filename) for kernel in KERNELS.values()} < set(sources)

    def digest(changed=None):
        folder = tmp_path / ("none" if changed is None else changed.stem)
        shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
        if changed is not None:
            with (folder / changed.relative_to(FOLDER)).open("a") as file:
                file.write("\n# changed\n")
        return _compiled.digest_of_sources(folder)

    assert digest() == _compiled.digest_of_sources(FOLDER)
    assert len({_compiled.digest_of_sources(FOLDER), *map(digest, sources)}) == len(sources) + 1


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_cached_by_the_digest(name):
    # numba shows where a function is cached, but not what makes the cache out of date.
    assert isinstance(KERNELS[name]._cache, _compiled._CacheByDigest)
    assert KERNELS[name].stats.cache_path


def _do_nothing(start, stop):
    pass


def test_another_digest_is_compiled_anew_and_the_same_one_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def is_compiled(digest):
        monkeypatch.setattr(_compiled, "digest_of_sources", lambda folder: digest)
        kernel = _compiled.kernel()(_do_nothing)
        kernel(0, 0)
        return sum(kernel.stats.cache_misses.values()) == 1

    assert [is_compiled(digest) for digest in "11221"] == [True, False, True, False, True]


def test_numbers_that_are_not_one_after_the_other_need_no_code_of_their_own():
    # A compilation takes ten seconds, and a strided array is another type.
    def use(alpha):
        p, _ = rows.on_cpu().entmax_rows(torch.zeros(4, 3), alpha[:, None])
        rows.on_cpu().entmax_rows_backward(p, p, alpha[:, None], needs_alpha=True)
        _cpu_means.line_scale_means(alpha, alpha, alpha, alpha[:2], alpha[:2], (4.0, 1.0, 1.0, 0.5, 0.5))
        return [len(kernel.signatures) for kernel in used]

    used = (_cpu_rows.forward_rows, _cpu_rows.backward_rows, _cpu_means.line_scale_rows)
    before = use(torch.full((4,), 1.5))
    assert use(torch.tensor([1.5]).expand(4)) == before
    assert use(torch.full((8,), 1.5)[::2]) == before


def test_without_a_folder_of_the_package_or_the_user_code_is_kept_among_the_temporary_files(tmp_path, monkeypatch):
    assert _compiled._Cached._locator_classes[-1] is _compiled._TemporaryFolder
    monkeypatch.setattr(_compiled._Cached, "_locator_classes", (_compiled._TemporaryFolder,))
    monkeypatch.setattr(_compiled.tempfile, "tempdir", str(tmp_path))
    hits = []
    for _ in range(2):
        kernel = _compiled.kernel()(_do_nothing)
        kernel(0, 0)
        hits.append(sum(kernel.stats.cache_hits.values()))
    assert hits == [0, 1]
    (root,) = tmp_path.iterdir()
    assert _compiled.kept(kernel) == (str(next(root.iterdir())), True)
    # What others can write is not executed.
    root.chmod(0o777)
    assert _compiled.kept(_compiled.kernel()(_do_nothing)) == (None, False)


def test_a_full_disk_costs_no_result(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    kernel = _compiled.kernel()(_do_nothing)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(kernel._cache._cache_file), "save", full)
    assert kernel(0, 0) is None
