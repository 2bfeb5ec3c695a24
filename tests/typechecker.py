"""The run-time type checker of the test-suite: beartype, except where it has no meaning."""

from beartype import beartype
from beartype.roar import BeartypeDecorHintPep673Exception


def checked(function):
    """beartype, or the function as it is where it returns typing.Self, which beartype knows on classes only."""
    try:
        return beartype(function)
    except BeartypeDecorHintPep673Exception:
        return function
