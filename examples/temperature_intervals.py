"""A year of temperatures predicted a fortnight at a time from predictions, one panel for each row of the table.

The auto-regressive figure of Martins et al. 2020, section on interval regression. First
`contmax reproduce intervals --data PATH`, then `python examples/temperature_intervals.py [FILE.png [RUNS]]`.
"""

import sys
from pathlib import Path

from contmax_lab.runs import open_trained
from contmax_lab.tasks import find_task


def main() -> None:
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "build/figures/temperature_intervals.png")
    runs = Path(sys.argv[2] if len(sys.argv) > 2 else "runs/reproduce/intervals")
    task = find_task("intervals")
    table = next(table for table in task.tables() if table.name == "intervals")
    cells = list(table.cells())[: len(table.rows)]
    trained = [open_trained(runs / cell.folder, label=cell.row.label) for cell in cells]
    figure = next(figure for figure in task.figures(trained) if figure.title.startswith("Auto-regressive"))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(figure.png)
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
