"""A link: a stream of fragments from one process of a run to another.

The coordinator and the workers send their messages on links; the receiving end of a link is an `endpoint`. Laws:

- **In order.** Fragments of a link arrive in the order in which they were sent, up to the moment when the link breaks.
  The receiver learns that the link is over, and whether it was ended on purpose.
- **Windowed.** At most about `window` bytes of a link are under way at a time, that is, sent and not taken in by the
  receiver, who gives *credit* for bytes that it took in. More fragments wait at the sender (`spool`). Credit itself
  never waits: two processes whose windows are full would wait for each other's.
- **Adaptive.** A fragment leaves at once when no other waits before it. Small fragments that wait travel together in
  one write, and credit with them.
- **Nobody waits.** `send` writes the bytes that the operating system takes at once; a thread, which the link has from
  then on, writes the rest. A receiver that is stopped or cut off holds up this thread only, and the operating system
  breaks a link whose receiver takes nothing for long. A link that is made with `broken` is opened by a thread too:
  messages that are sent meanwhile wait here, and `broken` is called when the link cannot be opened, or breaks later.

Cost, between two processes of a machine with two cores that others kept busy: 90 to 110 microseconds for a message and
one back (130 with TLS); 0.4 to 0.6 GB/s of numbers and 0.4 to 0.5 of text (0.15 to 0.3 with TLS), made, sent, read and
checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Condition, RLock, Thread
from typing import Any

import msgspec

from riverrun.engine.messages import Credit
from riverrun.errors import TransportError
from riverrun.runtime.codec import shapes
from riverrun.runtime.codec.fragments import Encoder, Fragment
from riverrun.runtime.codec.plain import pack
from riverrun.runtime.network.connection import (
    BYE,
    FRAGMENT,
    FRAGMENTS,
    LINK,
    Connection,
    Credentials,
    unreachable,
)
from riverrun.runtime.network.spool import Spool

WINDOW = 32 << 20
INLINE = 64 << 10  # a body up to here travels in one write with others
TOGETHER = 256 << 10  # about so many bytes of small fragments travel in one write
UNTAKEN = 30.0
"""Seconds after which a link breaks whose receiver takes nothing, at least."""
_LAST = 16  # fragments that are still sent when a link is ended
_LAST_WRITE = 1.0  # seconds that a write may take when a link is ended
_encode = msgspec.msgpack.Encoder().encode


class Link:
    """A stream of fragments to another process; with `broken` a thread opens it."""

    def __init__(
        self,
        address: str,
        sender: int,
        credentials: Credentials,
        *,
        window: int = WINDOW,
        budget: int = 64 << 20,
        silence: float = UNTAKEN,
        broken: Callable[[Link], None] | None = None,
    ) -> None:
        """A receiver may take nothing for `silence` seconds without breaking the link.

        Without `broken`, making a link waits for the connection, and raises `TransportError` where that fails. With
        `broken`, making a link does not wait, and a thread calls `broken` when the link breaks.
        """
        self.address = address
        self.sent = 0
        """Bytes written so far."""
        self._window = window
        self._under_way = 0
        self._spool = Spool(budget)
        self._urgent: list[Fragment] = []
        self._encoder = Encoder()
        self._turn = Condition(RLock())
        self._rest: list[memoryview] = []
        """The rest of the packet that the thread writes."""
        self._thread: Thread | None = None
        self._over = False
        self._broken = broken
        self._connection: Connection | None = None
        if broken is None:
            self._open(sender, credentials, silence)
        else:
            opening = (sender, credentials, silence)
            Thread(target=self._open_on, args=opening, name="riverrun-link", daemon=True).start()

    def _open(self, sender: int, credentials: Credentials, silence: float) -> None:
        connection = credentials.connect(self.address)
        with self._turn:
            if self._over:  # the link was closed before it was open
                connection.close()
                return
            try:
                connection.break_after(max(silence, UNTAKEN))
                connection.send(LINK, pack(sender))
            except OSError as error:
                connection.close()
                raise unreachable(self.address, error) from error
            self._connection = connection
            self._turn.notify_all()
            self._flush()

    def _open_on(self, sender: int, credentials: Credentials, silence: float) -> None:
        """In a thread: open the link, and send the fragments that wait."""
        try:
            self._open(sender, credentials, silence)
        except TransportError:
            self._break()

    def _break(self) -> None:
        """In a thread: note that the link is broken, and call `broken`."""
        with self._turn:
            self._over = True
            self._turn.notify_all()
        if self._broken is not None:
            self._broken(self)

    @property
    def full(self) -> bool:
        """Whether at least as many bytes are under way or wait as the window has."""
        return self._under_way + self._spool.size >= self._window

    @property
    def waiting(self) -> int:
        """How many fragments wait here."""
        return len(self._spool)

    def send(self, messages: Iterable[Any], taken: int = 0) -> None:
        """Send messages; `TransportError` when the link is broken.

        `taken` gives credit along with them: how many of the receiver's bytes were taken in here.
        """
        with self._turn:
            if self._over:
                raise unreachable(self.address, OSError("the link is closed"))
            if taken:
                self._urgent.append(_credit(taken))
            for message in messages:
                for fragment in self._encoder.fragments(message):
                    self._spool.put(fragment)
                    if not _is_small(fragment):  # the fragment leaves while the next one is made
                        self._flush()
            self._flush()

    def give(self, size: int) -> None:
        """Give credit: tell the receiver that `size` of its bytes were taken in here."""
        with self._turn:
            if self._over:
                raise unreachable(self.address, OSError("the link is closed"))
            self._urgent.append(_credit(size))
            self._flush()

    def credit(self, size: int) -> None:
        """Take credit: the receiver has taken in `size` more bytes."""
        with self._turn:
            self._under_way = max(self._under_way - size, 0)
            if len(self._spool) and not self._over:
                self._flush()

    def _flush(self) -> None:
        """Write the fragments that the window lets through, as far as the kernel takes them; the thread writes the
        rest."""
        connection = self._connection
        if connection is None:  # `_open` sends the fragments that wait
            return
        while not self._rest and (fragments := self._next()):
            try:
                self._rest = connection.send_at_once(*_packet(fragments))
            except OSError as error:
                self._over = True
                self._turn.notify_all()
                raise unreachable(self.address, error) from error
            self.sent += sum([fragment.size for fragment in fragments])
        if not self._rest:
            return
        if self._thread is None:
            self._thread = Thread(target=self._write_on, name="riverrun-link", daemon=True)
            self._thread.start()
        self._turn.notify_all()

    def _next(self) -> list[Fragment]:
        """The fragments to write next, together: a long one, or a few short ones."""
        spool = self._spool
        fragments, self._urgent = self._urgent, []
        size = sum([fragment.size for fragment in fragments])
        if len(spool) and self._under_way < self._window:
            following = spool.peek()
            if not fragments and (following is None or not _is_small(following)):
                fragments.append(spool.take())
                size = fragments[0].size
            while size < TOGETHER and following is not None and _is_small(following):
                fragments.append(spool.take())
                size += following.size
                following = spool.peek()
        self._under_way += size
        return fragments

    def _write_on(self) -> None:
        """In a thread: write the bytes that the kernel did not take at once, without the lock."""
        connection = self._connection
        assert connection is not None
        with suppress(OSError, TransportError):  # the next `send` raises
            while True:
                with self._turn:
                    self._turn.wait_for(lambda: self._rest or self._over)
                    if not self._rest:
                        return
                    rest = self._rest
                connection.send_rest(list(rest))
                with self._turn:
                    self._rest = []
                    self._turn.notify_all()
                    if self._over:
                        return
                    self._flush()
        self._break()

    def close(self, *, cleanly: bool = True) -> None:
        """End the link; with `cleanly` the receiver learns that this was on purpose."""
        with self._turn:
            if cleanly:
                self._turn.wait_for(lambda: self._connection is not None or self._over, _LAST_WRITE)
            over, self._over = self._over, True
            self._turn.notify_all()
            cleanly = cleanly and not over
            cleanly = cleanly and self._turn.wait_for(lambda: not self._rest, _LAST_WRITE)
            last = [self._spool.take() for _ in range(min(len(self._spool), _LAST))]
            self._spool.clear()
            connection = self._connection
        if connection is None:
            return
        with suppress(OSError):
            if cleanly:
                connection.set_timeout(_LAST_WRITE)
                if last and all(map(_is_small, last)):
                    connection.send(*_packet(last))
                connection.send(BYE)
        connection.close()


def _packet(fragments: list[Fragment]) -> tuple[int, bytes, Any]:
    """A packet of one long fragment, or of a few short ones."""
    fragment = fragments[0]
    if not _is_small(fragment):
        return FRAGMENT, fragment.head, fragment.body
    listed = [
        (each.head, None if each.body is None else memoryview(each.body)) for each in fragments
    ]
    return FRAGMENTS, _encode(listed), None


def _credit(size: int) -> Fragment:
    return Fragment(shapes.write(Credit(size)))


def _is_small(fragment: Fragment) -> bool:
    return fragment.body is None or fragment.body.size <= INLINE
