"""Saved rounds in the storage: where a loop was that outlasts the distance of checkpoints, in an epoch under way.

An epoch that is under way is in the log, and done again after a loss. Where a loop of it takes long, the workers write
the rows with which a round begins to files here (`write_part`), and the coordinator then publishes a *record* that
names all of them (`publish`). A run that does this very epoch again, in the same program, begins the loop with these
rows. They are a hint: without them the loop begins at its first round, and gives the same. Laws:

- **This epoch alone.** A record says for which program it is, at which position of the log the epoch is, and which of
  the epochs before it were refused. It is used where all of this is the same, and never otherwise.
- **All parts or none.** A record is published when the parts of all workers are written. A part that is not there, or
  whose checksum or rows are not those that the record says, makes the record worthless, and is no error of the run.
- **Only ours.** A run deletes files of its own and of owners before it, and no others.

>>> from riverrun.storage.store import open_storage
>>> storage = open_storage("memory:///")
>>> files = write_part(
...     storage, "rounds/1-7-a", {"0": [pa.record_batch({"n": [1, 2], "diff": [1, 1]})]}
... )
>>> record = SavedEpoch("word", 0, 7, 7, (), {"loop": SavedLoop(15, (0, 1 << 64), (0,), (files,))})
>>> publish(storage, record, 1, 1)
>>> newest(storage) == record
True
>>> [batch.num_rows for batch in read_part(storage, files)["0"]]
[2]

Cost: a put for each variable and worker, and one for the record; reading is a get for each of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from riverrun.errors import CheckpointError
from riverrun.state.soundness import UnsoundRows, read_json, read_stream
from riverrun.storage.store import Storage, checksum

ROUNDS = "rounds"
"""The folder of saved rounds. A name begins with the owner of the path and the position of the epoch in the log."""
FORMAT = 1
_NAME = re.compile(rf"{ROUNDS}/(\d+)-(\d+)-.*")
_RECORD = re.compile(rf"{ROUNDS}/(\d{{16}})-(\d{{16}})-(\d{{8}})\.json")


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file with some rows of a loop."""

    part: str
    """The part of the loop's rows that it has (`plan.saved_rounds`)."""
    file: str
    rows: int
    checksum: str


@dataclass(frozen=True, slots=True)
class SavedLoop:
    """The rows of a loop before a round."""

    round: int
    bounds: tuple[int, ...]
    owners: tuple[int, ...]
    """The shards of the workers."""
    workers: tuple[tuple[SavedFile, ...], ...]
    """The files of each worker."""


@dataclass(frozen=True, slots=True)
class SavedEpoch:
    """What is saved of an epoch that was under way (the law this epoch alone)."""

    program: str
    """A word for the program."""
    epoch: int
    position: int
    """The position of its record in the log."""
    first: int
    """The position of the oldest epoch that was not in a checkpoint then."""
    refused: tuple[int, ...]
    """The positions of the refused epochs from there on, before this one."""
    loops: Mapping[str, SavedLoop]

    def with_loop(self, loop: str, saved: SavedLoop) -> SavedEpoch:
        """The same with another round of a loop."""
        return replace(self, loops={**self.loops, loop: saved})


def part_name(owner: int, position: int, rest: str) -> str:
    """What the names of the files of a part begin with."""
    return f"{ROUNDS}/{owner:016d}-{position:016d}-{rest}"


def record_name(owner: int, position: int, number: int) -> str:
    """The name of the file of a record."""
    return part_name(owner, position, f"{number:08d}.json")


def write_part(
    storage: Storage, name: str, parts: Mapping[str, Sequence[pa.RecordBatch]]
) -> tuple[SavedFile, ...]:
    """Write a worker's rows of a loop; the names of the files begin with `name`."""
    files = []
    for part, batches in parts.items():
        if not batches:
            continue
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        data = sink.getvalue()
        file = f"{name}-{part}.arrow"
        storage.put(file, data)
        rows = sum(batch.num_rows for batch in batches)
        files.append(SavedFile(part, file, rows, checksum(data)))
    return tuple(files)


def read_part(storage: Storage, files: Sequence[SavedFile]) -> dict[str, list[pa.RecordBatch]]:
    """The rows in some files, by part; a `CheckpointError` where they are not what was written."""
    parts: dict[str, list[pa.RecordBatch]] = {}
    for each in files:
        data = storage.get(each.file)
        if checksum(data) != each.checksum:
            raise _damaged(each.file, "its checksum is not the one that was written")
        try:
            batches = read_stream(data)
        except UnsoundRows as error:
            raise _damaged(each.file, f"its rows are damaged: {error}") from error
        if sum(batch.num_rows for batch in batches) != each.rows:
            raise _damaged(each.file, "it has another number of rows")
        parts.setdefault(each.part, []).extend(batches)
    return parts


def publish(
    storage: Storage, record: SavedEpoch, owner: int, number: int, gone: Sequence[str] = ()
) -> None:
    """Publish a record, in place of those with smaller numbers; then delete the files in `gone`."""
    body = json.dumps({"format": FORMAT, **asdict(record)}).encode()
    storage.put(record_name(owner, record.position, number), checksum(body).encode() + body)
    if gone:
        storage.delete(gone)


def newest(storage: Storage) -> SavedEpoch | None:
    """The newest record that is not damaged; None where there is none."""
    names = [name for name in storage.names(ROUNDS) if _RECORD.fullmatch(name)]
    records = (_decoded(storage.get(name).to_pybytes()) for name in sorted(names, reverse=True))
    return next((record for record in records if record is not None), None)


def _decoded(data: bytes) -> SavedEpoch | None:
    size = len(checksum(b""))
    if checksum(data[size:]).encode() != data[:size]:
        return None
    try:
        about = read_json(data[size:])
        if about.pop("format", None) != FORMAT:
            return None
        loops = {loop: _loop_of(saved) for loop, saved in about.pop("loops").items()}
        return SavedEpoch(**{**about, "refused": tuple(about["refused"]), "loops": loops})
    except (ValueError, TypeError, LookupError, AttributeError):  # another program wrote it
        return None


def forget(storage: Storage, owner: int, position: int) -> None:
    """Delete what is saved of the epochs up to a position of the log (the law only ours)."""
    gone = []
    for name in (*storage.names(ROUNDS), *storage.unfinished(ROUNDS)):
        match = _NAME.fullmatch(name)
        if match and int(match[1]) <= owner and int(match[2]) <= position:
            gone.append(name)
    if gone:
        storage.delete(gone)


def _loop_of(saved: Any) -> SavedLoop:
    workers = tuple(tuple(SavedFile(**file) for file in files) for files in saved["workers"])
    return SavedLoop(saved["round"], tuple(saved["bounds"]), tuple(saved["owners"]), workers)


def _damaged(file: str, why: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint.corrupt",
        f"cannot read {file}: {why}",
        hint="the loop begins at its first round: nothing is lost but time",
        file=file,
    )
