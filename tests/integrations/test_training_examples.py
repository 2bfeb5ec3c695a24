"""The examples for other trainers run, on tiny models made on the spot: PEFT, Lightning, accelerate."""

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "training").glob("*.py"))
# Example → the module that it needs.
NEEDS = {
    "lora_with_peft": "peft",
    "train_with_accelerate": "accelerate",
    "train_with_lightning": "pytorch_lightning",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example, tmp_path):
    if importlib.util.find_spec(NEEDS[example.stem]) is None:
        pytest.skip(f"this example needs {NEEDS[example.stem]}, which is not installed")
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    # The examples are programs of their own: Lightning and Trainer change settings of the whole process.
    environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(example), "5"]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False, timeout=600
    )
    assert run.returncode == 0, run.stderr
    accuracy = re.search(r"accuracy (\d\.\d+)", run.stdout)
    assert accuracy, run.stdout
    assert math.isfinite(float(accuracy[1]))
    assert not list(tmp_path.iterdir())


def test_examples_are_short_and_linked():
    page = (ROOT / "docs" / "transformers.md").read_text(encoding="utf-8")
    assert {path.stem for path in EXAMPLES} == set(NEEDS)
    for example in EXAMPLES:
        assert len(example.read_text(encoding="utf-8").splitlines()) <= 80
        assert example.name in page
