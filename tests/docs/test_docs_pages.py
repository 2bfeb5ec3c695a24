"""Pages, README and examples tell the truth: every block of Python runs, sessions print what they say.

All of them are copies of one process, which has imported once what most of them need.
"""

import re

import pytest
from docs_pages import DOCS, PAGES, ROOT, blocks, program

from fresh import Program, run_each

# Run by tests of their own, which give them the folders and the models that they need, or trace without the checker.
ELSEWHERE = {
    "convert-a-pretrained-model.md": "tests/integrations/test_transformers_training.py",
    "export.md": "tests/nn/test_export.py",
    "transformers.md": "tests/integrations/test_transformers_training.py",
    "write-your-own-task.md": "tests/lab/test_own_task.py",
}
WITH_CODE = [page for page in PAGES if blocks(page) and page.name not in ELSEWHERE]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Steps of training that are enough to see it run.
QUICK = {"quickstart": ("20",), "transformers_entmax": ("picture.png", "5")}
IMPORTS = ("torch._dynamo", "torch._refs", "scipy.stats", "matplotlib.pyplot")
IMPORTS += ("contmax.kernels.compile_ahead", "contmax.viz", "contmax.nn", "contmax.losses")
# The first call of a compiled kernel makes numba ready for all others, which takes a second.
FIRST_CALL = "import torch, contmax; contmax.sparsemax(torch.zeros(1, 2))"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """What came of each program, and the folder of its own that it ran in."""
    lie = tmp_path_factory.mktemp("lie") / "lie.md"
    lie.write_text("```pycon\n>>> 1 + 1\n3\n```\n")
    sources = {page.name: program(page) for page in [*WITH_CODE, lie]}
    sources |= {f"snippet {number}": snippet for number, snippet in enumerate(SNIPPETS)}
    sources["takes what it did not make"] = "contmax.sparsemax"
    programs = [Program(name, source, tmp_path_factory.mktemp("page"), strict=True) for name, source in sources.items()]
    # What the libraries that they use warn of is not the examples' to mend.
    programs += [
        Program(script.stem, script.read_text(encoding="utf-8"), tmp_path_factory.mktemp(script.stem), arguments)
        for script in EXAMPLES
        for arguments in [QUICK.get(script.stem, ())]
    ]
    runs = run_each(programs, imports=IMPORTS, before=FIRST_CALL)
    return {one.name: (run, one.folder) for one, run in zip(programs, runs, strict=True)}


@pytest.mark.parametrize("name", [page.name for page in WITH_CODE])
def test_the_code_of_a_page_runs(name, done):
    assert done[name][0].code == 0, done[name][0].complaint


def test_a_session_that_lies_is_found(done):
    assert "Got:\n    2" in done["lie.md"][0].complaint


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_every_snippet_of_the_readme_runs_by_itself(number, done):
    run, _ = done[f"snippet {number}"]
    assert run.code == 0, f"{run.complaint}\nin this snippet:\n\n{SNIPPETS[number]}"


def test_snippets_share_nothing(done):
    assert len(SNIPPETS) >= 6
    assert "NameError: name 'contmax' is not defined" in done["takes what it did not make"][0].complaint


@pytest.mark.parametrize("name", [script.stem for script in EXAMPLES])
def test_an_example_runs_in_an_empty_folder_and_leaves_a_picture_behind(name, done):
    run, folder = done[name]
    assert run.code == 0, run.complaint
    pictures = list(folder.rglob("*.png"))
    assert pictures
    assert all(picture.stat().st_size > 10_000 for picture in pictures)
    assert "Picture:" in run.printed


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_other_pages_are_run_elsewhere(page, test):
    assert page in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["density", "basis", "domain"])
def test_an_example_of_ones_own_is_short(kind):
    first = blocks(DOCS / f"write-your-own-{kind}.md")[0][1]
    assert len(first.splitlines()) < 50
