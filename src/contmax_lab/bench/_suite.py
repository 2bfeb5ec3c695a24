"""What a suite is: a name, the figures it yields, and the packages it compares with."""

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType

from contmax_lab.bench._figure import Figure
from contmax_lab.bench._timing import Effort


@dataclasses.dataclass(frozen=True)
class Suite:
    """A benchmark that can be run by name.

    Args:
        name: what the command line and the file of results call it.
        figures: yields the figures, table by table, with the given effort.
        peers: optional packages it compares with; without them their figures have no value.
    """

    name: str
    figures: Callable[[Effort], Iterator[Figure]]
    peers: tuple[str, ...] = ()

    def missing_peers(self) -> list[str]:
        """Those of the peers that cannot be imported."""
        return [name for name in self.peers if peer(name) is None]


def peer(name: str) -> ModuleType | None:
    """A package to compare with, or None where it is not installed or lacks what it needs."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
