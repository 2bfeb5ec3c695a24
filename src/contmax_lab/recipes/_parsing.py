"""From YAML and the command line to typed recipes, and back."""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from contmax_lab.errors import UsageError, nearest
from contmax_lab.recipes._recipe import Recipe, TrainingConfig
from contmax_lab.recipes._shipped import find_recipe
from contmax_lab.tasks import Task, find_task

_SECTIONS = ("data", "model", "training")


def load_recipe(name: str | pathlib.Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and change it.

    Args:
        name: a YAML file, or ``TASK/RECIPE`` of the package.
        overrides: as on the command line, ``--model.hidden_dim=64`` or ``--model.hidden_dim 64``.

    Returns:
        The recipe, all of whose values have been checked against the types of the task's configurations.

    Raises:
        UsageError: if a file, task, key or value is not understood.

    Example:
        >>> load_recipe("intervals/parabola", ["--model.hidden_dim", "32"]).model.hidden_dim
        32
    """
    path = find_recipe(name)
    stored = _read(path)
    task = find_task(str(stored.pop("task")))
    _check_keys(f"{path}: ", task, (key for key, _ in flattened(stored)))
    _check_keys(f"{path}, search: ", task, stored.get("search", {}))
    _check_keys("", task, (word[2:].partition("=")[0] for word in overrides if word.startswith("--")))
    parser = _parser(task, prog=f"contmax train {name}")
    base = _checked(f"{path}: ", parser.parse_object, stored)
    parsed = _checked("", parser.parse_args, list(overrides), namespace=base)
    ready = parser.instantiate(parsed)
    return Recipe(task=task.name, seed=ready.seed, search=ready.search or {}, **{key: ready[key] for key in _SECTIONS})


def recipe_help(name: str | pathlib.Path) -> str:
    """All the keys of a recipe with type, meaning and default."""
    stored = _read(find_recipe(name))
    task = find_task(str(stored.pop("task")))
    parser = _parser(task, prog=f"contmax train {name}")
    parser.set_defaults(dict(flattened(stored)))
    return str(parser.format_help())


def as_yaml(recipe: Recipe) -> str:
    """The whole recipe as YAML that `load_recipe` reads.

    Example:
        >>> as_yaml(load_recipe("intervals/parabola")).splitlines()[0]
        'task: intervals'
    """
    return yaml.safe_dump(_plain(recipe), sort_keys=False, allow_unicode=True)


def flattened(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted keys.

    Example:
        >>> dict(flattened({"model": {"alpha": 2.0}, "seed": 1}))
        {'model.alpha': 2.0, 'seed': 1}
    """
    for key, value in tree.items():
        if isinstance(value, dict) and value and key != "search":
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read(path: pathlib.Path) -> dict[str, Any]:
    try:
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read as YAML: {_one_line(error)}") from None
    if not isinstance(stored, dict) or "task" not in stored:
        raise UsageError(f"{path} is not a recipe: it must be a mapping with the key task")
    known = [field.name for field in dataclasses.fields(Recipe)]
    for key, value in stored.items():
        if key not in known:
            raise UsageError(f"{path}: there is no key {key!r}; a recipe has {', '.join(known)}")
        if key in (*_SECTIONS, "search") and not isinstance(value, dict):
            raise UsageError(f"{path}: {key} must be a mapping; got {value!r}")
    return stored


def _check_keys(origin: str, task: Task, keys: Iterable[Any]) -> None:
    """The parser would say less of a key it does not know, and take the beginning of a key for the key."""
    configs = zip(_SECTIONS, (task.data_config, task.model_config, TrainingConfig), strict=True)
    known = [f"{section}.{field.name}" for section, config in configs for field in dataclasses.fields(config)]
    known += [*_SECTIONS, "seed", "search"]
    for key in keys:
        if key not in known:
            raise UsageError(
                f"{origin}there is no key {key}{nearest(str(key), known) or ';'} contmax train {task.name}/… --help "
                "lists all"
            )


def _parser(task: Task, prog: str) -> ArgumentParser:
    parser = ArgumentParser(prog=prog, exit_on_error=False, usage="%(prog)s [--KEY VALUE …]", allow_abbrev=False)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the initial weights, the order of examples and all else"
    )
    for section, config in zip(_SECTIONS, (task.data_config, task.model_config, TrainingConfig), strict=True):
        parser.add_class_arguments(config, section)
    parser.add_argument("--search", type=dict[str, Any] | None, default=None, help="choices for contmax search")
    return parser


def _checked(origin: str, parse: Any, *arguments: Any, **keywords: Any) -> Namespace:
    try:
        parsed: Namespace = parse(*arguments, **keywords)
        return parsed
    except (ArgumentError, TypeError, ValueError) as error:
        raise UsageError(f"{origin}{_one_line(error)}") from None
    except SystemExit as error:
        raise UsageError(f"{origin}not understood: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _plain(value: Any) -> Any:
    """Dataclasses, paths and dates as what YAML knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)  # without what a restricted type adds
    return None if value is None else str(value)
