"""Arrow Flight: how frames, questions and rows travel between processes.

An `Endpoint` is where a process can be reached; a `Link` is a stream of frames to another one. Those
who ask questions and fetch rows are in `asking`. Laws:

1. **Known.** Every call carries the token of the run, compared in constant time before anything else
   of it is looked at; whoever has another is refused and counted. With a certificate, both ends
   show that they have the run's, and all of it is encrypted.
2. **In order.** Frames of a link arrive in the order in which they were sent, up to the moment where
   the link breaks; the receiver learns that it broke, and whether it was ended on purpose.
3. **Windowed.** At most about `window` bytes of a link are under way and not taken in by its
   receiver, who gives *credit* for what it took. What is beyond waits at the sender (`spool`). Credit
   itself waits for nothing: two whose windows are full would wait for each other's.
4. **Adaptive.** A frame leaves at once when nothing waits before it; small ones that wait travel
   together, one write for all, and credit with them.

Cost: 40 microseconds for a write, 70 from one process to another; about 1 GB/s.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator
from threading import Condition, RLock, Thread
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from riverrun.engine.asking import TOKEN, Security, chunks, unreachable
from riverrun.engine.codec import Encoder, Frame, aligned
from riverrun.engine.reading import undictionaried
from riverrun.engine.spool import Spool
from riverrun.engine.wire import BadFrame, describe, pack, unpack
from riverrun.errors import TransportError

WINDOW = 32 << 20
INLINE = 256 << 10  # a body up to here travels in the head of its frame
DIRECT = 60 << 10  # bytes that gRPC takes at once, however long the receiver takes to read them
TOGETHER = 256 << 10  # about so many bytes of small frames travel in one write
_WIRE = pa.schema([pa.field("body", pa.large_binary())])
_BYE = pack("bye")
_LAST = 16  # frames that are still sent when a link is ended
_PATIENCE = 1.0  # seconds that a write may take when a link is ended


class Handler(Protocol):
    """What a process does with what comes in. Called from many threads."""

    def receive(self, sender: int, stream: object, frames: list[Frame], size: int) -> None:
        """Frames of a stream, and how many bytes they took."""

    def ended(self, sender: int, stream: object, cleanly: bool) -> None:
        """A stream is over."""

    def answer(self, question: str, argument: Any) -> Any:
        """Answer a question with what `pack` takes, or raise."""

    def rows(self, ticket: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Rows that are asked for."""

    def stage(self, about: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Any:
        """Rows that are handed in; the answer goes back when all of them are there."""


class Endpoint(flight.FlightServerBase):  # type: ignore[misc]
    """Where a process can be reached."""

    def __init__(self, host: str, handler: Handler, security: Security, port: int = 0) -> None:
        self._guard = _Guard(security.token)
        self._handler = handler
        tls: dict[str, Any] = {}
        if security.key is not None:
            tls = {
                "tls_certificates": [(security.certificate, security.key)],
                "verify_client": True,
                "root_certificates": security.certificate,
            }
        super().__init__(security.location(host, port), middleware={"token": self._guard}, **tls)
        self.address = security.location(host, self.port)

    @property
    def refused(self) -> int:
        """How many calls had no token or a wrong one."""
        return self._guard.refused

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        about = _spoken(lambda: unpack(descriptor.command))
        if isinstance(about, int):
            self._frames(about, reader)
            return
        batches = (chunk.data for chunk in chunks(reader) if chunk.data is not None)
        answer = _spoken(lambda: self._handler.stage(about, reader.schema, batches))
        writer.write(pack(answer))

    def _frames(self, sender: int, reader: Any) -> None:
        stream, cleanly = object(), False
        try:
            for chunk in chunks(reader):
                head = chunk.app_metadata
                if chunk.data is None:
                    listed = unpack(head)
                    if listed == "bye":
                        cleanly = True
                        continue
                    frames = [
                        Frame(each, None if body is None else pa.py_buffer(body))
                        for each, body in listed
                    ]
                    size = sum(frame.size for frame in frames)
                else:
                    body = chunk.data.column(0).buffers()[2]
                    frames = [Frame(head.to_pybytes(), aligned(body))]
                    size = head.size + body.size
                self._handler.receive(sender, stream, frames, size)
        except (flight.FlightError, pa.ArrowException, OSError, BadFrame, ValueError, TypeError):
            cleanly = False
        finally:
            self._handler.ended(sender, stream, cleanly)

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        argument = _spoken(lambda: unpack(action.body))
        return [pack(_spoken(lambda: self._handler.answer(action.type, argument)))]

    def do_get(self, context: Any, ticket: Any) -> Any:
        schema, batches = _spoken(
            lambda: undictionaried(*self._handler.rows(unpack(ticket.ticket)))
        )
        return flight.GeneratorStream(schema, _spoken_all(batches))


class _Guard(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets in who has the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token.encode()
        self.refused = 0

    def start_call(self, info: Any, headers: Any) -> None:
        given = [
            value for key, values in headers.items() if key.lower() == TOKEN for value in values
        ]
        shown = given[0] if given else ""
        shown = shown if isinstance(shown, bytes) else str(shown).encode()
        if not hmac.compare_digest(shown, self._token):
            self.refused += 1
            raise flight.FlightUnauthenticatedError("this run has another token")


def _spoken(function: Callable[[], Any]) -> Any:
    """Errors cross the wire as what `wire.describe` makes of them."""
    try:
        return function()
    except Exception as error:
        raise flight.FlightServerError(
            type(error).__name__, extra_info=pack(describe(error))
        ) from None


def _spoken_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for rows, which are made while they are read."""
    while True:
        batch = _spoken(lambda: next(batches, None))
        if batch is None:
            return
        yield batch


class Link:
    """A stream of frames to another process, opened when it is made."""

    def __init__(
        self,
        address: str,
        sender: int,
        security: Security,
        *,
        window: int = WINDOW,
        budget: int = 64 << 20,
        background: bool = False,
    ) -> None:
        """With `background`, whatever cannot be written at once is written by a thread of its own."""
        self.address = address
        self.sent = 0
        """Bytes written so far."""
        self._window = window
        self._under_way = 0
        self._spool = Spool(budget)
        self._urgent: list[Frame] = []
        self._encoder = Encoder()
        self._turn = Condition(RLock())
        self._writing = False
        self._over = False
        self._client = security.connect(address)
        descriptor = flight.FlightDescriptor.for_command(pack(sender))
        try:
            self._writer, _ = self._client.do_put(descriptor, _WIRE, security.options)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._client.close()
            raise unreachable(address, error) from error
        if background:
            Thread(target=self._write_on, name="riverrun-link", daemon=True).start()
        self._background = background

    @property
    def full(self) -> bool:
        """Whether more is under way or waits than the window allows."""
        return len(self._spool) > 0 or self._under_way >= self._window

    @property
    def waiting(self) -> int:
        """How many frames wait here."""
        return len(self._spool)

    def send(self, messages: Iterable[Any], taken: int = 0) -> None:
        """Have messages travel; raises `TransportError` when the link is broken.

        With them the receiver is told that so many of its bytes were `taken` in here.
        """
        with self._turn:
            if self._over:
                raise unreachable(self.address, OSError("the link is closed"))
            if taken:
                self._urgent.append(_credit(taken))
            for message in messages:
                for frame in self._encoder.frames(message):
                    self._spool.put(frame)
                    if not _is_small(frame):
                        if self._background:
                            self._turn.notify_all()
                        else:  # it leaves while the next one is made
                            self._flush()
            waiting = self._under_way + self._spool.nbytes > DIRECT or self._spool.spilled
            waits = self._writing or waiting
            if self._background and waits:
                self._turn.notify_all()
            else:
                self._flush()

    def give(self, size: int) -> None:
        """Tell the receiver that so many of its bytes were taken in here."""
        with self._turn:
            if self._over:
                raise unreachable(self.address, OSError("the link is closed"))
            self._urgent.append(_credit(size))
            if self._background:
                self._turn.notify_all()
            else:
                self._flush()

    def credit(self, size: int) -> None:
        """The receiver has taken in so many bytes more."""
        with self._turn:
            self._under_way = max(self._under_way - size, 0)
            if self._background:
                self._turn.notify_all()
            elif len(self._spool):
                self._flush()

    def _flush(self) -> None:
        """Write what the window lets through."""
        while frames := self._next():
            self._write(frames)

    def _next(self) -> list[Frame]:
        """What to write next, in one go: a long frame, or a few short ones."""
        spool = self._spool
        frames, self._urgent = self._urgent, []
        size = sum([frame.size for frame in frames])
        if len(spool) and self._under_way < self._window:
            following = spool.peek()
            if not frames and (following is None or not _is_small(following)):
                frames.append(spool.take())
                size = frames[0].size
            while size < TOGETHER and following is not None and _is_small(following):
                frames.append(spool.take())
                size += following.size
                following = spool.peek()
        self._under_way += size
        return frames

    def _write(self, frames: list[Frame]) -> None:
        frame, body = frames[0], frames[0].body
        try:
            if body is not None and not _is_small(frame):
                offsets = pa.py_buffer(np.array([0, body.size], np.int64))
                array = pa.Array.from_buffers(_WIRE.field(0).type, 1, [None, offsets, body])
                batch = pa.record_batch([array], schema=_WIRE)
                self._writer.write_with_metadata(batch, frame.head)
            else:
                listed = [
                    (each.head, None if each.body is None else each.body.to_pybytes())
                    for each in frames
                ]
                self._writer.write_metadata(pack(listed))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._over = True
            raise unreachable(self.address, error) from error
        self.sent += sum(each.size for each in frames)

    def _write_on(self) -> None:
        """In a thread: write, with the lock only held to find out what."""
        while True:
            with self._turn:
                self._writing = False
                self._turn.notify_all()
                frames = self._next()
                while not frames and not self._over:
                    self._turn.wait()
                    frames = self._next()
                if self._over:
                    return
                self._writing = True
            try:
                self._write(frames)
            except TransportError:
                with self._turn:
                    self._writing = False
                    self._turn.notify_all()
                return  # the next `send` finds out

    def close(self, *, cleanly: bool = True) -> None:
        """End the link; the receiver is told that it was on purpose."""
        with self._turn:
            over, self._over = self._over, True
            self._turn.notify_all()
            cleanly &= self._turn.wait_for(lambda: not self._writing, _PATIENCE)
            last = [self._spool.take() for _ in range(min(len(self._spool), _LAST))]
            self._spool.clear()
        try:
            if cleanly and not over:
                if last and all(map(_is_small, last)):
                    self._write(last)
                self._writer.write_metadata(_BYE)
            self._writer.close()
        except (flight.FlightError, pa.ArrowException, OSError, TransportError):
            pass
        self._client.close()


def _credit(size: int) -> Frame:
    return Frame(pack(["credit", size]))


def _is_small(frame: Frame) -> bool:
    return frame.body is None or frame.body.size <= INLINE
