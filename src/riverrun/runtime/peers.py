"""Peers: the processes that are workers of a run, or were, and what connects the coordinator with each of them.

`remote.RemoteCluster` uses this module under its lock; `incoming` alone needs no lock. A peer is entered when its
process is granted an incarnation. The peer stays when the process is gone: what the process said last may still be on
its way, and is told apart by the incarnation. Laws:

- **One stream each.** The first stream that says it comes from a worker is the stream of that worker. Another stream
  that says the same is refused, until the coordinator parts with the worker.
- **Credit.** Bytes that were taken in are owed to their sender; they are due once they are a quarter of its window.
- **Parted once.** `part` closes all that connects with a peer, without waiting for the other end; a second call does
  nothing.

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

from riverrun.runtime.codec.fragments import Decoder
from riverrun.runtime.network.client import QuestionLine
from riverrun.runtime.network.link import Link


@dataclass(slots=True)
class IncomingStream:
    """The state of one connection that brings fragments: its decoder, and the credit that its sender is owed."""

    decoder: Decoder = field(default_factory=Decoder)
    owed: int = 0
    """Bytes that were taken in, and for which no credit was given yet."""

    def owe(self, size: int, window: int) -> int:
        """Note that `size` more bytes were taken in; return the credit to be given now, 0 while that is little."""
        self.owed += size
        if self.owed * 4 < window:
            return 0
        due, self.owed = self.owed, 0
        return due


@dataclass(slots=True)
class Peer:
    """A process, and the connections with it while it takes part."""

    process: Mapping[str, Any]
    """The process's pid, host and address."""
    link: Link | None = None
    """On which messages to the process go."""
    line: QuestionLine | None = None
    """On which the process is asked."""
    stream: object | None = None
    """On which messages of the process come."""

    @property
    def address(self) -> str:
        """Where the process listens."""
        return str(self.process["address"])


class ConnectedPeers:
    """The peers of a coordinator, by incarnation."""

    def __init__(self) -> None:
        self._peers: dict[int, Peer] = {}
        self._incoming: dict[object, IncomingStream] = {}

    def __contains__(self, incarnation: int) -> bool:
        return incarnation in self._peers

    def enter(self, incarnation: int, process: Mapping[str, Any]) -> None:
        """Note that a process has been granted an incarnation."""
        self._peers[incarnation] = Peer(process)

    def connect(self, incarnation: int, link: Link, line: QuestionLine) -> None:
        """Note on which link and line a peer can be reached."""
        peer = self._peers[incarnation]
        peer.link, peer.line = link, line

    def part(self, incarnation: int) -> bool:
        """Close all that connects with a peer; return whether the peer was connected."""
        peer = self._peers.get(incarnation)
        if peer is None:
            return False
        self.end_questions(incarnation)
        link, peer.link, peer.stream = peer.link, None, None
        if link is not None:
            Thread(target=link.close, daemon=True).start()
        return link is not None

    def end_questions(self, incarnation: int) -> None:
        """Give a peer up: whoever waits for an answer of the peer gets an error at once."""
        peer = self._peers.get(incarnation)
        if peer is not None and peer.line is not None:
            line, peer.line = peer.line, None
            line.close()

    def link(self, incarnation: int) -> Link | None:
        """The link to a peer, while the peer is connected."""
        peer = self._peers.get(incarnation)
        return None if peer is None else peer.link

    def line(self, incarnation: int) -> QuestionLine | None:
        """The line to a peer, while the peer can be asked."""
        peer = self._peers.get(incarnation)
        return None if peer is None else peer.line

    def process(self, incarnation: int) -> Mapping[str, Any]:
        """The pid, host and address of the process of an incarnation; empty where none was granted."""
        peer = self._peers.get(incarnation)
        return {} if peer is None else peer.process

    def address(self, incarnation: int) -> str | None:
        """The address where a peer listens, or did when it was alive."""
        peer = self._peers.get(incarnation)
        return None if peer is None else peer.address

    def incarnation_at(self, address: str) -> int | None:
        """The incarnation that listens at an address: the latest of all that did."""
        return next((n for n in reversed(self._peers) if self._peers[n].address == address), None)

    @property
    def linked(self) -> dict[int, str]:
        """The incarnations that are connected, each with its address."""
        return {n: peer.address for n, peer in self._peers.items() if peer.link is not None}

    @property
    def links(self) -> list[Link]:
        """The links to all peers that are connected."""
        return [peer.link for peer in self._peers.values() if peer.link is not None]

    @property
    def lines(self) -> list[QuestionLine]:
        """The lines to all peers that can be asked."""
        return [peer.line for peer in self._peers.values() if peer.line is not None]

    def claim(self, incarnation: int, stream: object) -> bool:
        """Whether a stream that says it comes from a worker is the stream of that worker."""
        peer = self._peers[incarnation]
        if peer.stream is None:
            peer.stream = stream
        return peer.stream is stream

    def is_from(self, incarnation: int, stream: object) -> bool:
        """Whether a stream may be that of a worker: no other one is known to be."""
        peer = self._peers.get(incarnation)
        return peer is None or peer.stream is None or peer.stream is stream

    def incoming(self, stream: object) -> IncomingStream:
        """The state of a connection. Only the thread that reads from the connection calls this, without the lock."""
        incoming = self._incoming.get(stream)
        if incoming is None:
            incoming = self._incoming[stream] = IncomingStream()
        return incoming

    def stream_ended(self, stream: object) -> None:
        """Forget the state of a connection that is over."""
        self._incoming.pop(stream, None)
