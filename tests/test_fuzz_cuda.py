"""A minute of the campaign on a GPU: no case hangs, and none differs from float64."""

import subprocess
import sys
from pathlib import Path

import pytest

from cuda_checks import DEVICE, ON_GPU

pytestmark = pytest.mark.gpu


def test_a_minute_of_the_campaign():
    command = [sys.executable, "-m", "fuzz.gpu", "--minutes", "0.75", "--seed", "40", "--device", DEVICE]
    command += [] if ON_GPU else ["--side", "2"]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, "\n".join([*done.stdout.splitlines()[-60:], *done.stderr.splitlines()[-10:]])
