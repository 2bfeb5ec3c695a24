"""Docstrings are written for a terminal; this says what of them Sphinx would misread."""

import re
from typing import Any

from sphinx.application import Sphinx

# A shape such as (*batch, L), which is code, and in which the asterisk would begin an emphasis.
_SHAPE = re.compile(r"(?<![`\w])(\w+ )?(\(\*[^()`]*\))(?!`)")
# |t−μ| would be a substitution.
_MODULUS = re.compile(r"(?<![`\\|])\|([^|`\s]+)\|(?!`)")


def _marked_up(app: Sphinx, what: str, name: str, thing: object, options: dict[str, bool], lines: list[str]) -> None:
    in_math = False
    for number, line in enumerate(lines):
        in_math = ".. math::" in line or (in_math and (not line.strip() or line.startswith(" ")))
        if in_math or line.lstrip().startswith((">>>", "...")):
            continue
        shaped = _SHAPE.sub(lambda match: f"{match[1] or ''}``{match[2]}``", line)
        lines[number] = shaped if ":math:" in line or "===" in line else _MODULUS.sub(r"\\|\1\\|", shaped)
    if what in ("attribute", "data", "property") and lines:
        # The first line of such a docstring would be read as "type: description" wherever it has a colon.
        lines.insert(0, "\\ ")  # a space that is not printed


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx calls this; napoleon comes after, at 500."""
    app.connect("autodoc-process-docstring", _marked_up, priority=400)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
