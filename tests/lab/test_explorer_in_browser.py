"""The explorer as people use it: every control, by mouse and by keyboard alone, large and small, in chromium."""

import json
import re
import shutil

import pytest
from explorer_server import serving

import contmax  # noqa: F401, the code on the page needs it

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

ROOMS = ["/", "/text", "/image", "/scores"]
PHONE = {"width": 390, "height": 844}
# Generous, for machines that do much else at the same time; what is meant is 1000 and 33.
PAINT_MS, FRAME_MS = 4000, 100


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def port(runs):
    with serving(runs) as number:
        yield number


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser, port):
    """Address → page; whatever it complains of, or asks of others, fails the test."""
    complaints, requests, pages = [], [], []

    def open_page(address, **options):
        page = browser.new_page(**options)
        page.set_default_timeout(10_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message) or dialog.dismiss())
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address if "://" in address else f"http://127.0.0.1:{port}{address}")
        pages.append(page)
        return page

    open_page.expected = []
    yield open_page
    for page in pages:
        page.close()
    # The browser itself notes every refusal of the server.
    assert [text for text in complaints if not any(status in text for status in open_page.expected)] == []
    own = ("file:", "data:", "blob:", f"http://127.0.0.1:{port}/")
    assert [url for url in requests if not url.startswith(own)] == []


def number(page, name, column=1):
    """What the table of densities says."""
    text = page.locator(f'tr[data-name="{name}"] td').nth(column - 1).text_content()
    return float(text.replace("−", "-").replace("∞", "inf"))


def settled(page):
    """After the next frame."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def until(page, script, given=None):
    """Wait until a function is true. The page allows no strings as code, which playwright's own way needs."""
    for _ in range(300):
        if page.evaluate(script, given):
            return
        page.wait_for_timeout(30)
    raise AssertionError(f"never true: {script}")


def says(page, selector, words):
    """Wait until an element says these words."""
    until(page, "([where, words]) => document.querySelector(where).textContent.includes(words)", [selector, words])


def says_another(page, selector, before):
    """Wait until an element says something else."""
    until(page, "([where, words]) => document.querySelector(where).textContent !== words", [selector, before])


def drag(page, handle, x, y):
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + x, box["y"] + box["height"] / 2 + y, steps=5)
    page.mouse.up()
    settled(page)


def slide(page, selector, value):
    page.locator(selector).evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", value)
    settled(page)


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
    until(page, "() => performance.getEntriesByName('frame').length > 40")
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


def test_a_text_is_read_and_the_interval_changes_the_answer(opened):
    page = opened("/text")
    page.click("#read")
    assert "no text yet" in page.text_content("#problem")
    page.get_by_role("button", name="example 1").click()
    page.wait_for_selector("#yours .bars")
    assert "negative" in page.text_content("#verdict")
    assert page.locator(".lanes .lane").count() == 4
    before = page.text_content("#yours")
    marked = page.locator("#words .inside").all_text_contents()
    assert "badly" in marked
    drag(page, page.get_by_role("button", name=re.compile("^Your interval")), -300, 0)
    says_another(page, "#yours", before)
    assert page.locator("#words .inside").all_text_contents() != marked
    page.get_by_role("button", name="Beginning of your interval").press("ArrowLeft")
    page.get_by_role("button", name="End of your interval").press("Shift+ArrowRight")
    settled(page)
    assert len(page.locator("#words .inside").all()) > len(marked)
    page.select_option("#shade", "2")
    assert page.locator("#words .none").count() == 0
    page.select_option("#shade", "1")
    page.focus("#words")
    page.keyboard.press("ArrowDown")
    assert re.match(r"“dull”, word 12 of 33: \d+", page.text_content("#said"))
    page.fill("#text", "<img src=x onerror=alert(1)> A wonderful film. </b><script>alert(2)</script>")
    page.focus("#text")
    page.keyboard.press("Control+Enter")
    says(page, "#words", "onerror")


def test_a_text_of_100_kb_and_one_that_is_too_long(opened):
    opened.expected = ["413"]
    page = opened("/text")
    text = ("Long ago this was a dull and badly written film, they say; " * 2000)[:100_000]
    page.fill("#text", text)
    with page.expect_response("**/api/text") as answered:
        page.click("#read")
    page.wait_for_selector("#yours .bars")
    size = len(answered.value.body())
    words = page.locator("#words b").count()
    print(f"{words:,} words: {size / 1000:.0f} kB")
    assert words > 18_000
    assert size < 1_000_000
    page.get_by_role("button", name=re.compile("^Your interval")).press("ArrowRight")
    settled(page)
    page.fill("#text", text * 3)
    page.click("#read")
    says(page, "#problem", "at most 200,000")
    assert page.locator("#result").is_hidden()


def test_a_run_that_has_gone_is_told_in_the_page(opened, runs):
    opened.expected = ["404"]
    gone = runs / "gone"
    gone.mkdir()
    (gone / "config.yaml").write_text("task: texts\n")
    (gone / "results.json").write_text("{}")
    page = opened("/text")
    page.wait_for_selector("#model option[value=gone]", state="attached")
    shutil.rmtree(gone)
    page.fill("#text", "A wonderful film.")
    page.select_option("#model", "gone")
    says_another(page, "#problem", "")
    assert page.text_content("#problem") == "There is no model 'gone'; choose one of the list."


def test_digits_and_images_of_ones_own_have_ellipses(opened, tmp_path):
    from PIL import Image, ImageDraw

    opened.expected = ["422", "415"]
    page = opened("/image")
    page.get_by_role("button", name="Example 4", exact=True).click()
    page.wait_for_selector("#yours .bars")
    verdict = page.text_content("#verdict")
    assert "The model says: 6" in verdict
    before = page.text_content("#yours")
    drag(page, page.get_by_role("button", name="Centre of your ellipse"), 0, -200)
    says_another(page, "#yours", before)
    for name in ("First axis", "Second axis"):
        handle = page.get_by_role("button", name=name)
        said = handle.get_attribute("aria-label")
        handle.press("Shift+ArrowUp")
        settled(page)
        assert handle.get_attribute("aria-label") != said
    for lane in ("discrete", "continuous softmax", "continuous sparsemax"):
        page.get_by_label(lane, exact=True).check()
        assert page.locator("#answer .item").count() == 10
    one = Image.new("RGB", (80, 80), "white")
    ImageDraw.Draw(one).line((40, 10, 40, 70), fill="black", width=12)
    one.save(tmp_path / "one.png")
    page.set_input_files("#file", tmp_path / "one.png")
    says_another(page, "#verdict", verdict)
    bad = {"text.png": b"no image", "page.html": b"<script>alert(1)</script>", "large.png": bytes(8_000_001)}
    for (name, content), said in zip(bad.items(), ("not an image", "is no image", "at most 8 MB"), strict=True):
        (tmp_path / name).write_bytes(content)
        page.set_input_files("#file", tmp_path / name)
        says(page, "#problem", said)


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
