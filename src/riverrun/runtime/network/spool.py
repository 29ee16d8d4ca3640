"""A spool: fragments that wait to be sent, in order; beyond a budget of bytes they wait on disk.

Each `link` has a spool for fragments that wait until its receiver gives room (the *windowed* law of `link`). So a slow
receiver costs its sender disk, not memory. And a worker may finish the step it is at, however many fragments the step
sends. Law:

- **First in, first out.** Fragments are taken in the order in which they were put, whether they waited in memory or on
  disk. So while a fragment is on disk, every further fragment goes to disk too.

In the example the budget of three bytes has room for the first fragment only.

>>> spool = Spool(budget=3)
>>> for word in (b"ab", b"cd", b"ef"):
...     spool.put(Fragment(word))
>>> len(spool), spool.spilled
(3, 2)
>>> [spool.take().head for _ in range(3)]
[b'ab', b'cd', b'ef']

Cost: a fragment on disk is written and read once; the file is deleted when all its fragments were read.
"""

from __future__ import annotations

import tempfile
from collections import deque
from pathlib import Path
from typing import IO

import pyarrow as pa

from riverrun.runtime.codec.fragments import Fragment

_SIZE = 8


class Spool:
    """Fragments in order; those beyond `budget` bytes are in a file in `directory`."""

    def __init__(self, budget: int = 64 << 20, directory: str | Path | None = None) -> None:
        self._budget = budget
        self._directory = directory
        self._fragments: deque[Fragment] = deque()
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._read = 0
        self.spilled = 0
        """How many of the fragments are on disk."""
        self.size = 0
        """How many bytes wait, in memory and on disk."""

    def __len__(self) -> int:
        return len(self._fragments) + self.spilled

    @property
    def nbytes(self) -> int:
        """How many bytes wait in memory."""
        return self._bytes

    def put(self, fragment: Fragment) -> None:
        """Add a fragment at the end."""
        self.size += fragment.size
        if self.spilled or self._bytes + fragment.size > self._budget:
            self._spill(fragment)
        else:
            self._fragments.append(fragment)
            self._bytes += fragment.size

    def peek(self) -> Fragment | None:
        """The first fragment, if it is in memory."""
        return self._fragments[0] if self._fragments else None

    def take(self) -> Fragment:
        """The first fragment."""
        if self._fragments:
            fragment = self._fragments.popleft()
            self._bytes -= fragment.size
        else:
            fragment = self._load()
        self.size -= fragment.size
        return fragment

    def clear(self) -> None:
        """Drop everything."""
        self._fragments.clear()
        self._bytes = self.spilled = self.size = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self, fragment: Fragment) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="riverrun-", dir=self._directory)  # noqa: SIM115
            self._read = 0
        self._file.seek(0, 2)
        for part in (fragment.head, fragment.body):
            size = -1 if part is None else len(part) if isinstance(part, bytes) else part.size
            self._file.write(size.to_bytes(_SIZE, "little", signed=True))
            if part is not None:
                self._file.write(part)
        self.spilled += 1

    def _load(self) -> Fragment:
        if self._file is None:
            raise IndexError("the spool is empty")
        self._file.seek(self._read)
        parts: list[bytes | None] = []
        for _ in range(2):
            size = int.from_bytes(self._file.read(_SIZE), "little", signed=True)
            parts.append(None if size < 0 else self._file.read(size))
        self._read = self._file.tell()
        self.spilled -= 1
        if not self.spilled:
            self._file.close()
            self._file = None
        head, body = parts
        assert head is not None
        return Fragment(head, None if body is None else pa.py_buffer(body))
