"""The pages tell the truth: every block of Python runs, page by page, and sessions print what they say."""

import pytest
from docs_pages import DOCS, PAGES, ROOT, blocks, program

from fresh import Program, run_each

# Run by tests of their own, which give them the folders and the models that they need.
ELSEWHERE = {
    "transformers.md": "tests/integrations/test_transformers_training.py",
    "write-your-own-task.md": "tests/lab/test_own_task.py",
}
WITH_CODE = [page for page in PAGES if blocks(page) and page.name not in ELSEWHERE]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """What came of the code of each page, in a folder of its own."""
    programs = [Program(page.name, program(page), tmp_path_factory.mktemp(page.stem)) for page in WITH_CODE]
    lie = tmp_path_factory.mktemp("lie") / "lie.md"
    lie.write_text("```pycon\n>>> 1 + 1\n3\n```\n")
    # What most of them need is imported once.
    imports = ("torch._dynamo", "torch._refs", "scipy.stats", "matplotlib.pyplot", "contmax.kernels.cpu", "contmax.viz")
    runs = run_each([*programs, Program("a session that lies", program(lie))], imports=imports, strict=True)
    return dict(zip([*(page.name for page in WITH_CODE), "lie"], runs, strict=True))


@pytest.mark.parametrize("name", [page.name for page in WITH_CODE])
def test_the_code_of_a_page_runs(name, done):
    assert done[name].code == 0, done[name].complaint


def test_a_session_that_lies_is_found(done):
    assert "Got:\n    2" in done["lie"].complaint


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_other_pages_are_run_elsewhere(page, test):
    assert page in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["density", "basis", "domain"])
def test_an_example_of_ones_own_is_short(kind):
    first = blocks(DOCS / f"write-your-own-{kind}.md")[0][1]
    assert len(first.splitlines()) < 50
