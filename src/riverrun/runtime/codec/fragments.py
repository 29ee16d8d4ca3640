"""Fragments: messages as bytes, and back, with their rows in Arrow buffers.

Links and endpoints carry fragments between processes. A message becomes one or more *fragments*: a head, which says
what the fragment is, and a body, which has rows. (A packet of a `connection` brings one long fragment, or a few short
ones.) An `Encoder` and the `Decoder` at the other end belong to one stream of fragments: the columns of an edge are
described once, and later named by a number. Laws:

- **Round trip.** ``decode(encode(message))`` is the message, whatever came before on the stream.
- **Short fragments.** A fragment is at most about `PIECE` bytes, so sending a long message overlaps with work, and no
  fragment is too long for a connection. The decoder puts a message together when its last piece is there.
- **No code.** A head is typed data, never code (`shapes`), and an error arrives with its class, code and fields
  (`plain`).
- **Sound rows.** Rows are checked before anything looks at them (`state.soundness`), and changes must have the form
  that `Changes` promises: a code for each row, which is the number of a time; times in order. Everything else is
  refused with `BadMessage`.

>>> from riverrun.engine.messages import Completed
>>> fragments = Encoder().encode(Completed(execution=3, epoch=7))
>>> decoder = Decoder()
>>> [decoder.decode(fragment.head, fragment.body) for fragment in fragments]
[Completed(execution=3, epoch=7, notes=(), rounds=())]

Cost: 2 microseconds for a small message, 10 for one with a few rows; a copy for rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.engine.instance import ProgressNews
from riverrun.engine.messages import Data, Feed
from riverrun.engine.wiring import RoutedChanges as Rows
from riverrun.errors import BadMessage, RiverrunError
from riverrun.runtime.codec import shapes
from riverrun.runtime.codec.shapes import (
    FeedEnd,
    InputHead,
    Piece,
    PlainData,
    ProgressHead,
    RowsHead,
    write_head,
)
from riverrun.state.changes import Changes
from riverrun.state.columns import as_array, as_column
from riverrun.state.soundness import WEIGHTLESS, BodyReader

PIECE = 4 << 20
SCHEMAS = 4096
"""The most kinds of columns on one stream."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A head, and the rows that belong to it."""

    head: bytes
    body: pa.Buffer | None = None

    @property
    def size(self) -> int:
        return len(self.head) + (0 if self.body is None else self.body.size)


class Encoder:
    """The sending end of a stream of fragments."""

    def __init__(self) -> None:
        self._schemas: dict[tuple[Any, ...], tuple[int, pa.Schema]] = {}

    def encode(self, message: Any) -> list[Fragment]:
        """The fragments of a message, in order."""
        return list(self.fragments(message))

    def fragments(self, message: Any) -> Iterable[Fragment]:
        """The fragments of a message, each made when it is asked for, so that one can leave while the next is made."""
        kind = type(message)
        if kind is Data:
            payload = message.payload
            if type(payload) is ProgressNews:
                return [
                    Fragment(write_head(ProgressHead(message.execution, message.number, payload)))
                ]
            if type(payload) is Rows:
                return self._rows(message, *payload)
            plain = PlainData(message.execution, message.number, payload)
            return [Fragment(shapes.write(plain))]
        if kind is Feed:
            return self._feed(message)
        return [Fragment(shapes.write(message))]

    def _rows(self, message: Data, node: int, changes: Changes) -> Iterator[Fragment]:
        rows = max(changes.rows, 1)
        arrays = list(changes.columns)
        if changes.codes is not None:
            arrays.append(as_column(changes.codes))
        if changes.diffs is not None:
            arrays.append(as_column(changes.diffs))
        about = RowsHead(
            message.execution, message.number, node, changes.rows, changes.times, changes.diff,
            changes.codes is not None, changes.diffs is not None,
        )  # fmt: skip
        return self._pieces(about, arrays, rows)

    def _feed(self, message: Feed) -> Iterator[Fragment]:
        for name, batch in message.inputs.items():
            about = InputHead(name, tuple(batch.schema.names))
            yield from self._pieces(about, batch.columns, batch.num_rows)
        end = FeedEnd(message.execution, message.epoch, message.parcels, message.saved)
        yield Fragment(shapes.write(end))

    def _pieces(
        self, about: RowsHead | InputHead, arrays: Sequence[pa.Array], rows: int
    ) -> Iterator[Fragment]:
        """The fragments of rows, in pieces of a bounded size; the head of the last piece describes the rows."""
        if not arrays:
            yield Fragment(write_head(Piece(None, None, about)))
            return
        types = tuple([array.type for array in arrays])
        known, definition = self._schemas.get(types), None
        if known is None:
            known = self._schemas[types] = len(self._schemas), _schema(types)
            definition = known[1].serialize().to_pybytes()
        number, schema = known
        batch = pa.RecordBatch.from_arrays(list(arrays), schema=schema)
        count = 1
        if batch.get_total_buffer_size() > PIECE:  # the rows may be a part of their buffers
            count = max(1, min(-(-batch.nbytes // PIECE), rows))
        for at in range(count):
            start, stop = rows * at // count, rows * (at + 1) // count
            piece = batch if count == 1 else batch.slice(start, stop - start)
            last = at + 1 == count
            head = write_head(Piece(number, definition, about if last else None))
            yield Fragment(head, piece.serialize())
            definition = None


class Decoder:
    """The receiving end of a stream of fragments."""

    def __init__(self) -> None:
        self._readers: list[BodyReader] = []
        self._pieces: list[pa.RecordBatch] = []
        self._inputs: dict[str, pa.RecordBatch] = {}

    def decode(self, head: Any, body: pa.Buffer | None = None) -> Any | None:
        """The message that a fragment completes, if it does."""
        read = shapes.read(head)
        try:
            match read:
                case Piece():
                    return self._piece(read, body)
                case ProgressHead():
                    return Data(read.execution, read.number, ProgressNews(read.changes))
                case PlainData():
                    return Data(read.execution, read.number, read.payload)
                case FeedEnd():
                    inputs, self._inputs = self._inputs, {}
                    return Feed(read.execution, read.epoch, inputs, read.parcels, read.saved)
                case RowsHead() | InputHead():
                    raise BadMessage("a fragment has the end of rows that it does not have")
        except (BadMessage, RiverrunError):
            raise
        except Exception as error:
            raise BadMessage(
                f"a fragment cannot be read: {type(error).__name__}: {error}"
            ) from error
        return read

    def _piece(self, piece: Piece, body: pa.Buffer | None) -> Any | None:
        arrays: list[pa.Array] = []
        if piece.schema is not None:
            if piece.schema < 0:
                raise BadMessage(f"a fragment has columns {piece.schema}, which were not defined")
            if piece.definition is not None:
                self._define(piece.schema, piece.definition)
            if body is None:
                raise BadMessage("a fragment has no rows where it says that it has")
            batch, arrays = self._readers[piece.schema].read(aligned(body))
            if self._pieces and self._pieces[0].schema != batch.schema:
                raise BadMessage("a fragment goes on with rows of other columns")
            if self._pieces or piece.about is None:
                self._pieces.append(batch)
        about = piece.about
        if about is None:
            return None
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            arrays = pa.concat_batches(pieces).columns
        if isinstance(about, InputHead):
            self._inputs[about.name] = pa.record_batch(arrays, names=list(about.columns))
            return None
        return Data(about.execution, about.number, Rows((about.node, _changes(about, arrays))))

    def _define(self, number: int, definition: bytes) -> None:
        if number != len(self._readers) or number >= SCHEMAS:
            raise BadMessage(
                f"a fragment defines columns {number}, where {len(self._readers)} are next"
            )
        self._readers.append(BodyReader(pa.ipc.read_schema(pa.py_buffer(definition))))


def _changes(about: RowsHead, arrays: list[pa.Array]) -> Changes:
    """The changes that a peer sent, checked: the promises of `Changes` hold for them."""
    rows, times = about.rows, about.times
    # The columns of a sound batch are all as long as the first.
    if len(arrays[0]) != rows if arrays else rows > WEIGHTLESS:
        raise BadMessage(f"a fragment has not the {rows} rows that it says")
    diffs = codes = None
    if about.has_diffs:
        diffs = _numbers(arrays.pop(), _DIFFS)
    if about.has_codes:
        codes = _numbers(arrays.pop(), _CODES)
        if rows and int(codes.view(np.uint32).max()) >= len(times):
            raise BadMessage("a fragment has rows of a time that it does not name")
    elif len(times) > 1:
        raise BadMessage("a fragment has several times, and no row says which it has")
    if len(times) > 1 and (
        len({len(time) for time in times}) > 1 or any(a >= b for a, b in pairwise(times))
    ):
        raise BadMessage("a fragment has times in no order")
    if min(map(min, times)) < 0:
        raise BadMessage("a fragment has a time before all times")
    return Changes(tuple(arrays), rows, times, codes, about.diff, diffs)


_DIFFS, _CODES = (pa.int64(),), (pa.int32(), pa.uint32())


def _numbers(array: pa.Array, kinds: tuple[pa.DataType, ...]) -> np.ndarray[Any, Any]:
    if array.type not in kinds or array.null_count:
        raise BadMessage(f"a fragment has {array.type} where times or diffs are")
    return as_array(array)


def aligned(buffer: pa.Buffer) -> pa.Buffer:
    """The same bytes at an address that is a multiple of 8, as kernels and NumPy want it."""
    if buffer.address % 8 == 0:
        return buffer
    copy = pa.allocate_buffer(buffer.size)
    np.frombuffer(copy, np.uint8)[:] = np.frombuffer(buffer, np.uint8)
    return copy


def _schema(types: Sequence[pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(str(at), kind) for at, kind in enumerate(types)])
