"""Other stores of keys and values, doing the same work: each loads, looks up, and upserts batches.

They do not do equal work: none keeps versions or deletes by value; the dict, Polars and DuckDB stay in memory, RocksDB
writes files, without its log.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from bench.measure import version

Ints = np.ndarray[Any, Any]


class Store(Protocol):
    version: str
    rows: int

    def lookup(self, keys: Ints) -> Any: ...
    def upsert(self, keys: Ints, values: Ints) -> None: ...


class DictStore:
    """A Python dict of ints."""

    def __init__(self, rows: int) -> None:
        self.version = f"python {platform.python_version()}"
        self.rows = rows
        self._cells = dict(zip(range(rows), range(0, 2 * rows, 2), strict=True))

    def lookup(self, keys: Ints) -> Any:
        get = self._cells.__getitem__
        return [get(key) for key in keys.tolist()]

    def upsert(self, keys: Ints, values: Ints) -> None:
        self._cells.update(zip(keys.tolist(), values.tolist(), strict=True))


class PolarsStore:
    """A Polars frame; a lookup joins it, an upsert rebuilds it."""

    def __init__(self, rows: int) -> None:
        import polars as pl

        self.version = version("polars")
        self.rows = rows
        self._pl = pl
        key = np.arange(rows)
        self._frame = pl.DataFrame({"k": key, "v": key * 2})

    def lookup(self, keys: Ints) -> Any:
        return self._pl.DataFrame({"k": keys}).join(self._frame, on="k", how="left")

    def upsert(self, keys: Ints, values: Ints) -> None:
        fresh = self._pl.DataFrame({"k": keys, "v": values})
        self._frame = self._frame.update(fresh, on="k", how="full")


class DuckStore:
    """A DuckDB table with a primary key, in memory."""

    def __init__(self, rows: int) -> None:
        import duckdb

        self.version = version("duckdb")
        self.rows = rows
        self._base = duckdb.connect()
        self._base.execute("set enable_progress_bar = false")
        self._base.execute("create table t (k bigint primary key, v bigint)")
        self._base.execute(f"insert into t select range, 2 * range from range({rows})")

    def lookup(self, keys: Ints) -> Any:
        import pyarrow as pa

        asked = pa.table({"k": keys})  # noqa: F841 - DuckDB finds it by its name
        return self._base.execute("select t.v from asked join t using (k)").fetchnumpy()

    def upsert(self, keys: Ints, values: Ints) -> None:
        import pyarrow as pa

        fresh = pa.table({"k": keys, "v": values})  # noqa: F841 - DuckDB finds it by its name
        self._base.execute("insert or replace into t select * from fresh")


class RocksStore:
    """RocksDB through rocksdict, raw bytes, write batches; its write-ahead log is off unless `logged`."""

    def __init__(self, rows: int, folder: str, *, logged: bool = False) -> None:
        from rocksdict import Options, Rdict, WriteOptions

        self.version = version("rocksdict")
        self.rows = rows
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.increase_parallelism(2)
        self._base = Rdict(f"{folder}/db", options)
        self._write = WriteOptions()
        self._write.disable_wal = not logged
        for start in range(0, rows, 100_000):
            keys = np.arange(start, min(start + 100_000, rows))
            self.upsert(keys, keys * 2)

    @staticmethod
    def _bytes(cells: Ints) -> list[bytes]:
        packed = cells.astype(">i8").tobytes()
        return [packed[at : at + 8] for at in range(0, len(packed), 8)]

    def lookup(self, keys: Ints) -> Any:
        return self._base.get(self._bytes(keys))

    def upsert(self, keys: Ints, values: Ints) -> None:
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for key, value in zip(self._bytes(keys), self._bytes(values), strict=True):
            batch.put(key, value)
        self._base.write(batch, self._write)


def makers(
    rows: int, slow_rows: int, folder: str
) -> list[tuple[str, Callable[[int | None], Store]]]:
    """Each peer and how to load it; those that take long to load get `slow_rows`, which may be fewer."""

    def rocks(some: int | None) -> Store:
        return RocksStore(some or slow_rows, tempfile.mkdtemp(dir=folder))

    return [
        ("dict", lambda some: DictStore(some or slow_rows)),
        ("polars", lambda some: PolarsStore(some or rows)),
        ("duckdb", lambda some: DuckStore(some or slow_rows)),
        ("rocksdb", rocks),
    ]


def each_store(rows: int, slow_rows: int) -> Iterator[tuple[str, Store]]:
    """Each peer in turn, loaded."""
    with tempfile.TemporaryDirectory() as folder:
        for name, make in makers(rows, slow_rows, folder):
            yield name, make(None)
