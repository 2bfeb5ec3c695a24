"""``python -m contmax_lab.publish``: the tables of the README and the docs, written from the files under ``results/``.

A table stands between two comments; the first says where its numbers come from::

    <!-- results/bench/maps.json: forward + backward: time / torch.softmax -->
    <!-- end of table -->

The numbers in between are never typed by hand: this command writes them, with the commit, machine and versions that
made them, and a test compares. Where the title ends with «; without peers», rows «… by …» of others are left out; with
«; with shares», the share of the memory's bandwidth stands behind each number, in per cent.
Before that it makes the means and differences of ``results/*.json`` anew from the cells in the same files, as the
tables of the tasks say now; nothing is trained. What needs a GPU may be missing; the page then says how to measure it.
The pictures of the suites `growth` and `gpt` are drawn too, where matplotlib is installed.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from contmax_lab.bench import Figure, draw_gpt, draw_growth, share_table
from contmax_lab.packages import version
from contmax_lab.registry import experiments, table_named
from contmax_lab.tables import summarised_again, write_results

_ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(<!-- (results/\S+\.json)(?:: ([^\n]+?))? -->\n).*?(<!-- end of table -->)", re.DOTALL)
_PAGES = ("README.md", "docs/**/*.md")
_ALONE, _SHARES = "; without peers", "; with shares"
_PICTURES = {"results/bench/gpu-growth": draw_growth, "results/bench/gpu-gpt": draw_gpt}


def main() -> None:
    """Rewrite every file of results that is not what its cells say, and every page that is not what the results say."""
    for path in sorted((_ROOT / "results").glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        fresh = resummarised(content)
        if fresh != content:
            write_results(path, fresh)
            print(f"rewrote {path.relative_to(_ROOT)}", file=sys.stderr)
    for page in pages():
        text = page.read_text(encoding="utf-8")
        current = published(text)
        if current != text:
            page.write_text(current, encoding="utf-8")
            print(f"rewrote {page.relative_to(_ROOT)}", file=sys.stderr)
    for name, draw in _PICTURES.items():
        measured = _ROOT / f"{name}.json"
        if measured.is_file() and version("matplotlib"):
            draw(json.loads(measured.read_text(encoding="utf-8")), _ROOT / f"{name}.png")
    for experiment in experiments().values():
        measured = _ROOT / "results" / f"{experiment.table.name}.json"
        if measured.is_file() and version("matplotlib"):
            experiment.draw(json.loads(measured.read_text(encoding="utf-8")), measured.with_suffix(".png"))


def resummarised(content: dict[str, Any]) -> dict[str, Any]:
    """A file of results with its means and differences made anew; one that is of no table stays as it is."""
    return summarised_again(table_named(content["table"]), content) if "table" in content else content


def pages() -> list[Path]:
    """The pages that may hold tables."""
    return sorted(page for pattern in _PAGES for page in _ROOT.glob(pattern))


def published(text: str) -> str:
    """The text of a page with all its tables brought up to date.

    Raises:
        ValueError: if a table's file or title does not exist.

    Example:
        >>> published("no table here")
        'no table here'
    """
    return _BLOCK.sub(lambda m: f"{m[1]}\n{_rendered(m[2], m[3])}\n\n{m[4]}", text)


def _rendered(file: str, title: str | None) -> str:
    path = _ROOT / file
    if not path.is_file() and path.name.startswith("gpu-"):
        suite = path.stem.removeprefix("gpu-")
        return f"Not measured yet: `python -m contmax_lab.bench {suite} --device cuda`, on a machine with a GPU."
    if not path.is_file() and title is None:
        table = table_named(path.stem)
        data = " --data PATH" if table.needs_data else ""
        return f"Not measured yet: `contmax reproduce {table.name}{data}`."
    if not path.is_file():
        raise ValueError(f"a page shows a table of {file}, which does not exist. Run the command that writes it.")
    results = json.loads(path.read_text(encoding="utf-8"))
    if title is not None:
        return f"{_bench_table(results, file, title)}\n\n{_provenance(results)}"
    # What contmax reproduce wrote: the table, what was computed from it, the notes.
    computed = [results[part] for part in ("differences", "distances") if part in results]
    more = [text for part in computed for text in (part["text"], f"<sub>{part['method']}</sub>")]
    found = [finding["text"] for finding in results.get("findings", ())]
    notes = [f"<sub>{note}</sub>" for note in [*found, *results["notes"]]]
    return "\n\n".join([results["text"], *more, *notes, _provenance(results)])


def _bench_table(results: dict[str, Any], file: str, title: str) -> str:
    names = ("table", "row", "column", "value", "at_most", "at_least")
    has_shares, title = title.endswith(_SHARES), title.removesuffix(_SHARES)
    alone, title = title.endswith(_ALONE), title.removesuffix(_ALONE)
    figures = [Figure(**{name: f[name] for name in names}) for f in results["figures"] if f["table"] == title]
    of_shares = [f for f in results["figures"] if has_shares and f["table"] == share_table(title)]
    shares = {(f["row"], f["column"]): f" · {f['value']:.0%}" for f in of_shares}
    if not figures:
        known = "; ".join(dict.fromkeys(f["table"] for f in results["figures"]))
        raise ValueError(f"{file} has no table «{title}»; it has: {known}.")
    columns = list(dict.fromkeys(f.column for f in figures))
    cells = {(f.row, f.column): _cell(f) + shares.get((f.row, f.column), "") for f in figures}
    # Peers that refused a case everywhere have no row.
    rows = dict.fromkeys(f.row for f in figures if " by " not in f.row or (f.value is not None and not alone))
    lines = [[row, *(cells.get((row, column), "–") for column in columns)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [["", *columns], ["---"] * (len(columns) + 1), *lines])


def _cell(figure: Figure) -> str:
    if figure.value is None:
        return "–"
    text = f"{figure.value:.0f}" if 100 <= figure.value < 1e6 else f"{figure.value:.3g}"
    return f"{text} (target {figure.target})" if figure.reached is False else text


def _provenance(results: dict[str, Any]) -> str:
    """One line: the command, the commit, the machine, the versions."""
    machine = results["machine"]
    packages = ", ".join(
        f"{name} {version}" for name, version in results["versions"].items() if version and name != "contmax"
    )
    changes = " with changes" if results["dirty"] else ""
    # A copy without its git history has no commit.
    commit = f"commit {results['commit'][:7]}{changes} · " if results["commit"] else ""
    device = ", ".join(machine.get("gpus") or [machine["cpu"]])
    return f"<sub>`{results['command']}` · {commit}{device} · {packages}</sub>"


if __name__ == "__main__":
    main()
