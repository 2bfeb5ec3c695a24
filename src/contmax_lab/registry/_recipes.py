"""Recipes by name: ``TASK``, ``TASK/VARIANT``, or a YAML file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contmax_lab.contract import Recipe
from contmax_lab.errors import UsageError, nearest
from contmax_lab.recipes import RecipeSource, keys_help, read_recipe, task_recipe, variant_names, with_variant
from contmax_lab.registry._tasks import SHIPPED, find_task, is_installed, named_task, settings_of, task_names

_SUFFIXES = (".yaml", ".yml")


def shipped_recipes() -> list[str]:
    """The names of the recipes in the package, ``TASK/VARIANT``.

    Example:
        >>> "intervals/parabola" in shipped_recipes()
        True
    """
    files = {task: task_recipe(settings_of(task)) for task in SHIPPED}
    return sorted(f"{task}/{variant}" for task, stored in files.items() for variant in variant_names(stored))


def load_recipe(name: str | Path, overrides: Sequence[str] = (), variant: str = "") -> Recipe:
    """Find a recipe and change it.

    Args:
        name: a YAML file, or ``TASK`` or ``TASK/VARIANT``, where a task is a name or ``MODULE:NAME``.
        overrides: as on the command line, ``--model.hidden_dim=64`` or ``--model.hidden_dim 64``.
        variant: of the recipe; empty = its default.

    Raises:
        UsageError: if a file, task, variant, key or value is not understood.

    Example:
        >>> load_recipe("intervals/parabola", ["--model.hidden_dim", "32"]).model.hidden_dim
        32
    """
    return find_recipe(name, variant).recipe(overrides)


def find_recipe(name: str | Path, variant: str = "", named: Sequence[str] = ()) -> RecipeSource:
    """A recipe before its keys are checked.

    Args:
        name, variant: as `load_recipe` takes them.
        named: tasks that are not installed, to which a file may refer by their own name, as that of a run does.

    Raises:
        UsageError: if there is none.
    """
    reference, keys, origin, short = _found(name, variant)
    return RecipeSource(named_task(reference, named) or find_task(reference), keys, origin, short)


def recipe_help(name: str | Path, variant: str = "", named: Sequence[str] = ()) -> str:
    """All the settings of a recipe, with type, meaning and value; a task of the laboratory is not imported for that.

    Args:
        name, variant, named: as `find_recipe` takes them.

    Raises:
        UsageError: if there is none.
    """
    reference, keys, origin, _ = _found(name, variant)
    own = {settings.name: settings for settings in map(settings_of, named)}
    return keys_help(own.get(reference) or settings_of(reference), keys, origin)


def _found(name: str | Path, variant: str) -> tuple[str, dict[str, Any], str, str]:
    """Reference of the task, which may not have been imported; keys, origin and name as of `RecipeSource`."""
    path = Path(name)
    if path.suffix in _SUFFIXES and path.is_file():
        stored = read_recipe(path)
        keys = with_variant(stored, variant, str(path))
        return str(stored["task"]), keys, str(path), f"{path.stem}-{variant}".rstrip("-")
    reference, _, inline = str(name).partition("/")
    # A folder may have the name of a task.
    if not (":" in reference or is_installed(reference)):
        raise UsageError(_no_recipe(name))
    if inline and variant and inline != variant:
        raise UsageError(f"{name} names the variant {inline}, but --variant names {variant}; pass only one of them")
    stored = task_recipe(settings_of(reference))
    chosen = inline or variant or str(stored.get("default", ""))
    if inline and inline not in variant_names(stored):
        raise UsageError(_no_recipe(name, [f"{reference}/{known}" for known in variant_names(stored)]))
    origin = f"{reference}/{chosen}" if chosen else reference
    return reference, with_variant(stored, chosen, reference), origin, chosen or str(stored["task"])


def _no_recipe(name: str | Path, own: Sequence[str] = ()) -> str:
    path = Path(name)
    near = nearest(str(path.parent / path.stem), [*task_names(), *own, *shipped_recipes()])
    if path.is_dir():
        found = f"a folder is no recipe: {path}"
    elif path.suffix in _SUFFIXES:
        found = f"{name}: no such file"
    else:
        found = f"there is no recipe {name}"
    choices = near or f"; pass a YAML file, a task ({', '.join(task_names())}) or one of its variants;"
    return f"{found}{choices} contmax data list shows all"
