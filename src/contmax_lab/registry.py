"""Tasks, recipes and tables by name; nothing else knows which there are.

Tasks are those of the laboratory, those of other installed packages, and those that a module holds. Recipes are
``TASK``, ``TASK/VARIANT``, or a YAML file.

A package makes a task known by an entry point of the group ``contmax_lab.tasks``, in its pyproject.toml::

    [project.entry-points."contmax_lab.tasks"]
    tides = "my_package.tides:TASK"
"""

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from contmax_lab.contract import Experiment, Recipe, Settings, Table, Task, TrainedRun
from contmax_lab.errors import LabError, UsageError, nearest
from contmax_lab.recipes import RecipeSource, keys_help, read_recipe, task_recipe, variant_names, with_variant
from contmax_lab.runs import Run, load_trained

GROUP = "contmax_lab.tasks"
# Name → package below tasks/: it holds what can be set, read without torch; TASK is in its _task.py.
SHIPPED = {
    "bags": "bags",
    "digits": "images/digits",
    "documents": "documents",
    "images": "images",
    "intervals": "intervals",
    "irregular": "series/irregular",
    "language": "documents/language",
    "minilm": "minilm",
    "physionet": "physionet",
    "places": "places",
    "series": "series",
    "texts": "texts",
    "translation": "translation",
    "vowels": "series/vowels",
    "vqa": "vqa",
}
# Table → package below tasks/; EXPERIMENT is in its _experiment.py.
_EXPERIMENTS = {"lengths": "lengths"}


def shipped_tasks() -> list[str]:
    """The names of the tasks that come with the laboratory.

    Example:
        >>> "intervals" in shipped_tasks()
        True
    """
    return list(SHIPPED)


def task_names() -> list[str]:
    """The names of all tasks that are installed: those of the laboratory first."""
    return [*SHIPPED, *sorted(name for name in _entry_points() if name not in SHIPPED)]


def is_installed(name: str) -> bool:
    """Whether a task of this name is installed; for the laboratory's own names, other packages are not searched."""
    return name in SHIPPED or name in _entry_points()


def find_task(reference: str) -> Task:
    """A task by its name, or by the module that holds it.

    Args:
        reference: a name, or ``MODULE:NAME``; a module may lie in the current folder.

    Raises:
        UsageError: if there is none.
        LabError: if its package cannot be imported.

    Example:
        >>> find_task("intervals").name
        'intervals'
    """
    return _task_of_module(reference) if ":" in reference else installed_task(reference)


def named_task(name: str, named: Sequence[str]) -> Task | None:
    """The task of this name among those that the user has named, as `find_task` takes them; None = it is none of them.

    Raises:
        UsageError, LabError: as of `find_task`.
    """
    return next((task for task in map(find_task, named) if task.name == name), None)


def installed_task(name: str) -> Task:
    """A task of the laboratory, or one that another installed package makes known.

    Raises:
        UsageError: if there is none.
        LabError: if its package cannot be imported.
    """
    if name in SHIPPED:
        task: Task = _module_of_shipped(name, "._task").TASK
        return task
    points = _entry_points()
    if name not in points:
        known = task_names()
        raise UsageError(
            f"there is no task {name!r}{nearest(name, known) or ';'} choose from {', '.join(known)}, or name your "
            "own as MODULE:NAME"
        )
    point = points[name]
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        raise LabError(f"the task {name}, {point.value}, cannot be imported: {' '.join(str(error).split())}") from None
    return _checked(found, point.value, name)


def settings_of(reference: str) -> Settings:
    """What can be set of a task, as `find_task` finds it; one of the laboratory is not imported for that.

    Raises:
        UsageError, LabError: as of `find_task`.

    Example:
        >>> settings_of("digits").data_config.__name__
        'DigitsData'
    """
    if reference in SHIPPED:
        settings: Settings = _module_of_shipped(reference).SETTINGS
        return settings
    return Settings.of(find_task(reference))


def task_reference(task: Task) -> str:
    """The reference by which `find_task` finds this task, in another process too.

    Raises:
        LabError: if no module above its class holds it.

    Example:
        >>> task_reference(find_task("intervals"))
        'intervals'
    """
    if is_installed(task.name):
        return task.name
    module = type(task).__module__
    while module:
        found = sys.modules.get(module)
        names = [name for name, value in vars(found).items() if value is task] if found else []
        if names:
            return f"{module}:{names[0]}"
        module = module.rpartition(".")[0]
    raise LabError(
        f"other machines cannot find the task {task.name}; the module of its class, {type(task).__module__}, or one "
        "above it must hold it: TASK = …"
    )


def find_table(name: str, named: Sequence[str] = ()) -> tuple[Task, Table]:
    """A table by its name, and its task: first of those that the user has named, then of the laboratory, then others.

    Raises:
        UsageError: if there is none.
    """
    known: list[str] = []
    for task in map(find_task, [*named, *task_names()]):
        for table in task.tables():
            if table.name == name:
                return task, table
            known.append(table.name)
    near = nearest(name, known)
    choices = f"{near} contmax data list shows all" if near else f"; choose from {', '.join(known)}"
    raise UsageError(f"there is no table {name!r}{choices}")


def experiments() -> dict[str, Experiment]:
    """The tables that are trained by code of their own, by name.

    Example:
        >>> list(experiments())
        ['lengths']
    """
    modules = {name: f"{GROUP}.{package}._experiment" for name, package in _EXPERIMENTS.items()}
    return {name: importlib.import_module(module).EXPERIMENT for name, module in modules.items()}


def table_named(name: str) -> Table:
    """A table by its name, of a task or of an experiment.

    Raises:
        UsageError: if there is none.
    """
    found = experiments()
    return found[name].table if name in found else find_table(name)[1]


def _module_of_shipped(name: str, module: str = "") -> ModuleType:
    return importlib.import_module(f"{GROUP}.{SHIPPED[name].replace('/', '.')}{module}")


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def _task_of_module(reference: str) -> Task:
    module, _, attribute = reference.partition(":")
    found = getattr(_imported(module, reference), attribute, None)
    if found is None:
        raise UsageError(f"{reference}: the module {module}{_where(module)} has no {attribute!r}; pass MODULE:NAME")
    task = _checked(found, reference)
    if is_installed(task.name) and installed_task(task.name) is not task:
        raise UsageError(
            f"{reference}: there is an installed task with the name {task.name!r}; give yours another name"
        )
    return task


def _imported(module: str, reference: str) -> ModuleType:
    """The module, imported also from the current folder; an installed package takes precedence over that folder."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise UsageError(f"{reference}: there is no module {module}, neither installed nor in {folder}") from None
        raise LabError(f"{reference}: {module} needs {error.name}, which is not installed") from None
    except ValueError:  # an empty name
        raise UsageError(f"{reference} is not MODULE:NAME") from None


def _where(module: str) -> str:
    """The file of a module, and whether it hides one of the current folder."""
    file = getattr(sys.modules[module], "__file__", None)
    own = Path(f"{module}.py").resolve()
    hides = f", which hides {own}; rename yours" if file and own.is_file() and own != Path(file).resolve() else ""
    return f" ({file}{hides})" if file else ""


def _checked(found: object, reference: str, name: str | None = None) -> Task:
    if isinstance(found, type) and issubclass(found, Task):
        raise UsageError(f"{reference} is a class; export an instance of it, TASK = {found.__name__}()")
    if not isinstance(found, Task):
        raise UsageError(f"{reference} is of type {type(found).__name__}; it must be a contmax_lab.contract.Task")
    lacking = [field for field in ("name", "summary", "data_config", "model_config") if not hasattr(found, field)]
    if lacking:
        raise UsageError(f"{reference} has no {', '.join(lacking)}")
    if name is not None and found.name != name:
        raise LabError(f"the entry point {name} names the task {found.name!r}; both must have the same name")
    return found


def task_of_run(folder: str | Path, named: Sequence[str] = ()) -> Task:
    """The task that a run was trained on: one that is installed, or one that the user has named.

    Raises:
        LabError: if there is no run, or its task is neither.
    """
    run = Run(folder)
    name = run.task_name()
    if task := named_task(name, named):
        return task
    if is_installed(name):
        return installed_task(name)
    origin = str(run.provenance().get("task", ""))
    was = f" ({origin} where it was trained)" if origin else ""
    module = origin.partition(":")[0].partition(".")[0] or "my_module"
    raise LabError(
        f"{run.folder} is a run of the task {name!r}{was}, which is not installed; a run may not import modules by "
        f"itself. If you have that task, name it as MODULE:NAME, e.g. --task {module}:TASK"
    )


def open_trained(
    folder: str | Path, overrides: Sequence[str] = (), label: str | None = None, named: Sequence[str] = ()
) -> TrainedRun:
    """Load a run that is done.

    Args:
        folder: of the run.
        overrides: dotted, e.g. ``--data.path`` where the data has moved.
        label: what pictures and tables call it; by default the folder's name.
        named: tasks that are not installed, as `find_task` takes them.

    Raises:
        LabError: if there is no run, or it is not done, or its task is unknown, or its weights do not fit.
    """
    return load_trained(task_of_run(folder, named), folder, overrides, label)


def task_of_model(folder: Path, named: Sequence[str] = ()) -> Task:
    """The task that an exported model was trained on: one that is installed, or one that the user has named.

    Raises:
        LabError: if there is no model, or its task is neither.
    """
    from contmax_lab.labelled import read_card  # imports torch, which finding tasks does without

    name = read_card(folder, lambda card: str(card["task"]))
    return named_task(name, named) or installed_task(name)


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
