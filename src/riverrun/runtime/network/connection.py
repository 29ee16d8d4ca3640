"""A connection between two processes of a run: admission by the token, packets, TLS.

`client`, `link` and `endpoint` use it. A connection is a socket. The end that opens it and the end that accepts it
first prove to each other that they know the token of the run; then *packets* travel: a kind, a head and a body, each
with its length before it. Laws:

- **Known first.** Before both ends have proved that they know the token, each reads a fixed number of bytes and nothing
  else, within a deadline. (With TLS, its handshake comes before that.) The token itself never travels: each end sends a
  fresh random number, and the keyed hash of both numbers, which the other end compares in constant time.
- **Encrypted on demand.** With a certificate, everything is inside TLS, and both ends show the certificate first.
- **Bounded.** A packet whose length is beyond its limit is refused before memory is allocated for it. Memory for a long
  body is allocated as its bytes come, not as its length says.
- **In order.** Packets arrive in the order in which they were sent, up to the moment when the connection breaks.
- **Not for ever.** Where nothing is under way, the kernel notices a peer that has vanished (a machine that is cut off)
  within about a minute, and the connection breaks. While something is under way, the kernel does so only if the sender
  asks for it (`break_after`): a receiver that is slow with rows may leave sent bytes untaken for long, and yet live.

Cost, between two processes of a machine with two cores that others kept busy: 40 microseconds for a question and its
answer (the median; about 240 on average with TLS), 0.6 to 3.5 ms for the first one, which opens the connection (3 to 9
with TLS). `link` says how many bytes travel in a second.

>>> a, b = socket.socketpair()
>>> sender, receiver = Connection(a), Connection(b)
>>> sender.send(ASK, b"what", pa.py_buffer(b"rows"))
>>> receiver.receive()
Packet(kind=1, head=b'what', body=<pyarrow.Buffer address=... size=4 is_cpu=True is_mutable=True>)
>>> sender.close(), receiver.close()
(None, None)
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa

from riverrun.errors import BadMessage, TransportError

MAGIC = b"riverrun\x02"
NONCE = 16
PROOF = 32
WELCOME, REFUSED, FULL = b"\x01", b"\x02", b"\x03"
"""The last byte of the accepting end: come in; another token; no room."""
OPENING = 20.0
"""Seconds that opening a connection may take."""
HEAD = 16 << 20
"""The most bytes of a head in one packet."""
BODY = (1 << 31) - 1
"""The most bytes of a body in one packet: a row can be long."""
_STEP = 64 << 20  # bytes of memory that are allocated at first for a long body
_BUFFER = 64 << 10

_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}
_LENGTHS = struct.Struct("<BIq")
_SHORT = 32 << 10  # a packet up to here is written in one go

ASK, ANSWER, ERROR, ROWS, UPLOAD, SCHEMA, BATCH, END, LINK, FRAGMENTS, FRAGMENT, BYE = range(1, 13)
_NO_BODY = -1


class SpeaksSomethingElse(ConnectionAbortedError):
    """The first bytes of a connection are not those of a member of any run."""


class Packet(NamedTuple):
    """The unit that travels on a connection."""

    kind: int
    head: bytes
    body: pa.Buffer | None


@dataclass(frozen=True)
class Credentials:
    """The secrets of a run: a token; with TLS, also a key and its certificate. Processes that have them are
    *members*."""

    token: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    name: str = "riverrun"
    """The name that the certificate is made out to."""

    def location(self, host: str, port: int) -> str:
        """The address of a process that listens at a host and port."""
        shown = f"[{host}]" if ":" in host else host
        return f"{'tcp' if self.key is None else 'tls'}://{shown}:{port}"

    def connect(self, address: str, within: float | None = None) -> Connection:
        """Connect to a process of the run; `TransportError` where that fails."""
        seconds = OPENING if within is None else min(within, OPENING)
        deadline = time.monotonic() + seconds
        raw: socket.socket | None = None
        try:
            place = urlsplit(address)
            raw = socket.create_connection((place.hostname, place.port), seconds)
            settle(raw)
            if self.key is not None:
                raw.settimeout(_left(deadline))
                raw = _context(self, False).wrap_socket(raw, server_hostname=self.name)
            verdict = self._enter(raw, deadline)
            raw.settimeout(None)
        except (OSError, ValueError) as error:
            if raw is not None:
                raw.close()
            raise unreachable(address, error) from error
        if verdict == WELCOME:
            return Connection(raw)
        raw.close()
        if verdict == FULL:
            raise TransportError(
                "transport.full",
                f"cannot talk to {address}: it has as many connections as it can",
                hint="this is tried again; a limit on open files (ulimit -n) that is higher lets it have more",
                address=address,
            )
        raise TransportError(
            "transport.token",
            f"cannot talk to {address}: it refuses our token",
            hint="a token belongs to one run: use the address and token of a run that is alive",
            address=address,
        )

    def _enter(self, raw: socket.socket, deadline: float) -> bytes:
        """At the opening end: prove to know the token, and check the proof of the other end; return the other end's
        last byte."""
        ours = secrets.token_bytes(NONCE)
        raw.settimeout(_left(deadline))
        raw.sendall(MAGIC + ours)
        answer = receive_exactly(raw, NONCE + PROOF, deadline)
        theirs, proof = answer[:NONCE], answer[NONCE:]
        raw.settimeout(_left(deadline))
        raw.sendall(self.proof(b"who opens", ours, theirs))
        verdict = receive_exactly(raw, 1, deadline)
        if verdict == WELCOME and not hmac.compare_digest(
            proof, self.proof(b"who accepts", ours, theirs)
        ):
            return REFUSED  # the other end welcomes everybody, and has not the token
        return verdict

    def proof(self, who: bytes, ours: bytes, theirs: bytes) -> bytes:
        """The keyed hash of two numbers, which only a holder of the token can compute."""
        return hmac.digest(self.token.encode(), who + ours + theirs, hashlib.sha256)

    def wrap(self, raw: socket.socket) -> socket.socket:
        """The accepting end of a connection, inside TLS if the run has a certificate. Nothing is read or written
        yet."""
        raw.getpeername()  # raises if the other end has left already
        if self.key is None:
            return raw
        return _context(self, True).wrap_socket(
            raw, server_side=True, do_handshake_on_connect=False
        )

    def admit(self, raw: socket.socket, deadline: float) -> bool:
        """At the accepting end: whether the other end has the token.

        Raises `SpeaksSomethingElse` as soon as the first bytes are wrong, and `OSError` where no proof comes in time.
        The caller then sends `WELCOME`, `REFUSED` or `FULL`.
        """
        raw.settimeout(_left(deadline))
        if isinstance(raw, ssl.SSLSocket):
            _shake_hands(raw)
        opening = receive_exactly(raw, len(MAGIC) + NONCE, deadline, begins=MAGIC)
        theirs, ours = opening[len(MAGIC) :], secrets.token_bytes(NONCE)
        raw.settimeout(_left(deadline))
        raw.sendall(ours + self.proof(b"who accepts", theirs, ours))
        proof = receive_exactly(raw, PROOF, deadline)
        return hmac.compare_digest(proof, self.proof(b"who opens", theirs, ours))


class Connection:
    """An open connection. One thread sends and one receives; any thread may call `close`."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._plain = not isinstance(raw, ssl.SSLSocket)
        self._ahead = memoryview(b"")  # bytes that were received, and not taken yet

    def send(self, kind: int, head: bytes = b"", body: Any = None) -> None:
        """Send a packet; raises `OSError` where the connection is broken."""
        self.send_rest(_parts(kind, head, body))

    def send_at_once(self, kind: int, head: bytes = b"", body: Any = None) -> list[memoryview]:
        """Send the part of a packet that the kernel takes without waiting; return the rest, which `send_rest` is to
        send before anything else."""
        parts = _parts(kind, head, body)
        try:
            if self._plain:
                while parts:
                    _drop(parts, self._raw.sendmsg(parts, [], socket.MSG_DONTWAIT))
                return parts
            self._raw.settimeout(0)
            try:
                while parts:
                    _drop(parts, self._raw.send(parts[0]))
            finally:
                self._raw.settimeout(None)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        return parts

    def send_rest(self, parts: list[memoryview]) -> None:
        """Send the rest of a packet, however long that takes."""
        if self._plain and len(parts) > 1:
            while parts:
                _drop(parts, self._raw.sendmsg(parts))
        for part in parts:
            self._raw.sendall(part)

    def receive(self, head: int = HEAD, body: int = BODY) -> Packet | None:
        """The next packet; None where the other end has closed. Raises `BadMessage` for a packet that is too long,
        `OSError` where the connection breaks in the middle of a packet."""
        first = self._take(_LENGTHS.size, start=True)
        if first is None:
            return None
        kind, head_size, body_size = _LENGTHS.unpack(first)
        if head_size > head or not _NO_BODY <= body_size <= body:
            raise BadMessage(f"a packet of {head_size} and {body_size} bytes is too long")
        said = self._take(head_size)
        assert said is not None
        return Packet(kind, bytes(said), None if body_size < 0 else self._receive_body(body_size))

    def _take(self, size: int, *, start: bool = False) -> memoryview | None:
        """The next `size` bytes; None where the connection has ended, if `start` allows that here."""
        ahead = self._ahead
        if len(ahead) < size:
            pieces, have = [bytes(ahead)], len(ahead)
            while have < size:
                piece = self._raw.recv(max(_BUFFER, size - have))
                if not piece:
                    if start and not have:
                        return None
                    raise ConnectionResetError("the connection ended in the middle of a packet")
                pieces.append(piece)
                have += len(piece)
            ahead = memoryview(
                pieces[-1] if len(pieces) == 2 and not pieces[0] else b"".join(pieces)
            )
        self._ahead = ahead[size:]
        return ahead[:size]

    def _receive_body(self, size: int) -> pa.Buffer:
        reserved = min(size, _STEP)
        body = pa.allocate_buffer(reserved, resizable=size > reserved)
        view, have = memoryview(body).cast("B"), 0
        while have < size:
            if have == reserved:
                view.release()
                reserved = min(2 * reserved, size)
                body.resize(reserved)
                view = memoryview(body).cast("B")
            got = self._receive_into(view[have:reserved])
            if not got:
                raise ConnectionResetError("the connection ended in the middle of a packet")
            have += got
        view.release()
        return body

    def _receive_into(self, view: memoryview) -> int:
        if self._ahead:
            got = min(len(self._ahead), len(view))
            view[:got], self._ahead = self._ahead[:got], self._ahead[got:]
            return got
        if self._plain and self._raw.gettimeout() is None:
            return self._raw.recv_into(view, 0, socket.MSG_WAITALL)  # one wait for all of it
        return self._raw.recv_into(view)

    def break_after(self, seconds: float) -> None:
        """Have the kernel break the connection when the other end takes no sent bytes for so many seconds."""
        if hasattr(socket, "TCP_USER_TIMEOUT") and self._raw.family != socket.AF_UNIX:
            option = int(seconds * 1000)
            self._raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, option)

    def set_timeout(self, seconds: float | None) -> None:
        """Limit how long sending and receiving may take; None for no limit."""
        self._raw.settimeout(seconds)

    @property
    def has_something(self) -> bool:
        """Whether bytes were received, or the other end has closed."""
        if self._ahead:
            return True
        try:
            self._raw.settimeout(0)
            piece = self._raw.recv(_BUFFER)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        finally:
            with suppress(OSError):
                self._raw.settimeout(None)
        self._ahead = memoryview(piece)
        return True

    def close(self) -> None:
        """Close the connection; threads that wait on it get an error or the end."""
        with suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)
        self._raw.close()


def _parts(kind: int, head: bytes, body: Any) -> list[memoryview]:
    """The bytes of a packet, in one part where it is short."""
    size = _NO_BODY if body is None else memoryview(body).nbytes
    if len(head) > HEAD or size > BODY:
        raise ValueError(f"a packet with {len(head)} bytes of head and {size} of body is too long")
    lengths = _LENGTHS.pack(kind, len(head), size)
    if size <= 0:
        return [memoryview(lengths + head)]
    if len(head) + size <= _SHORT:
        return [memoryview(b"".join((lengths, head, body)))]
    return [memoryview(lengths + head), memoryview(body).cast("B")]


def _drop(parts: list[memoryview], sent: int) -> None:
    """Drop the first `sent` bytes, which were sent."""
    while parts and sent >= len(parts[0]):
        sent -= len(parts.pop(0))
    if sent:
        parts[0] = parts[0][sent:]


PIECE = 32 << 20
"""About how many bytes of rows travel in one packet."""


def pieces_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows into pieces of a bounded size; a row is never cut."""
    count = max(1, min(-(-batch.nbytes // PIECE), batch.num_rows))
    for at in range(count):
        start, stop = batch.num_rows * at // count, batch.num_rows * (at + 1) // count
        yield batch if count == 1 else batch.slice(start, stop - start)


def _shake_hands(raw: ssl.SSLSocket) -> None:
    """Agree on TLS. Raises `SpeaksSomethingElse` where the other end does not speak TLS, and another error where it
    shows no certificate or a wrong one."""
    try:
        raw.do_handshake()
    except (
        ssl.SSLEOFError,
        ssl.SSLZeroReturnError,
        ssl.SSLSyscallError,
        ssl.SSLCertVerificationError,
    ):
        raise
    except AttributeError as error:
        # ssl.py drops its object when another thread closes the socket
        raise ConnectionAbortedError("it was closed before TLS was agreed on") from error
    except ssl.SSLError as error:
        reason = error.reason or ""
        if isinstance(error, TimeoutError) or "CERT" in reason or "ALERT" in reason:
            raise
        raise SpeaksSomethingElse(f"it does not speak TLS: {reason}") from error


def receive_exactly(raw: socket.socket, size: int, deadline: float, begins: bytes = b"") -> bytes:
    """Receive exactly `size` bytes; `OSError` where they do not come by the deadline, or do not begin with `begins`."""
    data = b""
    while len(data) < size:
        raw.settimeout(_left(deadline))
        piece = raw.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the other end has closed the connection")
        data += piece
        if data[: len(begins)] != begins[: len(data)]:
            raise SpeaksSomethingElse("it speaks something else")
    return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it takes too long to open a connection")
    return left


def settle(raw: socket.socket) -> None:
    """Set the options of a socket, at both ends: send at once, and have the kernel probe silent peers."""
    if raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@lru_cache(maxsize=16)
def _context(credentials: Credentials, accepts: bool) -> ssl.SSLContext:
    """A TLS context in which each end shows the certificate of the run, and trusts no other."""
    assert credentials.certificate is not None
    assert credentials.key is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if accepts else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=credentials.certificate.decode("ascii"))
    if accepts:
        context.num_tickets = (
            0  # tickets that nobody reads would turn the end of a connection into a break
        )
    with tempfile.TemporaryDirectory(prefix="riverrun-tls-") as folder:  # ssl reads files only
        pair = []
        for name, content in (("certificate", credentials.certificate), ("key", credentials.key)):
            pair.append(os.path.join(folder, name))
            with open(os.open(pair[-1], os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
                file.write(content)
        context.load_cert_chain(*pair)
    return context


def unreachable(address: str, error: BaseException) -> TransportError:
    """The error of a process that cannot talk to another one."""
    return TransportError(
        "transport.unreachable",
        f"cannot talk to {address}: {type(error).__name__}: {str(error)[:300]}",
        hint="the process there has ended, or the network does not let us through",
        address=address,
    )
