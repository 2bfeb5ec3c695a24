"""The decorator for kernels that Python calls: compiled by numba, and cached on disk from one process to the next.

numba's own cache compares the time stamp of the file of a function and does not look at the functions it calls. This
cache compares a digest of every file that CPU kernels consist of: a change in one of them compiles all kernels anew.
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
    """``numba.njit(nogil=True, **options)``, cached on disk where there is a place to write.

    Without the GIL several threads can run a kernel, see `contmax.kernels.cpu._threads`.
    """

    def compile_lazily(function: Callable[..., None]) -> Any:
        compiled = njit(nogil=True, **options)(function)
        with contextlib.suppress(RuntimeError):  # neither the folder of the file nor the user's cache can be written
            compiled._cache = _CacheByDigest(function)
        return compiled

    return compile_lazily


class _CacheByDigest(FunctionCache):  # type: ignore[misc]
    """numba's cache of a function on disk, which is out of date when the digest of the sources has changed."""

    def __init__(self, function: Callable[..., None]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = digest_of_sources(_FOLDER)


@functools.cache
def digest_of_sources(folder: Path) -> str:
    """A digest of the files in ``contmax/kernels`` that CPU kernels consist of."""
    paths = sorted([*folder.glob("cpu/*.py"), *folder.glob("*/_cpu_*.py")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
