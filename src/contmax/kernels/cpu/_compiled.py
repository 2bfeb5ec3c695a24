"""A decorator for kernels that Python calls: numba compiles them, and the result is cached on disk for later processes.

numba's own cache compares only the time stamp of a function's file, not of the files of the functions it calls. This
cache compares a digest of all sources of CPU kernels: after a change in any of them all kernels are compiled again.
"""

import contextlib
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache  # private to numba, as are the attributes that this file sets

_FOLDER = Path(__file__).parent.parent


def kernel(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """``numba.njit(nogil=True, **options)``, cached on disk if a folder for it can be written.

    The kernel releases the GIL, so that `contmax.kernels.cpu._threads` can run it on several threads at once.
    """

    def compile_lazily(function: Callable[..., None]) -> Any:
        compiled = njit(nogil=True, **options)(function)
        with contextlib.suppress(RuntimeError):  # raised if neither the file's folder nor the user's cache is writable
            compiled._cache = _CacheByDigest(function)
        return compiled

    return compile_lazily


def inlined(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit(**options)`` for functions that the loops over scores call; LLVM always inlines them.

    A loop with a call in it is not vectorised. LLVM alone inlines what it holds to be small, and that depends on the
    version of Python: numba's code for a function of three results is longer from 3.12 on.
    """
    compiled: Callable[[Callable[..., Any]], Any] = njit(forceinline=True, **options)
    return compiled


class _CacheByDigest(FunctionCache):  # type: ignore[misc]
    """numba's disk cache of a function, invalid as soon as the digest of the sources changes."""

    def __init__(self, function: Callable[..., None]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = digest_of_sources(_FOLDER)


@functools.cache
def digest_of_sources(folder: Path) -> str:
    """SHA-256 of the sources of all CPU kernels; `folder` is ``contmax/kernels``."""
    paths = sorted([*folder.glob("cpu/*.py"), *folder.glob("*/_cpu_*.py")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
