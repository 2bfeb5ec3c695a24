"""Pages in a real browser: keys, clicks, light and dark, no complaint and no request."""

import pytest
import torch

from chromium import Visits, needs_chromium
from contmax.densities import TruncatedParabola, TruncatedParaboloid
from contmax.viz import alignment_html, image_attention_html, text_attention_html

pytestmark = needs_chromium


@pytest.fixture
def opened(chromium, left_pages, tmp_path):
    """A page of ours → one of the browser; whatever it complains of or asks for fails the test."""
    visits = Visits(chromium, left_pages)
    yield lambda page, **options: visits.open(page.save(tmp_path / "page.html").as_uri(), **options)
    visits.leave()
    assert visits.complaints == []
    assert [url for url in visits.requests if not url.startswith(("file:", "data:"))] == []


def test_a_text_is_read_with_the_keyboard_alone(opened):
    tokens = ["so", "<img src=x onerror=alert(1)>", "very", "good", "</script><script>alert(2)</script>"]
    page = opened(text_attention_html(tokens, [0.0, 0.3, 0.0, 0.5, 0.2], TruncatedParabola.from_support(0.2, 0.4)))
    page.keyboard.press("Tab")
    said = page.locator("#said")
    expected = {
        "ArrowRight": "“so” · token 1 of 5 · weight 0 · density 0",
        "ArrowDown": "“<img src=x onerror=alert(1)>” · token 2 of 5 · weight 30 % · density 100 %",
        "m": "“good” · token 4 of 5 · weight 50 % · density 0",
        "End": "“</script><script>alert(2)</script>” · token 5 of 5 · weight 20 % · density 0",
        "ArrowUp": "“good” · token 4 of 5 · weight 50 % · density 0",
        "ArrowLeft": "“very” · token 3 of 5 · weight 0 · density 0",
        "Home": "“so” · token 1 of 5 · weight 0 · density 0",
    }
    for key, text in expected.items():
        page.keyboard.press(key)
        assert said.inner_text() == text
    assert page.locator(".here").count() == 1


def test_the_overview_leads_to_one_of_ten_thousand_tokens_on_a_phone(opened):
    page = text_attention_html([f"word{i}" for i in range(10_000)], torch.rand(10_000))
    shown = opened(page, viewport={"width": 360, "height": 640})
    box = shown.locator("#strip").bounding_box()
    shown.mouse.click(box["x"] + 0.75 * box["width"], box["y"] + 20)
    token = shown.locator(".here")
    assert 7300 < int(token.inner_text().removeprefix("word")) < 7700
    assert 0 < token.bounding_box()["y"] < 640
    assert not shown.evaluate("document.documentElement.scrollWidth > window.innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_screen(opened, scheme):
    page = opened(text_attention_html(["a"], [1.0]), color_scheme=scheme)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(250, 251, 252)", "dark": "rgb(17, 20, 26)"}[scheme]


def test_alignments_and_images_are_read_with_the_keyboard_alone(opened):
    page = opened(alignment_html(["ein", "Hund"], ["a", "dog"], [[0.75, 0.25], [0.0, 1.0]]))
    page.keyboard.press("Tab")
    for key in ("ArrowDown", "ArrowDown", "m"):
        page.keyboard.press(key)
    assert page.locator("#said").inner_text() == "“dog” looks at “Hund” · weight 100 %"
    page.locator("td").nth(1).click()
    assert page.locator("#said").inner_text() == "“a” looks at “Hund” · weight 25 %"

    region = TruncatedParaboloid.from_support(torch.tensor([0.5, 0.5]), 0.04 * torch.eye(2))
    page = opened(image_attention_html(torch.rand(8, 8), [[0.1, 0.2], [0.3, 0.4]], region))
    page.keyboard.press("Tab")
    page.keyboard.press("m")
    assert page.locator("#said").inner_text() == "row 2 of 2, column 2 of 2 · weight 40 %"
    page.keyboard.press("Tab")
    assert page.locator("#said").inner_text().startswith("holds 100 % of density 1")


def test_a_page_works_inside_of_a_notebook(chromium):
    page = chromium.new_page()
    page.set_content(text_attention_html(["a", "b"], [0.25, 0.75])._repr_html_())
    frame = page.frame_locator("iframe")
    frame.locator("b").nth(1).click()
    assert frame.locator("#said").inner_text() == "“b” · token 2 of 2 · weight 75 %"
    page.close()
