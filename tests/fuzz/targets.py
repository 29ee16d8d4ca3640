"""The targets of fuzzing: all decoders of bytes from peers or storage, each with real encodings to start from.

A target takes bytes and decodes them as the product does. Checksums of files are corrected first, since an attacker who
damages a file would do that too. Law:

- **Sound or refused.** A target returns a sound value, which is checked here in the way that kernels and users read it;
  or it raises the error that its decoder documents for foreign bytes, and no other.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from riverrun.engine import messages
from riverrun.engine.instance import ProgressNews
from riverrun.engine.messages import Data, Feed, Parcel
from riverrun.engine.wiring import RoutedChanges as Rows
from riverrun.errors import BadMessage, CheckpointError, OperatorFailed, RiverrunError
from riverrun.plan.loop_figures import LoopFigures, RoundFigures
from riverrun.progress import Antichain
from riverrun.rows.conditions import Where
from riverrun.run.sinks.delta import DeltaTable
from riverrun.run.sinks.destination import Kept
from riverrun.run.sinks.parquet import ParquetDirectory
from riverrun.run.sinks.queue import EpochChanges
from riverrun.runtime.codec import shapes
from riverrun.runtime.codec.fragments import Decoder, Encoder
from riverrun.runtime.codec.plain import describe, pack, revive, unpack
from riverrun.runtime.network.endpoint import _listed, _pair, _schema, read_rows
from riverrun.state import Schema, Spine
from riverrun.state.block_files import read_block, write_block
from riverrun.state.changes import Changes
from riverrun.state.shards import Shards
from riverrun.storage.acknowledged import Note, note_name, put_note, read_notes
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.lease import OWNER, Owner, _encode, read_owner
from riverrun.storage.manifest import decode_manifest, manifest_name
from riverrun.storage.records import _SUM, MAGIC, Record, decode_record, encode_record
from riverrun.storage.saved_rounds import SavedFile
from riverrun.storage.store import checksum, open_storage

LIMIT = 1 << 16  # bytes that are drawn at most


@dataclass(frozen=True)
class Target:
    """A decoder, and encodings that it reads."""

    decode: Callable[[bytes], Any]
    seeds: Callable[[], list[bytes]]
    slowness: int = 1
    """By how much fewer draws it gets."""


# ---- from peers


def decode_frames(data: bytes) -> None:
    """A stream of frames: each has the length of its head and of its body before it."""
    decoder, at = Decoder(), 0
    while at + 4 <= len(data):
        head, body = (int.from_bytes(data[at + i : at + i + 2], "little") for i in (0, 2))
        at += 4
        said, rows = data[at : at + head], data[at + head : at + head + body]
        at += head + body
        with suppress(BadMessage):
            look_at(decoder.decode(said, pa.py_buffer(rows) if body else None))


def look_at(message: Any) -> None:
    """Touch what a message holds, as whoever gets it does."""
    if isinstance(message, Data) and isinstance(message.payload, Rows):
        changes = message.payload[1]
        for column in changes.columns:
            assert len(column) == changes.rows
            column.to_pylist()
        if changes.codes is not None:
            assert all(0 <= code < len(changes.times) for code in changes.codes)
    elif isinstance(message, Feed):
        for batch in message.inputs.values():
            batch.to_pylist()
    else:
        str(message)


def framed(encoder: Encoder, message: Any) -> bytes:
    out = b""
    for frame in encoder.encode(message):
        body = b"" if frame.body is None else frame.body.to_pybytes()
        out += len(frame.head).to_bytes(2, "little") + len(body).to_bytes(2, "little")
        out += frame.head + body
    return out


def seed_frames() -> list[bytes]:
    words = pa.array(["tea", None, "ink"], pa.large_string())
    changes = Changes.of([words, pa.array([1, 2, 3])], (0, 1))
    rounds = LoopFigures(
        "reach", (RoundFigures((0, 3), 5, 9, 0.25), RoundFigures((), 1, 2, 0.5, 7))
    )
    saved_file = SavedFile("0", "rounds/1-2-1-0.arrow", 5, "ab")
    said: list[Any] = [
        Data(1, 0, Rows((3, changes))),
        Data(1, 1, Rows((3, Changes.concat([changes, changes.map_times(lambda time: (0, 2))])))),
        Data(1, 2, ProgressNews(((4, (1, 2), 1), (5, (1, 3), -1)))),
        Data(1, 3, {"plain": (1, [2])}),
        Feed(1, 2, {"words": pa.record_batch({"word": words})}, {"a": (Parcel("x-0", 1, 5),)}),
        Feed(1, 2, {}, {}, (messages.SavedShare("loop/", 3, True, (saved_file,)),)),
        messages.SaveRounds(1, 2, 3, "rounds/1-2-1"),
        messages.RoundWritten(1, 2, 3, "loop/", 4, (saved_file,)),
        messages.NotSaved(1, 2, CheckpointError("a.b", "it is damaged", hint="mend it")),
        messages.Begin(1, 2, 3, 0, Shards.even(3), (1, 2, 3)),
        messages.Completed(1, 7, ({"kind": "late", "rows": 3},), (rounds,)),
        messages.Failed(1, 2, OperatorFailed("a.b", "it failed", hint="mend it", node="map")),
        messages.Wrote(4, _saved()[1]),
        messages.Peers({1: "tcp://127.0.0.1:5"}),
        messages.Beat(5, 0.5, "map", 1.5),
        messages.Credit(5),
        messages.Forget("1.2", ("a", "b")),
        messages.Kernels(("a",)),
    ]
    return [
        *(framed(Encoder(), each) for each in said),
        b"".join(framed(encoder, each) for encoder in [Encoder()] for each in said[:5]),
    ]


def decode_packets(data: bytes) -> None:
    """Heads of packets: lists of frames, questions, columns; and values, errors described in them."""
    for decode in (_listed, _pair, _schema, shapes.read):
        with suppress(BadMessage):
            decode(data)
    with suppress(BadMessage):
        value = unpack(data)
        str(value)
        assert unpack(pack(value)) == value or value != value or "nan" in str(value)
        if isinstance(value, dict):
            str(revive(value))


def seed_packets() -> list[bytes]:
    error = OperatorFailed("a.b", "it failed", hint="mend it", row={"a": (1, None)})
    error.__cause__ = ValueError("why")
    values = [
        ("join", {"address": "tcp://127.0.0.1:5", "pid": 5, "versions": {"python": "3.11"}}),
        (5, ["a"], (Where("a", ">", 3), Where("b", "in", ("x", "y"), True))),
        Antichain([(1, 2), (0, 3)]),
        describe(error),
        [Parcel("a", 1, 2, None, "x")],
        {1.5: -(1 << 90), "b": b"x", "c": frozenset({1})},
    ]
    schema = pa.schema({"a": pa.string(), "b": pa.list_(pa.int32())})
    return [*map(pack, values), schema.serialize().to_pybytes()]


def decode_uploads(data: bytes) -> None:
    """A batch that is handed in, of one of a few schemas."""
    schema = list(_batches())[data[0] % 3].schema if data else pa.schema([])
    copy = pa.allocate_buffer(len(data[1:]))
    memoryview(copy).cast("B")[:] = data[1:]
    with suppress(BadMessage):
        read_rows(copy, schema).to_pylist()


def _batches() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"word": ["tea", None, "ink"], "n": [1, 2, 3]})
    yield pa.record_batch({"l": [[1, 2], None, []], "s": [{"a": 1, "b": "x"}, None, None]})
    yield pa.record_batch({"b": [True, None, False], "t": pa.array([b"a", b"bc", None])})


def seed_uploads() -> list[bytes]:
    return [bytes([at]) + each.serialize().to_pybytes() for at, each in enumerate(_batches())]


# ---- from storage


def decode_records(data: bytes) -> None:
    """A record of the log; its checksum is put right."""
    body = data[len(MAGIC) + _SUM :]
    whole = data[: len(MAGIC)] + checksum(body).encode() + body
    with suppress(RiverrunError):
        for batch in decode_record("log/1", pa.py_buffer(whole)).inputs.values():
            batch.to_pylist()


def seed_records() -> list[bytes]:
    words, nested, flags = _batches()
    return [
        encode_record(Record({"kind": "epoch", "epoch": 3}, {"a": words, "b": nested})),
        encode_record(Record({"kind": "owner", "identity": "x"}, {})),
        encode_record(Record({"kind": "epoch", "parcels": {"a": []}}, {"c": flags})),
    ]


def decode_manifests(data: bytes) -> None:
    """A manifest; where it is JSON, its checksum is put right too."""
    import json

    from riverrun.storage.manifest import _checksum

    candidates = [data]
    with suppress(ValueError, TypeError, RecursionError):
        body = json.loads(data)
        if isinstance(body, dict):
            body.pop("checksum", None)
            candidates.append(json.dumps({**body, "checksum": _checksum(body)}).encode())
    for candidate in candidates:
        with suppress(RiverrunError):
            str(decode_manifest(manifest_name(1), candidate))


def _saved() -> tuple[Checkpoints, Any]:
    checkpoints = Checkpoints("memory:///")
    spine = Spine("words", SCHEMA)
    spine.insert(pa.record_batch({"k": ["a", "b"], "v": [1.0, 2.0]}), (0,))
    spine.insert(pa.record_batch({"k": ["a"], "v": [3.0]}), (1,))
    part = checkpoints.write({"words": spine.view()}, 1)
    return checkpoints, part


SCHEMA = Schema.of({"k": pa.string()}, {"v": pa.float64()}, order=["v"])


def seed_manifests() -> list[bytes]:
    checkpoints, part = _saved()
    checkpoints.publish(1, (part,), {"epoch": 3})
    data: bytes = checkpoints.storage.get(manifest_name(1)).to_pybytes()
    return [data]


def decode_owners(data: bytes) -> None:
    """The file that says who uses a path."""
    storage = open_storage("memory:///")
    storage.put(OWNER, pa.py_buffer(data))
    with suppress(RiverrunError):
        str(read_owner(storage))


def seed_owners() -> list[bytes]:
    import dataclasses

    plain = {"str": "x", "int": 1, "float": 1.5, "bool": True}
    fields = {each.name: plain.get(str(each.type), "x") for each in dataclasses.fields(Owner)}
    return [_encode(Owner(**fields)), b"{}", b"[]"]  # type: ignore[arg-type]


def decode_blocks(data: bytes) -> None:
    """The file of a block."""
    with suppress(RiverrunError):
        block = read_block(pa.py_buffer(data), SCHEMA, "blocks/1", resident=True)
        for column in block.columns:
            if column is not None:
                column.to_pylist()


def seed_blocks() -> list[bytes]:
    spine = Spine("words", SCHEMA)
    spine.insert(pa.record_batch({"k": ["a", "b", "a"], "v": [1.0, 2.0, 3.0]}), (0,))
    blocks = [block for batch in spine.view().batches for block in batch.blocks]
    return [write_block(block).to_pybytes() for block in blocks]


def decode_acknowledgements(data: bytes) -> None:
    """The note of how far an owner has acknowledged its epochs: as it was put, or it tells nothing."""
    storage = open_storage("memory:///")
    storage.put(note_name(7), pa.py_buffer(data))
    assert all(note in ACKNOWLEDGED for note in read_notes(storage))


ACKNOWLEDGED = [Note(7, 3), Note(7, 1 << 40, "a start of the machine"), Note(7, 0)]


def seed_acknowledgements() -> list[bytes]:
    storage, seeds = open_storage("memory:///"), []
    for note in ACKNOWLEDGED:
        put_note(storage, note)
        seeds.append(storage.get(note_name(7)).to_pybytes())
    return seeds


# ---- what sinks read back: labels, epochs and rows of their own files and tables


@contextmanager
def refused() -> Iterator[None]:
    """What is damaged is refused with an error for people: a code, and a hint."""
    try:
        yield
    except RiverrunError as error:
        if not error.hint or not error.code.startswith(("sink.", "storage.")):
            raise
    except NotImplementedError:
        # Kernels, which hash the rows, are not compiled beside atheris; the bytes are decoded by then.
        if os.environ.get("NUMBA_DISABLE_JIT") != "1":
            raise


SUNK = pa.schema(
    {"word": pa.large_string(), "n": pa.int64(), "l": pa.large_list(pa.field("item", pa.int32()))}
)
SUNK_EPOCH = 3
SUNK_FILE = f"epoch-{SUNK_EPOCH:020d}.parquet"


def _sunk() -> list[EpochChanges]:
    """What an epoch changed, in a few ways."""
    changed = SUNK.append(pa.field("diff", pa.int64()))
    rows = [
        {"word": ["tea", None, "ink"], "n": [1, 2, None], "l": [[1], [], None], "diff": [1, -1, 2]},
        {
            "word": ["a" * 50] * 9,
            "n": range(9),
            "l": [[at] * at for at in range(9)],
            "diff": [1] * 9,
        },
    ]
    tables = [pa.table({name: list(c) for name, c in each.items()}, changed) for each in rows]
    return [
        EpochChanges("words", table, SUNK_EPOCH, SUNK_EPOCH - at) for at, table in enumerate(tables)
    ]


def _check_read_back(sink: Kept) -> None:
    """A sink that was opened has what was written there: the epoch with its rows, or neither.

    The log of a Delta table has no checksum. So of a table, rows alone may be missing: a line that nobody knows any
    more counts as none.
    """
    rows = sink.content()
    rows.validate(full=True)
    assert sink.epoch in (None, SUNK_EPOCH)
    if rows.num_rows or isinstance(sink, ParquetDirectory):
        assert rows in [each.to_arrow() for each in _sunk()], rows


def decode_sink_files(data: bytes) -> None:
    """A file of a Parquet sink: its labels when the sink is opened, and all of its rows when it catches up."""
    storage = open_storage("memory:///")
    storage.put(SUNK_FILE, pa.py_buffer(data))
    with refused():
        _check_read_back(ParquetDirectory(storage, "flow", "words", SUNK))


def seed_sink_files() -> list[bytes]:
    seeds = []
    for changes in _sunk():
        storage = open_storage("memory:///")
        ParquetDirectory(storage, "flow", "words", SUNK).write(changes)
        seeds.append(storage.get(SUNK_FILE).to_pybytes())
    return seeds


LOGGED = "_delta_log/00000000000000000001.json"
POINTER = "_delta_log/_last_checkpoint"


@cache
def _delta_place(at: int) -> Path:
    """A Delta table of a sink with one epoch, and a checkpoint of its log."""
    place = Path(tempfile.mkdtemp(prefix="riverrun-fuzz-delta-"))
    weakref.finalize(_delta_place, shutil.rmtree, place, ignore_errors=True)
    DeltaTable(place, "flow", "words", SUNK).write(_sunk()[at])
    if at:
        deltalake.DeltaTable(place).create_checkpoint()
    return place


def decode_sink_tables(data: bytes) -> None:
    """The log of a sink's Delta table: the commit of its epoch, or where the checkpoint of the log is said to be."""
    if not data:
        return
    at = data[0] % 2
    place = _delta_place(at)
    damaged = place / (POINTER if at else LOGGED)
    whole = damaged.read_bytes()
    try:
        damaged.write_bytes(data[1:])
        with refused():
            _check_read_back(DeltaTable(place, "flow", "words", SUNK))
    finally:
        damaged.write_bytes(whole)


def seed_sink_tables() -> list[bytes]:
    return [
        bytes([at]) + (_delta_place(at) / (POINTER if at else LOGGED)).read_bytes() for at in (0, 1)
    ]


TARGETS = {
    "frames": Target(decode_frames, seed_frames),
    "packets": Target(decode_packets, seed_packets),
    "uploads": Target(decode_uploads, seed_uploads),
    "records": Target(decode_records, seed_records),
    "manifests": Target(decode_manifests, seed_manifests),
    "owners": Target(decode_owners, seed_owners),
    "blocks": Target(decode_blocks, seed_blocks),
    "acknowledgements": Target(decode_acknowledgements, seed_acknowledgements),
    "sink_files": Target(decode_sink_files, seed_sink_files),
    "sink_tables": Target(decode_sink_tables, seed_sink_tables, slowness=5),
}
