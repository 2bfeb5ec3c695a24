"""Recipes: everything that decides a training, as typed data; a YAML file, with dotted overrides on top."""

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from contmax_lab.contract import Recipe, Settings, Task, TrainingConfig
from contmax_lab.errors import UsageError, nearest
from contmax_lab.files import plain, read_yaml, yaml_text
from contmax_lab.settings import in_words

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


def task_recipe(task: Task | Settings) -> dict[str, Any]:
    """The recipe of a task: that of its file, or where it has none, no keys at all.

    Raises:
        UsageError: if the file is no recipe.
    """
    return {"task": task.name} if task.recipe_file is None else read_recipe(task.recipe_file)


def variant_names(stored: Mapping[str, Any]) -> list[str]:
    """The names of the variants of a recipe.

    Example:
        >>> variant_names({"task": "vowels", "variants": {"discrete": {"model.alpha": 1.0}}})
        ['discrete']
    """
    return [str(name) for name in stored.get("variants", {})]


def with_variant(stored: Mapping[str, Any], variant: str, origin: str) -> dict[str, Any]:
    """The dotted keys of a recipe, changed by those of a variant; empty = the one that it calls ``default``, or none.

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


def keys_help(settings: Settings, keys: Mapping[str, Any], origin: str) -> str:
    """All the keys of a recipe, which is called `origin`, with type, meaning and value.

    Raises:
        UsageError: if a key is not understood.
    """
    _check_keys(f"{origin}: ", settings, keys)
    parser = _parser(settings.data_config, settings.model_config, prog=f"contmax train {origin}")
    parser.set_defaults(dict(keys))
    return str(parser.format_help())


@dataclasses.dataclass(frozen=True)
class RecipeSource:
    """A recipe before its keys are checked and changed.

    Args:
        task: what it trains.
        keys: dotted key → value, as a file has them.
        origin: what complaints about these keys begin with, such as the path of the file.
        name: a short one for folders.
    """

    task: Task
    keys: Mapping[str, Any]
    origin: str
    name: str

    def recipe(self, overrides: Sequence[str] = ()) -> Recipe:
        """The recipe, with all values checked against the types of the task's configurations.

        Args:
            overrides: as on the command line, ``--model.hidden_dim=64`` or ``--model.hidden_dim 64``.

        Raises:
            UsageError: if a key or value is not understood.
        """
        settings, origin = Settings.of(self.task), f"{self.origin}: "
        _check_keys(origin, settings, self.keys)
        _check_keys(f"{self.origin}, search: ", settings, self.keys.get("search", {}))
        _check_keys("", settings, (word[2:].partition("=")[0] for word in overrides if word.startswith("--")))
        parser = _shared_parser(settings.data_config, settings.model_config)
        base = _base(parser, origin, json.dumps(self.keys, default=str))
        # The base has a value for every key; adding defaults would take half of the time and change nothing.
        parsed = _checked("", parser.parse_args, list(overrides), namespace=base, defaults=False) if overrides else base
        ready = parser.instantiate(parsed)
        sections = {key: ready[key] for key in SECTIONS}
        return Recipe(task=self.task, seed=ready.seed, search=ready.search or {}, **sections)


def as_yaml(recipe: Recipe) -> str:
    """The whole recipe as YAML; the task is in it by its name."""
    return yaml_text({**plain(recipe), "task": recipe.task.name})


def _nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The opposite of `flattened`."""
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        section, dot, field = key.partition(".")
        if dot:
            tree.setdefault(section, {})[field] = value
        else:
            tree[key] = value
    return tree


def _check_keys(origin: str, settings: Settings, keys: Iterable[Any]) -> None:
    """Raise an error with the nearest key; the parser would take an abbreviated key, and say less of an unknown one."""
    configs = zip(SECTIONS, (settings.data_config, settings.model_config, TrainingConfig), strict=True)
    known = [f"{section}.{field.name}" for section, config in configs for field in dataclasses.fields(config)]
    known += ["seed", "search"]
    for key in keys:
        if key not in known and key not in SECTIONS:
            raise UsageError(
                f"{origin}there is no key {key}{nearest(str(key), known) or ';'} contmax train {settings.name}/… "
                "--help lists all"
            )


def _parser(data_config: type, model_config: type, prog: str) -> ArgumentParser:
    parser = ArgumentParser(prog=prog, exit_on_error=False, usage="%(prog)s [--KEY VALUE …]", allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=0, help="random seed (weights, data order, dropout)")
    for section, config in zip(SECTIONS, (data_config, model_config, TrainingConfig), strict=True):
        parser.add_class_arguments(config, section)
    parser.add_argument("--search", type=dict[str, Any] | None, default=None, help="choices for contmax search")
    return parser


@functools.lru_cache(maxsize=16)
def _shared_parser(data_config: type, model_config: type) -> ArgumentParser:
    """One parser for all recipes of a task, never changed: making it takes as long as reading a recipe with it."""
    return _parser(data_config, model_config, prog="contmax train")


@functools.lru_cache(maxsize=64)
def _base(parser: ArgumentParser, origin: str, keys: str) -> Namespace:
    """The parsed keys of a file, given as JSON; cells of a row and trials of a search share them, and copy them."""
    # Filled in here: the parser would check defaults separately, which doubles the time.
    filled = {**_defaults(parser), **json.loads(keys)}
    return _checked(origin, parser.parse_object, _nested(filled), defaults=False)


@functools.lru_cache(maxsize=16)
def _defaults(parser: ArgumentParser) -> dict[str, Any]:
    """Dotted key → default value."""
    return dict(parser.get_defaults(skip_validation=True).items())


def _checked(origin: str, parse: Any, *arguments: Any, **keywords: Any) -> Namespace:
    try:
        parsed: Namespace = parse(*arguments, **keywords)
        return parsed
    except (ArgumentError, TypeError, ValueError) as error:
        raise UsageError(f"{origin}{in_words(str(error))}") from None
    except SystemExit as error:
        raise UsageError(f"{origin}not understood: {in_words(str(error))}") from None
