"""Buffers: large pieces of memory, called buffers, that are used again instead of going back to the system.

Merging and gathering take their memory here (`empty`, `BUFFERS.take`), and spines trim the pool as they work. Merging
frees about as much memory as it allocates, in pieces of the same few sizes. Fresh memory of the system costs a page
fault every 4 kB (some 5 ns for 8 bytes on a virtual machine, more than merging them), and giving back hundreds of
megabytes at once stops the caller for as long as 100 ms. So a buffer that is no longer used waits in the pool for the
next taker, and buffers beyond a bound are given back a few at a time. Laws:

- **Bounded.** Once `trim` has caught up, the pool keeps unused buffers of at most three eighths of the bytes in use, or
  32 MB if that is more.
- **Exclusive.** A buffer is handed out again only when nothing refers to its memory any more.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections import deque
from threading import Lock
from typing import Any

import numpy as np

LEAST = 1 << 18  # smaller pieces are better left to the allocator
_LEAST_SPARE = 32 << 20
_GRAIN = 1 << 16

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class BufferPool:
    """Hands out buffers and takes them back, in any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._returned: deque[mmap.mmap] = deque()
        """Buffers whose users are gone. Finalizers run anywhere, even inside `take`, so all they do is append here."""
        self._free: list[mmap.mmap] = []
        self._free_bytes = 0
        self._used_bytes = 0

    def take(self, size: int) -> Bytes:
        """At least `size` bytes, with any content. The buffer is taken back when the array and all views of it are
        gone."""
        size = -(-size // _GRAIN) * _GRAIN
        with self._lock:
            self._collect()
            buffer = self._reuse(size)
            if buffer is None:
                buffer = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._used_bytes += len(buffer)
        # Every view that NumPy or Arrow make of the array keeps the exporter of its memory alive: the lease.
        lease = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        weakref.finalize(lease, self._returned.append, buffer).atexit = False
        return np.frombuffer(memoryview(lease), np.uint8)

    def trim(self, buffers: int = 1) -> None:
        """Give at most so many unused buffers back to the system (1 to 2 ms each), until the *bounded* law holds."""
        with self._lock:
            self._collect()
            while buffers and self._free_bytes > max(_LEAST_SPARE, self._used_bytes * 3 // 8):
                self._free_bytes -= len(self._free.pop(0))
                buffers -= 1

    def release(self) -> None:
        """Give all unused buffers back to the system: for idle moments."""
        with self._lock:
            self._collect()
            self._free.clear()
            self._free_bytes = 0

    def _collect(self) -> None:
        while self._returned:
            buffer = self._returned.popleft()
            self._free.append(buffer)
            self._free_bytes += len(buffer)
            self._used_bytes -= len(buffer)

    def _reuse(self, size: int) -> mmap.mmap | None:
        for at in range(len(self._free) - 1, -1, -1):
            if size <= len(self._free[at]) <= size + size // 4:
                buffer = self._free.pop(at)
                self._free_bytes -= len(buffer)
                return buffer
        return None


BUFFERS = BufferPool()


def empty(rows: int, dtype: Any) -> np.ndarray[Any, Any]:
    """An array with any content: `numpy.empty`, from a buffer where it is large."""
    size = rows * np.dtype(dtype).itemsize
    if size < LEAST:
        return np.empty(rows, dtype)
    return BUFFERS.take(size)[:size].view(dtype)
