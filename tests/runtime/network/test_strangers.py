"""Strangers: whoever has no token takes neither memory nor connections from a run; whoever has one is bounded too."""

from __future__ import annotations

import os
import random
import resource
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest

from riverrun.engine.instance import Instance
from riverrun.engine.wiring import RoutedChanges
from riverrun.errors import BadMessage, TransportError
from riverrun.operators.exchange import Exchange
from riverrun.runtime.codec.plain import pack
from riverrun.runtime.network import client, connection
from riverrun.runtime.network import endpoint as endpoints
from riverrun.runtime.network.client import Asker
from riverrun.runtime.network.connection import Connection, Credentials
from riverrun.runtime.network.endpoint import Endpoint
from riverrun.spark.security import secured
from riverrun.state import Schema
from riverrun.state.changes import Changes
from riverrun.state.shards import Shards
from tests.engine.flows import graph_flow
from tests.runtime.launchers import gone_by
from tests.soaking import first_seed

PLAIN = pytest.mark.parametrize("credentials", [Credentials()], ids=["plain"])


class Quiet:
    """Answers with what it was asked; counts the rows that are handed in."""

    def receive(self, *given: Any) -> None: ...
    def ended(self, *given: Any) -> None: ...

    def answer(self, question: str, argument: Any) -> Any:
        return argument

    def rows(self, ticket: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        batch = unsound() if ticket == "unsound" else pa.record_batch({"word": ["tea"] * ticket})
        return batch.schema, iter([batch])

    def take_upload(self, about: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Any:
        return sum(batch.num_rows for batch in batches)


def unsound() -> pa.RecordBatch:
    ends = pa.py_buffer(np.array([0, 5000, 6], np.int32))
    words = pa.Array.from_buffers(pa.string(), 2, [None, ends, pa.py_buffer(b"teaink")])
    return pa.record_batch([words], ["word"])


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def credentials(request: pytest.FixtureRequest) -> Credentials:
    return secured(request.param)


@pytest.fixture
def endpoint(credentials: Credentials) -> Iterator[Endpoint]:
    before = set(threading.enumerate())
    with Endpoint("127.0.0.1", Quiet(), credentials) as made:
        yield made
    gone_by(before)


def reach(endpoint: Endpoint) -> socket.socket:
    where = urlsplit(endpoint.address)
    return socket.create_connection((where.hostname, where.port), 10)


def until(so: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_closed(raw: socket.socket) -> bool:
    readable, _, _ = select.select([raw], [], [], 0)
    if not readable:
        return False
    try:
        return raw.recv(1 << 16) == b""
    except ConnectionError:
        return True


def held() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


# ---- without a token


def test_idle_connections_are_few_and_keep_nobody_out(
    endpoint: Endpoint, credentials: Credentials
) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(reach(endpoint)) for _ in range(3 * endpoints.STRANGERS)]
        until(lambda: len(endpoint._guests) <= endpoints.STRANGERS)
        until(lambda: sum(map(is_closed, idle[: endpoints.STRANGERS])) >= endpoints.STRANGERS - 1)
        with Asker(endpoint.address, credentials) as asker:
            for at in range(5):
                assert asker.ask("what", at) == at
            for _ in range(2 * endpoints.STRANGERS):  # a member is not one of them
                idle.append(stack.enter_context(reach(endpoint)))
            assert asker.ask("what", 7) == 7


def test_who_is_sent_away_while_tls_is_agreed_on_is_one_that_is_gone() -> None:
    ours, theirs = socket.socketpair()
    secure = secured(True)
    with theirs:
        wrapped = secure.wrap(ours)
        assert isinstance(wrapped, ssl.SSLSocket)
        wrapped._sslobj = None  # type: ignore[attr-defined]  # as `close` leaves it, between two lines of ssl.py
        with wrapped, pytest.raises(OSError, match="closed before TLS"):
            secure.admit(wrapped, time.monotonic() + 10)


def test_of_many_strangers_the_oldest_goes_of_the_host_with_most(endpoint: Endpoint) -> None:
    pairs = [socket.socketpair() for _ in range(5)]
    hosts = ["a", "b", "b", "b", "a"]
    guests = [
        endpoints._Guest(pair[0], host, at)
        for at, (pair, host) in enumerate(zip(pairs, hosts, strict=True))
    ]
    endpoint._guests.update(dict.fromkeys(guests))
    endpoint._make_room()
    assert list(endpoint._guests) == [guests[0], guests[2], guests[3], guests[4]]
    guests[2].member = guests[3].member = True
    endpoint._make_room()
    assert list(endpoint._guests) == guests[2:]
    endpoint._guests.clear()
    for pair in pairs:
        for each in pair:
            each.close()


@pytest.mark.parametrize("dribble", [b"", b"r", connection.MAGIC, b"\x16\x03"])
def test_who_does_not_say_who_they_are_is_closed(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, dribble: bytes
) -> None:
    """A byte now and then does not help."""
    monkeypatch.setattr(endpoints, "ADMISSION", 0.5)
    with reach(endpoint) as raw:
        start = time.monotonic()
        for byte in dribble:
            with suppress(OSError):
                raw.sendall(bytes([byte]))
        while not is_closed(raw):
            assert time.monotonic() - start < 60
            with suppress(OSError):
                raw.sendall(dribble[-1:] if len(dribble) == 1 else b"")
            time.sleep(0.1)
    until(lambda: not endpoint._guests)


@pytest.mark.parametrize("opening", [b"", connection.MAGIC + bytes(16), b"PRI * HTTP/2.0\r\n\r\n"])
def test_a_stranger_does_not_fill_memory(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, opening: bytes
) -> None:
    monkeypatch.setattr(endpoints, "ADMISSION", 3.0)
    before, sent = held(), 0
    with reach(endpoint) as raw:
        raw.settimeout(1)
        with suppress(OSError):
            raw.sendall(opening)
            while sent < 300 << 20:
                sent += raw.send(bytes(1 << 20))
        assert held() - before < 32 << 20
    assert sent < 16 << 20  # what the kernel takes


@PLAIN
def test_the_token_does_not_travel(credentials: Credentials) -> None:
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            raw, _ = listener.accept()
            with raw:
                seen.append(raw.recv(1000))
                raw.sendall(bytes(connection.NONCE + connection.PROOF))
                seen.append(raw.recv(1000))
                raw.sendall(connection.WELCOME)
                raw.recv(1000)

        thread = threading.Thread(target=pretend)
        thread.start()
        address = credentials.location("127.0.0.1", listener.getsockname()[1])
        with (
            pytest.raises(TransportError, match="token"),  # who listens there shows no token
            Asker(address, credentials) as asker,
        ):
            asker.ask("what")
        thread.join(10)
    for token in (credentials.token.encode(), bytes.fromhex(credentials.token)):
        assert token not in b"".join(seen)


@PLAIN
def test_what_was_said_once_lets_nobody_in(endpoint: Endpoint, credentials: Credentials) -> None:
    opening = connection.MAGIC + bytes(connection.NONCE)
    with reach(endpoint) as raw:
        raw.sendall(opening)
        answer = connection.receive_exactly(
            raw, connection.NONCE + connection.PROOF, time.monotonic() + 5
        )
        theirs = answer[: connection.NONCE]
        proof = credentials.proof(b"who opens", bytes(connection.NONCE), theirs)
        raw.sendall(proof)
        assert raw.recv(1) == connection.WELCOME
    for said in (proof, answer[connection.NONCE :]):  # of another time, and of the other end
        with reach(endpoint) as raw:
            raw.sendall(opening)
            raw.recv(1000)
            raw.sendall(said)
            assert raw.recv(1) == connection.REFUSED
    assert endpoint.refused == 2


VICTIM = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from tests.engine.flows import Model, check, graph_maker
from tests.runtime.launchers import Threads
from riverrun.runtime.remote import RemoteCluster
with RemoteCluster(Threads(graph_maker()), 2, timeout=60, checkpoint=sys.argv[1], every=1) as cluster:
    model = Model(1)
    print(cluster.address, *[address for _, address in cluster.members()[1]], flush=True)
    for line in sys.stdin:
        cluster.wait(cluster.submit(model.draw(6)))
        check(cluster, model)
        cluster.checkpoint()
        print(cluster.completed, flush=True)
"""


def test_a_run_goes_on_where_files_are_few(tmp_path: Any) -> None:
    """1,500 idle connections, where 256 files can be open."""
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.getcwd(),
    ) as victim:
        assert victim.stdin is not None
        assert victim.stdout is not None
        addresses = victim.stdout.readline().split()
        assert len(addresses) == 3
        with ExitStack() as stack:
            for at in range(1500 if resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1800 else 600):
                where = urlsplit(addresses[at % 3])
                raw = socket.create_connection((where.hostname, where.port), 30)
                stack.enter_context(raw)
            for epoch in range(1, 4):
                victim.stdin.write("go\n")
                victim.stdin.flush()
                assert int(victim.stdout.readline()) == epoch
        victim.stdin.close()
        assert victim.wait(60) == 0


# ---- with a token


def test_members_are_bounded(
    endpoint: Endpoint, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MEMBERS", 3)
    members = [credentials.connect(endpoint.address) for _ in range(3)]
    with pytest.raises(TransportError, match="as many connections as it can") as caught:
        credentials.connect(endpoint.address)
    assert caught.value.code == "transport.full"
    members.pop().close()
    until(lambda: len(endpoint._guests) == 2)
    members.append(credentials.connect(endpoint.address))
    for member in members:
        member.close()


def test_a_member_that_asks_nothing_is_closed_and_comes_again(
    endpoint: Endpoint, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "IDLE", 0.2)
    with Asker(endpoint.address, credentials) as asker:
        for at in range(2):
            assert asker.ask("what", at) == at
            until(lambda: not endpoint._guests)
        assert asker.ask("what", 2) == 2
        monkeypatch.setattr(client, "REUSE", 0.0)
        assert asker.ask("what", 3) == 3


def test_a_connection_is_used_again(endpoint: Endpoint, credentials: Credentials) -> None:
    with Asker(endpoint.address, credentials) as asker:
        for at in range(5):
            assert asker.ask("what", at) == at
            assert sum(batch.num_rows for batch in asker.rows(3)) == 3
            stage = asker.begin_upload("x", pa.schema({"n": pa.int64()}))
            stage.write(pa.record_batch({"n": [1, 2]}))
            assert stage.done() == 2
        assert len(endpoint._guests) == 1
        for _ in asker.rows(3):
            break  # what was not read to its end is not used again
        assert asker.ask("what", 9) == 9
        until(lambda: len(endpoint._guests) == 1)


def lengths(kind: int, head: int, body: int) -> bytes:
    return connection._LENGTHS.pack(kind, head, body)


@pytest.mark.parametrize(
    "sent",
    [
        lengths(connection.ASK, 0xFFFFFFFF, -1),
        lengths(connection.ASK, 10, 1 << 40),
        lengths(connection.ASK, 10, -2),
        lengths(connection.LINK, 1, -1) + pack(5) + lengths(connection.FRAGMENT, 1, 1 << 31),
        lengths(connection.LINK, 1, -1) + pack(5) + lengths(connection.FRAGMENTS, 17 << 20, -1),
    ],
    ids=range(5),
)
def test_lengths_beyond_all_bounds(
    endpoint: Endpoint, credentials: Credentials, sent: bytes
) -> None:
    before = held()
    member = credentials.connect(endpoint.address)
    member._raw.sendall(sent)
    assert member.receive() is None
    member.close()
    assert held() - before < 32 << 20


def test_memory_is_taken_as_bytes_come(endpoint: Endpoint, credentials: Credentials) -> None:
    """A length of 2 GB is not 2 GB."""
    before = held()
    member = credentials.connect(endpoint.address)
    member.send(connection.LINK, pack(5))
    member._raw.sendall(lengths(connection.FRAGMENT, 0, connection.BODY) + bytes(1 << 20))
    time.sleep(0.2)
    assert held() - before < 256 << 20
    member.close()


def test_a_long_body_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_STEP", 1000)
    near, far = map(Connection, socket.socketpair())
    source = random.Random(first_seed())
    for size in (0, 1, 999, 1000, 1001, 5000, 300_001):
        body = source.randbytes(size)
        thread = threading.Thread(target=near.send, args=(7, b"head", body))
        thread.start()
        packet = far.receive()
        thread.join()
        assert packet is not None
        assert packet.body is not None
        assert (packet.kind, packet.head, packet.body.to_pybytes()) == (7, b"head", body)
        assert packet.body.address % 8 == 0 or not size
    near.close()
    assert far.receive() is None
    far.close()


def test_rows_that_are_not_sound_are_refused(endpoint: Endpoint, credentials: Credentials) -> None:
    """An offset that points elsewhere would show neighbouring memory."""
    with Asker(endpoint.address, credentials) as asker:
        stage = asker.begin_upload("x", unsound().schema)
        stage.write(unsound())
        with pytest.raises(TransportError, match="out of bounds") as caught:
            stage.done()
        assert caught.value.code == "transport.unreadable"
        with pytest.raises(TransportError, match="out of bounds"):
            list(asker.rows("unsound"))
        assert asker.ask("what", 1) == 1


def test_rows_of_other_columns_are_not_taken_in() -> None:
    """Kernels read columns as the plan says that they are."""
    plan = graph_flow().plan
    instance = Instance(plan, 0, Shards.even(2), 0)
    number = next(node.number for node in plan.nodes if isinstance(node.operator, Exchange))
    kinds = Schema(pa.schema([]), plan.nodes[number].schemas[0]).canonical
    depth = plan.nodes[number].depth
    whole = [pa.array([0, 1]).cast(kind) for kind in kinds]
    for payload in (
        "rows",
        RoutedChanges((number, Changes.of([pa.array([1.5, 2.5]), *whole[1:]], (0,) * depth))),
        RoutedChanges((number, Changes.of(whole[:-1] or [pa.array(["a"])], (0,) * depth))),
        RoutedChanges((number, Changes.of([*whole, whole[0]], (0,) * depth))),
        RoutedChanges((number, Changes.of(whole, (0,) * (depth + 1)))),
        RoutedChanges((10_000, Changes.of(whole, (0,) * depth))),
    ):
        with pytest.raises(BadMessage):
            instance.receive(1, payload)


def test_an_endpoint_listens_where_it_is_told_to_and_nowhere_else(endpoint: Endpoint) -> None:
    assert endpoint._socket.getsockname()[0] == "127.0.0.1"


def test_addresses_of_six_groups() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    credentials = Credentials()
    with Endpoint("::1", Quiet(), credentials) as endpoint:
        assert endpoint.address.startswith("tcp://[::1]:")
        with Asker(endpoint.address, credentials) as asker:
            assert asker.ask("what", 1) == 1
