"""Recipes that come with the package, by name: ``TASK/RECIPE``."""

from pathlib import Path

from contmax_lab.errors import UsageError, nearest

# The folder is read as files: importing the package of the tasks would import torch.
_TASKS = Path(__file__).parents[1] / "tasks"


def shipped_recipes() -> list[str]:
    """The names of the recipes in the package.

    Example:
        >>> "intervals/parabola" in shipped_recipes()
        True
    """
    return sorted(f"{path.parts[-3]}/{path.stem}" for path in _TASKS.glob("*/recipes/*.yaml"))


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe: a path, or the name of one in the package.

    Raises:
        UsageError: if it is neither.
    """
    path, shipped = Path(name), shipped_recipes()
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return path
    if str(name) not in shipped:
        found = "a folder is no recipe:" if path.is_dir() else "there is no recipe"
        near = nearest(str(path.with_suffix("")), shipped)
        choice = f"{near} contmax data list shows all" if near else f"; pass a YAML file or one of {', '.join(shipped)}"
        raise UsageError(f"{found} {name}{choice}")
    task, recipe = str(name).split("/")
    return _TASKS / task / "recipes" / f"{recipe}.yaml"
