"""The wire: who may talk, what is bounded, and what becomes of everything else."""

from __future__ import annotations

import os
import pickle
import queue
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.engine.instance import Maker
from riverrun.engine.messages import Completed, Credit, Data, JoinRun, LeaveRun, Peers
from riverrun.engine.wiring import RoutedChanges as Rows
from riverrun.errors import OperatorFailed, TransportError
from riverrun.runtime import admission, departures, remote, worker_process
from riverrun.runtime.codec import shapes
from riverrun.runtime.codec.fragments import Decoder, Fragment
from riverrun.runtime.codec.plain import pack
from riverrun.runtime.network import connection
from riverrun.runtime.network.client import Asker
from riverrun.runtime.network.connection import Credentials
from riverrun.runtime.network.endpoint import Endpoint
from riverrun.runtime.network.link import INLINE, Link
from riverrun.runtime.remote import RemoteCluster
from riverrun.runtime.starts import STARTS
from riverrun.runtime.worker_process import Rendezvous, host_worker
from riverrun.spark.security import secured
from riverrun.state.changes import Changes
from tests.engine.flows import Model, check, contents, edge_rows, graph_maker
from tests.runtime.launchers import Threads, gone_by

MAKER = graph_maker()


class Box:
    """Keeps what comes in."""

    def __init__(self) -> None:
        self.writes: queue.Queue[tuple[int, list[Fragment], int]] = queue.Queue()
        self.ends: queue.Queue[tuple[int, bool]] = queue.Queue()
        self.open = threading.Event()
        self.open.set()
        self.decoder = Decoder()

    def receive(self, sender: int, stream: object, fragments: list[Fragment], size: int) -> None:
        self.open.wait(10)
        self.writes.put((sender, fragments, size))

    def ended(self, sender: int, stream: object, cleanly: bool) -> None:
        self.ends.put((sender, cleanly))

    def answer(self, question: str, argument: Any) -> Any:
        if question == "fail":
            error = OperatorFailed("operator.failed", "it failed", hint="mend it", node="a")
            error.__cause__ = ValueError("the reason")
            raise error
        return [question, argument]

    def rows(self, ticket: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        batches = [pa.record_batch({"n": [at] * 3}) for at in range(ticket)]
        return pa.schema({"n": pa.int64()}), iter(batches)

    def take_upload(self, about: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Any:
        if about == "refuse":
            raise TransportError("transport.moved", "cannot take them", hint="again")
        return [about, schema.names, sum(batch.num_rows for batch in batches)]

    def messages(self, count: int) -> list[Any]:
        """The next messages."""
        messages: list[Any] = []
        while len(messages) < count:
            _, fragments, _ = self.writes.get(timeout=10)
            decoded = [self.decoder.decode(fragment.head, fragment.body) for fragment in fragments]
            messages += [message for message in decoded if message is not None]
        return messages


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def credentials(request: pytest.FixtureRequest) -> Credentials:
    return secured(request.param)


@pytest.fixture
def box() -> Box:
    return Box()


@pytest.fixture
def endpoint(box: Box, credentials: Credentials) -> Iterator[Endpoint]:
    with Endpoint("127.0.0.1", box, credentials) as listening:
        yield listening


OpenLink = Callable[..., Link]


@pytest.fixture
def open_link(endpoint: Endpoint, credentials: Credentials) -> Iterator[OpenLink]:
    """Opens links to the endpoint; they end before it does, or it would wait for them."""
    links: list[Link] = []

    def opened(**options: Any) -> Link:
        links.append(Link(endpoint.address, 5, credentials, **options))
        return links[-1]

    yield opened
    for link in links:
        link.close(cleanly=False)


PLAIN = pytest.mark.parametrize("credentials", [Credentials()], ids=["plain"])


def await_epoch(cluster: RemoteCluster, epoch: int, seconds: float = 20) -> None:
    """Wait for an epoch, but not for ever."""
    with cluster._changed:
        assert cluster._changed.wait_for(lambda: cluster.completed > epoch, seconds)


def until(so: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def send_on(address: str, credentials: Credentials) -> None:
    """Messages until somebody minds."""
    link = Link(address, 1, credentials)
    try:
        for _ in range(1000):
            link.send([JoinRun()])
            time.sleep(0.005)
    finally:
        link.close()


# ---- endpoints


def test_questions_rows_and_rows_handed_in(endpoint: Endpoint, credentials: Credentials) -> None:
    asker = Asker(endpoint.address, credentials)
    assert asker.ask("what", {"a": (1, None)}) == ["what", {"a": (1, None)}]
    assert [batch.to_pydict()["n"] for batch in asker.rows(2)] == [[0] * 3, [1] * 3]
    handing = asker.begin_upload("x", pa.schema({"n": pa.int64()}))
    for _ in range(3):
        handing.write(pa.record_batch({"n": [1, 2]}))
    assert handing.done() == ["x", ["n"], 6]
    with pytest.raises(OperatorFailed, match="it failed") as caught:
        asker.ask("fail")
    assert caught.value.fields == {"node": "a"}
    assert isinstance(caught.value.__cause__, ValueError)
    refused = asker.begin_upload("refuse", pa.schema({"n": pa.int64()}))
    with pytest.raises(TransportError, match="cannot take them"):
        refused.done()
    asker.close()


def test_who_has_no_token_is_refused_and_counted(
    endpoint: Endpoint, box: Box, credentials: Credentials
) -> None:
    wrong = Credentials("guess", credentials.certificate, credentials.key, credentials.name)
    assert "guess" not in repr(wrong)
    asker = Asker(endpoint.address, wrong)
    attempts: list[Callable[[], Any]] = [
        lambda: asker.ask("what"),
        lambda: list(asker.rows(2)),
        lambda: asker.begin_upload("x", pa.schema({"n": pa.int64()})).done(),
    ]
    for attempt in attempts:
        with pytest.raises(TransportError, match="refuses our token") as caught:
            attempt()
        assert caught.value.code == "transport.token"
    assert endpoint.refused == 3
    with pytest.raises(TransportError):
        send_on(endpoint.address, wrong)
    asker.close()
    assert endpoint.refused == 4
    assert box.writes.empty()
    assert box.ends.empty()


def test_a_certificate_is_asked_for() -> None:
    ours = secured(True)
    with Endpoint("127.0.0.1", Box(), ours) as endpoint:
        assert endpoint.address.startswith("tls://")
        theirs = secured(True)
        strangers = [
            Credentials(ours.token, theirs.certificate, theirs.key),
            Credentials(ours.token),
        ]
        for stranger in strangers:
            asker = Asker(endpoint.address, stranger)
            with pytest.raises(TransportError):
                asker.ask("what", within=5)
            asker.close()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # knows whom it talks to, shows nothing
        assert ours.certificate is not None
        context.load_verify_locations(cadata=ours.certificate.decode())
        where = urlsplit(endpoint.address)
        with (
            pytest.raises(OSError, match=r"(?i)certificate|reset|violation"),
            socket.create_connection((where.hostname, where.port), 10) as raw,
            context.wrap_socket(raw, server_hostname=ours.name) as bare,
        ):
            ours._enter(bare, time.monotonic() + 5)
        asker = Asker(endpoint.address, ours)
        assert asker.ask("what") == ["what", None]
        asker.close()
        until(lambda: (endpoint.refused, endpoint.garbage) == (2, 1))  # no TLS is something else


@PLAIN
def test_bytes_that_are_no_fragments(
    endpoint: Endpoint, box: Box, credentials: Credentials
) -> None:
    source = random.Random(3)
    where = urlsplit(endpoint.address)
    for size in (1, 100, 5000):
        with socket.create_connection((where.hostname, where.port)) as raw, suppress(OSError):
            raw.sendall(source.randbytes(size))
            raw.settimeout(0.2)
            raw.recv(100)
    for head in (source.randbytes(40), pack(5), pack([1, 2]), _listed([(3, 4)]), b""):
        for kind in (connection.FRAGMENTS, connection.ASK, 99):
            member = credentials.connect(endpoint.address)
            member.send(connection.LINK, pack(77))
            member.send(kind, head)
            assert box.ends.get(timeout=10) == (77, False)
            member.close()
    assert box.writes.empty()
    for head in (source.randbytes(20), pickle.dumps(os.getcwd), pack("no pair")):
        for kind in (connection.ASK, connection.ROWS, connection.UPLOAD):
            member = credentials.connect(endpoint.address)
            member.send(kind, head)
            answer = member.receive()
            assert answer is not None
            assert answer.kind == connection.ERROR
            member.close()
    for kind in (0, connection.ANSWER, connection.BATCH, connection.FRAGMENTS, 99, 255):
        member = credentials.connect(endpoint.address)
        member.send(kind, b"what")
        assert member.receive() is None
        member.close()
    asker = Asker(endpoint.address, credentials)
    assert asker.ask("what") == ["what", None]
    asker.close()


def _listed(fragments: list[tuple[Any, Any]]) -> bytes:
    return msgspec.msgpack.encode(fragments)


# ---- links


def test_messages_arrive_in_order_and_the_end_is_told(open_link: OpenLink, box: Box) -> None:
    link = open_link()
    large = Changes.of([pa.array(range(40_000))], (0,))
    assert large.columns[0].nbytes > INLINE
    for at in range(60):
        payload = Rows((at, large)) if at % 20 == 7 else ("small", at)
        link.send([Data(1, at, payload)])
    messages = box.messages(60)
    assert [message.number for message in messages] == list(range(60))
    assert messages[7].payload[1].columns[0].equals(large.columns[0])
    link.close()
    assert box.ends.get(timeout=10) == (5, True)
    with pytest.raises(TransportError, match="the link is closed"):
        link.send([JoinRun()])
    link.close()


@PLAIN
def test_a_break_is_told(open_link: OpenLink, box: Box) -> None:
    link = open_link()
    link.send([JoinRun()])
    assert box.messages(1) == [JoinRun()]
    link.close(cleanly=False)
    assert box.ends.get(timeout=10) == (5, False)


@PLAIN
def test_a_dead_receiver_is_noticed(credentials: Credentials) -> None:
    endpoint = Endpoint("127.0.0.1", Box(), credentials)
    address = endpoint.address
    endpoint.shutdown()
    with pytest.raises(TransportError) as caught:
        send_on(address, credentials)
    assert caught.value.code == "transport.unreachable"
    asker = Asker(address, credentials)
    with pytest.raises(TransportError, match="cannot talk to"):
        asker.ask("what", within=5)
    asker.close()


@PLAIN
def test_small_messages_travel_together(open_link: OpenLink, box: Box) -> None:
    link = open_link()
    link.send([Completed(1, at) for at in range(2000)])
    assert [message.epoch for message in box.messages(2000)] == list(range(2000))
    link.close()
    written = link.sent
    assert written < 2000 * 200
    link = open_link()
    link.send([Completed(1, at) for at in range(2000)])
    until(lambda: box.writes.qsize() > 0)
    time.sleep(0.05)
    assert box.writes.qsize() <= 3
    link.close()


@PLAIN
@pytest.mark.parametrize("size", [1000, INLINE + 1000])
def test_no_more_is_under_way_than_the_window_allows(
    open_link: OpenLink, box: Box, size: int
) -> None:
    """What is beyond waits here, on disk; credit lets it through, all of it, in order."""
    window = 8 * size
    link = open_link(window=window, budget=3 * size)
    count = 40
    column = pa.array([b"x" * (size // 10)] * 10)
    rows = Changes.of([column], (0,))
    link.send([Data(1, at, Rows((0, rows))) for at in range(count)])
    assert link.full
    messages, under_way, most = [], 0, 0
    decoder = Decoder()
    while len(messages) < count:
        quiet = 0
        while quiet < 3:  # all that comes without credit
            try:
                _, fragments, taken = box.writes.get(timeout=0.05)
            except queue.Empty:
                quiet += 1
                continue
            under_way += taken
            messages += [decoder.decode(fragment.head, fragment.body) for fragment in fragments]
        most = max(most, under_way)
        if len(messages) < count:
            assert link.full
            assert link.waiting == count - len(messages)
            assert link._spool._bytes <= 3 * size
            assert link._spool.spilled >= link.waiting - 3
        link.credit(under_way)
        under_way = 0
    assert most <= window + 2 * size + (256 << 10 if size < INLINE else 0)
    assert [message.number for message in messages] == list(range(count))
    until(lambda: not link.full)
    link.close()


@PLAIN
def test_credit_passes_what_waits(open_link: OpenLink, box: Box) -> None:
    link = open_link(window=1000)
    link.send([Data(1, at, b"x" * 600) for at in range(9)])
    until(lambda: link.waiting < 9)
    while not box.writes.empty():
        box.writes.get()
    assert link.full
    link.give(123)
    until(lambda: not box.writes.empty())
    said: list[Any] = []
    while Credit(123) not in said:
        said += box.messages(1)
    assert link.full
    link.close()


@PLAIN
def test_who_sends_never_waits_for_the_receiver(open_link: OpenLink, box: Box) -> None:
    link = open_link()
    box.open.clear()  # the receiver may be stopped
    rows = Changes.of([pa.array([b"x" * 3000])], (0,))
    for at in range(200):
        link.send([Data(1, at, Rows((0, rows)))], taken=at)
    box.open.set()
    messages = box.messages(399)  # credit travels with them
    assert [each.number for each in messages if type(each) is Data] == list(range(200))


@pytest.fixture
def deaf(credentials: Credentials) -> Iterator[str]:
    """The address of a process that lets others in and then takes nothing, as one that is stopped or cut off."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        accepted = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    raw, _ = listening.accept()
                    accepted.append(raw := credentials.wrap(raw))
                    assert credentials.admit(raw, time.monotonic() + 10)
                    raw.sendall(connection.WELCOME)

        threading.Thread(target=accept, daemon=True).start()
        yield credentials.location("127.0.0.1", listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
        for raw in accepted:
            raw.close()


def test_a_receiver_that_takes_nothing_holds_nobody_up(deaf: str, credentials: Credentials) -> None:
    before = set(threading.enumerate())
    link = Link(deaf, 5, credentials, window=1 << 20)
    assert link._connection is not None
    link._connection._raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    rows = Changes.of([pa.array([b"x" * 50_000])], (0,))
    sending = threading.Thread(
        target=lambda: [link.send([Data(1, at, Rows((0, rows)))], taken=9) for at in range(40)],
        daemon=True,
    )
    sending.start()
    sending.join(60)
    held_up = sending.is_alive()
    full = link.full
    link.close(cleanly=False)
    assert not held_up
    assert full
    gone_by(before)


@pytest.fixture
def mute(credentials: Credentials) -> Iterator[str]:
    """The address of a process that is stopped: the kernel accepts connections, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield credentials.location("127.0.0.1", listening.getsockname()[1])


def test_nobody_waits_for_a_link_to_one_who_never_answers(
    mute: str, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "OPENING", 3.0)
    broken: queue.SimpleQueue[Link] = queue.SimpleQueue()
    before, began = set(threading.enumerate()), time.monotonic()
    link = Link(mute, 5, credentials, window=1 << 20, broken=broken.put)
    rows = Changes.of([pa.array([b"x" * 50_000])], (0,))
    for at in range(40):
        link.send([Data(1, at, Rows((0, rows)))], taken=9)
    link.give(7)
    assert time.monotonic() - began < 2
    assert link.full
    assert broken.get(timeout=20) is link
    with pytest.raises(TransportError, match="the link is closed"):
        link.send([JoinRun()])
    link.close()
    gone_by(before)


def test_what_is_sent_while_a_link_is_opened_arrives_in_order(
    box: Box, endpoint: Endpoint, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, connect = threading.Event(), Credentials.connect

    def slow(self: Credentials, address: str, within: float | None = None) -> Any:
        assert opened.wait(20)
        return connect(self, address, within)

    monkeypatch.setattr(Credentials, "connect", slow)
    link = Link(endpoint.address, 5, credentials, broken=lambda link: None)
    rows = [Data(1, at, Rows((0, Changes.of([pa.array([at])], (0,))))) for at in range(20)]
    link.send(rows[:10])
    threading.Timer(0.2, opened.set).start()
    link.send(rows[10:15])
    until(lambda: link._connection is not None)
    link.send(rows[15:])
    assert [message.number for message in box.messages(20)] == list(range(20))
    link.close()
    assert box.ends.get(timeout=10) == (5, True)


@PLAIN
def test_a_link_that_is_closed_while_it_is_opened_was_never_there(
    box: Box, endpoint: Endpoint, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that heard of it would think that messages were lost."""
    opened, connect = threading.Event(), Credentials.connect

    def slow(self: Credentials, address: str, within: float | None = None) -> Any:
        assert opened.wait(20)
        return connect(self, address, within)

    before = set(threading.enumerate())
    monkeypatch.setattr(Credentials, "connect", slow)
    broken: queue.SimpleQueue[Link] = queue.SimpleQueue()
    link = Link(endpoint.address, 5, credentials, broken=broken.put)
    link.send([JoinRun()])
    link.close(cleanly=False)
    opened.set()
    until(lambda: not [t for t in set(threading.enumerate()) - before if "link" in t.name])
    with pytest.raises(queue.Empty):
        box.ends.get(timeout=0.3)
    assert box.writes.empty()
    assert broken.empty()


@pytest.mark.parametrize("comes", [True, False])
def test_a_worker_that_opens_a_link_goes_on_meanwhile(
    hosts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """Be it that the peer comes at last, or that it does not, and another execution mends what is missing."""
    asked, slow = threading.Event(), threading.Event()

    class Slow:
        """Opens a connection when it was waited for long enough."""

        def __init__(self, credentials: Credentials) -> None:
            self.credentials = credentials

        def connect(self, address: str) -> Any:
            asked.set()
            slow.wait(6)
            if not comes and not slow.is_set():
                slow.set()
                raise connection.unreachable(address, TimeoutError())
            return self.credentials.connect(address)

    def link(address: str, sender: int, credentials: Credentials, **options: Any) -> Link:
        to_peer = address != where[0]
        return Link(address, sender, Slow(credentials) if to_peer else credentials, **options)  # type: ignore[arg-type]

    where: list[str] = []
    join = worker_process._WorkerHost.join

    def joining(self: Any, rendezvous: Any) -> None:
        where[:] = [rendezvous.address]
        join(self, rendezvous)

    monkeypatch.setattr(worker_process._WorkerHost, "join", joining)
    monkeypatch.setattr(worker_process, "Link", link)
    with remotely(2, checkpoint=tmp_path, every=None) as cluster:
        model = Model(7)
        committed = threading.Thread(target=lambda: commit(cluster, model), daemon=True)
        committed.start()
        assert asked.wait(20)
        longest = 0.0
        while not slow.is_set() and committed.is_alive() and longest < 5:
            began = time.monotonic()
            for host in hosts:
                with (
                    Asker(host._endpoint.address, cluster.credentials) as asker,
                    suppress(TransportError),
                ):
                    asker.ask("stats", within=10)
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.1)
        slow.set()
        committed.join(30)
        assert not committed.is_alive()
        commit(cluster, model)
        assert longest < 3
        assert (cluster.status()["execution"] > 1) == (not comes)


@PLAIN
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel cannot")
def test_a_link_whose_receiver_takes_nothing_breaks(
    deaf: str, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.runtime.network.link.UNTAKEN", 0.5)
    link = Link(deaf, 5, credentials, silence=1.0)
    rows = Changes.of([pa.array([b"x" * 10_000_000])], (0,))
    link.send([Data(1, 1, Rows((0, rows)))])
    until(lambda: link._over)
    with pytest.raises(TransportError, match="the link is closed"):
        link.send([JoinRun()])
    link.close()


@PLAIN
def test_rows_may_be_read_slowly(credentials: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked for rows may have much to do with each: only links break when nothing is taken."""
    monkeypatch.setattr("riverrun.runtime.network.link.UNTAKEN", 0.2)
    piece = pa.record_batch({"n": [b"x" * 10_000_000]})

    class Long(Box):
        def rows(self, ticket: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
            return piece.schema, iter([piece] * 3)

    with (
        Endpoint("127.0.0.1", Long(), credentials) as endpoint,
        Asker(endpoint.address, credentials) as asker,
    ):
        rows = asker.rows(1)
        assert next(rows).num_rows == 1
        time.sleep(1.5)
        assert sum(1 for _ in rows) == 2


@PLAIN
def test_closing_during_a_long_write(open_link: OpenLink, box: Box) -> None:
    before = set(threading.enumerate())
    link = open_link(window=1 << 30)
    box.open.clear()
    rows = Changes.of([pa.array([b"x" * (1 << 20)] * 3)], (0,))
    link.send([Data(1, at, Rows((0, rows))) for at in range(20)])
    until(lambda: bool(link._rest))
    closing = threading.Thread(target=link.close)
    closing.start()
    time.sleep(0.05)
    box.open.set()
    closing.join(10)
    assert not closing.is_alive()
    box.ends.get(timeout=10)
    gone_by(before)


# ---- clusters


def remotely(workers: int = 2, **options: Any) -> RemoteCluster:
    return RemoteCluster(Threads(MAKER), workers, timeout=30, **options)


def commit(cluster: RemoteCluster, model: Model, rows: int = 6) -> None:
    cluster.wait(cluster.submit(model.draw(rows)))
    check(cluster, model)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The insides of all workers, as they are made."""
    hosts: list[Any] = []
    init = worker_process._WorkerHost.__init__

    def noting(self: Any, *arguments: Any) -> None:
        hosts.append(self)
        init(self, *arguments)

    monkeypatch.setattr(worker_process._WorkerHost, "__init__", noting)
    return hosts


def test_a_run_with_tls(hosts: list[Any]) -> None:
    with remotely(2, credentials=secured(True)) as cluster:
        assert cluster.address.startswith("tls://")
        model = Model(1)
        for _ in range(3):
            commit(cluster, model)
        assert cluster.status()["refused"] == 0


def test_links_to_workers_that_left_are_ended(hosts: list[Any], tmp_path: Path) -> None:
    """Nobody comes in their place who would be told of: fewer are wanted."""
    with remotely(3, checkpoint=tmp_path) as cluster:
        model = Model(7)
        for _ in range(3):
            commit(cluster, model, 30)
        assert all(len(each._links) == 3 for each in hosts)
        cluster.scale(1)
        commit(cluster, model)
        (left,) = [each for each in hosts if not each._over.is_set()]
        until(lambda: set(left._links) == {0})
        until(lambda: len(cluster._crew.peers.linked) == 1)
        assert left._addresses.keys() == set(cluster._crew.peers.linked)


def test_garbage_is_dropped_and_the_run_goes_on(hosts: list[Any], tmp_path: Path) -> None:
    trace = tmp_path / "was-here"

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {trace}",)

    source = random.Random(8)
    with remotely(2) as cluster:
        model = Model(2)
        commit(cluster, model)
        _, members = cluster.members()
        addresses = [cluster.address, *(address for _, address in members)]
        for address in addresses:
            where = urlsplit(address)
            with socket.create_connection((where.hostname, where.port)) as raw:
                raw.sendall(source.randbytes(3000))
            stranger = Asker(address, Credentials())
            with pytest.raises(TransportError, match="refuses our token"):
                stranger.ask("join", {})
            stranger.close()
            asker = Asker(address, cluster.credentials)
            for question in ("", "close", "__init__", "no such thing"):
                with pytest.raises(TransportError, match="no such question"):
                    asker.ask(question)
            asker.close()
            heads = [
                source.randbytes(50),
                _listed([(source.randbytes(50), None)]),
                _listed([(pickle.dumps(Evil()), None)]),
                _listed([(pack(5), None)]),
                _listed([(pack("text"), None)]),
                _listed([(shapes.write(Peers({})), None)]),
                _listed([(shapes.write(LeaveRun()), None)]),
                _listed([(shapes.write(Completed(1, 99)), None)]),
            ]
            for sender in (0, 1, 2, 77):
                for head in heads:
                    member = cluster.credentials.connect(address)
                    member.send(connection.LINK, pack(sender))
                    with suppress(OSError):
                        member.send(connection.FRAGMENTS, head)
                        member.send(connection.BYE)
                    member.close()
        for _ in range(3):
            commit(cluster, model)
        status = cluster.status()
        assert status["refused"] == 1
        assert status["garbage"] > 5
        assert status["workers"] == 2
        assert len(hosts) == 2  # nobody was lost
        assert all(each.garbage > 5 for each in hosts)
    assert not trace.exists()


@pytest.mark.parametrize("workers", [2, 3])
def test_full_windows_in_all_directions(
    hosts: list[Any], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Tiny windows, hardly any memory, a loop: everybody waits for everybody, and all goes on."""
    monkeypatch.setattr(worker_process, "Link", partial(Link, budget=500))
    with remotely(workers, window=2000) as cluster:
        model = Model(3)
        model.edges.clear()
        for _ in range(3):
            await_epoch(cluster, cluster.submit(model.draw(60)))
            check(cluster, model)
        many = [(at % 9, at % 8, 1) for at in range(4000)]
        model.count({"edges": edge_rows(many)})
        await_epoch(cluster, cluster.submit({"edges": edge_rows(many)}))
        check(cluster, model)


class Flooding:
    """Worker 0 sends a lot to worker 1, a piece a step; both ways, if told to."""

    pieces = 200
    size = 10_000

    def __init__(self, both: bool) -> None:
        self.both = both
        self.hold = threading.Event()
        self.steps = [0, 0]
        self.received = [0, 0]

    def __call__(self, index: int, bounds: Any, epoch: int, states: Any, /) -> Any:
        return _Flood(self, index, epoch)


class _Flood:
    def __init__(self, flood: Flooding, index: int, epoch: int) -> None:
        self.flood, self.index, self.completed = flood, index, epoch
        self.fed = epoch
        self.touched = self.got = 0
        self.left = self.wanted = 0
        self.out: list[Any] = []

    def feed(self, epoch: int, inputs: Any) -> None:
        self.fed = epoch + 1
        both = self.flood.both
        self.left = self.flood.pieces if both or self.index == 0 else 0
        self.wanted = self.flood.pieces if both or self.index == 1 else 0

    def receive(self, sender: int, payload: Any) -> None:
        if self.index == 1:
            assert self.flood.hold.wait(30)
        assert payload[0] == self.got
        self.got += 1
        self.flood.received[self.index] += 1

    def work(self) -> bool:
        if self.left:
            number = self.flood.pieces - self.left
            self.left -= 1
            self.flood.steps[self.index] += 1
            self.out.append((1 - self.index, (number, b"x" * self.flood.size)))
            return True
        if self.fed > self.completed and self.got == self.wanted:
            self.completed = self.fed
            return True
        return False

    def take(self) -> list[Any]:
        out, self.out = self.out, []
        return out

    def notes(self) -> tuple[dict[str, Any], ...]:
        return ()

    def pin(self) -> dict[str, Any]:
        return {}


def test_a_slow_receiver_stops_its_sender() -> None:
    flood = Flooding(both=False)
    with RemoteCluster(Threads(flood), 2, window=100_000, timeout=30) as cluster:
        epoch = cluster.submit({})
        until(lambda: flood.steps[0] >= 8)
        time.sleep(0.4)  # nothing happens
        assert flood.steps[0] <= 25
        assert flood.received[1] == 0
        flood.hold.set()
        await_epoch(cluster, epoch)
        assert flood.received == [0, 200]


def test_two_that_flood_each_other_go_on() -> None:
    flood = Flooding(both=True)
    flood.pieces = 60
    with RemoteCluster(Threads(flood), 2, window=20_000, timeout=30) as cluster:
        epoch = cluster.submit({})
        until(lambda: flood.steps[0] >= 2)
        time.sleep(0.2)
        flood.hold.set()
        await_epoch(cluster, epoch)
        assert flood.received == [60, 60]


@pytest.mark.parametrize("path", [False, True])
def test_a_broken_link_leads_to_another_execution(
    hosts: list[Any], tmp_path: Path, path: bool
) -> None:
    with remotely(2, checkpoint=tmp_path if path else None, every=None) as cluster:
        model = Model(5)
        commit(cluster, model)
        execution = cluster.status()["execution"]
        link = hosts[0]._links[hosts[1]._worker.incarnation]
        link.close(cleanly=False)  # under it: it still thinks that it can be used
        until(lambda: cluster.status()["execution"] > execution)
        for _ in range(3):
            commit(cluster, model)
        assert len(hosts) == 2


def test_rows_that_were_handed_in_are_there_when_the_epoch_is_done_again(hosts: list[Any]) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def slow(row: dict[str, Any]) -> list[dict[str, Any]]:
        arrived.set()
        assert go_on.wait(20)
        return [row]

    flow = rr.Dataflow("slow")
    numbers = flow.input("numbers", {"n": pl.Int64})
    flow.output("counts", numbers.flat_map(slow, {"n": pl.Int64}).group_by("n").count())
    with RemoteCluster(Threads(Maker(flow.plan)), 2, timeout=30) as cluster:
        execution, members = cluster.members()
        parcels: list[Any] = []
        for member, address in members:
            asker = Asker(address, cluster.credentials)
            rows = pa.record_batch({"n": [1, 2, 3, 4], "diff": [1, 1, 1, 1]})
            handing = asker.begin_upload((f"up-{member}", member, execution), rows.schema)
            handing.write(rows)
            parcels += handing.done()
            asker.close()
        epoch = cluster.submit({}, parcels={"numbers": tuple(parcels)})
        assert arrived.wait(20)
        link = Link(members[0][1], members[1][0], cluster.credentials)
        link.send([Data(1, 99, None)])
        link.close(cleanly=False)  # what the other one sent is lost, it seems
        go_on.set()
        cluster.wait(epoch)
        assert cluster.status()["execution"] > execution
        assert contents(cluster.read("counts", epoch)) == {(n, 2): 1 for n in range(1, 5)}


def test_a_worker_that_falls_silent_is_replaced(
    hosts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections are open, and nothing comes."""
    monkeypatch.setattr(remote, "TICK", 0.05)
    monkeypatch.setattr(worker_process, "BEAT", 0.05)
    monkeypatch.setattr(departures, "GRACE", 0.5)
    with remotely(2, checkpoint=tmp_path, every=None, silence=2) as cluster:
        model = Model(6)
        commit(cluster, model)
        silent = hosts[0]
        silent._links[0].send = lambda messages: None
        until(lambda: len(hosts) > 2, 20)
        for _ in range(2):
            commit(cluster, model)
        assert silent._worker.incarnation not in [member for member, _ in cluster.members()[1]]


def test_a_worker_without_a_coordinator_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "BEAT", 0.05)
    monkeypatch.setattr(worker_process, "LEFT_ALONE", 0.3)
    launcher = Threads(MAKER)
    with RemoteCluster(launcher, 1, timeout=30, silence=1) as cluster:
        cluster._tell_workers = lambda message: None  # type: ignore[method-assign]
        launcher.threads[0].join(20)
        assert launcher.why == {1: "the coordinator was not heard for 2 s"}


# ---- starts


def test_who_comes_uncalled_gets_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "GRANT", 0.2)
    with remotely(2) as cluster:
        model = Model(7)
        commit(cluster, model)
        said: list[str] = []
        again = Rendezvous(cluster.address, cluster.credentials, ticket=1)
        twin = threading.Thread(target=lambda: said.append(host_worker(again, MAKER)))
        twin.start()  # of one that lives: it may be needed yet
        other = Rendezvous(cluster.address, cluster.credentials, ticket=99)
        assert host_worker(other, MAKER) == "there is no worker to be"
        commit(cluster, model)
        assert cluster.status()["workers"] == 2
        assert cluster.status()["execution"] == 1
        assert not said
    twin.join(20)
    assert said == ["there is no worker to be"]


def test_versions_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    monkeypatch.setattr(
        worker_process, "versions", lambda: {**admission.versions(), "polars": "0.1"}
    )
    with pytest.raises(TransportError, match=r"polars \S+ here and 0.1 there") as caught:
        remotely(2).close()
    assert caught.value.code == "run.versions"
    assert "same versions everywhere" in str(caught.value)
    gone_by(before)


def test_a_worker_that_is_not_let_in_leaves_nothing_behind(hosts: list[Any]) -> None:
    before = set(threading.enumerate())
    with remotely(1) as cluster:
        wrong = Credentials()
        with pytest.raises(TransportError, match="refuses our token"):
            host_worker(Rendezvous(cluster.address, wrong), MAKER)
        assert cluster.status()["refused"] == 1
        where = urlsplit(hosts[-1]._endpoint.address)

        def is_over() -> bool:
            with suppress(ConnectionRefusedError):
                socket.create_connection((where.hostname, where.port)).close()
                return False
            return True

        until(is_over)
    gone_by(before)


def test_a_worker_that_has_left_answers_nothing(hosts: list[Any]) -> None:
    """Or whoever asks would wait for ever: nobody works there any more."""
    with remotely(1):
        assert hosts[0].answer("stats", None)["pid"] == os.getpid()
    until(hosts[0]._over.is_set)
    with pytest.raises(TransportError, match="has left"):
        hosts[0].answer("stats", None)


class Absent(Threads):
    """Processes that never come up, or end at once."""

    def __init__(self, why: str | None) -> None:
        super().__init__(MAKER)
        self.said, self.started = why, 0

    def start(self, ticket: int) -> None:
        self.started += 1
        if self.said is not None:
            thread = threading.Thread(target=self.ended, args=(ticket, self.said), daemon=True)
            self.threads.append(thread)
            thread.start()

    def advice(self, present: int, wanted: int) -> str:
        return f"free some cores: {present} of {wanted}"


def test_processes_that_never_come_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "GRACE", 0.2)
    monkeypatch.setattr(remote, "TICK", 0.1)
    before = set(threading.enumerate())
    with pytest.raises(TransportError, match=r"0 of 3 workers reported within 0\.5 s") as caught:
        RemoteCluster(Absent(None), 3, timeout=0.5)
    assert caught.value.code == "run.not_ready"
    assert "free some cores: 0 of 3" in str(caught.value)
    gone_by(before)


def test_processes_that_end_at_once() -> None:
    before, launcher = set(threading.enumerate()), Absent("no module named riverrun")
    with pytest.raises(TransportError, match="no module named riverrun") as caught:
        RemoteCluster(launcher, 1, timeout=30)
    assert caught.value.code == "run.not_ready"
    assert launcher.started == STARTS
    gone_by(before)


def test_replacements_that_never_come_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "TICK", 0.1)
    monkeypatch.setattr(remote, "GRACE", 0.5)
    monkeypatch.setattr(departures, "GRACE", 0.5)
    launcher = Threads(MAKER)
    with RemoteCluster(launcher, 2, timeout=5, checkpoint=tmp_path) as cluster:
        model = Model(9)
        commit(cluster, model)
        monkeypatch.setattr(launcher, "start", lambda ticket: None)
        cluster._timeout = 0.5
        cluster.kill(0)
        with pytest.raises(TransportError, match="1 of 2 workers reported within"):
            cluster.wait(cluster.submit(model.draw()))
    launcher = Threads(MAKER)
    with RemoteCluster(launcher, 2, timeout=30, checkpoint=tmp_path) as cluster:
        check(cluster, model, changes=False)  # what was accepted is there
