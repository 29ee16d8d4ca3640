"""Interrupts at a chosen instruction: the common code of the suites of interrupted calls."""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import riverrun

PACKAGE = str(Path(riverrun.__file__).parent)
HANG = 120.0  # seconds after which a call that does not end is shown, and ends the tests


class Alarm(Exception):
    """Raised by the handler of a signal other than SIGINT."""


def _alarm(number: int, frame: FrameType | None) -> None:
    raise Alarm


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(3)


HANDLERS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: _leave,
    signal.SIGALRM: _alarm,
}


@contextmanager
def watched_handlers() -> Iterator[None]:
    """Set handlers that raise, also where the tests were started with signals ignored; and show a call that hangs."""
    before = {number: signal.signal(number, handler) for number, handler in HANDLERS.items()}
    faulthandler.dump_traceback_later(HANG, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def traced(at: int, number: int, fine: bool, again: int = 0) -> Iterator[list[int]]:
    """The handler of a signal is called before the instruction or line number `at` (and `again` so many later)."""
    left = [at]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = fine
        if event == ("opcode" if fine else "line"):
            left[0] -= 1
            if left[0] == 0 or left[0] == -again < 0:
                handler = signal.getsignal(number)
                assert callable(handler)
                handler(number, frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield left
    finally:
        sys.settrace(before)
