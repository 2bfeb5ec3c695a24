"""Recipes as files: one set of keys, and named variants that change some of them."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from contmax_lab.contract import Recipe
from contmax_lab.errors import UsageError, nearest
from contmax_lab.files import read_yaml

SECTIONS = ("data", "model", "training")
_KEYS = (*(field.name for field in dataclasses.fields(Recipe)), "default", "variants")


def read_recipe(path: Path) -> dict[str, Any]:
    """The content of a recipe; the keys of its first level are checked.

    Raises:
        UsageError: if it is no recipe.
    """
    stored = read_yaml(path)
    if not isinstance(stored, dict) or "task" not in stored:
        raise UsageError(f"{path} is not a recipe: it must be a mapping with the key task")
    for key, value in stored.items():
        if key not in _KEYS:
            raise UsageError(f"{path}: there is no key {key!r}; a recipe has {', '.join(_KEYS)}")
        if key in (*SECTIONS, "search", "variants") and not isinstance(value, dict):
            raise UsageError(f"{path}: {key} must be a mapping; got {value!r}")
    for name, changes in stored.get("variants", {}).items():
        if not isinstance(changes, dict):
            raise UsageError(f"{path}: the variant {name} must be a mapping of keys; got {changes!r}")
    return stored


def task_recipe(file: Path | None, name: str) -> dict[str, Any]:
    """The recipe of a task: that of its file, or where it has none, no keys at all.

    Raises:
        UsageError: if the file is no recipe.
    """
    return {"task": name} if file is None else read_recipe(file)


def variant_names(stored: Mapping[str, Any]) -> list[str]:
    """The names of the variants of a recipe.

    Example:
        >>> variant_names({"task": "vowels", "variants": {"discrete": {"model.alpha": 1.0}}})
        ['discrete']
    """
    return [str(name) for name in stored.get("variants", {})]


def with_variant(stored: Mapping[str, Any], variant: str, origin: str) -> dict[str, Any]:
    """The keys of one variant of a recipe: those of all, changed by those of the variant; dotted.

    Args:
        stored: the recipe.
        variant: its name; empty = the one that the recipe calls ``default``, or none.
        origin: what a complaint calls the recipe.

    Raises:
        UsageError: if there is no such variant.

    Example:
        >>> with_variant({"model": {"a": 1, "b": 2}, "variants": {"x": {"model.b": 3}}}, "x", "it")
        {'model.a': 1, 'model.b': 3}
    """
    chosen, known = variant or str(stored.get("default", "")), variant_names(stored)
    if chosen and chosen not in known:
        choices = f"it has {', '.join(known)}" if known else "it has none"
        raise UsageError(f"{origin} has no variant {chosen!r}{nearest(chosen, known) or ';'} {choices}")
    base = {key: value for key, value in stored.items() if key not in ("task", "default", "variants")}
    return dict(flattened(base)) | dict(flattened(stored.get("variants", {}).get(chosen, {})))


def flattened(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Sections as dotted keys; mappings below are values.

    Example:
        >>> dict(flattened({"model": {"alpha": 2.0}, "seed": 1}))
        {'model.alpha': 2.0, 'seed': 1}
    """
    for key, value in tree.items():
        if isinstance(value, dict) and key in SECTIONS:
            yield from ((f"{key}.{name}", entry) for name, entry in value.items())
        else:
            yield key, value
