"""Peers: the processes that workers of a run are, or were, and what connects the coordinator with each.

Used by `remote.RemoteCluster`, under its lock, but for `incoming`. A peer enters when an incarnation is granted to its
process, and stays: what a process that is gone said last is still told apart by its incarnation. Laws:

- **One stream each.** The first stream that says it is from a worker is; what another one says in its name is refused,
  until the worker is parted from.
- **Credit.** Bytes that were taken in are owed to the sender; they are due when they are a quarter of its window.
- **Parted once.** Parting closes what connects with a peer, without waiting for the other end.

>>> peers = ConnectedPeers()
>>> peers.enter(7, {"pid": 40, "host": "here", "address": "tcp://127.0.0.1:5000"})
>>> 7 in peers, peers.process(7)["pid"], peers.incarnation_at("tcp://127.0.0.1:5000")
(True, 40, 7)
>>> one, other = object(), object()
>>> peers.claim(7, one), peers.claim(7, other)
(True, False)
>>> peers.incoming(one).owe(20, window=100), peers.incoming(one).owe(9, window=100)
(0, 29)
>>> peers.part(7)  # it was never connected
False

Cost: a look into a dict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from riverrun.runtime.codec.frames import Decoder
from riverrun.runtime.network.client import Line
from riverrun.runtime.network.link import Link


@dataclass(slots=True)
class IncomingStream:
    """What one connection brings."""

    decoder: Decoder = field(default_factory=Decoder)
    owed: int = 0
    """Bytes for which no credit was given yet."""

    def owe(self, size: int, window: int) -> int:
        """So many bytes more were taken in: the credit that is due now, 0 while it is little."""
        self.owed += size
        if self.owed * 4 < window:
            return 0
        due, self.owed = self.owed, 0
        return due


@dataclass(slots=True)
class Peer:
    """A process, and what connects with it while it takes part."""

    process: Mapping[str, Any]
    """Its pid, host and address."""
    link: Link | None = None
    """Where messages to it go."""
    line: Line | None = None
    """Where it is asked."""
    stream: object | None = None
    """Where its messages come from."""

    @property
    def address(self) -> str:
        """Where it listens."""
        return str(self.process["address"])


class ConnectedPeers:
    """The peers of a coordinator, by incarnation."""

    def __init__(self) -> None:
        self._peers: dict[int, Peer] = {}
        self._incoming: dict[object, IncomingStream] = {}

    def __contains__(self, incarnation: int) -> bool:
        return incarnation in self._peers

    def enter(self, incarnation: int, process: Mapping[str, Any]) -> None:
        """A process is an incarnation from now on."""
        self._peers[incarnation] = Peer(process)

    def connect(self, incarnation: int, link: Link, line: Line) -> None:
        """It can be talked to."""
        peer = self._peers[incarnation]
        peer.link, peer.line = link, line

    def part(self, incarnation: int) -> bool:
        """Be done with a peer; whether it was connected."""
        peer = self._peers.get(incarnation)
        if peer is None:
            return False
        self.end_questions(incarnation)
        link, peer.link, peer.stream = peer.link, None, None
        if link is not None:
            Thread(target=link.close, daemon=True).start()
        return link is not None

    def end_questions(self, incarnation: int) -> None:
        """Whoever waits for an answer of this peer is told that it was given up."""
        peer = self._peers.get(incarnation)
        if peer is not None and peer.line is not None:
            line, peer.line = peer.line, None
            line.close()

    def link(self, incarnation: int) -> Link | None:
        """Where messages go, while it is connected."""
        peer = self._peers.get(incarnation)
        return None if peer is None else peer.link

    def line(self, incarnation: int) -> Line | None:
        """Where it is asked, while it is."""
        peer = self._peers.get(incarnation)
        return None if peer is None else peer.line

    def process(self, incarnation: int) -> Mapping[str, Any]:
        """Its pid, host and address; nothing of one that was never granted."""
        peer = self._peers.get(incarnation)
        return {} if peer is None else peer.process

    def address(self, incarnation: int) -> str | None:
        """Where it listens, or did."""
        peer = self._peers.get(incarnation)
        return None if peer is None else peer.address

    def incarnation_at(self, address: str) -> int | None:
        """Who listens at an address: the last one of all that did."""
        return next((n for n in reversed(self._peers) if self._peers[n].address == address), None)

    @property
    def linked(self) -> dict[int, str]:
        """Those that are connected, and their addresses."""
        return {n: peer.address for n, peer in self._peers.items() if peer.link is not None}

    @property
    def links(self) -> list[Link]:
        """Those of all that are connected."""
        return [peer.link for peer in self._peers.values() if peer.link is not None]

    @property
    def lines(self) -> list[Line]:
        """Those of all that can be asked."""
        return [peer.line for peer in self._peers.values() if peer.line is not None]

    def claim(self, incarnation: int, stream: object) -> bool:
        """A stream says that it is from a worker: whether it is."""
        peer = self._peers[incarnation]
        if peer.stream is None:
            peer.stream = stream
        return peer.stream is stream

    def is_from(self, incarnation: int, stream: object) -> bool:
        """Whether no other stream is known to be from a worker."""
        peer = self._peers.get(incarnation)
        return peer is None or peer.stream is None or peer.stream is stream

    def incoming(self, stream: object) -> IncomingStream:
        """What a connection brings. Asked by the one thread that reads from it, without the lock."""
        known = self._incoming.get(stream)
        if known is None:
            known = self._incoming[stream] = IncomingStream()
        return known

    def stream_ended(self, stream: object) -> None:
        """A connection is over."""
        self._incoming.pop(stream, None)
