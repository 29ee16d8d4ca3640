"""Every connection that is not let in counts once: as garbage, where it speaks something else, else as refused."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from riverrun.errors import TransportError
from riverrun.runtime.network import connection
from riverrun.runtime.network import endpoint as endpoints
from riverrun.runtime.network.client import Asker
from riverrun.runtime.network.connection import Credentials
from riverrun.runtime.network.endpoint import Endpoint
from riverrun.spark.security import secured
from tests.runtime.network.test_strangers import Quiet, until

pytestmark = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


def reached(endpoint: Endpoint) -> socket.socket:
    place = urlsplit(endpoint.address)
    return socket.create_connection((place.hostname, place.port), 10)


def counts(endpoint: Endpoint) -> tuple[int, int]:
    return endpoint.refused, endpoint.garbage


def is_over(raw: socket.socket) -> bool:
    try:
        while raw.recv(1 << 12):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"S", bytes(64), b"SSH-2.0-x\r\n"])
def test_who_speaks_something_else_is_closed_at_once_and_is_garbage(tls: bool, said: bytes) -> None:
    credentials = secured(tls)
    with Endpoint("127.0.0.1", Quiet(), credentials) as endpoint:
        with reached(endpoint) as raw:
            started = time.monotonic()
            raw.sendall(said)
            if tls and len(said) < 5:
                raw.shutdown(socket.SHUT_WR)  # too short to be told from TLS
            assert is_over(raw)
            assert time.monotonic() - started < endpoints.ADMISSION / 2
        wanted = (1, 0) if tls and len(said) < 5 else (0, 1)
        until(lambda: counts(endpoint) == wanted)
        with Asker(endpoint.address, credentials) as asker:
            assert asker.ask("what", 7) == 7
        assert counts(endpoint) == wanted


def silent(raw: socket.socket) -> None:
    assert is_over(raw)


def gone(raw: socket.socket) -> None:
    raw.close()


def half_an_opening(raw: socket.socket) -> None:
    raw.sendall(connection.MAGIC[:2])
    assert is_over(raw)


@pytest.mark.parametrize("behaves", [silent, gone, half_an_opening])
def test_who_shows_no_token_is_refused(
    tls: bool, behaves: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if tls and behaves is half_an_opening:
        pytest.skip("TLS comes before the opening")
    monkeypatch.setattr(endpoints, "ADMISSION", 0.3)
    with Endpoint("127.0.0.1", Quiet(), secured(tls)) as endpoint:
        for number in (1, 2):
            with reached(endpoint) as raw:
                behaves(raw)
            until(lambda number=number: counts(endpoint) == (number, 0))  # type: ignore[misc]


def test_who_makes_room_for_others_is_refused(tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "STRANGERS", 2)
    with Endpoint("127.0.0.1", Quiet(), secured(tls)) as endpoint:
        idle = [reached(endpoint) for _ in range(5)]
        until(lambda: counts(endpoint) == (3, 0))
        assert len(endpoint._guests) == 2
        for each in idle:
            each.close()
        until(lambda: counts(endpoint) == (5, 0))


def test_a_wrong_token_counts_once_and_members_never(tls: bool) -> None:
    credentials = secured(tls)
    wrong = Credentials("guess", credentials.certificate, credentials.key, credentials.name)
    endpoint = Endpoint("127.0.0.1", Quiet(), credentials)
    with endpoint:
        with pytest.raises(TransportError), Asker(endpoint.address, wrong) as asker:
            asker.ask("what")
        assert counts(endpoint) == (1, 0)
        for _ in range(3):
            with Asker(endpoint.address, credentials) as asker:
                asker.ask("what")
        waiting = reached(endpoint)
        until(lambda: len(endpoint._guests) >= 1)
    until(lambda: not endpoint._guests)
    waiting.close()
    assert counts(endpoint) == (1, 0)  # who was there at the end was sent away by that


def test_another_certificate_is_refused(tls: bool) -> None:
    credentials = secured(True)
    with Endpoint("127.0.0.1", Quiet(), credentials) as endpoint:
        stranger = secured(True) if tls else Credentials(credentials.token)
        with pytest.raises(TransportError), Asker(endpoint.address, stranger) as asker:
            asker.ask("what", within=5)
        until(lambda: sum(counts(endpoint)) >= 1)
        assert counts(endpoint)[0 if tls else 1] >= 1  # who speaks no TLS is garbage
        assert counts(endpoint)[1 if tls else 0] == 0
