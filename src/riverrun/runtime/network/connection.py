"""A connection between two processes of a run: who may talk, packets, TLS. `asking`, `link` and `endpoint` share it.

A connection is a socket. Whoever opens it and whoever accepts it first show each other that they know the token of the
run; then *packets* travel: a kind, a head and a body, each with its length before it. Laws:

- **Known first.** Before both ends have shown that they know the token, each reads a fixed number of bytes and
  nothing else, within a deadline. The token itself never travels: each end sends a fresh random number, and shows the
  keyed hash of both, which is compared in constant time.
- **Encrypted on demand.** With a certificate, all of this is inside TLS, and both ends show the certificate first.
- **Bounded.** A packet whose length is beyond what it may have is refused before anything is allocated for it.
  Memory for a long body is taken as its bytes come, not as its length says.
- **In order.** Packets arrive in the order in which they were sent, up to the moment where the connection breaks.
- **Not for ever.** A peer that is gone without a word (a machine that is cut off) is noticed by the kernel, within
  about a minute where nothing is under way, and the connection breaks. Who sends can ask for the same while something
  is under way (`break_after`): not where the other end may rightly take nothing for long, as one who reads rows.

Cost, between two processes of a machine with two cores that others kept busy: 40 microseconds for a question and its
answer (the median; about 240 on average with TLS), 0.6 to 3.5 ms for the first one, which opens the connection (3 to 9
with TLS). How many bytes travel in a second is said in `link`.

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
"""What the end that accepts says last: come in, another token, no room."""
OPENING = 20.0
"""Seconds that opening a connection may take."""
HEAD = 16 << 20
"""So many bytes of a head at most travel in one packet."""
BODY = (1 << 31) - 1
"""So many bytes of a body at most travel in one packet: a row can be long."""
_STEP = 64 << 20  # bytes for which memory is taken at once
_BUFFER = 64 << 10

_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}
_LENGTHS = struct.Struct("<BIq")
_SHORT = 32 << 10  # a packet up to here is written in one go

ASK, ANSWER, ERROR, ROWS, UPLOAD, SCHEMA, BATCH, END, LINK, FRAMES, FRAME, BYE = range(1, 13)
_NO_BODY = -1


class SpeaksSomethingElse(ConnectionAbortedError):
    """The first bytes of a connection are not those of a member of any run."""


class Packet(NamedTuple):
    """What travels at once."""

    kind: int
    head: bytes
    body: pa.Buffer | None


@dataclass(frozen=True)
class Credentials:
    """What members of a run know and nobody else: a token; with TLS, also a key and its certificate."""

    token: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    name: str = "riverrun"
    """The name that the certificate is made out to."""

    def location(self, host: str, port: int) -> str:
        """The address of a process that listens there."""
        shown = f"[{host}]" if ":" in host else host
        return f"{'tcp' if self.key is None else 'tls'}://{shown}:{port}"

    def connect(self, address: str, within: float | None = None) -> Connection:
        """A connection to a process of the run; raises `TransportError` where there is none to be had."""
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
            said = self._enter(raw, deadline)
            raw.settimeout(None)
        except (OSError, ValueError) as error:
            if raw is not None:
                raw.close()
            raise unreachable(address, error) from error
        if said == WELCOME:
            return Connection(raw)
        raw.close()
        if said == FULL:
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
        """Show the token, and have it shown."""
        ours = secrets.token_bytes(NONCE)
        raw.settimeout(_left(deadline))
        raw.sendall(MAGIC + ours)
        answer = receive_exactly(raw, NONCE + PROOF, deadline)
        theirs, proof = answer[:NONCE], answer[NONCE:]
        raw.settimeout(_left(deadline))
        raw.sendall(self.proof(b"who opens", ours, theirs))
        said = receive_exactly(raw, 1, deadline)
        if said == WELCOME and not hmac.compare_digest(
            proof, self.proof(b"who accepts", ours, theirs)
        ):
            return REFUSED  # it says so to everybody: it is none of us
        return said

    def proof(self, who: bytes, ours: bytes, theirs: bytes) -> bytes:
        """What only one who has the token can say about two numbers."""
        return hmac.digest(self.token.encode(), who + ours + theirs, hashlib.sha256)

    def wrap(self, raw: socket.socket) -> socket.socket:
        """The accepting end of a connection, inside TLS where that is asked for. Nothing is read or written yet."""
        raw.getpeername()  # who has left already is no connection
        if self.key is None:
            return raw
        return _context(self, True).wrap_socket(
            raw, server_side=True, do_handshake_on_connect=False
        )

    def admit(self, raw: socket.socket, deadline: float) -> bool:
        """At the accepting end: whether the other one has the token.

        Raises `SpeaksSomethingElse` as soon as that is heard, and `OSError` for whoever does not show the token in
        time. It remains to be said what comes of it: `WELCOME`, or another of these.
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
    """An open connection. One thread sends and one receives; `close` is for any."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._plain = not isinstance(raw, ssl.SSLSocket)
        self._ahead = memoryview(b"")  # what was received, and not looked at

    def send(self, kind: int, head: bytes = b"", body: Any = None) -> None:
        """Send a packet; raises `OSError` where the connection is broken."""
        self.send_rest(_parts(kind, head, body))

    def send_at_once(self, kind: int, head: bytes = b"", body: Any = None) -> list[memoryview]:
        """Send what the kernel takes of a packet without waiting. What is left goes to `send_rest`, before all else."""
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
        """Send what is left of a packet, however long that takes."""
        if self._plain and len(parts) > 1:
            while parts:
                _drop(parts, self._raw.sendmsg(parts))
        for part in parts:
            self._raw.sendall(part)

    def receive(self, head: int = HEAD, body: int = BODY) -> Packet | None:
        """The next packet; None where the other end has closed. Raises `BadMessage` for one that is too long, `OSError`
        where the connection breaks in the middle of one."""
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
        """So many bytes; None where `start` is the end."""
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
        """Have the kernel break the connection when the other end takes nothing of what is sent for so long."""
        if hasattr(socket, "TCP_USER_TIMEOUT") and self._raw.family != socket.AF_UNIX:
            option = int(seconds * 1000)
            self._raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, option)

    def set_timeout(self, seconds: float | None) -> None:
        """How long sending and receiving may take; None for as long as it takes."""
        self._raw.settimeout(seconds)

    @property
    def has_something(self) -> bool:
        """Whether something was received, be it that the other end has closed."""
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
        """Close it; whoever waits for it in another thread finds out."""
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
    """Drop so many bytes, which were sent."""
    while parts and sent >= len(parts[0]):
        sent -= len(parts.pop(0))
    if sent:
        parts[0] = parts[0][sent:]


PIECE = 32 << 20
"""About so many bytes of rows travel in one packet."""


def pieces_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows in pieces of a bounded size; a row is never cut."""
    count = max(1, min(-(-batch.nbytes // PIECE), batch.num_rows))
    for at in range(count):
        start, stop = batch.num_rows * at // count, batch.num_rows * (at + 1) // count
        yield batch if count == 1 else batch.slice(start, stop - start)


def _shake_hands(raw: ssl.SSLSocket) -> None:
    """Agree on TLS. `SpeaksSomethingElse` for no TLS; another error for TLS with no certificate, or another one."""
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
        # ssl.py gives its object up when another thread closes the socket
        raise ConnectionAbortedError("it was closed before TLS was agreed on") from error
    except ssl.SSLError as error:
        reason = error.reason or ""
        if isinstance(error, TimeoutError) or "CERT" in reason or "ALERT" in reason:
            raise
        raise SpeaksSomethingElse(f"it does not speak TLS: {reason}") from error


def receive_exactly(raw: socket.socket, size: int, deadline: float, begins: bytes = b"") -> bytes:
    """So many bytes and no more; raises `OSError` where they do not come by then, or do not begin like that."""
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
    """What both ends set: nothing waits to be sent together with something else, and the kernel looks after peers."""
    if raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@lru_cache(maxsize=16)
def _context(credentials: Credentials, accepts: bool) -> ssl.SSLContext:
    """TLS where each end shows the certificate of the run, and trusts no other."""
    assert credentials.certificate is not None
    assert credentials.key is not None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if accepts else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=credentials.certificate.decode("ascii"))
    if accepts:
        made.num_tickets = 0  # unread, they would turn the end of a connection into a break
    with tempfile.TemporaryDirectory(prefix="riverrun-tls-") as folder:  # ssl reads files only
        pair = []
        for name, content in (("certificate", credentials.certificate), ("key", credentials.key)):
            pair.append(os.path.join(folder, name))
            with open(os.open(pair[-1], os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
                file.write(content)
        made.load_cert_chain(*pair)
    return made


def unreachable(address: str, error: BaseException) -> TransportError:
    """The error of one who cannot talk to a process."""
    return TransportError(
        "transport.unreachable",
        f"cannot talk to {address}: {type(error).__name__}: {str(error)[:300]}",
        hint="the process there has ended, or the network does not let us through",
        address=address,
    )
