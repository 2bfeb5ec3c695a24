"""Experiments by the names of their tables."""

import importlib

from contmax_lab.contract import Experiment, Table
from contmax_lab.registry._tasks import GROUP, find_table

# Name of the table → package below tasks/; EXPERIMENT is in its _experiment.py.
_SHIPPED = {"lengths": "lengths"}


def find_experiment(name: str) -> Experiment | None:
    """The experiment whose table has this name, or None.

    Example:
        >>> find_experiment("lengths").table.name
        'lengths'
        >>> find_experiment("intervals") is None
        True
    """
    if name not in _SHIPPED:
        return None
    experiment: Experiment = importlib.import_module(f"{GROUP}.{_SHIPPED[name]}._experiment").EXPERIMENT
    return experiment


def experiments() -> list[Experiment]:
    """All experiments."""
    return [found for name in _SHIPPED if (found := find_experiment(name)) is not None]


def table_named(name: str) -> Table:
    """A table by its name, of a task or of an experiment.

    Raises:
        UsageError: if there is none.
    """
    experiment = find_experiment(name)
    return find_table(name)[1] if experiment is None else experiment.table
