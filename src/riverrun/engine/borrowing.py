"""Borrowing: rows that a worker in another process holds for us, until what stands for them here is thrown away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from riverrun.engine.asking import Asker, Security
from riverrun.engine.lines import watched
from riverrun.engine.reading import Portion
from riverrun.engine.where import Where
from riverrun.forks import Mark, finalize


class Borrowed(Portion):
    """A portion that a worker holds for us under a number; `release` is told when nobody has it any more;
    `gone` knows whether that worker was given up."""

    def __init__(
        self,
        address: str,
        lease: int,
        schema: bytes,
        security: Security,
        release: Callable[[str, int], None],
        gone: Callable[[str], bool],
    ) -> None:
        self.schema = pa.ipc.read_schema(pa.py_buffer(schema))
        self.address = address
        self.lease = lease
        self._security = security
        self._gone = gone
        self._mark = Mark()
        finalize(self, release, address, lease)

    def batches(
        self, columns: Sequence[str] | None = None, where: Sequence[Where] = ()
    ) -> Iterator[pa.RecordBatch]:
        self._mark.check("read rows", f"the worker at {self.address}")
        asker = Asker(self.address, self._security)
        try:
            rows = asker.rows((self.lease, columns, tuple(where)))
            yield from watched(self.address, rows, lambda: self._gone(self.address))
        finally:
            asker.close()
