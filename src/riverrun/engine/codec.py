"""The codec: messages as bytes, and back. What travels between processes, over any wire.

A message becomes one or more *frames*: a head, which says what it is, and a body, which has the
rows. An `Encoder` and the `Decoder` at the other end belong to one stream of frames: what the
columns of an edge are is said once, and later by number. Laws:

1. ``decode(encode(message))`` is the message, whatever came before on the stream.
2. A frame is at most about `PIECE` bytes, so long messages overlap with work and none is too long
   for the wire; the decoder puts a message together again when its last piece is there.
3. A head is data, never code, and an error arrives as what it was (`wire`).

>>> from riverrun.engine.messages import Completed
>>> frames = Encoder().encode(Completed(execution=3, epoch=7))
>>> decoder = Decoder()
>>> [decoder.decode(frame.head, frame.body) for frame in frames]
[Completed(execution=3, epoch=7, notes=())]

Cost: some 5 microseconds for a small message; a copy for rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.engine.instance import Data as Rows
from riverrun.engine.instance import Told
from riverrun.engine.messages import Data, Feed
from riverrun.engine.wire import REDUCED, BadFrame, describe, pack, revive, unpack
from riverrun.errors import RiverrunError
from riverrun.state.changes import Changes
from riverrun.state.schema import Schema

PIECE = 4 << 20
REDUCED[Schema] = lambda schema: (
    Schema,
    tuple(getattr(schema, each.name) for each in fields(Schema)),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """A head, and the rows it speaks of."""

    head: bytes
    body: pa.Buffer | None = None

    @property
    def size(self) -> int:
        return len(self.head) + (0 if self.body is None else self.body.size)


class Encoder:
    """The sending end of a stream of frames."""

    def __init__(self) -> None:
        self._schemas: dict[tuple[Any, ...], tuple[int, pa.Schema]] = {}

    def encode(self, message: Any) -> list[Frame]:
        """The frames of a message, in order."""
        return list(self.frames(message))

    def frames(self, message: Any) -> Iterable[Frame]:
        """The same, each made when it is asked for: one can leave while the next is made."""
        kind = type(message)
        if kind is Data:
            payload = message.payload
            if type(payload) is Told:
                return [Frame(pack(("told", message.execution, message.number, tuple(payload))))]
            if type(payload) is Rows:
                return self._rows(message, *payload)
            return [Frame(pack(("data", message.execution, message.number, payload)))]
        if kind is Feed:
            return self._feed(message)
        if isinstance(getattr(message, "error", None), RiverrunError):
            return [Frame(pack(("error", replace(message, error=None), describe(message.error))))]
        return [Frame(pack(message))]

    def _rows(self, message: Data, node: int, changes: Changes) -> Iterator[Frame]:
        rows = max(changes.rows, 1)
        arrays = list(changes.columns)
        if changes.codes is not None:
            arrays.append(pa.array(changes.codes))
        if changes.diffs is not None:
            arrays.append(pa.array(changes.diffs))
        about = (
            "rows", message.execution, message.number, node, changes.rows, changes.times, changes.diff,
            changes.codes is not None, changes.diffs is not None,
        )  # fmt: skip
        return self._pieces(about, arrays, rows)

    def _feed(self, message: Feed) -> Iterator[Frame]:
        for name, batch in message.inputs.items():
            about = ("input", name, batch.schema.names)
            yield from self._pieces(about, batch.columns, batch.num_rows)
        end = ("feed", message.execution, message.epoch, dict(message.parcels))
        yield Frame(pack(end))

    def _pieces(
        self, about: tuple[Any, ...], arrays: Sequence[pa.Array], rows: int
    ) -> Iterator[Frame]:
        """Rows, in pieces of a bounded size; the last one says that it is."""
        if not arrays:
            yield Frame(pack((True, None, None, about)))
            return
        types = tuple([array.type for array in arrays])
        known, definition = self._schemas.get(types), None
        if known is None:
            known = self._schemas[types] = len(self._schemas), _schema(types)
            definition = known[1].serialize().to_pybytes()
        number, schema = known
        batch = pa.RecordBatch.from_arrays(list(arrays), schema=schema)
        count = 1
        if batch.get_total_buffer_size() > PIECE:  # they may be a part of what the buffers have
            count = max(1, min(-(-batch.nbytes // PIECE), rows))
        for at in range(count):
            start, stop = rows * at // count, rows * (at + 1) // count
            piece = batch if count == 1 else batch.slice(start, stop - start)
            last = at + 1 == count
            head = pack((last, number, definition, about if last else None))
            yield Frame(head, piece.serialize())
            definition = None


class Decoder:
    """The receiving end of a stream of frames."""

    def __init__(self) -> None:
        self._schemas: dict[int, pa.Schema] = {}
        self._pieces: list[pa.RecordBatch] = []
        self._inputs: dict[str, pa.RecordBatch] = {}

    def decode(self, head: Any, body: pa.Buffer | None = None) -> Any | None:
        """The message that a frame completes, if it does."""
        value = unpack(head)
        if type(value) is not tuple:
            return value
        try:
            return self._assemble(value, body)
        except (BadFrame, RiverrunError):
            raise
        except Exception as error:
            raise BadFrame(f"a frame cannot be read: {type(error).__name__}: {error}") from error

    def _assemble(self, value: tuple[Any, ...], body: pa.Buffer | None) -> Any | None:
        match value:
            case ("told", execution, number, told):
                return Data(execution, number, Told(told))
            case ("data", execution, number, payload):
                return Data(execution, number, payload)
            case ("feed", execution, epoch, parcels):
                inputs, self._inputs = self._inputs, {}
                return Feed(execution, epoch, inputs, parcels)
            case ("error", message, described):
                return replace(message, error=revive(described))
            case (last, number, definition, about):
                return self._piece(last, number, definition, about, body)
        raise BadFrame(f"a frame has a shape that no message has: {str(value)[:80]}")

    def _piece(self, last: bool, number: Any, definition: Any, about: Any, body: Any) -> Any | None:
        if number is not None:
            if definition is not None:
                self._schemas[number] = pa.ipc.read_schema(pa.py_buffer(definition))
            self._pieces.append(pa.ipc.read_record_batch(aligned(body), self._schemas[number]))
        if not last:
            return None
        pieces, self._pieces = self._pieces, []
        arrays: list[pa.Array] = []
        if pieces:
            whole = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
            arrays = list(whole.columns)
        if about[0] == "input":
            self._inputs[about[1]] = pa.record_batch(arrays, names=about[2])
            return None
        _, execution, sent, node, rows, times, diff, has_codes, has_diffs = about
        diffs = np.asarray(arrays.pop()) if has_diffs else None
        codes = np.asarray(arrays.pop()) if has_codes else None
        changes = Changes(tuple(arrays), rows, times, codes, diff, diffs)
        return Data(execution, sent, Rows((node, changes)))


def aligned(buffer: pa.Buffer) -> pa.Buffer:
    """The same bytes at an address that kernels and NumPy like; the wire gives any."""
    if buffer.address % 8 == 0:
        return buffer
    copy = pa.allocate_buffer(buffer.size)
    np.frombuffer(copy, np.uint8)[:] = np.frombuffer(buffer, np.uint8)
    return copy


def _schema(types: Sequence[pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(str(at), kind) for at, kind in enumerate(types)])
