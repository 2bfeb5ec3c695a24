"""Pages as a parser reads them: what is shaded, what is said, and that no token gets out of its element."""

import base64
import io
import math
import re

import pytest
import torch
from parsed_page import ParsedPage
from torch.distributions import Normal

from contmax.densities import BetaGaussian, TruncatedParabola, TruncatedParaboloid
from contmax.viz import DARK, LIGHT, alignment_html, image_attention_html, text_attention_html
from contmax.viz._page import _FULLEST

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</b></div></body>",
    '" onmouseover="alert(1)',
    "'><img src=x onerror=alert(1)>",
    "&lt;b&gt;",
    "<!--",
    "]]>",
    "\u202eright to left",
    "${alert(1)}`",
]


def test_a_text_has_its_tokens_with_the_strength_of_their_weights():
    found = ParsedPage(text_attention_html(["so", "very", "good"], torch.tensor([[0.0, 0.25, 0.75]])).html)
    assert found.words("b") == ["so", "very", "good"]
    assert [token.get("class") for token in found.of("b")] == [None, "l6", "l9"]
    assert found.data == {"weight": [0, 0.25, 0.75]}


def test_what_of_a_density_falls_to_a_token_is_its_distribution_function():
    density = BetaGaussian(0.4, 0.1, alpha=1.5)
    page = text_attention_html(["w"] * 7, density=density)
    expected = density.cdf(torch.linspace(0, 1, 8)).diff()
    assert ParsedPage(page.html).data["density"] == pytest.approx(expected.tolist(), rel=6e-3, abs=1e-6)


def test_weights_shade_and_the_density_underlines():
    page = text_attention_html(["a", "b", "c", "d"], [1.0, 0, 0, 0], TruncatedParabola.from_support(0.0, 0.5))
    assert [token.get("class") for token in ParsedPage(page.html).of("b")] == ["l9 d9", "d9", None, None]
    assert "4 tokens, 2 of them attended" in page.html
    assert "Most attended: <bdi>“a”</bdi> 100 %." in page.html


@pytest.mark.parametrize("make", ["text", "alignment", "image"])
def test_hostile_text_stays_text(make):
    if make == "text":
        page, tag = text_attention_html(HOSTILE, [0.1] * len(HOSTILE), title=HOSTILE[1]), "b"
    elif make == "alignment":
        page, tag = alignment_html(["x"], HOSTILE, [[1.0]] * len(HOSTILE), title=HOSTILE[1]), "th"
    else:
        page, tag = image_attention_html(None, [[1.0]], title=HOSTILE[1]), ""
    found = ParsedPage(page.html)
    assert found.words("h1") == [HOSTILE[1]]
    assert found.words("title") == [HOSTILE[1]]
    if tag:
        assert [word for word in found.words(tag) if word][-len(HOSTILE) :] == HOSTILE
    assert found.of("img") == []
    assert len(found.of("script")) == 2
    assert not [name for _, attributes in found.elements for name in attributes if name.startswith("on")]


def test_only_the_script_of_the_page_may_run_and_nothing_is_fetched():
    page = text_attention_html(["a"], [1.0]).html
    (policy,) = [meta["content"] for meta in ParsedPage(page).of("meta") if "http-equiv" in meta]
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[\w+/]{43}='$", policy)
    assert not re.search(r"https?://|@import|url\(", page)


def test_ten_thousand_tokens_take_less_than_half_a_megabyte():
    words = ["attention", "is", "all", "you", "need", "for", "translation", "sometimes", "not", "quite"]
    page = text_attention_html(words * 1000, torch.rand(10_000) / 5000, Normal(0.5, 0.3))
    assert len(page.html.encode()) < 500_000
    assert len(ParsedPage(page.html).of("b")) == 10_000
    assert page.html.count("\n") < 200


def test_a_page_is_saved_in_utf8_and_shows_in_a_notebook(tmp_path):
    page = text_attention_html(["schön", "\ud800", "\x00"], [0.2, 0.3, 0.5])
    path = page.save(tmp_path / "page.html")
    assert path.read_text(encoding="utf-8") == page.html
    assert ParsedPage(page.html).words("b") == ["schön", "�", "␀"]
    (frame,) = ParsedPage(page._repr_html_()).of("iframe")
    assert frame["srcdoc"] == page.html
    assert frame["sandbox"] == "allow-scripts"
    assert repr(page).startswith("HtmlPage(")


def test_an_alignment_is_a_table_with_headers_and_shares():
    page = alignment_html(["ein", "Hund", "."], ["a", "dog"], [[0.5, 0.496, 0.004], [0.0, 1.0, 0.0]])
    found = ParsedPage(page.html)
    assert [cell.get("scope") for cell in found.of("th")] == [None, "col", "col", "col", "row", "row"]
    assert found.words("td") == ["50", "50", "·", "", "100", ""]
    assert [cell.get("class") for cell in found.of("td")] == ["l9", "l9", "l1", None, "l9", None]


def test_an_alignment_of_densities_has_their_mass():
    density = TruncatedParabola.from_support(torch.tensor([[0.0, 0.5]]), torch.tensor([[0.5, 1.0]]))
    page = alignment_html(["a", "b"], ["c", "d"], density=density, index=0)
    assert ParsedPage(page.html).data["density"] == pytest.approx([1, 0, 0, 1], abs=1e-6)


def test_an_image_has_cells_and_ellipses_as_vectors():
    density = TruncatedParaboloid.from_support(torch.tensor([0.25, 0.75]), 0.04 * torch.eye(2))
    pixels = torch.rand(10, 20, 3)
    page = image_attention_html(pixels, [[0.0, 1.0]], density)
    found = ParsedPage(page.html)
    outer, inner = found.of("ellipse")
    assert [float(outer[name]) for name in ("cx", "cy", "rx", "ry")] == pytest.approx([0.75, 0.25, 0.2, 0.2])
    assert outer["tabindex"] == "0"
    assert inner["aria-label"].startswith("holds 50 % of density 1: centre at row 0.25, column 0.75")
    assert [path["d"] for path in found.of("path")] == ["M1 0h1v1h-1z"]
    assert found.of("svg")[0]["viewbox"] == "0 0 1000 500.0"
    (image,) = found.of("image")
    assert numpy_of(image["href"]) == (255 * pixels).round().to(torch.uint8).tolist()


@pytest.mark.parametrize("angle", [0.0, 20.0, 70.0, 90.0, 110.0, 160.0])
def test_an_ellipse_is_turned_as_the_density_is(angle):
    """`angle`: from the columns, to the right, to the rows, downwards, as SVG counts it."""
    turn = math.radians(angle)
    long, short = torch.tensor([math.sin(turn), math.cos(turn)]), torch.tensor([math.cos(turn), -math.sin(turn)])
    support = 0.3**2 * torch.outer(long, long) + 0.1**2 * torch.outer(short, short)
    density = TruncatedParaboloid.from_support(torch.tensor([0.4, 0.6]), support)
    outer = ParsedPage(image_attention_html(None, density=density).html).of("ellipse")[0]
    assert [float(outer[name]) for name in ("cx", "cy", "rx", "ry")] == pytest.approx([0.6, 0.4, 0.3, 0.1], rel=1e-3)
    turned, x, y = map(float, re.fullmatch(r"rotate\((\S+) (\S+) (\S+)\)", outer["transform"]).groups())
    assert (x, y) == (0.6, 0.4)
    assert (turned - angle + 90) % 180 == pytest.approx(90, abs=0.1)


def numpy_of(address):
    """The pixels, as Pillow reads them."""
    import numpy
    from PIL import Image

    return numpy.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))).tolist()


def test_a_large_image_is_shrunk():
    page = image_attention_html(torch.zeros(100, 2000), [[1.0]])
    assert len(numpy_of(ParsedPage(page.html).of("image")[0]["href"])) == 32
    assert len(page.html) < 30_000


def _luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _rgb(colour):
    return [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]


def _contrast(one, other):
    low, high = sorted([_luminance(one), _luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read_on_every_shade(theme):
    plate, accent = _rgb(theme.plate), _rgb(theme.colour(0))
    fullest = [_FULLEST * a + (1 - _FULLEST) * p for a, p in zip(accent, plate, strict=True)]
    assert _contrast(_rgb(theme.ink), fullest) > 4.5
    assert _contrast(_rgb(theme.soft), plate) > 4.5
