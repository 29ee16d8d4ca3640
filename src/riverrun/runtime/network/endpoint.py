"""An endpoint: the address at which a process of a run can be reached, and the admission of connections to it.

The driver and each worker have an `Endpoint` with a `Handler`, which takes fragments, questions and rows. A connection
is let in by the token (`connection`). Its first packet then says what it is for: questions, one after the other; rows
that are asked for; rows that are handed in; or a link, which brings fragments. A connection that was let in is a
*member*, any other a *stranger*. Laws:

- **Strangers cost little.** A stranger has a thread, its socket, and a few dozen bytes, and is closed after `ADMISSION`
  seconds. There are at most `STRANGERS`: for one more, the oldest stranger of the host that has most of them is closed,
  so many idle connections from one place keep nobody else out.
- **Strangers are counted.** Each connection that is not let in counts once: as `garbage` where its first bytes are not
  those of a member; otherwise as `refused`: with another token or certificate, silent, or gone before its proof. A
  stranger with another token gets the answer that it is refused.
- **Members are bounded.** Members have at most half of the files that this process may open; further members get the
  answer that there is no room. A member that asks nothing for `IDLE` seconds is closed.
- **One address.** The socket is bound to the one address that other processes are told.
- **Errors travel.** An exception of the handler travels to the process that asked, described. Bytes that no member of
  this version can have sent end their connection, and nothing else.

Cost: a thread for each connection.
"""

from __future__ import annotations

import errno
import logging
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, Protocol, Self

import msgspec
import pyarrow as pa

from riverrun.errors import BadMessage, TransportError
from riverrun.rows.records import undictionaried
from riverrun.runtime.codec.fragments import Fragment
from riverrun.runtime.codec.plain import MOST, describe, pack, unpack
from riverrun.runtime.network import connection
from riverrun.runtime.network.connection import (
    ANSWER,
    BATCH,
    BYE,
    END,
    ERROR,
    FRAGMENT,
    FRAGMENTS,
    FULL,
    REFUSED,
    SCHEMA,
    WELCOME,
    Connection,
    Credentials,
    Packet,
    SpeaksSomethingElse,
    pieces_of,
    settle,
)
from riverrun.state.soundness import UnsoundRows, read_body

STRANGERS = 64
ADMISSION = 10.0  # seconds
IDLE = 600.0  # seconds
MEMBERS = 4096
DRAIN = 30.0
"""Seconds for which refused rows are still received, so that their sender can read the error."""
_WAITING = 128  # connections that the kernel queues until they are accepted
_PAUSE = 0.05
_FRAGMENTS = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]])
_LOG = logging.getLogger(__name__)
_GONE = (OSError, BadMessage, ValueError)


class Handler(Protocol):
    """Takes the fragments, questions and rows that come to a process. Called from many threads."""

    def receive(self, sender: int, stream: object, fragments: list[Fragment], size: int) -> None:
        """Take fragments of a stream, which took `size` bytes."""

    def ended(self, sender: int, stream: object, cleanly: bool) -> None:
        """Note that a stream is over; `cleanly`: on purpose."""

    def answer(self, question: str, argument: Any) -> Any:
        """Answer a question with a value that `pack` takes, or raise."""

    def rows(self, ticket: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The rows of a ticket."""

    def take_upload(self, about: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Any:
        """Take rows that are handed in; return the answer once all of them are there."""


@dataclass(eq=False, slots=True)
class _Guest:
    """A connection, of a member or a stranger."""

    raw: socket.socket
    host: str
    since: float
    member: bool = False


class Endpoint:
    """The listening socket of a process, and its connections."""

    def __init__(
        self, host: str, handler: Handler, credentials: Credentials, port: int = 0
    ) -> None:
        self._handler = handler
        self._credentials = credentials
        self._lock = Lock()
        self._guests: dict[_Guest, None] = {}  # the oldest first
        self._ending = Event()
        self.refused = 0
        """How many connections showed no token or a wrong one: refused, silent, gone, or closed to make room."""
        self.garbage = 0
        """How many connections had first bytes that are not those of a member of any run."""
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.address = credentials.location(host, self.port)
        Thread(target=self._accept, name="riverrun-endpoint", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Listen no more, and end all connections."""
        with self._lock:
            self._ending.set()
            guests = list(self._guests)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for guest in guests:
            _hang_up(guest.raw)

    # ---- who gets in

    def _accept(self) -> None:
        while not self._ending.is_set():
            try:
                raw, place = self._socket.accept()
            except OSError as error:
                if self._ending.is_set():
                    return
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    self._make_room()
                time.sleep(_PAUSE)
                continue
            guest = _Guest(raw, str(place[0]), time.monotonic())
            with self._lock:
                if self._ending.is_set():
                    raw.close()
                    return
                self._guests[guest] = None
                strangers = sum(not each.member for each in self._guests)
            if strangers > STRANGERS:
                self._make_room()
            try:
                Thread(
                    target=self._welcome, args=(guest,), name="riverrun-guest", daemon=True
                ).start()
            except RuntimeError:  # there cannot be more threads
                self._count_refused()
                self._leave(guest)

    def _make_room(self) -> None:
        """Close the oldest stranger of the host that has most of them."""
        with self._lock:
            strangers = [each for each in self._guests if not each.member]
            if not strangers:
                return
            most, _ = Counter(each.host for each in strangers).most_common(1)[0]
            oldest = next(each for each in strangers if each.host == most)
            del self._guests[oldest]
        _hang_up(oldest.raw)

    def _leave(self, guest: _Guest) -> None:
        with self._lock:
            self._guests.pop(guest, None)
        _hang_up(guest.raw)
        guest.raw.close()

    def _welcome(self, guest: _Guest) -> None:
        """In a thread: let a connection in or refuse it, and serve it."""
        admitted: bool | None = None  # None: the connection has not shown a token yet
        try:
            with self._lock:
                if guest not in self._guests:  # it was closed to make room
                    raise ConnectionAbortedError("it was sent away before it could speak")
                settle(guest.raw)
                guest.raw = self._credentials.wrap(guest.raw)
            admitted = self._credentials.admit(guest.raw, guest.since + ADMISSION)
            if not admitted:
                self._count_refused()
                guest.raw.sendall(REFUSED)
                return
            with self._lock:
                members = sum(each.member for each in self._guests)
                guest.member = guest in self._guests and members < _room()
            guest.raw.sendall(WELCOME if guest.member else FULL)
            if guest.member:
                guest.raw.settimeout(None)
                self._serve(Connection(guest.raw))
        except SpeaksSomethingElse:
            with self._lock:
                self.garbage += 1
        except _GONE:
            if admitted is None:
                self._count_refused()
        finally:
            self._leave(guest)

    def _count_refused(self) -> None:
        with self._lock:
            if not self._ending.is_set():  # else this process closed the connection as it left
                self.refused += 1

    # ---- what members say

    def _serve(self, member: Connection) -> None:
        while not self._ending.is_set():
            member.set_timeout(IDLE)
            packet = member.receive(head=MOST, body=0)
            member.set_timeout(None)
            if packet is None:
                return
            match packet.kind:
                case connection.LINK:
                    self._fragments(member, packet)
                    return
                case connection.ASK:
                    self._answer(member, packet)
                case connection.ROWS:
                    self._give(member, packet)
                case connection.UPLOAD:
                    if not self._take(member, packet):
                        return
                case other:
                    raise BadMessage(f"a packet of kind {other} begins nothing")

    def _fragments(self, member: Connection, opening: Packet) -> None:
        sender = unpack(opening.head)
        if type(sender) is not int:
            raise BadMessage("a link is from a process with a number")
        stream, cleanly = object(), False
        try:
            while (packet := member.receive()) is not None:
                if packet.kind == FRAGMENTS:
                    listed = _listed(packet.head)
                    fragments = [
                        Fragment(head, None if body is None else pa.py_buffer(body))
                        for head, body in listed
                    ]
                elif packet.kind == FRAGMENT:
                    fragments = [Fragment(packet.head, packet.body)]
                elif packet.kind == BYE:
                    cleanly = True
                    return
                else:
                    raise BadMessage(f"a packet of kind {packet.kind} is no fragment")
                size = sum([fragment.size for fragment in fragments])
                self._handler.receive(sender, stream, fragments, size)
        except _GONE:
            pass
        except Exception:  # the link breaks, which its sender can mend
            _LOG.exception("what came on a link could not be taken in")
        finally:
            self._handler.ended(sender, stream, cleanly)

    def _answer(self, member: Connection, packet: Packet) -> None:
        def answer() -> bytes:
            question, argument = _pair(packet.head)
            return pack(self._handler.answer(question, argument))

        member.send(*_said(answer, ANSWER))

    def _give(self, member: Connection, packet: Packet) -> None:
        batches: Iterator[pa.RecordBatch] = iter(())

        def begin() -> bytes:
            nonlocal batches
            schema, batches = undictionaried(*self._handler.rows(unpack(packet.head)))
            definition: bytes = schema.serialize().to_pybytes()
            return definition

        kind, head = _said(begin, SCHEMA)
        member.send(kind, head)
        while kind != ERROR:
            try:
                batch = next(batches, None)
            except Exception as error:
                member.send(ERROR, _described(error))
                return
            if batch is None:
                member.send(END)
                return
            for piece in pieces_of(batch):
                member.send(BATCH, b"", piece.serialize())

    def _take(self, member: Connection, packet: Packet) -> bool:
        """Take rows in; return whether the connection can be used again."""
        incoming = _Incoming(member)

        def answer() -> bytes:
            about, definition = _pair(packet.head)
            schema = _schema(definition)
            return pack(self._handler.take_upload(about, schema, incoming.batches(schema)))

        kind, head = _said(answer, ANSWER)
        member.send(kind, head)
        if kind == ERROR and not incoming.over:
            incoming.drain(time.monotonic() + DRAIN)
        return incoming.over


class _Incoming:
    """Rows that a member hands in."""

    def __init__(self, member: Connection) -> None:
        self._member = member
        self.over = False

    def _next(self) -> Packet | None:
        packet = self._member.receive(head=0)
        if packet is None:
            raise ConnectionResetError("rows ended before they were all there")
        if packet.kind == END:
            self.over = True
            return None
        if packet.kind != BATCH or packet.body is None:
            raise BadMessage(f"a packet of kind {packet.kind} has no rows")
        return packet

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        while (packet := self._next()) is not None:
            assert packet.body is not None
            yield read_rows(packet.body, schema)

    def drain(self, deadline: float) -> None:
        with suppress(*_GONE):
            while time.monotonic() < deadline:
                self._member.set_timeout(max(deadline - time.monotonic(), 0.01))
                if self._next() is None:
                    return


def read_rows(body: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Rows that another process sent, checked; `BadMessage` for rows that are not sound."""
    try:
        return read_body(body, schema)
    except UnsoundRows as error:
        raise BadMessage(f"rows cannot be read: {error}") from error


def _said(act: Callable[[], bytes], kind: int) -> tuple[int, bytes]:
    """The packet to send after an act: with its result, or with the error that it raised."""
    try:
        return kind, act()
    except Exception as error:
        return ERROR, _described(error)


def _described(error: Exception) -> bytes:
    if isinstance(error, BadMessage):
        error = TransportError(
            "transport.unreadable",
            f"cannot read what was sent: {error}",
            hint="this is tried again; if it comes back, versions of riverrun differ, or the network damages it",
        )
    return pack(describe(error))


def _listed(head: bytes) -> list[tuple[bytes, bytes | None]]:
    try:
        return _FRAGMENTS.decode(head)
    except (msgspec.DecodeError, ValueError) as error:
        raise BadMessage(f"a packet has no fragments: {error}") from error


def _pair(head: bytes) -> tuple[Any, Any]:
    said = unpack(head)
    if type(said) is not tuple or len(said) != 2:
        raise BadMessage("a packet asks nothing")
    return said[0], said[1]


def _schema(definition: Any) -> pa.Schema:
    if type(definition) is not bytes:
        raise BadMessage("a packet has no columns")
    try:
        return pa.ipc.read_schema(pa.py_buffer(definition))
    except (pa.ArrowException, OSError, EOFError) as error:
        raise BadMessage(f"a packet has no columns: {error}") from error


def _room() -> int:
    """How many members there can be: half as many as files that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MEMBERS if files == resource.RLIM_INFINITY else min(MEMBERS, max(8, files // 2))


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_WAITING)
    except OSError:
        listener.close()
        raise
    return listener


def _hang_up(raw: socket.socket) -> None:
    with suppress(OSError):
        raw.shutdown(socket.SHUT_RDWR)
