"""The explorer's rooms for texts and images as people use them, by mouse and by keyboard, in chromium."""

import re
import shutil

from explorer_browser import drag, says, says_another, settled

from chromium import needs_chromium

pytestmark = needs_chromium


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


def test_a_run_that_has_gone_is_told_in_the_page(opened, explorer_runs):
    opened.expected = ["404"]
    gone = explorer_runs / "gone"
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
    # It begins where the model looks, slanted as that is, and so with the same answer.
    assert before == page.text_content("#answer")
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
