"""A real browser for tests that look at pages, where there is one."""

import contextlib
import shutil

import pytest

# The last list of features to do without counts: it has those of playwright's that pages could notice. The first two
# are the address bar, which no test looks at: it is a page itself, loaded anew for every window, seconds of work.
_FEATURES = (
    "WebUIOmniboxPopup,WebUIOmniboxAimPopup,AimEnabled,LensOverlay,MediaRouter,OptimizationHints,PreconnectToSearch,"
    "NetworkTimeServiceQuerying,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,PaintHolding,DestroyProfileOnBrowserClose,"
    "AvoidUnnecessaryBeforeUnloadCheckSync,AvoidCorsURLLoaderRestartOnRedirect,ThirdPartyStoragePartitioning"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")


@contextlib.contextmanager
def started():
    """The browser, closed at the end; without playwright the test is skipped."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        options = ["--no-sandbox", f"--disable-features={_FEATURES}"]
        browser = running.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


class Visits:
    """What one test opens, in pages that earlier tests have left: a new one takes five times as long.

    Nothing is kept in the browser by pages of ours: all that a test did to one goes when the next opens another address
    in it. A blank page in between would be another origin, and take a process of its own.

    Args:
        browser: where there are none left.
        left: options → pages.

    Attributes:
        complaints: of the pages, since they were opened.
        requests: their addresses.
    """

    def __init__(self, browser, left):
        self.complaints, self.requests = [], []
        self._browser, self._left, self._pages = browser, left, []
        self._listeners = {
            "console": lambda message: self.complaints.append(message.text),
            "pageerror": lambda error: self.complaints.append(str(error)),
            "dialog": lambda dialog: self.complaints.append(dialog.message) or dialog.dismiss(),
            "request": lambda request: self.requests.append(request.url),
        }

    def open(self, address, **options):
        left = self._left.setdefault(repr(options), [])
        page = left.pop() if left else self._browser.new_page(**options)
        page.set_default_timeout(10_000)
        self._pages.append((page, left))
        for event, listener in self._listeners.items():
            page.on(event, listener)
        page.goto(address)
        return page

    def leave(self):
        """Leave the pages to other tests."""
        for page, left in self._pages:
            for event, listener in self._listeners.items():
                page.remove_listener(event, listener)
            left.append(page)
