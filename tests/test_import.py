"""What ``import contmax`` does: parts are loaded when they are used, in any order, and nothing optional is."""

import ast
from pathlib import Path

import pytest

import contmax
from fresh import Program, run_each

ROOT = Path(__file__).parent.parent
MODULES = ("attention", "basis", "deformed", "densities", "domains", "expectations", "integrations", "losses", "maps")
MODULES += ("nn", "output", "prediction", "signal")
OPTIONAL = ("numba", "triton", "matplotlib", "jaxtyping", "scipy", "contmax_lab", "transformers", "jax")


PAGES = "pages without matplotlib"
WITHOUT_MATPLOTLIB = """
import sys
import contmax
assert "contmax.viz" not in sys.modules
import contmax.viz
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None
contmax.viz.text_attention_html(["a"], [1.0])
contmax.viz.alignment_html(["a"], ["b"], [[1.0]])
contmax.viz.image_attention_html(None, [[1.0]])
try:
    contmax.viz.plot_density(contmax.densities.TruncatedParabola(0.0, 1.0))
except ImportError as error:
    print(error)
"""


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


@pytest.fixture(scope="module")
def done():
    """What came of each program: the first uses of every part, and pages where there is no matplotlib."""
    unwanted = f"import sys\nprint([name for name in {OPTIONAL} if name in sys.modules])"
    programs = [Program("import", f"import contmax, sys\nassert 'contmax.maps' not in sys.modules\n{unwanted}")]
    programs += [Program(name, f"import contmax.{name}\n{unwanted}") for name in MODULES]
    programs += [Program(name, f"import contmax\ncontmax.{name}\n{unwanted}") for name in contmax._DEFINED_IN]
    programs.append(Program(PAGES, WITHOUT_MATPLOTLIB))
    path = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n"
    programs = [Program(p.name, path + p.source) for p in programs]
    return [(program.name, run) for program, run in zip(programs, run_each(programs), strict=True)]


def test_any_part_can_be_the_first_and_nothing_optional_is_loaded(done):
    for name, run in done:
        if name != PAGES:
            assert (run.code, run.printed) == (0, "[]\n"), f"{name}: {run.printed}{run.complaint}"


def test_pages_need_no_matplotlib_and_pictures_say_how_to_get_it(done):
    run = dict(done)[PAGES]
    assert run.code == 0, run.complaint
    assert run.printed.strip().endswith("pip install contmax[viz]")


@pytest.mark.graph
def test_a_compiled_function_may_be_the_first_to_use_a_part():
    program = """
import torch, contmax
compiled = torch.compile(lambda x: contmax.entmax(x, 1.5) + contmax.maps.sparsemax(x), backend="eager", fullgraph=True)
print(compiled(torch.tensor([[3.0, 0.0]])).tolist())
"""
    (run,) = run_each([Program("compiled", program)], imports=("torch", "torch._dynamo"))
    assert (run.code, run.printed) == (0, "[[2.0, 0.0]]\n"), run.complaint
