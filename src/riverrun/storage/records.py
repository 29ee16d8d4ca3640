"""Records: the files of the log, as bytes and back.

A record is one file: a head with its length and two checksums, a header (JSON, which says what kind it is), and the
rows of an epoch, an Arrow stream for each input. `log` writes and reads records; `takeover` reads all of them. Law:

- **Whole or refused.** A record carries its length and two checksums: one of its head, which has the length, and one of
  the rest. A damaged record is refused with `CheckpointError`, and the error says whether the file is *torn*: shorter
  than its length, or nothing but zeros, as a power cut leaves a file that was not `synced`.

>>> rows = pa.record_batch({"n": [1, 2]})
>>> data = encode_record(Record({"kind": "epoch", "epoch": 7}, {"numbers": rows}))
>>> decode_record(record_name(3), pa.py_buffer(data)).inputs["numbers"].num_rows
2
>>> decode_record(record_name(3), pa.py_buffer(data[:-1]))
Traceback (most recent call last):
    ...
riverrun.errors.CheckpointError: cannot read log/0000000000000003.record as a record of the log: it has ... bytes of ...
Hint: the file was damaged, or another program wrote it; ...

Cost: a copy of the rows, and two checksums.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from riverrun.errors import CheckpointError
from riverrun.state.soundness import UnsoundRows, read_json, read_stream
from riverrun.storage.store import checksum

LOG = "log"


PARCELS = "parcels"
"""The folder of parcels: rows that an epoch takes by name. A name begins with the owner the rows were handed in to."""
VERSION = 2
MAGIC = b"riverrun log %d\n" % VERSION
_OLD = b"riverrun log 1\n"  # version 1 had no length and no checksum of its head
_MAGIC = re.compile(rb"riverrun log (\d+)\n")
_PARCEL = re.compile(rf"{PARCELS}/(\d+)\..*")
_PARCEL_KEYS = frozenset(("name", "holder", "rows", "file", "checksum"))
_SUM = 32  # a checksum in hex
_LENGTH = 8
_BODY = len(MAGIC) + _LENGTH + 2 * _SUM  # where the part behind the head begins


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its header (JSON, with its kind), and the input of an epoch."""

    header: Mapping[str, Any]
    inputs: Mapping[str, pa.RecordBatch] = field(default_factory=dict)


def encode_record(record: Record) -> bytes:
    """The bytes of a record: a head with lengths and checksums, then the header and the inputs."""
    streams = []
    for batch in record.inputs.values():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        streams.append(sink.getvalue())
    sizes = {name: s.size for name, s in zip(record.inputs, streams, strict=True)}
    header = json.dumps({"header": dict(record.header), "inputs": sizes}).encode()
    # Padded, so that Arrow's buffers lie where its readers want them.
    header += b" " * (-(_BODY + _LENGTH + len(header)) % 64)
    body = b"".join((len(header).to_bytes(_LENGTH, "little"), header, *streams))
    head = MAGIC + (_BODY + len(body)).to_bytes(_LENGTH, "little") + checksum(body).encode()
    return b"".join((head, checksum(head).encode(), body))


def decode_record(name: str, data: pa.Buffer) -> Record:
    """The record in a file called `name`, or a `CheckpointError` that says why it is none."""
    begin = data.slice(0, min(_BODY, data.size)).to_pybytes()
    match = _MAGIC.match(begin)
    if match and int(match[1]) not in (1, VERSION):
        raise CheckpointError(
            "checkpoint.incompatible",
            f"cannot read {name}: its format has version {int(match[1])}, and this Riverrun reads version {VERSION}",
            hint="resume with the version of Riverrun that wrote it, or start anew on another path",
            file=name,
        )
    body, expected = (_old_body if begin.startswith(_OLD) else _body)(name, data, begin)
    if checksum(body).encode() != expected:
        raise _corrupt(
            name, "its checksum differs from the one it carries", torn=begin.startswith(_OLD)
        )
    try:
        size = int.from_bytes(body.slice(0, _LENGTH).to_pybytes(), "little")
        if size > body.size - _LENGTH:
            raise ValueError(f"its header has {size} bytes, and the record {body.size}")
        about = read_json(body.slice(_LENGTH, size).to_pybytes())
        header = _check_header(about["header"])
        at, inputs = _LENGTH + size, {}
        for key, length in about["inputs"].items():
            if not (_is_count(length) and at + length <= body.size):
                raise ValueError(f"the rows of {key!r} do not lie inside of it")
            inputs[key] = _read_batch(body.slice(at, length), key)
            at += length
        return Record(header, inputs)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _corrupt(name, f"it has another shape: {error}") from error


def _body(name: str, data: pa.Buffer, begin: bytes) -> tuple[pa.Buffer, bytes]:
    """The part of a record behind its head, and the checksum that the head has of it; refused where the length is not
    that of the head."""
    if len(begin) < _BODY or not any(begin):
        whole = data.size <= _BODY or not any(data.to_pybytes())
        raise _corrupt(name, f"it ends after {data.size} bytes, or is empty", torn=whole)
    if not begin.startswith(MAGIC):
        raise _corrupt(name, "it does not begin like one")
    head, summed = begin[:-_SUM], begin[-_SUM:]
    if checksum(head).encode() != summed:
        raise _corrupt(name, "the checksum of its head differs from the one it carries")
    length = int.from_bytes(head[len(MAGIC) : len(MAGIC) + _LENGTH], "little")
    if data.size != length:
        raise _corrupt(name, f"it has {data.size} bytes of {length}", torn=bool(data.size < length))
    return data.slice(_BODY), head[-_SUM:]


def _old_body(name: str, data: pa.Buffer, begin: bytes) -> tuple[pa.Buffer, bytes]:
    start = len(_OLD) + _SUM
    if data.size < start:
        raise _corrupt(name, f"it ends after {data.size} bytes", torn=True)
    return data.slice(start), begin[len(_OLD) : start]


def _check_header(header: Any) -> Mapping[str, Any]:
    """The header of a record, checked; a ValueError says which part of its shape is wrong."""
    if not isinstance(header, dict):
        raise ValueError(f"its header is {type(header).__name__}, not an object")
    kind = header.get("kind")
    counts = {"opened": (), "epoch": ("epoch",), "refused": ("epoch", "refused")}
    if kind not in counts:
        raise ValueError(f"its kind is {str(kind)[:80]!r}")
    for key in (*counts[kind], *({"reported", "owner"} & header.keys())):
        if not _is_count(header.get(key)):
            raise ValueError(f"its {key} is {str(header.get(key))[:80]!r}")
    for key in ("parcels", "offsets", "fingerprint"):
        if not isinstance(header.get(key, {}), dict):
            raise ValueError(f"its {key} are no object")
    if not all(map(is_offset, header.get("offsets", {}).values())):
        raise ValueError("its offsets are no numbers of batches")
    void = header.get("void", [])
    if not (isinstance(void, list) and all(map(_is_count, void))):
        raise ValueError("what it declares void is no list of positions")
    for name, listed in header.get("parcels", {}).items():
        for parcel in listed if isinstance(listed, list) else [None]:
            if not _is_parcel(parcel):
                raise ValueError(f"what was handed in for {name!r} is not named as such")
    return header


def _is_parcel(parcel: Any) -> bool:
    if not isinstance(parcel, dict) or parcel.keys() != _PARCEL_KEYS:
        return False
    file = parcel["file"]
    return (
        _is_count(parcel["rows"])
        and _is_count(parcel["holder"])
        and all(isinstance(parcel[key], str) for key in ("name", "checksum"))
        and (file is None or (isinstance(file, str) and _PARCEL.fullmatch(file) is not None))
    )


def is_offset(value: Any) -> bool:
    """Whether a value of JSON is the id of a stream's query and the number of a batch."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and _is_count(value[1])
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _read_batch(data: pa.Buffer, name: str) -> pa.RecordBatch:
    try:
        batches = read_stream(data)
    except UnsoundRows as error:
        raise ValueError(f"the rows of {name!r} are damaged: {error}") from error
    if len(batches) != 1:
        raise ValueError(f"{name!r} has {len(batches)} batches, not one")
    return batches[0]


def record_name(position: int) -> str:
    """The name of the file of a record."""
    return f"{LOG}/{position:016d}.record"


def _corrupt(name: str, why: str, *, torn: bool = False) -> CheckpointError:
    return CheckpointError(
        "log.corrupt",
        f"cannot read {name} as a record of the log: {why}",
        hint="the file was damaged, or another program wrote it; what it held is lost, and what came after needs it: "
        "put a copy of the file there, or start anew on another path",
        file=name,
        torn=torn,
    )
