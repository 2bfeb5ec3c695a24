"""The examples run as their docstrings say, in an empty folder, and leave a picture behind."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(script, tmp_path):
    run = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    pictures = list(tmp_path.rglob("*.png"))
    assert pictures
    assert all(picture.stat().st_size > 10_000 for picture in pictures)
    assert "Picture:" in run.stdout
