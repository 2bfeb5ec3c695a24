"""A page as a parser of the standard library reads it."""

import json
from html.parser import HTMLParser

VOID = {"meta", "br", "image", "rect", "path", "line", "ellipse", "input"}


class ParsedPage(HTMLParser):
    """Elements with their attributes and text.

    Args:
        source: the page.
    """

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)
            self.texts.append((tag, ""))

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        # Rows and cells of a table may end by themselves.
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if self._open:
            tag, text = self.texts[-1]
            self.texts[-1] = (tag, text + data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        """Attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    def words(self, tag: str) -> list[str]:
        """What stands directly after each opening tag of a kind."""
        return [text.strip("\n ") for name, text in self.texts if name == tag]

    @property
    def data(self):
        """The numbers that the script reads."""
        (text,) = [text for name, text in self.texts if name == "script" and text.startswith("{")]
        return json.loads(text)
