"""numba that is missing, broken or too old: contmax can be imported, torch takes over, and one line says why."""

import textwrap
import tomllib
from pathlib import Path

import pytest

from contmax import _backend
from fresh import Program, run_each

REASON = "Numba needs NumPy 2.3 or less. Got NumPy 2.4."
ROOT = Path(__file__).parents[2]
# What torch imports to trace, before it looks at the first line of what it traces.
DYNAMO = ("torch._dynamo",)


def python(tmp_path, program: str, *, numba: str = f"raise ImportError({REASON!r})", version: str = "", imports=()):
    """Run a program in an interpreter with torch that finds this text as numba, of the given version."""
    package = tmp_path / "numba"
    package.mkdir()
    (package / "__init__.py").write_text(numba + "\n")
    if version:
        metadata = tmp_path / f"numba-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: numba\nVersion: {version}\n")
    path = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT / 'src')!r}]\n"
    (done,) = run_each([Program("a program", path + textwrap.dedent(program))], imports=("torch", *imports))
    return done


def test_every_map_and_expectation_runs_and_one_warning_says_why(tmp_path):
    done = python(
        tmp_path,
        """
        import warnings
        import torch, contmax

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for dtype in (torch.float32, torch.float64):
                x = torch.tensor([[1.0, 0.5, -1.0]], dtype=dtype, requires_grad=True)
                p = contmax.sparsemax(x)
                assert torch.allclose(p, torch.tensor([[0.75, 0.25, 0.0]], dtype=dtype))
                p[0, 0].backward()
                assert torch.allclose(x.grad, torch.tensor([[0.5, -0.5, 0.0]], dtype=dtype))
                density = contmax.densities.TruncatedParabola(torch.tensor([0.3], dtype=dtype), 0.1)
                assert contmax.expectation(density, contmax.basis.GaussianBasis.linspace(4, 0.1)).isfinite().all()
            plane = contmax.densities.MultivariateBetaGaussian(torch.rand(2), 0.1 * torch.eye(2), 1.5)
            assert contmax.expectation(plane, contmax.basis.MultivariateGaussianBasis.grid(2, 0.3)).isfinite().all()
        ours = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
        assert len(ours) == 1, ours
        print(ours[0])
        """,
    )
    assert done.code == 0, done.complaint
    assert REASON in done.printed
    assert "pip install" in done.printed


# What an LLVM that cannot compile the kernels does, and nothing can catch.
ABORT = "import os; os.abort()"
SPARSEMAX = """
import torch, contmax
print(contmax.sparsemax(torch.tensor([[1.0, 0.5, -1.0]])).tolist())
"""


def test_a_numba_that_is_too_old_is_never_imported_and_the_doctor_says_so_in_one_line(tmp_path):
    doctor = "from contmax_lab.cli import main; main(['doctor'])\n"
    done = python(tmp_path, SPARSEMAX + doctor, numba=ABORT, version="0.61.2")
    assert done.code == 0, done.complaint
    assert done.printed.startswith("[[0.75, 0.25, 0.0]]\n")
    assert "numba 0.61.2 is older than 0.62, which the kernels need" in done.told
    assert "pip install --upgrade 'contmax[cpu]'" in done.told
    line = next(line for line in done.printed.splitlines() if line.startswith("backend cpu"))
    assert line.endswith(
        "no: numba 0.61.2 is older than 0.62, which the kernels need; pip install --upgrade 'contmax[cpu]'"
    )


def test_the_bounds_are_those_of_the_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for compiler, extra in ((_backend.NUMBA, "cpu"), (_backend.TRITON, "gpu")):
        (needed,) = extras[extra]
        assert needed.partition(";")[0].partition(">=")[2] == ".".join(map(str, compiler._oldest))


@pytest.mark.graph
def test_a_compiled_program_meets_it_first(tmp_path):
    done = python(
        tmp_path,
        """
        import torch, contmax

        compiled = torch.compile(contmax.entmax, fullgraph=True, backend="eager")
        assert torch.allclose(compiled(torch.tensor([[1.0, 0.5, -1.0]]), 2.0), torch.tensor([[0.75, 0.25, 0.0]]))
        """,
        imports=DYNAMO,
    )
    assert done.code == 0, done.complaint
    assert REASON in done.told


EXPORT = """
import torch, contmax, warnings
from contmax import _backend

warnings.simplefilter("error", RuntimeWarning)

class Sparsemax(torch.nn.Module):
    def forward(self, scores):
        return contmax.sparsemax(scores)

scores = torch.tensor([[1.0, 0.5, -1.0]])
exported = torch.export.export(Sparsemax(), (scores,)).module()
print(exported(scores).tolist(), contmax.sparsemax(scores).tolist(), _backend.numba_works())
"""


@pytest.mark.graph
def test_an_export_that_comes_first_leaves_the_kernels_for_later():
    (run,) = run_each([Program("export", EXPORT)], imports=("torch", *DYNAMO))
    assert (run.code, run.printed) == (0, "[[0.75, 0.25, 0.0]] [[0.75, 0.25, 0.0]] True\n"), run.complaint
