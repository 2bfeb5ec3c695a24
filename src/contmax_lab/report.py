"""Reports: figures and tables in one HTML file that needs nothing else."""

import base64
import contextlib
import html
import inspect
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import contmax
from contmax.nn import ContinuousAttention, MultiheadContinuousAttention
from contmax_lab.contract import Figure, Section, TrainedRun
from contmax_lab.drawing import Theme, css_colours, html_page, new_axes, rendered_twice
from contmax_lab.files import write_atomically
from contmax_lab.labelled import confusion_figures
from contmax_lab.runs import Run


def distinct_labels(folders: Sequence[Path]) -> list[str]:
    """Labels of runs: the names of their folders, or where these coincide the parts in which their paths differ.

    Example:
        >>> distinct_labels([Path("runs/a/seed-0"), Path("runs/b/seed-0")])
        ['a', 'b']
        >>> distinct_labels([Path("runs/a"), Path("elsewhere/b")])
        ['a', 'b']
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) == len(names):
        return names
    paths = [folder.resolve().parts for folder in folders]
    if len({len(path) for path in paths}) > 1:
        return [str(folder) for folder in folders]
    kept = [level for level, parts in enumerate(zip(*paths, strict=True)) if len(set(parts)) > 1]
    return ["/".join(path[level] for level in kept) or path[-1] for path in paths]


def sections(trained: Sequence[TrainedRun], examples: Sequence[int] = ()) -> list[Section]:
    """One section per task: a table of the runs, learning curves, and the pictures of the task.

    Where runs attend to continuous signals, a note says how much of the features these follow, in what is drawn.

    Args:
        trained: runs that are done, of any tasks.
        examples: which to draw, from 0; by default each task finds some.
    """
    by_task: dict[str, list[TrainedRun]] = {}
    for entry in trained:
        by_task.setdefault(entry.task.name, []).append(entry)
    made = []
    for name, entries in by_task.items():
        task, labels, runs = entries[0].task, [entry.label for entry in entries], [Run(e.folder) for e in entries]
        curves = learning_curves(runs, labels, title=f"Learning curves, {name}", names=task.curves)
        with contextlib.ExitStack() as watching:
            shares = [watching.enter_context(watched_signals(entry.model)) for entry in entries]
            figures = [curves, *confusion_figures(entries), *task.figures(entries, examples)]
        note = signals_note(list(zip(labels, shares, strict=True)))
        notes = [note] if note else []
        made.append(Section(name.capitalize(), task.summary, _table(entries, labels), figures, notes))
    return made


def _table(entries: list[TrainedRun], labels: list[str]) -> list[list[str]]:
    split = "test" if all(entry.results["test"] for entry in entries) else "valid"
    # Runs on different data may measure different things.
    names = dict.fromkeys(name for entry in entries for name in entry.results[split])
    head = ["run", *(f"{split} {name}" for name in names), "parameters", "ms per epoch"]
    lines = [
        [
            label,
            *(f"{found[name]:.4f}" if name in (found := entry.results[split]) else "–" for name in names),
            f"{entry.results['parameters']:,}",
            f"{1000 * entry.results['timing']['seconds_per_epoch']:.1f}",
        ]
        for entry, label in zip(entries, labels, strict=True)
    ]
    return [head, *lines]


_COLUMNS = 3
Curves = dict[str, list[list[dict[str, Any]]]]


def learning_curves(
    runs: Sequence[Run], labels: Sequence[str], *, title: str = "Learning curves", names: Sequence[str] = ()
) -> Figure:
    """Validation metrics against the epoch, one panel per metric and one line per label.

    Args:
        runs: of one task.
        labels: of the runs; runs that share one are repetitions, drawn as their mean and range.
        title: of the figure.
        names: of the metrics; by default all there are.
    """
    curves: Curves = {}
    for run, label in zip(runs, labels, strict=True):
        curves.setdefault(label, []).append(run.history())
    records = [record for repetitions in curves.values() for history in repetitions for record in history]
    measured = list(dict.fromkeys(name for record in records for name in record["valid"]))
    shown = [name for name in names if name in measured] or measured
    repeated = max(map(len, curves.values()), default=1)
    caption = "Measured on the validation examples during the training"
    caption += f"; mean (line) and range (band) of {repeated} repetitions." if repeated > 1 else "."
    return Figure(title, lambda theme: _draw(curves, shown, theme), caption)


def _draw(curves: Curves, names: Sequence[str], theme: Theme) -> Any:
    columns = min(len(names), _COLUMNS) or 1
    figure, axes = new_axes(-(-len(names) // columns) or 1, columns, width=3.1 * columns, height=2.6)
    for axis, name in zip(axes, names, strict=False):
        for index, (label, repetitions) in enumerate(curves.items()):
            epochs, middle, low, high = _summary(repetitions, name)
            axis.plot(epochs, middle, label=label, color=theme.colour(index))
            axis.fill_between(epochs, low, high, color=theme.colour(index), alpha=0.18, linewidth=0)
        axis.set_title(name)
        axis.set_xlabel("epoch")
        axis.set_ylim(*_limits(curves, name))
        axis.grid(axis="y")
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    if names:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), columns), fontsize=8.5)
    return figure


def _limits(curves: Curves, name: str) -> tuple[float, float] | tuple[None, None]:
    """Limits of the values after the first fifth of the training, in which all models are bad."""
    values = [
        record["valid"][name]
        for repetitions in curves.values()
        for history in repetitions
        for record in history[len(history) // 5 :]
        if name in record["valid"]
    ]
    low, high = min(values, default=0.0), max(values, default=0.0)
    margin = 0.06 * (high - low)
    return (low - margin, high + margin) if margin else (None, None)


def _summary(repetitions: Sequence[Sequence[dict[str, Any]]], name: str) -> tuple[list[Any], ...]:
    """Epochs, mean, least and greatest value, at the epochs that all repetitions have reached."""
    values = [{record["epoch"]: record["valid"][name] for record in h if name in record["valid"]} for h in repetitions]
    epochs = sorted(set.intersection(*(set(v) for v in values)))
    columns = [[v[epoch] for v in values] for epoch in epochs]
    return epochs, [statistics.fmean(c) for c in columns], [min(c) for c in columns], [max(c) for c in columns]


# If the share that a signal explains is below this number, more basis functions may help.
_ENOUGH = 0.8


@contextlib.contextmanager
def watched_signals(model: nn.Module) -> Iterator[list[float]]:
    """The explained variance of every signal that continuous attention fits meanwhile, in the order of the calls.

    Args:
        model: with any number of continuous attentions; a combined or a multihead one counts as such.

    Example:
        >>> attend = ContinuousAttention(contmax.basis.GaussianBasis.covering(16), embed_dim=4)
        >>> with watched_signals(attend) as shares:
        ...     context, density = attend(torch.ones(2, 50, 4))
        >>> shares
        [1.0, 1.0]
    """
    shares: list[float] = []

    def watch(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        call = inspect.signature(module.forward).bind(*arguments, **keywords).arguments
        shares.extend(_explained(module, call).tolist())

    watched = [part for part in model.modules() if isinstance(part, ContinuousAttention | MultiheadContinuousAttention)]
    with contextlib.ExitStack() as hooks:
        for part in watched:
            hooks.callback(part.register_forward_pre_hook(watch, with_kwargs=True).remove)
        yield shares


@torch.no_grad()
def _explained(module: Any, call: dict[str, Any]) -> Tensor:
    positions, mask = call.get("positions"), call.get("mask")
    grid = call.get("grid") or (module.grid if positions is None else None)
    signal = contmax.fit_signal(
        call["values"], module.basis, positions=positions, grid=grid, mask=mask, penalty=module.penalty
    )
    return signal.explained_variance()


def signals_note(shares: Sequence[tuple[str, Sequence[float]]]) -> str:
    """A sentence on the explained variance of the signals of each run; empty if no run has any.

    Args:
        shares: labels of the runs, each with those of its signals.

    Example:
        >>> signals_note([("gates", [0.97, 0.99]), ("softmax", [])])
        'The basis explains 98 % of the variance of the features in the examples drawn here; below about 80 %, try ...'
    """
    means = [(label, f"{100 * statistics.fmean(found):.0f} %") for label, found in shares if found]
    if not means:
        return ""
    listed = means[0][1] if len(means) == 1 else ", ".join(f"{percent} ({label})" for label, percent in means)
    return (
        f"The basis explains {listed} of the variance of the features in the examples drawn here; below about "
        f"{100 * _ENOUGH:.0f} %, try more functions or a smaller penalty."
    )


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
    main = "\n".join(_section_html(section, pictures) for section in sections)
    links = (f'<a href="#{_anchor(section)}">{html.escape(section.title)}</a>' for section in sections)
    nav = f"<nav>{' '.join(links)}</nav>\n" if len(sections) > 1 else ""
    style = css_colours(lambda theme: {"accent": theme.colour(0)}) + _RULES
    body = (
        f'<header>\n<h1>{html.escape(title)}</h1>\n<p class="lead">{html.escape(lead)}</p>\n{nav}'
        f"</header>\n<main>\n{main}\n</main>\n"
    )
    page = html_page(title, f"<style>{style}</style>\n", body)
    write_atomically(path, page.encode("utf-8"))
    files, seen = [path], Counter[str]()
    for picture in pictures:
        name = picture.figure.filename
        seen[name] += 1
        # A name that is taken already gets a number.
        files.append(path.parent / (name if seen[name] == 1 else f"{name.removesuffix('.png')}-{seen[name]}.png"))
        write_atomically(files[-1], picture.light)
    return files


def _anchor(section: Section) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in section.title.lower()).split())


def _section_html(section: Section, pictures: list[_Picture]) -> str:
    """A part of the page; its figures are drawn here, and added to the pictures."""
    parts = [f'<section id="{_anchor(section)}">\n<h2>{html.escape(section.title)}</h2>']
    parts += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text.split("\n\n") if paragraph]
    if section.table:
        parts.append(_table_html(section.table))
    parts += [f'<p class="notes">{html.escape(note)}</p>' for note in section.notes]
    for figure in section.figures:
        pictures.append(_Picture(figure, *rendered_twice(figure.draw)))
        parts.append(_figure(pictures[-1], len(pictures)))
    return "\n".join([*parts, "</section>"])


def _table_html(lines: Sequence[Sequence[str]]) -> str:
    head, *body = lines
    numeric = [all(_is_number(line[i]) for line in body) for i in range(len(head))]
    rows = "\n".join(_row(line, numeric, "td") for line in body)
    columns = _row(head, numeric, 'th scope="col"')
    table = f"<table><thead>{columns}</thead>\n<tbody>\n{rows}\n</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _row(line: Sequence[str], numeric: Sequence[bool], tag: str) -> str:
    """A line of a table; columns of numbers have a class of their own."""
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
