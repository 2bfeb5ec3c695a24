"""The built pages in a real browser: nothing is asked of another server, formulas are drawn, phones need not scroll."""

import re

import pytest
from docs_pages import DOCS, ROOT

from chromium import CHROMIUM

SITE = ROOT / "build" / "docs"
needs_site = pytest.mark.skipif(
    CHROMIUM is None or not (SITE / "index.html").is_file(), reason="needs chromium and the pages of make docs"
)
PAGES = ["index.html", "numerics.html", "api/densities.html", "examples/index.html", "reproducing-the-paper.html"]


@needs_site
@pytest.mark.parametrize(("scheme", "width"), [("dark", 360), ("light", 1100), ("dark", 1440)])
def test_pages_open_from_disk_without_network(chromium, scheme, width):
    complaints, requests = [], []
    page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    for name in PAGES:
        page.goto((SITE / name).as_uri())
        assert page.locator("h1").count() == 1, name
        assert not page.evaluate("document.documentElement.scrollWidth > window.innerWidth"), name
        broken = page.eval_on_selector_all("img", "all => all.filter(x => x.complete && !x.naturalWidth).length")
        assert not broken, name
    page.close()
    # From a disk a browser refuses to send the words of the search to the script that answers it; from a server not.
    assert [text for text in complaints if "Not allowed to load local resource" not in text] == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


@needs_site
def test_formulas_are_drawn(chromium):
    page = chromium.new_page()
    page.goto((SITE / "api" / "densities.html").as_uri())
    sizes = page.eval_on_selector_all("math", "all => all.map(x => [x.clientWidth, x.clientHeight])")
    fraction = page.evaluate("""() => {
        const [top, bottom] = document.querySelector("mfrac").children;
        return top.getBoundingClientRect().bottom <= bottom.getBoundingClientRect().top + 1;
    }""")
    page.close()
    assert len(sizes) > 20
    assert all(width > 5 and height > 5 for width, height in sizes)
    assert fraction


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_from_the_front_page_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    local = [target.partition("#")[0] for target in targets if "://" not in target and not target.startswith("#")]
    assert local
    assert [target for target in local if not (ROOT / target).exists()] == []


def test_every_page_is_in_the_contents():
    named = set(re.findall(r"^([\w/-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert {page.stem for page in DOCS.glob("*.md")} - {"index"} <= named
