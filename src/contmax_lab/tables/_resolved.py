"""The recipes of a table as it was trained: what all cells share once, and what is each one's own."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contmax_lab.contract import Recipe

_SECTIONS = ("data", "model", "training")


def shared_and_own(recipes: Mapping[str, Recipe]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Dotted key → value, defaults included; of paths only the names, because folders differ between machines.

    Args:
        recipes: of the cells, by their folders.

    Returns:
        The keys with one value in all of them; and folder → the others.
    """
    resolved = {folder: _keys(recipe) for folder, recipe in recipes.items()}
    first = next(iter(resolved.values()), {})
    shared = {key: value for key, value in first.items() if all(keys[key] == value for keys in resolved.values())}
    own = {
        folder: {key: value for key, value in keys.items() if key not in shared} for folder, keys in resolved.items()
    }
    return shared, own


def _keys(recipe: Recipe) -> dict[str, Any]:
    sections = {section: dataclasses.asdict(getattr(recipe, section)) for section in _SECTIONS}
    keys = {f"{section}.{name}": value for section, fields in sections.items() for name, value in fields.items()}
    plain = {key: value.name if isinstance(value, Path) else value for key, value in keys.items()}
    return {"task": recipe.task.name, "seed": recipe.seed, **plain}
