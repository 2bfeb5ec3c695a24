"""The machine code of every kernel, made without a GPU: no branch depends on a sum that threads may disagree on.

Which sums these are, and what follows for a GPU, is said in `fuzz.compiled._flow`.
"""

import ast
import json
from pathlib import Path

import pytest

from fresh import Program, run_each

pytest.importorskip("triton", reason="Triton's kernels need triton: pip install 'contmax[gpu]'")

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "contmax" / "kernels"
# Without the interpreter, which would be chosen when triton is imported. The first call of an operator would import all
# of torch.compile, two seconds.
CHECKS = f"""
import dataclasses, json, os, sys, torch
os.environ.pop("TRITON_INTERPRET", None)
torch._disable_dynamo = lambda function: function
sys.path.insert(0, {str(HERE)!r})
from contracted_kernels import launched_both_ways
from fuzz.compiled._calls import few
from fuzz.compiled._check import check

WITH_CONTRACTION = {{"fused": True, "only": ("forward_rows", "list_scores")}}
for name, outcomes in (
    ("library", check(few, 90, one_each=True)),
    ("contracted", check(few, 90, one_each=True, **WITH_CONTRACTION)),
    ("small", check(launched_both_ways, 90)),
):
    for outcome in outcomes:
        told = {{"text": str(outcome), "is_sound": outcome.is_sound, **dataclasses.asdict(outcome)}}
        print(json.dumps([name, told]))
"""


@pytest.fixture(scope="module")
def outcomes():
    """What came of the launches of the library, of some with contraction, and of small kernels both ways."""
    (run,) = run_each([Program("checks", CHECKS)])
    assert run.code == 0, run.printed + run.told + run.complaint
    found = {"library": [], "contracted": [], "small": []}
    for line in run.printed.splitlines():
        name, told = json.loads(line)
        found[name].append(told)
    return found


def launched_kernels():
    """Functions under triton.jit that are named in a launch, or that no other such function names."""
    compiled, helpers, launched = set(), set(), set()
    for statement in (each for path in KERNELS.glob("*/_gpu_*.py") for each in ast.parse(path.read_text()).body):
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        if any("triton.jit" in ast.unparse(each) for each in getattr(statement, "decorator_list", ())):
            compiled.add(statement.name)
            helpers |= names
            continue
        calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
        launches = [call for call in calls if ast.unparse(call.func) in ("Launch", "_launch")]
        launched |= {each.id for call in launches for each in call.args if isinstance(each, ast.Name)}
    return compiled & (launched | (compiled - helpers))


def test_the_machine_code_of_every_kernel_is_read(outcomes):
    launched = launched_kernels()
    assert {outcome["kernel"] for outcome in outcomes["library"]} == launched
    assert {"forward_rows", "solve_long_rows", "attend_dense", "plane_bwd_kernel"} <= launched
    assert not {"climb", "sums"} & launched


def test_no_decision_depends_on_a_contracted_reduction(outcomes):
    wrong = [outcome["text"] for outcome in outcomes["library"] if not outcome["is_sound"]]
    assert not wrong, "\n".join(wrong)
    shuffles = [outcome["counts"] for outcome in outcomes["library"] if outcome["counts"][0]]
    assert len(shuffles) > 20
    assert all(in_sass for _, _, in_sass, _ in shuffles)


@pytest.mark.parametrize(("language", "branch"), [("ptx", " bra "), ("sass", " BRA ")])
def test_kernels_that_sums_decide_must_not_be_launched_with_contraction(outcomes, language, branch):
    assert {outcome["kernel"] for outcome in outcomes["contracted"]} == {"forward_rows", "list_scores"}
    for outcome in outcomes["contracted"]:
        # A sum of Triton's own decides the loop of the solver.
        pairs = [finding.split(" decides ") for finding in outcome[language]]
        assert all("standard.py" in first for first, _ in pairs)
        assert any(branch in second and "_solve.py" in second for _, second in pairs)
        assert "enable_fp_fusion=True" in outcome["text"]


@pytest.mark.parametrize("kernel", ["halved", "probed", "climbed", "thinned"])
def test_contraction_is_found_in_small_kernels(outcomes, kernel):
    fused, sound = (outcome for outcome in outcomes["small"] if outcome["kernel"] == kernel)
    does = "allows contraction of a sum" if kernel == "thinned" else "contracts a product into a sum"
    for language, branch in (("ptx", " bra "), ("sass", " BRA ")):
        found = " ".join(fused[language])
        assert does in found
        assert branch in found
    assert sound["is_sound"], sound["text"]


def test_a_contracted_sum_that_decides_nothing_is_not_reported(outcomes):
    fused, _ = (outcome for outcome in outcomes["small"] if outcome["kernel"] == "summed")
    assert min(fused["counts"]) > 0
    assert fused["is_sound"], fused["text"]
