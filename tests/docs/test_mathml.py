"""Formulas: what docutils would misread or refuse becomes what TeX means by it."""

import re
import sys

import pytest
from docs_pages import DOCS

nodes = pytest.importorskip("docutils.nodes")
pytest.importorskip("sphinx")


@pytest.fixture(scope="module")
def mathml():
    sys.path.insert(0, str(DOCS / "_extensions"))
    try:
        import mathml
    finally:
        sys.path.pop(0)
    return lambda tex: re.sub(r" \w+=\"[^\"]*\"|<math[^>]*>|</math>|\s+", "", mathml._mathml(nodes.math(tex, tex)))


@pytest.mark.parametrize(
    ("tex", "written"),
    [
        (r"\tfrac12x", "<mfrac><mn>1</mn><mn>2</mn></mfrac><mi>x</mi>"),
        (r"\frac1\sigma", "<mfrac><mn>1</mn><mi>σ</mi></mfrac>"),
        (r"\hat p_f", "<mover><mi>p</mi><mo>ˆ</mo></mover><msub><mrow></mrow><mi>f</mi></msub>"),
        (r"1 \dots n", "<mn>1</mn><mo>…</mo><mi>n</mi>"),
    ],
)
def test_a_formula_is_what_tex_means(mathml, tex, written):
    assert mathml(tex).replace("mi>…", "mo>…").replace("…</mi", "…</mo") == written


def test_brackets_of_any_size_are_taken(mathml):
    assert "[" in mathml(r"\Big[\frac{a}{b}\Big]_+")
    assert "<code>" not in mathml(r"\exp\!\Big(-\frac{t^2}{2} - A\Big)")
