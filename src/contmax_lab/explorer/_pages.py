"""The pages of the rooms, as the server gives them and as files that stand alone."""

import base64
import dataclasses
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from contmax_lab.drawing import Theme, css_colours, html_page
from contmax_lab.files import write_atomically

_STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Room:
    """A page of the explorer.

    Args:
        name: of its files, and of its address.
        title: in the list of rooms.
        stands_alone: whether everything is computed in the page, so that it works without the server.
    """

    name: str
    title: str
    stands_alone: bool

    @property
    def address(self) -> str:
        """Its path on the server; the first room is the front page."""
        return "/" if self is ROOMS[0] else f"/{self.name}"


ROOMS = (
    Room("densities", "Densities", stands_alone=True),
    Room("text", "Text", stands_alone=False),
    Room("image", "Image", stands_alone=False),
    Room("scores", "Scores", stands_alone=True),
)


@cache
def assets() -> dict[str, str]:
    """Name → text of every file that pages may ask for; there is nothing else to be had."""
    found = {
        path.name: path.read_text(encoding="utf-8") for path in _STATIC.iterdir() if path.suffix in (".js", ".css")
    }
    return {**found, "style.css": css_colours(_channels) + found["style.css"]}


def served_page(room: Room) -> str:
    """A page of the server: its styles and scripts are files of the server."""
    links = "".join(
        f'<a href="{other.address}"{" aria-current=page" if other is room else ""}>{other.title}</a>' for other in ROOMS
    )
    head = (
        '<link rel="stylesheet" href="/static/style.css">\n'
        f'<script type="module" src="/static/{room.name}.js"></script>\n'
    )
    header = f'<header><strong>contmax</strong><nav aria-label="Rooms">{links}</nav></header>\n'
    return _page(room, head, header, "")


def standalone_page(room: Room) -> str:
    """A page in one file, which works from a disk and inside another page."""
    script = bundled(f"{room.name}.js", assets())
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>\n{assets()["style.css"]}</style>\n'
    return _page(room, head, "", f'<script type="module">{script}</script>\n')


def _page(room: Room, head: str, header: str, end: str) -> str:
    body = (_STATIC / f"{room.name}.html").read_text(encoding="utf-8")
    skip = '<a class="skip" href="#main">to the controls</a>\n'
    return html_page(f"{room.title} · contmax", head, f'{skip}{header}<main id="main">\n{body}</main>\n{end}')


def export(folder: str | Path) -> list[Path]:
    """Write the rooms that need no server, each as one file without network: ``densities.html``, ``scores.html``.

    Args:
        folder: made if it does not exist.

    Returns:
        The files.

    Raises:
        CannotWrite: if a file cannot be written.
    """
    pages = {Path(folder) / f"{room.name}.html": standalone_page(room) for room in ROOMS if room.stands_alone}
    for path, page in pages.items():
        write_atomically(path, page.encode("utf-8"))
    return list(pages)


def bundled(entry: str, sources: Mapping[str, str]) -> str:
    """A module and all that it imports, in one scope, each after what it needs.

    Args:
        entry: name of the module to begin with.
        sources: name → text of every module. They import each other by name, as ``import { a } from "./b.js";``.

    Returns:
        One module without imports.

    Raises:
        ValueError: if two modules declare one name, which would clash in the joint scope.

    Example:
        >>> sources = {"a.js": 'import { b } from "./b.js";\\nb();\\n', "b.js": "export function b() {}\\n"}
        >>> print(bundled("a.js", sources))
        function b() {}
        b();
    """
    order = _in_order(entry, sources, [])
    owners: dict[str, str] = {}
    for name in order:
        for declared in _DECLARED.findall(sources[name]):
            if declared in owners:
                raise ValueError(f"{declared} is declared in {owners[declared]} and in {name}; rename one of them")
            owners[declared] = name
    return "".join(_EXPORT.sub("", _IMPORT.sub("", sources[name])) for name in order)


def _in_order(name: str, sources: Mapping[str, str], before: list[str]) -> list[str]:
    if name in before:
        return before
    for needed in _IMPORT.findall(sources[name]):
        before = _in_order(needed, sources, before)
    return [*before, name]


def _channels(theme: Theme) -> dict[str, str]:
    """Colours as three numbers, so that the page can add any transparency."""
    colours = {"first": theme.colour(0), "second": theme.colour(1), "third": theme.colour(4)}
    return {name: " ".join(str(int(hex_[i : i + 2], 16)) for i in (1, 3, 5)) for name, hex_ in colours.items()}
