"""How kernels are compiled: `@kernel` is Numba with the GIL released and the result cached on disk.

Numba decides whether a cached kernel is stale by looking at the file that defines it, and at no
other. Our kernels call each other across files, so a change in one file must also discard what its
callers compiled: the fingerprint of all kernel sources is therefore part of every cache key. A
stale kernel would be a wrong answer; this is the one place that rules it out.

Cost: reading and hashing some 60 kB of source once a process (under a millisecond).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., Any])


def _fingerprint() -> str:
    digest = blake2b(digest_size=16)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


FINGERPRINT = _fingerprint()


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache, with the fingerprint of every kernel source in the key."""

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), FINGERPRINT)


def kernel(function: F) -> F:
    """Compile `function` when it is first called; later processes load it from the cache."""
    dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
    # Where neither the sources' folder nor the user's can be written, every process compiles for itself.
    with suppress(RuntimeError):
        dispatcher._cache = _KernelCache(function)
    return dispatcher  # type: ignore[no-any-return]
