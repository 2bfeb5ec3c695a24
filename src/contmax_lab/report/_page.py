"""One HTML file with everything inside."""

import base64
import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path

from contmax_lab.report._figure import Figure
from contmax_lab.runs import write_atomically

_STYLE = """
:root { color-scheme: light; --ink: #1d2433; --soft: #5b6475; --line: #dfe3ea; --accent: #2f5fd0; }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.5rem 5rem; color: var(--ink); background: #fff;
       font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.9rem; margin: 0 0 .3rem; } h2 { margin: 3rem 0 .6rem; font-size: 1.35rem; }
p.lead, figcaption, .notes { color: var(--soft); } p.lead { margin-top: 0; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .9rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid var(--ink); }
figure { margin: 1.6rem 0; } img { max-width: 100%; height: auto; } figcaption { font-size: .92rem; }
.scroll { overflow-x: auto; }
"""


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a report.

    Args:
        title: its heading.
        text: a paragraph below it.
        table: lines of cells, the first of which is the head; empty = none.
        figures: pictures.
        notes: small print.
    """

    title: str
    text: str = ""
    table: Sequence[Sequence[str]] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()


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
    path.parent.mkdir(parents=True, exist_ok=True)
    body = "\n".join(_section(section) for section in sections)
    page = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        # An icon of our own, or browsers ask the network for one.
        f'<link rel="icon" href="data:,">\n<meta name="viewport" content="width=device-width">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{html.escape(title)}</h1>\n"
        f'<p class="lead">{html.escape(lead)}</p>\n{body}\n</body>\n</html>\n'
    )
    write_atomically(path, page.encode("utf-8"))
    pictures = []
    for section in sections:
        for figure in section.figures:
            pictures.append(path.parent / figure.filename)
            write_atomically(pictures[-1], figure.png)
    return [path, *pictures]


def _section(section: Section) -> str:
    parts = [f"<section>\n<h2>{html.escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{html.escape(section.text)}</p>")
    if section.table:
        parts.append(_table(section.table))
    parts += [_figure(figure) for figure in section.figures]
    parts += [f'<p class="notes">{html.escape(note)}</p>' for note in section.notes]
    return "\n".join([*parts, "</section>"])


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *body = [[html.escape(cell) for cell in line] for line in lines]
    rows = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in body)
    columns = "".join(f"<th>{cell}</th>" for cell in head)
    return f'<div class="scroll"><table><thead><tr>{columns}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'


def _figure(figure: Figure) -> str:
    data = base64.b64encode(figure.png).decode("ascii")
    title, caption = html.escape(figure.title), html.escape(figure.caption)
    return (
        f'<figure><img alt="{title}" src="data:image/png;base64,{data}">\n'
        f"<figcaption><strong>{title}.</strong> {caption}</figcaption></figure>"
    )
