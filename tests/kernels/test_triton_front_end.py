"""The compiler takes every kernel: its front end runs without a GPU, in a process without the interpreter."""

from pathlib import Path

import pytest

from fresh import Program, run_each

# Without the interpreter; trees and types are made by the million, of which little is garbage; and the first call of an
# operator would import all of torch.compile, two seconds.
BEFORE = """
import gc, os, torch
os.environ.pop("TRITON_INTERPRET", None)
gc.disable()
torch._disable_dynamo = lambda function: function
"""


def test_the_compiler_takes_every_kernel():
    pytest.importorskip("triton", reason="Triton's kernels need triton: pip install 'contmax[gpu]'")
    program = Path(__file__).with_name("front_end.py")
    (run,) = run_each([Program(str(program), BEFORE + program.read_text())])
    assert run.code == 0, run.printed + run.told + run.complaint
    taken = set(run.printed.split())
    some = {
        "forward_rows",
        "loss_rows",
        "line_fwd_kernel",
        "plane_bwd_kernel",
        "contexts_kernel",
        "contexts_bwd_kernel",
    }
    assert some | {"list_keys", "attend_dense"} <= taken
    assert len(taken) > 25
