"""What ``import contmax`` does: parts are loaded when they are used, in any order, and nothing optional is."""

import ast
from pathlib import Path

import pytest

import contmax
from fresh import Program, run_each

ROOT = Path(__file__).parent.parent
MODULES = ("attention", "basis", "deformed", "densities", "domains", "expectations", "integrations", "losses", "maps")
MODULES += ("nn", "prediction", "signal")
OPTIONAL = ("numba", "triton", "matplotlib", "jaxtyping", "scipy", "contmax_lab", "transformers")


def promised() -> set[str]:
    """The names that type checkers are told of."""
    tree = ast.parse(Path(contmax.__file__).read_text(encoding="utf-8"))
    return {name.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names} - {None}


def test_every_name_that_type_checkers_are_told_of_is_there():
    assert promised() <= set(dir(contmax))
    lazy = {*contmax._MODULES, *contmax._DEFINED_IN}
    assert lazy == promised()
    assert all(getattr(contmax, name) is not None for name in lazy)
    assert contmax.sparsemax is contmax.maps.sparsemax
    with pytest.raises(AttributeError, match="module 'contmax' has no attribute 'sparsmax'"):
        _ = contmax.sparsmax


def test_any_part_can_be_the_first_and_nothing_optional_is_loaded():
    unwanted = f"import sys\nprint([name for name in {OPTIONAL} if name in sys.modules])"
    programs = [Program("import", f"import contmax, sys\nassert 'contmax.maps' not in sys.modules\n{unwanted}")]
    programs += [Program(name, f"import contmax.{name}\n{unwanted}") for name in MODULES]
    programs += [Program(name, f"import contmax\ncontmax.{name}\n{unwanted}") for name in contmax._DEFINED_IN]
    path = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n"
    programs = [Program(p.name, path + p.source) for p in programs]
    for program, run in zip(programs, run_each(programs), strict=True):
        assert (run.code, run.printed) == (0, "[]\n"), f"{program.name}: {run.printed}{run.complaint}"


@pytest.mark.graph
def test_a_compiled_function_may_be_the_first_to_use_a_part():
    program = """
import torch, contmax
compiled = torch.compile(lambda x: contmax.entmax(x, 1.5) + contmax.maps.sparsemax(x), backend="eager", fullgraph=True)
print(compiled(torch.tensor([[3.0, 0.0]])).tolist())
"""
    (run,) = run_each([Program("compiled", program)])
    assert (run.code, run.printed) == (0, "[[2.0, 0.0]]\n"), run.complaint
