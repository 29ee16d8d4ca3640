"""The one retry policy: what is an outage, pauses, the deadline, what is said, what the last error tells."""

from __future__ import annotations

import ast
import logging
import math
import random
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from riverrun import retry
from riverrun.errors import CheckpointError, OperatorFailed, RiverrunError, TransportError
from riverrun.retry import Tries, is_outage, pause, persist

AWAY = TransportError("storage.unreachable", "the disk is away", hint="mount it")
SOURCES = Path(retry.__file__).parent


class Clock:
    """Time that passes when somebody waits."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, list[float]()

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def __call__(self) -> float:
        return self.now


class Act:
    """Fails so often, then succeeds."""

    def __init__(self, times: float, error: BaseException = AWAY) -> None:
        self.left, self.error, self.calls = times, error, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.left > 0:
            self.left -= 1
            raise self.error
        return "done"


def test_an_outage_is_tried_again_until_it_is_over() -> None:
    clock, act = Clock(), Act(30)
    assert persist(act, "write", wait=clock.wait, clock=clock) == "done"
    assert act.calls == 31
    assert clock.now < retry.DEADLINE


@pytest.mark.parametrize(
    "error",
    [
        OperatorFailed("operator.failed", "no"),
        CheckpointError("checkpoint.corrupt", "no"),
        TransportError("transport.token", "no"),
        TransportError("run.losing", "no"),
        KeyError("no"),
        KeyboardInterrupt(),
    ],
)
def test_what_is_no_outage_is_raised_at_once_as_it_is(error: BaseException) -> None:
    act = Act(1, error)
    with pytest.raises(type(error)) as raised:
        persist(act, "write", wait=lambda seconds: pytest.fail("it waits"))
    assert raised.value is error
    assert act.calls == 1


def test_the_deadline_decides_and_the_error_tells_of_all_tries() -> None:
    clock, act = Clock(), Act(math.inf)
    with pytest.raises(TransportError) as raised:
        persist(act, "write epoch 3", deadline=20, wait=clock.wait, clock=clock)
    error = raised.value
    assert error.code == "retry.deadline"
    assert error.message.startswith(f"cannot write epoch 3: tried {act.calls} times in 20.0 s: ")
    assert "the disk is away" in error.message
    assert error.hint == "mount it"
    assert error.__cause__ is AWAY
    assert (error.fields["tries"], error.fields["last"]) == (act.calls, "storage.unreachable")
    assert clock.now == pytest.approx(20)  # the last try is made at the deadline
    assert not is_outage(error)


def test_a_success_in_between_begins_anew() -> None:
    tries = Tries("read", deadline=10)
    tries.failed(AWAY, 0.0)
    tries.failed(AWAY, 9.0)
    tries.succeeded(9.5)
    tries.failed(AWAY, 12.0)
    tries.failed(AWAY, 21.0)
    with pytest.raises(TransportError, match=r"tried 3 times in 10.0 s"):
        tries.failed(AWAY, 22.0)


def test_pauses_grow_and_are_apart() -> None:
    source = random.Random(7)
    assert pause(0) == 0
    for failures in range(1, 20):
        longest = retry.DELAYS[min(failures, len(retry.DELAYS)) - 1]
        drawn = [pause(failures, source.random) for _ in range(200)]
        assert longest / 2 <= min(drawn) < longest * 0.6
        assert longest * 0.9 < max(drawn) <= longest


def test_it_is_said_after_a_few_seconds_then_every_ten_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "riverrun")
    clock = Clock()
    persist(Act(3), "read", wait=clock.wait, clock=clock)
    assert not caplog.records
    at = list[float]()
    clock = Clock()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            at.append(clock.now)

    heard = Heard()
    logging.getLogger("riverrun.retry").addHandler(heard)
    try:
        persist(Act(25), "read", wait=clock.wait, clock=clock)
    finally:
        logging.getLogger("riverrun.retry").removeHandler(heard)
    assert 3 <= at[0] < 6
    assert all(9 < later - sooner < 13 for sooner, later in pairwise(at[:-1]))
    assert [record.levelname for record in caplog.records][-2:] == ["WARNING", "INFO"]
    assert "cannot read for 4 s" in caplog.records[0].message or "for 3 s" in caplog.messages[0]
    assert caplog.messages[-1].startswith("could read after ")


def test_who_does_not_want_it_any_more_stops_waiting() -> None:
    over = threading.Event()
    over.set()
    act = Act(math.inf)
    with pytest.raises(TransportError) as raised:
        persist(act, "store", deadline=math.inf, wait=over.wait)
    assert raised.value is AWAY
    assert act.calls == 1


def test_every_code_that_ends_trying_is_one_that_is_raised() -> None:
    text = "".join(path.read_text() for path in SOURCES.rglob("*.py") if path.name != "retry.py")
    assert [
        code for code in sorted(retry.FINAL - {"retry.deadline"}) if f'"{code}"' not in text
    ] == []


def test_errors_of_the_tree_are_outages_by_their_kind() -> None:
    assert is_outage(AWAY)
    assert is_outage(CheckpointError("checkpoint.refused", "no rights, for now"))
    assert not is_outage(CheckpointError("checkpoint.missing", "no"))
    assert not is_outage(RiverrunError("run.closed", "no"))
    assert not is_outage(OSError())


def test_nobody_else_has_a_retry_loop_of_their_own() -> None:
    """Whoever catches an error and sleeps in a loop does so by `retry`, or is listed here with a reason."""
    own = {
        "retry.py",  # this is it
        "storage/lease.py",  # watches another owner's counter; pauses are of `retry`
        "run/pacing.py",  # submits epochs while somebody follows
        "runtime/local.py",  # the loop of the local cluster; pauses are of `retry`
        "runtime/network/endpoint.py",  # accepts connections again when a descriptor is free
        "runtime/processes.py",  # leaves time to end in order when the driver is gone
        "runtime/worker_process.py",  # shows life while `persist` waits
        "state/preparing.py",  # looks whether processes have compiled their kernels
        "spark/streams.py",  # a pause of `persist` that looks whether the query is stopped
    }
    with_loops = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
                with_loops.add(str(path.relative_to(SOURCES)))
    assert with_loops <= own
