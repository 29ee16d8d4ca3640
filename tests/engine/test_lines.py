"""Workers that say nothing more, and whose connections stand: nobody waits for them for ever."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from riverrun.engine.lines import Line, watched
from riverrun.engine.remote import RemoteCluster
from riverrun.errors import TransportError
from tests.engine.flows import Model, check, contents, graph_maker
from tests.engine.launchers import Processes


class CutOff(Processes):
    """Processes that cannot be ended from here, as on a machine that is cut off."""

    def stop(self, ticket: int) -> None:
        pass


def within(seconds: float, what: Callable[[], Any]) -> Any:
    """What a function gives, or raises, soon."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append((what(), None))
        except Exception as error:
            found.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"it took longer than {seconds} s"
    result, error = found[0]
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
    line = Line(asker)  # type: ignore[arg-type]
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
    Line(asker).close()  # type: ignore[arg-type]
    assert asker.closed.wait(10)


def test_rows_that_are_watched_come_in_order_and_errors_after_them() -> None:
    def rows() -> Iterator[int]:
        yield from range(20)
        raise ValueError("broken")

    found = []
    with pytest.raises(ValueError, match="broken"):
        found.extend(iter_into(found, watched("there", rows(), lambda: False)))
    assert found == list(range(20))
    assert list(watched("there", iter(()), lambda: True)) == []


def iter_into(found: list[int], rows: Iterator[int]) -> Iterator[int]:
    for row in rows:
        found.append(row)
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
