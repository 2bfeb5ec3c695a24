"""The compiler takes every kernel: its front end runs without a GPU, in a process without the interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_compiler_takes_every_kernel():
    pytest.importorskip("triton", reason="Triton's kernels need triton: pip install 'contmax[gpu]'")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = Path(__file__).with_name("front_end.py")
    result = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    taken = set(result.stdout.split())
    assert {"forward_rows", "loss_rows", "line_fwd_kernel", "plane_bwd_kernel", "list_keys", "attend_dense"} <= taken
    assert len(taken) > 25
