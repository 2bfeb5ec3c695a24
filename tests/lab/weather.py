"""Daily temperatures that a test can generate, and a recipe on them that trains in a second."""

import dataclasses
import datetime
import functools
import math
from pathlib import Path

from contmax_lab.contract import Recipe
from contmax_lab.registry import load_recipe

_SOME_WEATHER = Path("weather.csv")
HEADER = "date,tmin_c,tmax_c,n_hours"


def lines(days=200):
    """A header and one line per day, from 2015-01-01 on."""
    first = datetime.date(2015, 1, 1)
    rows = [HEADER]
    for day in range(days):
        middle = 8 - 12 * math.cos(2 * math.pi * day / 365) + 4 * math.sin(1.7 * day)
        width = 5 + 2 * math.sin(0.9 * day)
        rows.append(f"{first + datetime.timedelta(day)},{middle - width:.2f},{middle + width:.2f},24")
    return rows


def write_weather(folder: Path, rows=None) -> Path:
    path = folder / "weather.csv"
    path.write_text("\n".join(lines() if rows is None else rows) + "\n", encoding="utf-8")
    return path


def tiny_recipe(folder: Path, *overrides: str, name="intervals/parabola") -> Recipe:
    """Five examples of validation and test, small batches of an odd size, a network of eight units."""
    recipe = _recipe_of_some_weather(name, overrides)
    path = folder / _SOME_WEATHER if recipe.data.path == _SOME_WEATHER else recipe.data.path
    if not path.exists():
        write_weather(folder)
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, path=path))


@functools.cache
def _recipe_of_some_weather(name: str, overrides: tuple[str, ...]) -> Recipe:
    """To read the same words again takes longer than much that tests do with them."""
    small = {
        "data.path": _SOME_WEATHER,
        "data.first": "2015-01-01",
        "data.last": "2015-12-31",
        "data.valid": 9,
        "data.test": 7,
        "model.hidden_dim": 8,
        "training.batch_size": 32,
        "training.epochs": 3,
        "training.evaluate_every": 1,
        "training.patience": 0,
    }
    return load_recipe(name, [*(f"--{key}={value}" for key, value in small.items()), *overrides])
