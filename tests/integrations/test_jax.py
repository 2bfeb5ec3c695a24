"""The maps and the loss for JAX, as `jax_checks.py` describes them, which runs in a process of its own.

JAX starts threads when it computes, and forks of other tests could not be trusted in a process that has them.
"""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKS = [
    node.name
    for node in ast.parse((HERE / "jax_checks.py").read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]
# What is compiled runs once on a few numbers: XLA need not optimise it.
FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


@pytest.fixture(scope="module")
def complaints():
    """The traceback of each check, empty if it passed."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("contmax.integrations.jax needs JAX: pip install 'contmax[jax]'")
    paths = os.pathsep.join([str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu"}
    program = [sys.executable, str(HERE / "jax_checks.py")]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CHECKS)
def test_jax(name, complaints):
    assert complaints[name] == ""


def test_every_check_is_run(complaints):
    assert sorted(complaints) == sorted(CHECKS)
    assert len(CHECKS) >= 8
