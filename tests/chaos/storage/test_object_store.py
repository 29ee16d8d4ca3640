"""A real object store that delays, fails and loses answers: nothing that was answered for is lost or counted twice."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from threading import Timer

import pytest

import riverrun as rr
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.inspect import look, verify
from riverrun.storage.store import open_storage
from tests.chaos.storage.objects import FAULTS, Proxy, object_store
from tests.chaos.storage.test_crashes import feed, oracle, program
from tests.soaking import draws, first_seed

pytestmark = pytest.mark.soak


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    pytest.importorskip("moto", reason="requirements-soak.lock is not installed")
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    with object_store(first_seed(7)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield proxy


def test_the_store_lets_one_caller_create_a_name(proxy: Proxy) -> None:
    """What all of this rests on; moto honours If-None-Match."""
    storage = open_storage(proxy.place)
    assert storage.create("log/1", b"one")
    assert not storage.create("log/1", b"two")
    assert storage.get("log/1").to_pybytes() == b"one"
    assert storage.names("log") == ["log/1"]
    assert storage.names("lo") == []
    storage.delete(["log/1", "log/2"])
    assert storage.names("log") == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_on_a_store_with_one_fault(proxy: Proxy, fault: str) -> None:
    proxy.only, proxy.rate = (fault,), 0.3
    play(proxy, draws(2, sample=2, soak=6))
    assert sum(proxy.happened.values()) > 3
    assert {name.rpartition(" ")[0] for name in proxy.happened} == {fault}


def test_runs_on_a_store_with_every_fault(proxy: Proxy) -> None:
    proxy.rate = 0.3
    play(proxy, draws(3, sample=4, soak=16))
    methods = {name.rpartition(" ")[2] for name in proxy.happened}
    assert methods >= {"GET", "PUT"}


def started(proxy: Proxy, **options: bool) -> rr.Run:
    """A run, started again where the store failed at the very start: that is refused at once, and does no harm."""
    for _ in range(50):
        try:
            return program().run(checkpoint=proxy.place, every=None, retain=1, **options)
        except rr.CheckpointError as error:
            if error.code != "checkpoint.unusable":
                raise
    raise AssertionError("the store never answered")


def play(proxy: Proxy, runs: int) -> None:
    """Runs one after the other, some of which take the path away from one that lives; all of it compared."""
    done = 0
    before: rr.Run | None = None
    for at in range(runs):
        take_over = before is not None
        run = started(proxy, take_over=take_over)
        assert run.completed == done
        if done:
            assert Counter(run.read("sums").rows()) == oracle(done)
        if before is not None:
            with pytest.raises(rr.RiverrunError):
                feed(before, 99)
            before.close()
            before = None
        for _ in range(4):
            feed(run, done)
            done += 1
            if done % 2:
                run.checkpoint()
        assert Counter(run.read("sums").rows()) == oracle(done)
        if at % 2:
            before = run
        else:
            run.close()
    if before is not None:
        before.checkpoint()
        before.close()
    rate, proxy.rate = proxy.rate, 0.0
    with program().run(checkpoint=proxy.place, every=None, retain=1) as run:
        assert run.completed == done
        assert Counter(run.read("sums").rows()) == oracle(done)
        feed(run, done)
        run.checkpoint()
    checkpoints = Checkpoints(open_storage(proxy.place))
    assert verify(checkpoints).damages == ()
    assert len(checkpoints.numbers()) == 1
    found = look(checkpoints)
    assert found.unreferenced == ()
    assert (
        found.log.records <= runs + 3
    )  # one for each start, and what the checkpoint does not cover
    proxy.rate = rate


def test_a_store_that_is_away_is_waited_for(proxy: Proxy) -> None:
    def come_back() -> None:
        proxy.rate = 0.0

    with program().run(checkpoint=proxy.place, every=None) as run:
        feed(run, 0)
        for fault in ("error 503", "reset", "lost answer"):
            proxy.rate, proxy.only = 1.0, (fault,)
            timer = Timer(1.0, come_back)
            timer.start()
            feed(run, run.completed)
            assert proxy.rate == 0.0
            assert Counter(run.read("sums").rows()) == oracle(run.completed)
            timer.join()
    assert run.completed == 4
