"""Recipes that come with the package, by name: ``TASK/RECIPE``."""

from pathlib import Path

from contmax_lab.errors import UsageError

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
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UsageError(f"there is no recipe {path}; pass a YAML file or one of {', '.join(shipped_recipes())}")
        return path
    if str(name) not in shipped_recipes():
        raise UsageError(f"there is no recipe {name}; pass a YAML file or one of {', '.join(shipped_recipes())}")
    task, recipe = str(name).split("/")
    return _TASKS / task / "recipes" / f"{recipe}.yaml"
