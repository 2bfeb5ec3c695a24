"""numba that is installed but cannot be imported: torch takes over, and one warning says why."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

REASON = "Numba needs NumPy 2.3 or less. Got NumPy 2.4."
ROOT = Path(__file__).parents[2]


def python(tmp_path, program: str) -> subprocess.CompletedProcess:
    """Run a program in a fresh interpreter that finds a numba which raises on import."""
    package = tmp_path / "numba"
    package.mkdir()
    (package / "__init__.py").write_text(f"raise ImportError({REASON!r})\n")
    path = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT / 'src')!r}]\n"
    command = [sys.executable, "-c", path + textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


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
    assert done.returncode == 0, done.stderr
    assert REASON in done.stdout
    assert "pip install" in done.stdout


@pytest.mark.graph
def test_a_compiled_program_meets_it_first(tmp_path):
    done = python(
        tmp_path,
        """
        import torch, contmax

        compiled = torch.compile(contmax.entmax, fullgraph=True, backend="aot_eager")
        assert torch.allclose(compiled(torch.tensor([[1.0, 0.5, -1.0]]), 2.0), torch.tensor([[0.75, 0.25, 0.0]]))
        """,
    )
    assert done.returncode == 0, done.stderr
    assert REASON in done.stderr
