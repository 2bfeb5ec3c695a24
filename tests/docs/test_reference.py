"""The reference is complete: every public name once, and every row of the table of symbols names what exists."""

import functools
import importlib
import inspect
import re

import pytest
from docs_pages import DOCS, PAGES, ROOT

from contmax_lab.registry import experiments, find_task, task_names
from test_api import MODULES

API = sorted((DOCS / "api").glob("*.md"))
_ENTRY = re.compile(r"^\.\. (currentmodule|autofunction|autoclass|autodata):: (\S+)", re.MULTILINE)
SYMBOLS = re.findall(
    r"^\| .+ \| `(contmax[\w.]*)` \| .+ \| `(tests/\S+\.py)::(\w+)` \|$",
    (DOCS / "reproducing-the-paper.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def documented():
    """The names of the pages, in order."""
    names, module = [], ""
    for page in API:
        for kind, name in _ENTRY.findall(page.read_text(encoding="utf-8")):
            if kind == "currentmodule":
                module = name
            else:
                names.append(f"{module}.{name}")
    return names


def found(name):
    """What a name stands for."""
    module, *rest = name.split(".")
    thing = importlib.import_module(module)
    for part in rest:
        if not hasattr(thing, part):
            importlib.import_module(f"{thing.__name__}.{part}")
        thing = getattr(thing, part)
    return thing


def public():
    """Every public class, function and constant of the library, by what it is, with all its names."""
    things = {}
    for module_name in [*MODULES, "contmax.maps"]:
        module = importlib.import_module(module_name)
        for name, value in vars(module).items():
            # Of a constant such as a Theme, what counts is where its class comes from.
            maker = value if inspect.isclass(value) or inspect.isfunction(value) else type(value)
            ours = maker.__module__.startswith(module_name.split(".integrations")[0])
            if ours and not name.startswith("_") and not inspect.ismodule(value):
                things.setdefault(id(value), set()).add(f"{module_name}.{name}")
    return things


def test_every_public_name_is_documented_exactly_once():
    names = documented()
    described = [id(found(name)) for name in names]
    twice = [name for name, thing in zip(names, described, strict=True) if described.count(thing) > 1]
    assert not twice
    missing = [sorted(names) for thing, names in public().items() if thing not in described]
    assert not missing
    assert len(names) > 100


def test_reference_names_no_private_module():
    assert not [name for name in documented() if any(part.startswith("_") for part in name.split("."))]


def test_reading_order_is_that_of_the_table():
    text = (DOCS / "api" / "index.md").read_text(encoding="utf-8")
    table, contents = re.findall(r"\]\((\w+)\.md\)", text), re.findall(r"^(\w+)$", text.partition("toctree")[2], re.M)
    assert table == contents
    assert {path.stem for path in API} == {*contents, "index"}


def test_the_table_of_symbols_is_read():
    assert len(SYMBOLS) >= 25


@functools.cache
def _tests_of(path):
    return set(re.findall(r"^def (test_\w+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize(("name", "path", "test"), SYMBOLS)
def test_a_symbol_has_a_name_and_a_test(name, path, test):
    assert found(name) is not None
    assert test in _tests_of(path)


def test_commands_of_the_pages_name_tables_that_exist():
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    named = {name for text in texts for name in re.findall(r"contmax reproduce ([a-z][\w-]*)", text)}
    of_tasks = {table.name for task in task_names() for table in find_task(task).tables()}
    assert named <= of_tasks | {experiment.table.name for experiment in experiments().values()}
    assert len(named) > 8


def test_all_errata_are_there():
    text = (DOCS / "reproducing-the-paper.md").read_text(encoding="utf-8").partition("## Errata")[2]
    assert [int(number) for number in re.findall(r"^(\d+)\. \*\*", text, re.MULTILINE)] == list(range(1, 30))
