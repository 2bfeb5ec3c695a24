"""The report as a browser sees it: no errors, no requests, nothing broken."""

from weather import tiny_recipe

from chromium import needs_chromium, started
from contmax_lab.registry import open_trained
from contmax_lab.report import sections, write_page
from contmax_lab.runs import Run
from contmax_lab.training import train


@needs_chromium
def test_a_report_opens_from_disk_without_errors_and_without_network(tmp_path):
    families = ("midpoint", "parabola")
    for family in families:
        train(tiny_recipe(tmp_path, f"--model.family={family}"), Run(tmp_path / family))
    trained = [open_trained(tmp_path / family) for family in families]
    page_file, *pictures = write_page(tmp_path / "report" / "report.html", "A report", "lead", sections(trained))
    assert len(pictures) == 3

    complaints, requests = [], []
    with started() as browser:
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(page_file.as_uri())
        widths = page.eval_on_selector_all("img", "images => images.map(image => image.naturalWidth)")
        rows = page.locator("tbody tr").count()
        overflow = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert len(widths) == 3
    assert all(width > 300 for width in widths)
    assert rows == 2
    assert not overflow
