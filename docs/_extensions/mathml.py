"""Formulas as MathML, which browsers draw by themselves: no script, no network, and screen readers can read it."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml, unichar2tex
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

_LOGGER = logging.getLogger(__name__)


# What the docstrings write and docutils does not know, as what it does.
_OPENING, _CLOSING = re.compile(r"\\([bB]igg?)(?=[(\[|.])"), re.compile(r"\\([bB]igg?)(?=[)\]])")
# \frac12 is a half; docutils would read twelve over what follows.
_DIGITS, _DIGIT = re.compile(r"(\\[td]?frac)(\d)(\d)"), re.compile(r"(\\[td]?frac)(\d)")
# An index after an accent would be put below the letter.
_ACCENTED = re.compile(r"(\\(?:hat|tilde|bar|dot|vec)\s*(?:\{[^{}]*\}|\w))_")
_PLAIN = {r"\dots": r"\ldots", r"\textstyle": "", r"\!": ""}


def _mathml(node: nodes.math | nodes.math_block) -> str:
    tex = _CLOSING.sub(r"\\\1r", _OPENING.sub(r"\\\1l", node.astext()))
    tex = _DIGIT.sub(r"\1{\2}", _DIGITS.sub(r"\1{\2}{\3}", tex))
    tex = _ACCENTED.sub(r"\1{}_", tex)
    for known_to_tex, known_here in _PLAIN.items():
        tex = tex.replace(known_to_tex, known_here)
    is_block = isinstance(node, nodes.math_block)
    try:
        return str(latex2mathml.tex2mathml(tex.translate(unichar2tex.uni2tex_table), as_block=is_block))
    except MathError as error:
        _LOGGER.warning("a formula cannot be written as MathML: %s in %s", error, tex, location=node)
        return f"<code>{tex}</code>"


def _visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_mathml(node))
    raise nodes.SkipNode


def _visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    # A wide formula scrolls in a box of its own, so that a phone does not scroll the page.
    number = f'<span class="eqno">({node["number"]})</span>' if node.get("number") else ""
    translator.body.append(translator.starttag(node, "div", CLASS="formula", tabindex="0"))
    translator.body.append(f"{_mathml(node)}{number}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
