"""Uploads: rows that were handed to a worker for an epoch that is not committed yet.

Spark's tasks hand the rows of a DataFrame to the worker processes (`spark.ingest`). A worker keeps such rows as
*parcels*: a parcel is a bounded part of the rows of one sender. The sender's answer names the parcels, and the next
epoch takes them by name. A parcel lies in memory, or, where the parcels in memory have used up their budget, in a
temporary file. With a storage, each parcel is written there too, before the sender is answered, so that an epoch which
names the parcel can be done again by any worker; then a parcel beyond the budget lies in the storage only. Laws:

- **Named or nothing.** The rows of a parcel count when an epoch names the parcel, and never otherwise. So a sender that
  failed halfway, or was run twice, leaves parcels that nobody names. The worker drops these when the upload is over
  (`close_upload`). What a lost worker leaves in the storage is deleted by the next owner of the path (`storage.log`).
- **Survives its holder.** ``rows(parcel)`` gives the rows that were handed in; with a storage, also when the
  worker that took them in is gone.

>>> import pyarrow as pa
>>> uploads = Uploads(holder=1)
>>> rows = pa.record_batch({"n": [1, 2, 3]})
>>> (parcel,) = uploads.take_in("load-0-0", iter([rows]))
>>> parcel.rows, [batch.num_rows for batch in uploads.rows(parcel)]
(3, [3])

Cost: with a storage, a sender waits until its rows are written there.
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
BUDGET = 512 << 20  # bytes of parcels in memory


class Uploads:
    """The parcels of one worker. Any thread may hand rows in; one thread takes them for epochs."""

    def __init__(
        self,
        holder: int,
        storage: Storage | None = None,
        *,
        parcel: int = PARCEL,
        budget: int = BUDGET,
        storage_timeout: float | None = None,
        over: Event | None = None,
    ) -> None:
        """`holder` is the incarnation of the worker. A parcel that cannot be written waits for the storage: for
        `storage_timeout` seconds, or until `over` is set."""
        self._storage_timeout = storage_timeout
        self._over = over or Event()
        self._holder = holder
        self._storage = storage
        self._parcel = parcel
        self._budget = budget
        self._bytes = 0
        self._lock = Lock()
        self._closed_uploads: deque[str] = deque(
            maxlen=1000
        )  # of these nothing is taken in any more
        self._in_memory: dict[str, list[pa.RecordBatch]] = {}
        self._files: dict[str, str] = {}
        self._written = 0  # temporary files so far: a file name is used once
        self._directory: Scratch | None = None

    def __len__(self) -> int:
        """How many parcels are in memory and in temporary files."""
        return len(self._in_memory) + len(self._files)

    def take_in(self, name: str, batches: Iterable[pa.RecordBatch]) -> list[Parcel]:
        """Keep the rows of an upload; return the parcels that they are now.

        `name` begins with the name of the upload, up to the first hyphen; names of parcels begin with `name`.
        """
        parcels: list[Parcel] = []
        try:
            for at, group in enumerate(_grouped(batches, self._parcel)):
                parcels.append(self._keep(f"{name}-{at}", group))
            if name.partition("-")[0] in self._closed_uploads:
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
        file, digest = None, ""
        if self._storage is not None:
            data = _packed(batches)
            file, digest = f"{PARCELS}/{name}-{self._holder}.arrow", checksum(data)
            self._store(self._storage, file, data)
        self.forget([name])  # a sender that was run twice
        with self._lock:
            fits = self._bytes + size <= self._budget
            if fits:
                self._in_memory[name] = batches
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
        return Parcel(name, self._holder, rows, file, digest)

    def _store(self, storage: Storage, file: str, data: pa.Buffer) -> None:
        storage_timeout = math.inf if self._storage_timeout is None else self._storage_timeout
        persist(
            lambda: storage.put(file, data),
            f"store rows that were handed in as {file}",
            deadline=storage_timeout,
            wait=self._over.wait,
        )

    def rows(self, parcel: Parcel) -> list[pa.RecordBatch]:
        """The rows of a parcel, of this worker or of another."""
        with self._lock:
            if parcel.holder == self._holder and parcel.name in self._in_memory:
                return self._in_memory[parcel.name]
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
        """The feed with the rows of its parcels in place of the parcels; or why they cannot be had.

        In an outage the call raises instead: the rows can be asked for again later.
        """
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
        """Let go of parcels; with `stored`, delete their files in the storage too."""
        stored_files = []
        with self._lock:
            for name in names:
                batches = self._in_memory.pop(name, None)
                if batches is not None:
                    self._bytes -= sum(batch.nbytes for batch in batches)
                path = self._files.pop(name, None)
                if path is not None:
                    Path(path).unlink(missing_ok=True)
                stored_files.append(f"{PARCELS}/{name}-{self._holder}.arrow")
        if stored and self._storage is not None:
            with suppress(RiverrunError):  # what is left over is deleted when the run is resumed
                self._storage.delete(stored_files)

    def close_upload(self, upload: str, but: Iterable[str]) -> None:
        """Let go of all parcels of an upload, except `but`; rows that come for the upload later are refused."""
        retained = set(but)
        with self._lock:
            self._closed_uploads.append(upload)
            names = [
                name
                for name in (*self._in_memory, *self._files)
                if name.partition("-")[0] == upload and name not in retained
            ]
        self.forget(names, stored=True)

    def close(self) -> None:
        self._in_memory.clear()
        if self._directory is not None:
            self._directory.close()


def _sound(
    parcel: Parcel, file: str, read: Callable[[pa.Buffer], list[pa.RecordBatch]], data: pa.Buffer
) -> list[pa.RecordBatch]:
    """The rows in a file, once they are known to be sound and all that were handed in."""
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


def _grouped(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[list[pa.RecordBatch]]:
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
