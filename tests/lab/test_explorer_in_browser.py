"""The explorer as people use it: every control, by mouse and by keyboard alone, large and small, in chromium."""

import json
import re

import pytest
from explorer_browser import drag, settled, slide, until

import contmax  # noqa: F401, the code on the page needs it
from chromium import needs_chromium

pytestmark = needs_chromium

ROOMS = ["/", "/text", "/image", "/scores"]
PHONE = {"width": 390, "height": 844}
# Generous, for machines that do much else at the same time; what is meant is 1000 and 33.
PAINT_MS, FRAME_MS = 4000, 100


def number(page, name, column=1):
    """What the table of densities says."""
    text = page.locator(f'tr[data-name="{name}"] td').nth(column - 1).text_content()
    return float(text.replace("−", "-").replace("∞", "inf"))


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_opens_at_once_and_has_all_rooms_in_reach(opened, room):
    page = opened(room)
    assert page.locator("nav a").count() == 4
    assert page.locator("nav a[aria-current]").count() == page.locator("h1").count() == 1
    paint = page.evaluate(
        "() => new Promise(done => new PerformanceObserver(list => done(list.getEntries().at(-1).startTime))"
        ".observe({type: 'paint', buffered: true}))"
    )
    print(f"first paint of {room}: {paint:.0f} ms")
    assert paint < PAINT_MS
    unnamed = page.evaluate(
        "() => [...document.querySelectorAll('input, select, textarea, button')].filter(e => !e.labels?.length"
        " && !e.textContent.trim() && !e.ariaLabel).map(e => e.outerHTML)"
    )
    assert unnamed == []


def test_handles_and_sliders_of_the_line(opened):
    page = opened("/")
    before = number(page, "fenchel_young")
    centre, width = (page.get_by_role("button", name=name) for name in ("Centre of p", "Scale σ of p"))
    drag(page, centre, 80, 0)
    assert number(page, "fenchel_young") < before
    narrow = number(page, "half_width")
    drag(page, width, 60, 0)
    assert number(page, "half_width") > narrow
    for selector, value in {"#p-x": -1, "#p-long": 0.5, "#q-x": 0.5, "#q-long": 1.5, "#q-alpha": 0.4}.items():
        shown = page.text_content("#code")
        slide(page, selector, value)
        assert page.text_content("#code") != shown
    slide(page, "#p-alpha", 1)
    assert (number(page, "density(loc)"), number(page, "half_width")) == (1.0, 0.5)
    slide(page, "#p-alpha", 0)
    assert number(page, "half_width") == float("inf")
    page.get_by_label("α = 3⁄2, biweight").first.click()
    settled(page)
    assert page.input_value("#p-alpha-typed") == "1.5"
    for typed, code in {"inf": "math.inf", "4/3": "1.33333", "1": "1.0"}.items():
        page.fill("#p-alpha-typed", typed)
        page.keyboard.press("Enter")
        settled(page)
        assert f"alpha={code}" in page.text_content("#code")
    page.fill("#p-alpha-typed", "0.2")
    page.keyboard.press("Enter")
    assert "“0.2” is no α" in page.text_content("#p-alpha-problem")


@pytest.mark.parametrize("dim", [1, 2])
def test_the_code_on_the_page_gives_the_numbers_on_the_page(opened, dim):
    page = opened("/")
    page.check(f"input[name=dim][value='{dim}']")
    for alphas in ((0.2, 0.9), (1, 0.4)):
        slide(page, "#p-alpha", alphas[0])
        slide(page, "#q-alpha", alphas[1])
        *statements, last = page.text_content("#code").splitlines()
        names = {}
        exec("\n".join(statements), names)
        assert number(page, "fenchel_young") == pytest.approx(float(eval(last, names)), rel=1e-3)
        for column, density in ((1, names["p"]), (2, names["q"])):
            assert number(page, "entropy()", column) == pytest.approx(float(density.entropy()), rel=1e-3, abs=1e-4)
            negentropy = float(density.tsallis_negentropy())
            assert number(page, "tsallis_negentropy()", column) == pytest.approx(negentropy, rel=1e-3, abs=1e-4)


def test_the_plane_is_moved_stretched_and_rotated(opened):
    page = opened("/")
    page.check("input[name=dim][value='2']")
    settled(page)
    assert page.locator(".handle:visible").count() == 6
    angle = page.input_value("#p-angle")
    drag(page, page.get_by_role("button", name="First axis of p"), 0, -60)
    assert page.input_value("#p-angle") != angle
    short = page.input_value("#p-short")
    drag(page, page.get_by_role("button", name="Second axis of p"), -30, -30)
    assert page.input_value("#p-short") != short
    drag(page, page.get_by_role("button", name="Centre of q"), -50, 40)
    assert page.input_value("#q-y") != "-0.5"
    for selector in ("#p-y", "#p-short", "#p-angle"):
        shown = page.text_content("#code")
        slide(page, selector, 0.77)
        assert page.text_content("#code") != shown
    page.uncheck("#with-second")
    settled(page)
    assert page.locator(".handle:visible").count() == 3
    assert page.locator("#second").is_hidden()
    assert "p.entropy()" in page.text_content("#code")


@pytest.mark.parametrize("dim", [1, 2])
def test_frames_are_drawn_in_time(opened, dim):
    page = opened("/")
    page.check(f"input[name=dim][value='{dim}']")
    settled(page)
    page.evaluate("performance.clearMeasures()")
    page.click("#play")
    until(page, "() => performance.getEntriesByName('frame').length > 20")
    page.click("#play")
    spent = sorted(page.evaluate("performance.getEntriesByName('frame').map(frame => frame.duration)"))
    print(f"frame in {dim} dimensions: median {spent[len(spent) // 2]:.1f} ms, longest {spent[-1]:.1f} ms")
    assert spent[len(spent) // 2] < FRAME_MS


def test_samples_are_drawn_drawn_again_and_left_out(opened):
    page = opened("/")
    settled(page)

    def drawn():
        settled(page)
        return page.evaluate("document.querySelector('#stage canvas').toDataURL()")

    first = drawn()
    page.click("#redraw")
    again = drawn()
    page.uncheck("#with-samples")
    assert len({first, again, drawn()}) == 3


def test_densities_with_the_keyboard_alone(opened):
    page = opened("/")
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.ariaLabel || document.activeElement.id"))
        if seen[-1].startswith("Centre of p"):
            break
    assert {"with-samples", "redraw", "play"} <= set(seen)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    settled(page)
    assert page.input_value("#p-x") == "-0.3"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")
    settled(page)
    assert page.input_value("#p-long") == "0.85"
    page.focus("#p-alpha")
    page.keyboard.press("End")
    settled(page)
    assert number(page, "half_width") == 0.5


def test_scores_are_typed_and_answered_with_jacobians(opened):
    page = opened("/scores")
    page.fill("#scores", "3 1 1 -2")
    slide(page, "#alpha", 1.25)
    slide(page, "#temperature", 0.5)
    *statements, last = page.text_content("#code").splitlines()
    names = {}
    exec("\n".join(statements), names)
    expected = [f"{100 * float(p):.1f} %" if p else "0 %" for p in eval(last, names)]
    assert page.locator("[data-map=entmax] .value").all_text_contents() == expected
    assert "4 by 4" in page.locator("[data-map=entmax] .jacobian").get_attribute("aria-label")
    slide(page, "#temperature", -0.5)
    assert page.locator("[data-map=sparsemax] .value").all_text_contents() == ["100.0 %", "0 %", "0 %", "0 %"]
    page.focus("[data-map=softmax] .jacobian")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert re.match(r"softmax: ∂p2/∂x2 = 0\.\d+", page.text_content("#said"))
    for typed, complaint in {"": "No scores yet", "1 x": "“x” is no number", "1 " * 20: "too many"}.items():
        page.fill("#scores", typed)
        settled(page)
        assert complaint in page.text_content("#scores-problem")


@pytest.mark.parametrize("room", ROOMS)
def test_a_phone_shows_every_room_without_scrolling_sideways(opened, room):
    page = opened(room, viewport=PHONE, has_touch=True)
    if room == "/text":
        page.get_by_role("button", name="example 3").tap()
        page.wait_for_selector("#yours .bars")
    if room == "/":
        page.get_by_label("the plane").tap()
        settled(page)
    assert not page.evaluate("document.documentElement.scrollWidth > window.innerWidth")


def test_dark_screens_and_people_who_dislike_motion(opened):
    light, dark = (opened("/", color_scheme=scheme, reduced_motion="reduce") for scheme in ("light", "dark"))
    grounds = [page.evaluate("getComputedStyle(document.body).backgroundColor") for page in (light, dark)]
    assert grounds == ["rgb(250, 251, 252)", "rgb(17, 20, 26)"]
    assert light.locator("#play").is_hidden()


def test_exported_pages_work_from_a_disk(opened, tmp_path):
    from contmax_lab.explorer import export

    densities, scores = (opened(path.as_uri()) for path in export(tmp_path))
    drag(densities, densities.get_by_role("button", name="Centre of p"), 60, 0)
    assert densities.input_value("#p-x") != "-0.6"
    scores.fill("#scores", "1, 0")
    settled(scores)
    assert scores.locator("[data-map=sparsemax] .value").all_text_contents() == ["100.0 %", "0 %"]
    assert json.loads(scores.evaluate("JSON.stringify(performance.getEntriesByType('resource').length)")) == 0
