"""The pages of the documentation, and their code as programs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
_BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# What a block of a session says is what Python says, or the program ends with a traceback.
_SESSION = """
def _session(text, names):
    import doctest
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    test = doctest.DocTestParser().get_doctest(text, names, "a session of the page", None, 0)
    assert test.examples, text
    said = []
    if doctest.DocTestRunner(optionflags=flags).run(test, out=said.append, clear_globs=False).failed:
        raise AssertionError("".join(said))
    names.update(test.globs)
"""


def blocks(page):
    """The language and the text of each block of Python, in order."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def program(page):
    """All blocks of a page as one program, as somebody would type them who reads it from top to bottom."""
    steps = [text if kind == "python" else f"_session({text!r}, globals())\n" for kind, text in blocks(page)]
    return _SESSION + "\n".join(steps)
