"""What the doctor finds slow, and the command that mends it."""

import pytest

from contmax_lab.cli import _doctor


@pytest.fixture
def said(monkeypatch):
    """What is slow after some things have changed."""

    def found(check, **changed):
        for name, value in changed.items():
            monkeypatch.setattr(_doctor, name, value)
        return list(check())

    return found


def test_a_cache_that_is_empty_or_nowhere(said):
    works = {"_backend": lambda compiler, extra: "yes"}
    assert said(_doctor._kernels, **works, _compiled_code=lambda: ("a", True)) == []
    assert "compile_ahead" in said(_doctor._kernels, **works, _compiled_code=lambda: ("a", False))[0]
    assert "export NUMBA_CACHE_DIR=FOLDER" in said(_doctor._kernels, **works, _compiled_code=lambda: (None, False))[0]
    without = {"_backend": lambda compiler, extra: "no: pip install 'contmax[cpu]'"}
    assert said(_doctor._kernels, **without)[0].endswith("; pip install 'contmax[cpu]'")


def test_a_gpu_that_torch_cannot_use(said, monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    assert said(_doctor._gpu, _DRIVERS=(str(tmp_path / "none"),)) == []
    assert "built without CUDA" in said(_doctor._gpu, _DRIVERS=(str(tmp_path),))[0]
    monkeypatch.setattr("torch.version.cuda", "13.0")
    assert "run nvidia-smi" in said(_doctor._gpu, _DRIVERS=(str(tmp_path),))[0]


def test_threads_of_a_container(said, monkeypatch, tmp_path):
    quota = tmp_path / "cpu.max"
    quota.write_text("200000 100000\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(8), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert said(_doctor._threads, _QUOTA=quota)[0].endswith("export OMP_NUM_THREADS=2")
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    assert "1 of 2 cores: OMP_NUM_THREADS=1 is set; unset it" in said(_doctor._threads)[0].replace(
        "unset OMP_NUM_THREADS", "unset it"
    )
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    assert said(_doctor._threads) == []


def test_cores_that_run_two_threads(said, monkeypatch, tmp_path):
    for number in range(4):
        (tmp_path / f"{number}").write_text(f"{number % 2},{number % 2 + 2}\n")
    changed = {"_SIBLINGS": f"{tmp_path}/{{}}", "_QUOTA": tmp_path / "none"}
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(4), raising=False)
    for threads, told in ((1, "with 1 of 2 cores"), (2, ""), (4, ""), (5, "export OMP_NUM_THREADS=2")):
        monkeypatch.setattr("torch.get_num_threads", lambda threads=threads: threads)
        found = said(_doctor._threads, **changed)
        assert bool(found) == bool(told)
        assert told in "".join(found)


def test_no_compiler_and_no_bytecode(said, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no C++ compiler was found (no-such-compiler, as CXX says)" in said(_doctor._compiler)[0]
    # torch.compile does not look for another one by itself.
    monkeypatch.delenv("CXX")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("shutil.which", lambda name: name if name == "clang++" else None)
    assert said(_doctor._compiler)[0].endswith("; export CXX=clang++")
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    assert "unset PYTHONDONTWRITEBYTECODE" in said(_doctor._bytecode)[0]


def test_all_of_it_is_printed(contmax, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    code, out, _ = contmax("doctor")
    assert code == 0
    assert "\nslow: Python does not cache bytecode" in out
