"""The demo: every table of every task that needs no data, trained and drawn into one report."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from contmax_lab.report import Section, sections, write_page
from contmax_lab.runs import open_trained
from contmax_lab.tables import Reproduction, Table, reproduce
from contmax_lab.tasks import find_task, task_names

_LEAD = "Sparse and continuous attention, trained on this machine on data that comes with PyPI packages."


def demo_tables() -> list[Table]:
    """The tables that need no data.

    Example:
        >>> "seattle" in [table.name for table in demo_tables()]
        True
    """
    return [table for name in task_names() for table in find_task(name).tables() if not table.needs_data]


def make_demo(folder: Path, jobs: int) -> Iterator[str]:
    """Train and draw; yields lines to print.

    Args:
        folder: for ``runs/``, the JSON files of the tables, ``report.html`` and its pictures.
        jobs: trainings side by side.
    """
    pages: list[Section] = []
    for table in demo_tables():
        runs = folder / "runs" / table.name
        text = reproduce(Reproduction(table, runs, folder / f"{table.name}.json", jobs=jobs))
        yield f"\n{table.title}\n{text}"
        first = [cell for cell in table.cells() if cell.variant == table.variants[0]]
        for section in sections([open_trained(runs / cell.folder, label=cell.row.label) for cell in first]):
            lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
            pages.append(
                dataclasses.replace(section, title=table.title, table=[lines[0], *lines[2:]], notes=table.notes)
            )
    files = write_page(folder / "report.html", "contmax demo", _LEAD, pages)
    yield f"\nreport: {files[0]}"
