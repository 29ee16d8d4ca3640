"""Signals that are put off: noted inside a block, raised where the block allows it, handlers as they were."""

# ruff: noqa: PT012

from __future__ import annotations

import _thread
import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from riverrun import interrupts
from riverrun.interrupts import Interrupt, check, deferred, exposed, is_due


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    assert interrupts._gate.nesting == 0


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_a_signal_is_raised_at_the_end_of_the_block_or_at_a_check() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), deferred():
        interrupt()
        done.append(is_due())
    with pytest.raises(KeyboardInterrupt), deferred():
        with deferred():
            interrupt()
        done.append("still inside")
        check()
        done.append("never")
    assert done == [True, "still inside"]


def test_several_signals_are_one() -> None:
    with pytest.raises(KeyboardInterrupt), deferred():
        interrupt()
        interrupt()
    with deferred():
        check()


def test_code_of_the_users_is_interrupted_at_once() -> None:
    reached = []

    def work() -> None:
        interrupt()
        reached.append(1)

    with deferred(), pytest.raises(KeyboardInterrupt):
        exposed(work)
    assert not reached


def test_what_was_noted_before_is_raised_before_the_function_runs() -> None:
    called: list[int] = []
    with deferred():
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            exposed(called.append, 1)
    assert not called


def test_an_interrupt_that_a_function_swallows_is_raised_all_the_same() -> None:
    def swallow() -> str:
        try:
            interrupt()
        except BaseException:
            return "wrong"
        return "right"

    def wrap() -> None:
        try:
            interrupt()
        except BaseException as error:
            raise SystemError("returned a result with an exception set") from error

    with deferred():
        for function in swallow, wrap:
            with pytest.raises(KeyboardInterrupt):
                exposed(function)


def test_a_function_that_swallows_interrupts_can_be_interrupted_again() -> None:
    times = []

    def stubborn() -> None:
        while True:
            try:
                interrupt()
            except KeyboardInterrupt:
                times.append(1)
                if len(times) == 3:
                    raise

    with deferred(), pytest.raises(KeyboardInterrupt):
        exposed(stubborn)
    assert len(times) == 3


def test_a_block_that_a_function_begins_is_not_interrupted() -> None:
    """A user's function may use a run, or send rows."""
    done = []

    def function() -> None:
        with deferred():
            interrupt()
            done.append("inside")
        done.append("after")

    with deferred(), pytest.raises(KeyboardInterrupt):
        exposed(function)
    assert done == ["inside"]


def test_an_alarm_is_no_failure_of_the_function() -> None:
    """A handler may raise an `Exception`, which code that looks after failures would take for one."""

    def ring(number: int, frame: Any) -> None:
        raise TimeoutError("too long")

    before = signal.signal(signal.SIGALRM, ring)
    caught: list[Any] = []

    def function() -> None:
        signal.raise_signal(signal.SIGALRM)

    def careful() -> int:
        try:
            function()
        except TimeoutError:
            return 1
        return 0

    try:
        with pytest.raises(TimeoutError), deferred():
            try:
                exposed(function)
            except Exception as error:
                caught.append(error)
            except Interrupt as error:
                caught.append(error)
                raise
        assert [type(error) for error in caught] == [Interrupt]
        with deferred():
            assert exposed(careful) == 1  # its own business
    finally:
        signal.signal(signal.SIGALRM, before)


def test_handlers_of_the_user_are_called_later_and_kept() -> None:
    called: list[int] = []

    def handler(number: int, frame: Any) -> None:
        called.append(number)

    signal.signal(signal.SIGINT, handler)
    with deferred():
        interrupt()
        assert not called
        check()
        assert called == [signal.SIGINT]
        exposed(interrupt)
        assert len(called) == 2
        interrupt()
    assert len(called) == 3
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_is_not_pythons_is_left_alone(handler: Any) -> None:
    signal.signal(signal.SIGINT, handler)
    with deferred():
        assert signal.getsignal(signal.SIGINT) is handler
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_that_is_installed_inside_stays() -> None:
    def handler(number: int, frame: Any) -> None:
        pass

    with deferred():
        exposed(signal.signal, signal.SIGINT, handler)
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_handler_below_pythons_stays() -> None:
    """Polars has one, which ends its long calls."""
    sigaction = getattr(ctypes.PyDLL(None), "sigaction", None)
    if sigaction is None:
        pytest.skip("no sigaction here")

    def address() -> bytes:
        action = ctypes.create_string_buffer(512)
        sigaction(int(signal.SIGINT), None, action)
        return action.raw[:8]

    before = address()
    with deferred():
        assert address() == before
    assert address() == before


def test_other_threads_are_not_concerned() -> None:
    seen: list[Any] = []

    def work() -> None:
        with deferred():
            check()
            seen.append((is_due(), exposed(lambda: 1)))

    with pytest.raises(KeyboardInterrupt), deferred():
        interrupt()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [(False, 1)]


def test_waiting_is_ended() -> None:
    condition, lock = threading.Condition(), threading.Lock()
    lock.acquire()
    waits = [
        lambda: interrupts.wait_for(condition, lambda: False),
        lambda: interrupts.acquire(lock),
    ]
    for wait in waits:
        timer = threading.Timer(0.2, _thread.interrupt_main)
        timer.start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt), deferred(), condition:
            wait()
        assert time.monotonic() - begun < 60
        timer.join()
    with deferred(), condition:
        assert not interrupts.wait_for(condition, lambda: False, 0.05)
        assert interrupts.wait_for(condition, lambda: True)
