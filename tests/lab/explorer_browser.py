"""Hands and eyes for tests of the explorer in a browser."""


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
