"""One HTML file with everything inside."""

import base64
import html
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from contmax_lab.contract import Figure, Section
from contmax_lab.drawing import DARK, LIGHT, Theme, rendered_twice
from contmax_lab.files import write_atomically


class _Picture(NamedTuple):
    """A figure that has been drawn."""

    figure: Figure
    light: bytes
    dark: bytes


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section]) -> list[Path]:
    """Write the report, and its pictures beside it.

    Args:
        path: of the HTML file.
        title: of the report.
        lead: a sentence below the title.
        sections: its parts.

    Returns:
        The files.
    """
    pictures: list[_Picture] = []
    body = "\n".join(_section(section, pictures) for section in sections)
    page = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        # An icon of our own, or browsers ask the network for one.
        f'<link rel="icon" href="data:,">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{page_style()}</style>\n</head>\n<body>\n<header>\n<h1>{html.escape(title)}</h1>\n"
        f'<p class="lead">{html.escape(lead)}</p>\n{_contents(sections)}</header>\n<main>\n{body}\n</main>\n'
        "</body>\n</html>\n"
    )
    write_atomically(path, page.encode("utf-8"))
    files = [path.parent / name for name in _distinct([picture.figure.filename for picture in pictures])]
    for file, picture in zip(files, pictures, strict=True):
        write_atomically(file, picture.light)
    return [path, *files]


def _distinct(names: Sequence[str]) -> list[str]:
    """Names of files; a name that is taken already gets a number."""
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name.removesuffix('.png')}-{seen[name]}.png")
    return distinct


def _contents(sections: Sequence[Section]) -> str:
    """Links to the sections, if there are several."""
    if len(sections) < 2:
        return ""
    links = (f'<a href="#{_anchor(section)}">{html.escape(section.title)}</a>' for section in sections)
    return f"<nav>{' '.join(links)}</nav>\n"


def _anchor(section: Section) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in section.title.lower()).split())


def _section(section: Section, pictures: list[_Picture]) -> str:
    """A part of the page; its figures are drawn here, and added to the pictures."""
    parts = [f'<section id="{_anchor(section)}">\n<h2>{html.escape(section.title)}</h2>']
    parts += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text.split("\n\n") if paragraph]
    if section.table:
        parts.append(_table(section.table))
    parts += [f'<p class="notes">{html.escape(note)}</p>' for note in section.notes]
    for figure in section.figures:
        pictures.append(_Picture(figure, *rendered_twice(figure.draw)))
        parts.append(_figure(pictures[-1], len(pictures)))
    return "\n".join([*parts, "</section>"])


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *body = lines
    numeric = [all(_is_number(line[i]) for line in body) for i in range(len(head))]
    rows = "\n".join(_row(line, numeric, "td") for line in body)
    columns = _row(head, numeric, 'th scope="col"')
    table = f"<table><thead>{columns}</thead>\n<tbody>\n{rows}\n</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _row(line: Sequence[str], numeric: Sequence[bool], tag: str) -> str:
    """A line; the columns of numbers are set apart from those of words."""
    first = 'th scope="row"' if tag == "td" else tag
    tags = [first, *[tag] * (len(line) - 1)]
    marks = [' class="number"' if number else "" for number in numeric]
    cells = (
        f"<{opening}{mark}>{html.escape(cell)}</{opening.split()[0]}>"
        for cell, opening, mark in zip(line, tags, marks, strict=True)
    )
    return f"<tr>{''.join(cells)}</tr>"


def _is_number(cell: str) -> bool:
    """Whether a cell is a figure, with or without a deviation, or the dash of a missing one."""
    first = cell.partition(" ± ")[0].replace(",", "")
    return first in ("–", "") or first.removeprefix("-").replace(".", "", 1).isdecimal()


def _figure(picture: _Picture, number: int) -> str:
    title, caption = html.escape(picture.figure.title), html.escape(picture.figure.caption)
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{_inline(picture.dark)}">'
    image = f'<img alt="{title}" src="{_inline(picture.light)}">'
    return (
        f'<figure><div class="plate scroll" tabindex="0"><picture>{dark}{image}</picture></div>\n'
        f"<figcaption><strong>Figure {number}. {title}.</strong> {caption}</figcaption></figure>"
    )


def _inline(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


_RULES = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: clamp(1.2rem, 5vw, 3.5rem) clamp(1rem, 4vw, 2rem) 5rem;
       color: var(--ink); background: var(--paper);
       font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: clamp(1.6rem, 5vw, 2.2rem); line-height: 1.2; letter-spacing: -.015em; margin: 0 0 .5rem; }
h2 { font-size: 1.4rem; line-height: 1.3; letter-spacing: -.01em; margin: 3.5rem 0 .6rem; padding-top: 1.2rem;
     border-top: 1px solid var(--line); }
p { max-width: 46rem; margin: .6rem 0; }
p.lead { font-size: 1.08rem; color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: .4rem 1.4rem; margin-top: 1.4rem; }
a { color: var(--accent); text-decoration: none; } a:hover, a:focus-visible { text-decoration: underline; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1.2rem 0 .8rem; font-size: .95rem; font-variant-numeric: tabular-nums; }
th, td { padding: .42rem .5rem .42rem 1.4rem; text-align: left; vertical-align: top; font-weight: normal; }
.number { text-align: right; white-space: nowrap; } th:first-child { padding-left: 0; min-width: min(11.5rem, 40vw); }
thead th { color: var(--soft); border-bottom: 1.5px solid var(--ink); vertical-align: bottom; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 1.5px solid var(--ink); }
.notes, figcaption { color: var(--soft); font-size: .9rem; line-height: 1.5; }
figure { margin: 2.2rem 0; }
.plate { background: var(--plate); border: 1px solid var(--line); border-radius: 8px; padding: .9rem; }
/* Letters in a picture stay readable on a phone: it scrolls rather than shrinks. */
.plate img { display: block; width: 100%; min-width: 34rem; height: auto; }
figcaption { max-width: 46rem; margin-top: .7rem; } figcaption strong { color: var(--ink); }
@media (max-width: 40rem) { th, td { padding-left: .8rem; } }
@media print { body { max-width: none; } figure, table { break-inside: avoid; } }
"""


def page_style() -> str:
    """All rules, for light and dark screens.

    Example:
        >>> "prefers-color-scheme: dark" in page_style()
        True
    """
    dark = f"@media (prefers-color-scheme: dark) {{ {_colours(DARK)} }}"
    return f"{_colours(LIGHT)}\n{dark}{_RULES}"


def _colours(theme: Theme) -> str:
    roles = {role: getattr(theme, role) for role in ("paper", "plate", "ink", "soft", "line")}
    values = " ".join(f"--{role}: {colour};" for role, colour in {**roles, "accent": theme.colour(0)}.items())
    return f":root {{ color-scheme: {theme.name}; {values} }}"
