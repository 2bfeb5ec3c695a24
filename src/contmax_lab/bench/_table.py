"""Figures as plain text: one table for each quantity, targets in its header, a mark where one is missed."""

from collections.abc import Callable, Iterable, Sequence

from contmax_lab.bench._figure import Figure

MISSED = "✗"
_EMPTY = "–"


def tables(figures: Sequence[Figure]) -> str:
    """All tables of a suite, in the order in which their figures came.

    Where targets differ from row to row the header lists them from top to bottom; rows without one (a peer shown for
    comparison) are skipped.

    Example:
        >>> print(tables([
        ...     Figure("time / torch.softmax", "(64, 280)", "sparsemax", 4.21, at_most=6.0),
        ...     Figure("time / torch.softmax", "(64, 280) entmax", "sparsemax", 38.2),
        ...     Figure("time / torch.softmax", "(4096, 128)", "sparsemax", 4.5, at_most=4.0),
        ... ]))
        time / torch.softmax
                            sparsemax
                              ≤ 6/4
        (64, 280)              4.21
        (64, 280) entmax       38.2
        (4096, 128)             4.5 ✗
    """
    titles = _in_order(figure.table for figure in figures)
    return "\n\n".join(_table(title, [f for f in figures if f.table == title]) for title in titles)


def _table(title: str, figures: Sequence[Figure]) -> str:
    rows, columns = _in_order(f.row for f in figures), _in_order(f.column for f in figures)
    cells = {(f.row, f.column): _cell(f) for f in figures}
    grid = [["", *columns], ["", *(_targets([f for f in figures if f.column == column]) for column in columns)]]
    grid += [[row, *(cells.get((row, column), _EMPTY + "  ") for column in columns)] for row in rows]
    widths = [max(len(line[i]) for line in grid) for i in range(len(columns) + 1)]
    lines = [_line(cells_of_row, widths, str.center if i < 2 else str.rjust) for i, cells_of_row in enumerate(grid)]
    return "\n".join([title, *lines])


def _line(texts: Sequence[str], widths: Sequence[int], align: Callable[[str, int], str]) -> str:
    label, *others = zip(texts, widths, strict=True)
    return "  ".join([str.ljust(*label), *(align(text, width) for text, width in others)]).rstrip()


def _targets(figures: Sequence[Figure]) -> str:
    """The targets of a column: one if it is the same in all rows, else from top to bottom."""
    targets = [f.target for f in figures if f.target is not None]
    if len(set(targets)) <= 1:
        return "".join(targets[:1])
    sign = targets[0][0]
    return f"{sign} " + "/".join(target.removeprefix(f"{sign} ") for target in targets)


def _cell(figure: Figure) -> str:
    text = _EMPTY if figure.value is None else _number(figure.value)
    return f"{text} {MISSED if figure.reached is False else ' '}"


def _number(value: float) -> str:
    """Three digits; no exponent for a plain large number."""
    return f"{value:.0f}" if 1000 <= value < 1e6 else f"{value:.3g}"


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
