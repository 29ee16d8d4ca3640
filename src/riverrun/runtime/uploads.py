"""Staging: rows that were handed to a worker for an epoch that is not committed yet.

A parcel is a bounded part of what one sender handed in. It lies in memory, or in a temporary file
where there is too much of it; with a storage, it is also there before the sender is answered, so an
epoch that names it can be done again by anybody. Laws:

1. Rows count when an epoch names their parcel, and otherwise never: a sender that failed halfway, or
   was run twice, leaves parcels that nobody names.
2. ``rows(parcel)`` gives the rows that were handed in, whether the holder is alive or not.

>>> import pyarrow as pa
>>> staging = Staging(holder=1)
>>> rows = pa.record_batch({"n": [1, 2, 3]})
>>> (parcel,) = staging.take_in("load-0-0", iter([rows]))
>>> parcel.rows, [batch.num_rows for batch in staging.rows(parcel)]
(3, [3])
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock

import pyarrow as pa

from riverrun.engine.messages import Failed, Feed, Parcel
from riverrun.errors import CheckpointError, OperatorFailed, RiverrunError, TransportError
from riverrun.retry import is_outage, persist
from riverrun.state.soundness import UnsoundRows, read_file, read_stream
from riverrun.storage.records import PARCELS
from riverrun.storage.scratch import Scratch
from riverrun.storage.store import Storage, checksum

PARCEL = 64 << 20  # about so many bytes are one parcel
BUDGET = 512 << 20


class Staging:
    """The parcels of one worker. Handed in by any thread, taken by one."""

    def __init__(
        self,
        holder: int,
        storage: Storage | None = None,
        *,
        parcel: int = PARCEL,
        budget: int = BUDGET,
        patience: float | None = None,
        over: Event | None = None,
    ) -> None:
        """Rows that cannot be stored wait for the storage: for `patience` seconds, or until it is `over`."""
        self._patience = patience
        self._over = over or Event()
        self._holder = holder
        self._storage = storage
        self._parcel = parcel
        self._budget = budget
        self._bytes = 0
        self._lock = Lock()
        self._ended: deque[str] = deque(maxlen=1000)
        self._kept: dict[str, list[pa.RecordBatch]] = {}
        self._files: dict[str, str] = {}
        self._written = 0  # files so far: a name is used once
        self._directory: Scratch | None = None

    def __len__(self) -> int:
        """How many parcels are here."""
        return len(self._kept) + len(self._files)

    def take_in(self, name: str, batches: Iterable[pa.RecordBatch]) -> list[Parcel]:
        """Keep rows, and say under which names."""
        parcels: list[Parcel] = []
        try:
            for at, gathered in enumerate(_gathered(batches, self._parcel)):
                parcels.append(self._keep(f"{name}-{at}", gathered))
            if name.partition("-")[0] in self._ended:
                raise TransportError(
                    "transport.late",
                    f"cannot take rows of {name!r} in: they are not waited for any more",
                    hint="another attempt of the same task was faster, or the DataFrame failed",
                )
        except BaseException:
            self.forget([parcel.name for parcel in parcels], stored=True)
            raise
        return parcels

    def _keep(self, name: str, batches: list[pa.RecordBatch]) -> Parcel:
        rows = sum(batch.num_rows for batch in batches)
        size = sum(batch.nbytes for batch in batches)
        file, summed = None, ""
        if self._storage is not None:
            data = _packed(batches)
            file, summed = f"{PARCELS}/{name}-{self._holder}.arrow", checksum(data)
            self._store(self._storage, file, data)
        self.forget([name])  # a sender that was run twice
        with self._lock:
            fits = self._bytes + size <= self._budget
            if fits:
                self._kept[name] = batches
                self._bytes += size
            elif file is None:
                if self._directory is None:
                    self._directory = Scratch()
                self._files[name] = str(self._directory.path / f"{self._written}.arrow")
                self._written += 1
        if not fits and file is None:
            with (
                pa.OSFile(self._files[name], "wb") as sink,
                pa.ipc.new_file(sink, batches[0].schema) as writer,
            ):
                for batch in batches:
                    writer.write_batch(batch)
        return Parcel(name, self._holder, rows, file, summed)

    def _store(self, storage: Storage, file: str, data: pa.Buffer) -> None:
        patience = math.inf if self._patience is None else self._patience
        persist(
            lambda: storage.put(file, data),
            f"store rows that were handed in as {file}",
            deadline=patience,
            wait=self._over.wait,
        )

    def rows(self, parcel: Parcel) -> list[pa.RecordBatch]:
        """The rows of a parcel."""
        with self._lock:
            if parcel.holder == self._holder and parcel.name in self._kept:
                return self._kept[parcel.name]
            path = self._files.get(parcel.name) if parcel.holder == self._holder else None
        if path is not None:
            with pa.memory_map(path) as source:
                return _sound(parcel, path, read_file, source.read_buffer())
        if self._storage is not None and parcel.file is not None:
            return self._read(self._storage, parcel)
        raise TransportError(
            "transport.parcel_lost",
            f"cannot find the rows that were handed in as {parcel.name!r}: worker {parcel.holder} had them",
            hint="insert them again; with checkpoint=PATH they survive the loss of a worker",
            parcel=parcel.name,
        )

    def _read(self, storage: Storage, parcel: Parcel) -> list[pa.RecordBatch]:
        file = parcel.file
        assert file is not None
        data = storage.get(file)
        if checksum(data) != parcel.checksum:
            raise _damaged(file, "its checksum differs from the one in the log")
        return _sound(parcel, file, read_stream, data)

    def filled(self, feed: Feed) -> Feed | Failed:
        """A feed with the rows of its parcels; or why they cannot be had. An outage raises: they can be asked for
        again."""
        inputs = dict(feed.inputs)
        failed: RiverrunError
        try:
            for name, parcels in feed.parcels.items():
                batches = [batch for parcel in parcels for batch in self.rows(parcel)]
                if name in inputs:
                    batches.append(inputs[name])
                inputs[name] = _joined(batches)
            return replace(feed, inputs=inputs, parcels={})
        except RiverrunError as error:
            if is_outage(error):
                raise
            failed = error
        except (pa.ArrowException, OSError, ValueError) as error:
            failed = OperatorFailed(
                "operator.input",
                f"cannot put the rows together that were handed in for epoch {feed.epoch}: {error}",
                hint="all rows of an input have the same columns",
            )
            failed.__cause__ = error
        return Failed(feed.execution, feed.epoch, failed)

    def forget(self, names: Iterable[str], *, stored: bool = False) -> None:
        """Let go of parcels; with `stored`, also of what the storage has of them."""
        gone = []
        with self._lock:
            for name in names:
                batches = self._kept.pop(name, None)
                if batches is not None:
                    self._bytes -= sum(batch.nbytes for batch in batches)
                path = self._files.pop(name, None)
                if path is not None:
                    Path(path).unlink(missing_ok=True)
                gone.append(f"{PARCELS}/{name}-{self._holder}.arrow")
        if stored and self._storage is not None:
            with suppress(RiverrunError):  # what is left over is deleted when the run is resumed
                self._storage.delete(gone)

    def close_upload(self, upload: str, but: Iterable[str]) -> None:
        """Let go of all that was handed in for an upload, but of these parcels; what comes later is refused."""
        kept = set(but)
        with self._lock:
            self._ended.append(upload)
            names = [
                name
                for name in (*self._kept, *self._files)
                if name.partition("-")[0] == upload and name not in kept
            ]
        self.forget(names, stored=True)

    def close(self) -> None:
        self._kept.clear()
        if self._directory is not None:
            self._directory.close()


def _sound(
    parcel: Parcel, file: str, read: Callable[[pa.Buffer], list[pa.RecordBatch]], data: pa.Buffer
) -> list[pa.RecordBatch]:
    """The rows in a file, all that were handed in, and such as may be looked at."""
    try:
        batches = read(data)
    except UnsoundRows as error:
        raise _damaged(file, f"its rows are damaged: {error}") from error
    rows = sum(batch.num_rows for batch in batches)
    if rows != parcel.rows:
        raise _damaged(file, f"it has {rows} rows, and {parcel.rows} were handed in")
    return batches


def _damaged(file: str, why: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint.corrupt",
        f"cannot read {file}: {why}",
        hint="the file was damaged; what it held is lost, and what came after needs it",
        file=file,
    )


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    schema = pa.schema([field.with_nullable(True) for field in batches[0].schema])
    alike = schema.remove_metadata()
    return pa.concat_batches(
        [batch if batch.schema == alike else batch.cast(alike) for batch in batches]
    )


def _gathered(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[list[pa.RecordBatch]]:
    """Batches in groups of about so many bytes."""
    group: list[pa.RecordBatch] = []
    total = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        group.append(batch)
        total += batch.nbytes
        if total >= size:
            yield group
            group, total = [], 0
    if group:
        yield group


def _packed(batches: list[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()
