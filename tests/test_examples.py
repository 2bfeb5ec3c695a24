"""The examples run as their docstrings say, in an empty folder, and leave a picture behind."""

from pathlib import Path

import pytest

from fresh import Program, run_each

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
# Steps of training that are enough to see it run.
QUICK = {"quickstart": ("20",), "transformers_entmax": ("picture.png", "5")}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Each example, from one process that has imported what they all need once: what it printed, where it ran."""
    folders = [tmp_path_factory.mktemp(script.stem) for script in EXAMPLES]
    pairs = zip(EXAMPLES, folders, strict=True)
    programs = [
        Program(str(script), script.read_text(encoding="utf-8"), folder, QUICK.get(script.stem, ()))
        for script, folder in pairs
    ]
    runs = run_each(programs, imports=("torch", "contmax", "matplotlib.pyplot", "scipy.stats"))
    return {script.stem: (run, folder) for script, run, folder in zip(EXAMPLES, runs, folders, strict=True)}


@pytest.mark.parametrize("name", [script.stem for script in EXAMPLES])
def test_example_runs(name, done):
    run, folder = done[name]
    assert run.code == 0, run.complaint
    pictures = list(folder.rglob("*.png"))
    assert pictures
    assert all(picture.stat().st_size > 10_000 for picture in pictures)
    assert "Picture:" in run.printed
