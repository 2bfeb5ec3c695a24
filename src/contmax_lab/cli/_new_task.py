"""Write a small working task into the folder NAME: data, model, task, recipe, test.

It works as it is: contmax train NAME:TASK trains it, pytest NAME tests it. Then change it, piece by piece.
"""

import argparse
import keyword
import string
import sys
from pathlib import Path

from contmax_lab.errors import UsageError

TAKES_OVERRIDES = False
_TEMPLATE = Path(__file__).parent / "template"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """NAME, --into."""
    parser.add_argument("name", metavar="NAME", help="name of the task and of its folder: small letters, digits and _")
    parser.add_argument(
        "--into", type=Path, default=Path(), help="where to make the folder (default: the current folder)"
    )


def run(options: argparse.Namespace) -> None:
    """Write the files, and say what to do with them."""
    from contmax_lab.files import write_atomically
    from contmax_lab.registry import task_names

    name = options.name
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower() or name.startswith("_"):
        raise UsageError(f"{name!r} cannot be the name of a module; pass small letters, digits and _, e.g. my_task")
    if name in task_names() or name in sys.stdlib_module_names:
        raise UsageError(f"{name} is a task of the laboratory or a module of Python; pass another name")
    folder = options.into / name
    if folder.exists():
        raise UsageError(f"{folder} already exists; pass another name")
    words = {"name": name, "title": "".join(part.capitalize() for part in name.split("_"))}
    for file in sorted(_TEMPLATE.glob("*.txt")):
        target = folder / file.stem.replace("test_task", f"test_{name}")
        text = string.Template(file.read_text(encoding="utf-8")).substitute(words)
        write_atomically(target, text.encode("utf-8"))
        print(target)
    print(f"now, in {options.into.resolve()}: contmax train {name}:TASK, and pytest {name}")
