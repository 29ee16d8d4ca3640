"""A spool: frames that wait to be sent, in order; beyond a budget of bytes they wait on disk.

Each `link` has a spool for frames that wait until its receiver gives room (the *windowed* law of `link`). So a slow
receiver costs its sender disk, not memory. And a worker may finish the step it is at, however many frames the step
sends. Law:

- **First in, first out.** Frames are taken in the order in which they were put, whether they waited in memory or on
  disk. So while a frame is on disk, every further frame goes to disk too.

In the example the budget of three bytes has room for the first frame only.

>>> spool = Spool(budget=3)
>>> for word in (b"ab", b"cd", b"ef"):
...     spool.put(Frame(word))
>>> len(spool), spool.spilled
(3, 2)
>>> [spool.take().head for _ in range(3)]
[b'ab', b'cd', b'ef']

Cost: a frame on disk is written and read once; the file is deleted when all its frames were read.
"""

from __future__ import annotations

import tempfile
from collections import deque
from pathlib import Path
from typing import IO

import pyarrow as pa

from riverrun.runtime.codec.frames import Frame

_SIZE = 8


class Spool:
    """Frames in order; those beyond `budget` bytes are in a file in `directory`."""

    def __init__(self, budget: int = 64 << 20, directory: str | Path | None = None) -> None:
        self._budget = budget
        self._directory = directory
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._read = 0
        self.spilled = 0
        """How many of the frames are on disk."""
        self.size = 0
        """How many bytes wait, in memory and on disk."""

    def __len__(self) -> int:
        return len(self._frames) + self.spilled

    @property
    def nbytes(self) -> int:
        """How many bytes wait in memory."""
        return self._bytes

    def put(self, frame: Frame) -> None:
        """Add a frame at the end."""
        self.size += frame.size
        if self.spilled or self._bytes + frame.size > self._budget:
            self._spill(frame)
        else:
            self._frames.append(frame)
            self._bytes += frame.size

    def peek(self) -> Frame | None:
        """The first frame, if it is in memory."""
        return self._frames[0] if self._frames else None

    def take(self) -> Frame:
        """The first frame."""
        if self._frames:
            frame = self._frames.popleft()
            self._bytes -= frame.size
        else:
            frame = self._load()
        self.size -= frame.size
        return frame

    def clear(self) -> None:
        """Drop everything."""
        self._frames.clear()
        self._bytes = self.spilled = self.size = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self, frame: Frame) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="riverrun-", dir=self._directory)  # noqa: SIM115
            self._read = 0
        self._file.seek(0, 2)
        for part in (frame.head, frame.body):
            size = -1 if part is None else len(part) if isinstance(part, bytes) else part.size
            self._file.write(size.to_bytes(_SIZE, "little", signed=True))
            if part is not None:
                self._file.write(part)
        self.spilled += 1

    def _load(self) -> Frame:
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
        return Frame(head, None if body is None else pa.py_buffer(body))
