"""A decorator for kernels that Python calls: numba compiles them, and the result is cached on disk for later processes.

numba's own cache compares only the time stamp of a function's file, not of the files of the functions it calls. This
cache compares a digest of all sources of CPU kernels: after a change in any of them all kernels are compiled again.

numba caches beside the source, or where that folder cannot be written in the user's cache (~/.cache/numba). Containers
often allow neither; then this cache lies in a folder of the user's own among the temporary files.
"""

import contextlib
import functools
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import (  # private to numba, as are the attributes that this file sets
    CompileResultCacheImpl,
    FunctionCache,
    UserWideCacheLocator,
)

_FOLDER = Path(__file__).parent.parent


def kernel(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """``numba.njit(nogil=True, **options)``, cached on disk if a folder for it can be written.

    The kernel releases the GIL, so that `contmax.kernels.cpu._threads` can run it on several threads at once.
    """

    def compile_lazily(function: Callable[..., None]) -> Any:
        compiled = njit(nogil=True, **options)(function)
        with contextlib.suppress(RuntimeError, OSError):  # raised if no folder is writable
            compiled._cache = _CacheByDigest(function)
        return compiled

    return compile_lazily


def inlined(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit(**options)`` for functions that the loops over scores call; LLVM always inlines them.

    A loop with a call in it is not vectorised. By default LLVM inlines only small functions, and their size depends on
    the version of Python: numba's code for a function of three results is longer from 3.12 on.
    """
    compiled: Callable[[Callable[..., Any]], Any] = njit(forceinline=True, **options)
    return compiled


def kept(compiled: Any) -> tuple[str | None, bool]:
    """The cache folder of a kernel, or None; and whether the folder holds code compiled from the present sources."""
    cache = compiled._cache
    return cache.cache_path, isinstance(cache, _CacheByDigest) and bool(cache._cache_file._load_index())


class _TemporaryFolder(UserWideCacheLocator):  # type: ignore[misc]
    """A folder among the temporary files that no other user can write, because cached code is executed."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)
        user = os.getuid() if hasattr(os, "getuid") else ""  # on Windows every user has a folder for temporary files
        self._root = Path(tempfile.gettempdir(), f"contmax-numba-{user}")
        self._cache_path = str(self._root / self.get_suitable_cache_subpath(py_file))

    def ensure_cache_path(self) -> None:
        self._root.mkdir(mode=0o700, exist_ok=True)
        found = self._root.lstat()
        if hasattr(os, "getuid") and (
            not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077
        ):
            raise PermissionError(f"others may write to {self._root}")
        super().ensure_cache_path()


class _Cached(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (*CompileResultCacheImpl._locator_classes, _TemporaryFolder)


class _CacheByDigest(FunctionCache):  # type: ignore[misc]
    """numba's disk cache of a function, invalid as soon as the digest of the sources changes."""

    _impl_class = _Cached

    def __init__(self, function: Callable[..., None]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = digest_of_sources(_FOLDER)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write compiled code to the disk. If this fails, on a full disk say, the next process has to compile again."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


@functools.cache
def digest_of_sources(folder: Path) -> str:
    """SHA-256 of the sources of all CPU kernels; `folder` is ``contmax/kernels``."""
    paths = sorted([*folder.glob("cpu/*.py"), *folder.glob("*/_cpu_*.py")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
