"""Workers that say nothing more, and whose connections stand: nobody waits for them for ever."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riverrun.errors import TransportError
from riverrun.runtime import worker_process
from riverrun.runtime.network.client import Asker, QuestionLine, fetch_loans, watched
from riverrun.runtime.network.connection import Credentials
from riverrun.runtime.network.endpoint import Endpoint
from riverrun.runtime.remote import RemoteCluster
from riverrun.runtime.worker_process import Rendezvous
from tests.engine.flows import Model, check, contents, graph_maker
from tests.runtime.launchers import Processes, gone_by


class CutOff(Processes):
    """Processes that cannot be ended from here, as on a machine that is cut off."""

    def stop(self, ticket: int) -> None:
        pass


def within(seconds: float, what: Callable[[], Any]) -> Any:
    """What a function gives, or raises, soon."""
    outcomes: list[Any] = []

    def call() -> None:
        try:
            outcomes.append((what(), None))
        except Exception as error:
            outcomes.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcomes, f"it took longer than {seconds} s"
    result, error = outcomes[0]
    if error is not None:
        raise error
    return result


def test_a_process_that_is_stopped_is_not_waited_for(tmp_path: Path) -> None:
    launcher, model = CutOff(graph_maker()), Model(51)
    with RemoteCluster(launcher, 2, checkpoint=tmp_path, timeout=60, silence=3) as cluster:
        cluster.wait(cluster.submit(model.draw()))
        portions = cluster.read("degrees", 0)
        assert contents(portions) == model.rows("degrees")
        victim = cluster.status()["processes"][1]["pid"]
        os.kill(victim, signal.SIGSTOP)
        try:
            before = model.rows("degrees")
            asked = within(40, lambda: cluster.read("degrees", 0))  # asked of it, then of another
            assert contents(asked) == before
            # What the stopped one lent is given up with it, and lent by those in its place.
            assert within(40, lambda: contents(portions)) == before
            cluster.wait(cluster.submit(model.draw()))
            within(40, lambda: check(cluster, model))
        finally:
            os.kill(victim, signal.SIGKILL)


class Answers:
    """What a line asks."""

    address = "there"

    def __init__(self) -> None:
        self.closed = threading.Event()

    def ask(self, question: str, argument: Any) -> Any:
        if question == "wrong":
            raise ValueError(argument)
        return question, argument

    def close(self) -> None:
        self.closed.set()


def test_a_line_answers_until_it_is_closed() -> None:
    asker = Answers()
    line = QuestionLine(asker)  # type: ignore[arg-type]
    assert line.ask("a", 1) == ("a", 1)
    with pytest.raises(ValueError, match="b"):
        line.ask("wrong", "b")
    assert line.ask("c") == ("c", None)
    line.close()
    with pytest.raises(TransportError, match="given up"):
        line.ask("d")
    assert asker.closed.wait(10)


def test_a_line_that_was_never_used_is_closed() -> None:
    asker = Answers()
    QuestionLine(asker).close()  # type: ignore[arg-type]
    assert asker.closed.wait(10)


def test_rows_that_are_watched_come_in_order_and_errors_after_them() -> None:
    def rows() -> Iterator[int]:
        yield from range(20)
        raise ValueError("broken")

    rows_so_far = []
    with pytest.raises(ValueError, match="broken"):
        rows_so_far.extend(iter_into(rows_so_far, watched("there", rows(), lambda: False)))
    assert rows_so_far == list(range(20))
    assert list(watched("there", iter(()), lambda: True)) == []


def iter_into(rows_so_far: list[int], rows: Iterator[int]) -> Iterator[int]:
    for row in rows:
        rows_so_far.append(row)
    return iter(())


def test_who_stops_reading_ends_the_thread_that_fetches() -> None:
    def rows() -> Iterator[int]:
        while True:
            yield 1

    reading = watched("there", rows(), lambda: False)
    assert next(reading) == 1
    before = {thread for thread in threading.enumerate() if thread.name == "riverrun-fetch"}
    reading.close()  # type: ignore[attr-defined]
    for thread in before:
        thread.join(10)
        assert not thread.is_alive()


class Mute:
    """Answers nothing before it is told to, and refuses rows when it has seen some."""

    def __init__(self) -> None:
        self.speak = threading.Event()

    def receive(self, *arguments: Any) -> None:
        pass

    def ended(self, *arguments: Any) -> None:
        pass

    def answer(self, question: str, argument: Any) -> Any:
        return self.speak.wait(20) if question == "wait" else argument

    def rows(self, ticket: Any) -> Any:
        raise NotImplementedError

    def take_upload(self, about: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Any:
        next(batches)
        raise ValueError("no")


def test_closing_a_line_ends_its_thread_and_its_connection() -> None:
    credentials, mute = Credentials(), Mute()
    with Endpoint("127.0.0.1", mute, credentials) as endpoint:
        before = set(threading.enumerate())
        line = QuestionLine(Asker(endpoint.address, credentials))
        raised: list[TransportError] = []

        def ask() -> None:
            try:
                line.ask("wait")
            except TransportError as error:
                raised.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        while not line._asker._used:
            time.sleep(0.01)
        line.close()
        asking.join(60)
        assert [error.code for error in raised] == ["transport.given_up"]
        guests = {each for each in threading.enumerate() if each.name == "riverrun-guest"}
        gone_by(before | guests)  # those wait in the handler, which is at the other end
        assert not line._asker._used
        mute.speak.set()


def test_an_upload_that_was_refused_leaves_a_connection_that_nobody_uses_again() -> None:
    credentials = Credentials()
    with (
        Endpoint("127.0.0.1", Mute(), credentials) as endpoint,
        Asker(endpoint.address, credentials) as asker,
    ):
        batch = pa.record_batch({"n": [1, 2]})
        stage = asker.begin_upload(1, batch.schema)
        with pytest.raises(Exception, match="no"):  # noqa: PT012
            for _ in range(500):
                stage.write(batch)
                time.sleep(0.01)
        assert asker.ask("what", 1) == 1
        assert asker.ask("what", 2) == 2


def test_an_outage_while_a_loan_is_renewed_passes() -> None:
    away = TransportError("transport.unreachable", "away", hint="")
    failing = [away, away]

    def fetch(loan: str) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1, 2]})
        if loan == "a":
            raise away
        yield pa.record_batch({"n": [3]})

    def renew(loan: str) -> list[str]:
        if failing:
            raise failing.pop()
        return ["b"]

    for ordered in (True, False):
        failing = [away, away]
        batches = fetch_loans(["a"], fetch, renew, "read", ordered=ordered, wait=lambda _: None)
        assert [n for batch in batches for n in batch["n"].to_pylist()] == [1, 2, 3]
    failing = [TransportError("transport.token", "refused", hint="")]
    with pytest.raises(TransportError, match="refused"):
        list(fetch_loans(["a"], fetch, renew, "read", ordered=True, wait=lambda _: None))


def test_a_question_that_nobody_waits_for_any_more_lends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_process, "ANSWER", 0.05)
    monkeypatch.setattr(worker_process, "BEAT", 0.01)
    worker = worker_process._WorkerHost(
        Rendezvous("tcp://127.0.0.1:1", Credentials()), graph_maker(), "127.0.0.1"
    )
    asked: list[Any] = []
    monkeypatch.setattr(worker, "_answer_read", asked.append)
    try:
        with pytest.raises(TransportError, match="busy for very long"):
            worker.answer("read", 1)
        worker._inbox.get_nowait()()  # the thread that works comes to it
        assert asked == []
    finally:
        worker.close()
