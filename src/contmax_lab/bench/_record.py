"""Where and on what figures were measured."""

from typing import Any

from contmax_lab.provenance import provenance


def record() -> dict[str, Any]:
    """Commit, date, machine and versions, for the head of a file of figures.

    Example:
        >>> sorted(record())
        ['commit', 'date', 'dirty', 'machine', 'versions']
    """
    return provenance(("contmax", "torch", "numpy", "numba", "triton", "entmax"))
