"""How kernels are compiled: `@kernel` is Numba with the GIL released and the result cached on disk.

Numba decides whether a cached kernel is stale by looking at the file that defines it, and at no
other. Our kernels call each other across files, so a change in one file must also discard what its
callers compiled: the fingerprint of all kernel sources is therefore part of every cache key. A
stale kernel would be a wrong answer; this is the one place that rules it out.

A kernel is loaded from the cache when it is first called, which takes some ten milliseconds; all that a program uses, a
second or more. A process that knows from others which ones it will need (`used` tells) has them loaded beforehand, by
`load`, in a thread of its own. It changes when they are loaded, and never which.

Processes that start at once on one machine, as workers do, need the same kernels at the same moment. One of them
compiles a kernel while the others wait for it, and load what it has made: the lock is a file beside the cache. Kernels
do not call each other in circles, so a process that holds one lock waits only for kernels further down.

Cost: reading and hashing some 60 kB of source once a process (under a millisecond).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock

F = TypeVar("F", bound=Callable[..., Any])


def _fingerprint() -> str:
    digest = blake2b(digest_size=16)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


FINGERPRINT = _fingerprint()
_KERNELS: dict[str, Any] = {}
_USED: dict[str, None] = {}


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache, with the fingerprint of every kernel source in the key."""

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), FINGERPRINT)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        _USED[_name(self._py_func)] = None
        return super().load_overload(sig, target_context)

    def signatures(self, codegen: Any) -> list[Any]:
        """Those under which the cache has the kernel as it is now."""
        keys = self._cache_file._load_index()
        return [key[0] for key in keys if key == self._index_key(key[0], codegen)]

    @contextmanager
    def held(self) -> Iterator[None]:
        """No other process compiles this kernel meanwhile; where files cannot be locked, several may."""
        try:
            self._impl.locator.ensure_cache_path()
            path = os.path.join(self._cache_path, f"{self._impl.filename_base}.lock")
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            yield
            return
        try:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(
                    lock, fcntl.LOCK_UN
                )  # said, since a fork may have a copy of the descriptor
            os.close(lock)


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _one_at_a_time(dispatcher: Any) -> Callable[[Any], Any]:
    """The dispatcher's way to compile itself, under the lock of its cache.

    Numba's own lock, of the process, is taken first: a thread that waits for another process holds no kernel that a
    thread of this one could be waiting for.
    """
    compile_it, holding = dispatcher.compile, False

    def compile_alone(signature: Any) -> Any:
        nonlocal holding
        with global_compiler_lock:
            if holding:  # it calls itself
                return compile_it(signature)
            holding = True
            try:
                with dispatcher._cache.held():
                    return compile_it(signature)
            finally:
                holding = False

    return compile_alone


def kernel(function: F) -> F:
    """Compile `function` when it is first called; later processes load it from the cache."""
    dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
    if (
        dispatcher is function
    ):  # NUMBA_DISABLE_JIT: Python itself runs it, as where coverage is looked at
        return function
    # Where neither the sources' folder nor the user's can be written, every process compiles for itself.
    with suppress(RuntimeError):
        dispatcher._cache = _KernelCache(function)
        _KERNELS[_name(function)] = dispatcher
        dispatcher.compile = _one_at_a_time(dispatcher)
    return dispatcher  # type: ignore[no-any-return]


def used() -> list[str]:
    """The kernels that this process has called so far, or loaded, the first one first."""
    return list(_USED)


def load(names: Iterable[str]) -> None:
    """Load some kernels from the cache, under all signatures that it has; those that it has not are left alone.

    May be called in any thread: a kernel that is called meanwhile is loaded once.
    """
    for name in names:
        dispatcher = _KERNELS.get(name)
        if dispatcher is not None:
            for signature in dispatcher._cache.signatures(dispatcher.targetctx.codegen()):
                dispatcher.compile(signature)
