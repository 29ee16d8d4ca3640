"""Interrupts: what a signal's handler raises, Ctrl-C first of all, arrives only where nothing is half done.

Python runs the handlers of signals in the main thread, between any two of its instructions. A handler that raises
(``KeyboardInterrupt`` on Ctrl-C or a notebook's stop button, ``SystemExit`` on SIGTERM, the alarm of a test) would tear
whatever the engine has in hand: a message that was taken and not delivered, a lock, a count. So the calls of a run
put such handlers off: inside ``with deferred():`` a signal is only noted. Whoever waits or works in there looks with
``check()`` at places that nothing is lost at, and calls the user's functions by ``exposed``. Laws:

- **Deferral.** Inside ``deferred()`` no handler of the user's runs, except at ``check()``, at the end of the block, and
  in the code that ``exposed`` calls.
- **Delivery.** A signal that was noted is handed to the handler that the user had installed for it, as soon as one of
  these places comes. Signals of one number that came meanwhile are one.
- **Exposure.** ``exposed(function)`` raises what a handler raised in it, whatever the function made of that; only an
  `Exception` may the function catch. No handler runs between the end of the function and the caller.
- **Restoration.** After the block the handlers are those of before, also the one that Polars has put below Python's.
  Where no handler of Python's is installed (ignored, the system's own, another thread), nothing is changed.

What comes from no signal (``PyThreadState_SetAsyncExc``) cannot be put off; `engine.transport` has a law for it.

>>> import signal
>>> before = signal.signal(signal.SIGINT, signal.default_int_handler)
>>> try:
...     with deferred():
...         signal.raise_signal(signal.SIGINT)
...         print("whole")
... except KeyboardInterrupt:
...     print("interrupted")
whole
interrupted
>>> handler = signal.signal(signal.SIGINT, before)
>>> handler is signal.default_int_handler
True

Cost: about 3 microseconds for a block, 0.3 for an exposed call, nothing for a block inside another.
"""

from __future__ import annotations

# `signal` puts enumerations around the functions of this one, which take ten times as long.
import _signal  # type: ignore[import-not-found]
import ctypes
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import Condition, Thread, get_ident, main_thread
from time import monotonic
from time import sleep as pause
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SLICE = 0.1  # seconds after which whoever waits looks for an interrupt
_NAMES = ("TERM", "HUP", "QUIT", "BREAK", "ALRM", "VTALRM", "PROF", "USR1", "USR2", "INT")
_SIGNALS = tuple(int(getattr(signal, f"SIG{n}")) for n in _NAMES if hasattr(signal, f"SIG{n}"))
"""The signals whose handlers are known to raise. That of Ctrl-C is the last to be restored."""

try:
    _sigaction: Any = ctypes.PyDLL(None).sigaction
except (AttributeError, OSError, TypeError):  # Windows
    _sigaction = None
_SIZE = 512  # bytes, more than a `struct sigaction` has anywhere
_ACTIONS = [
    (number, None if _sigaction is None else ctypes.create_string_buffer(_SIZE))
    for number in _SIGNALS
]
"""Of each signal, room for what the system does about it."""


class _Gate:
    """Where the main thread stands."""

    __slots__ = ("armed", "due", "handlers", "is_open", "nesting", "suspended", "thrown")

    def __init__(self) -> None:
        self.nesting = 0  # of blocks
        self.is_open = False  # whether code of the user's runs
        self.suspended: list[int] = []  # the blocks that such code has begun
        self.due: dict[int, None] = {}  # the signals that were noted
        self.thrown: BaseException | None = None  # what a handler raised in the user's code
        self.handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self.armed: list[tuple[int, Any]] = []


_gate = _Gate()
_main = main_thread().ident


class Interrupt(BaseException):
    """What a handler raised, on its way out of a block: code that looks after failures takes an `Exception` for one."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _note(number: int, frame: FrameType | None) -> None:
    """The handler while a block is deferred."""
    gate = _gate
    gate.due[number] = None
    if not gate.nesting:  # the block is about to end
        _disarm()
        _hand_over(frame)
    elif gate.is_open and frame is not None and frame.f_globals is not _OURS:
        # In the user's own code. Code of this file is none: it closes what it has opened.
        try:
            _hand_over(frame)
        except BaseException as error:
            gate.thrown = error
            raise


_OURS = globals()


def _hand_over(frame: FrameType | None) -> None:
    """Call the handlers of the signals that were noted; raise what the first one raises."""
    gate, raised = _gate, None
    while gate.due:
        number, _ = gate.due.popitem()
        try:
            _call(number, frame)
        except BaseException as error:
            raised = raised or error
    if raised is not None:
        raise raised


def _call(number: int, frame: FrameType | None) -> None:
    handler = _gate.handlers[number]
    if (getattr(handler, "__module__", None) or "").startswith("pyspark."):
        # Spark's handler cancels all jobs of the session; the workers are jobs, and no job of the user's runs here.
        raise KeyboardInterrupt
    handler(number, frame)


def _arm() -> None:
    """Note signals from now on, where Python would handle them."""
    gate = _gate
    gate.armed.clear()
    for number, action in _ACTIONS:
        handler = _signal.getsignal(number)
        if not callable(handler) or isinstance(
            handler, int
        ):  # nobody's, ignored, or the system's own
            continue
        if handler is not _note:
            if action is not None and gate.handlers.get(number) is not handler:
                _sigaction(number, None, action)
            gate.handlers[number] = handler
            _signal.signal(number, _note)
            if (
                action is not None
            ):  # below Python's handler there may be another one, which calls it
                _sigaction(number, action, None)
        gate.armed.append((number, action))


def _disarm() -> None:
    """Give the handlers back; those that were changed meanwhile stay."""
    gate = _gate
    try:
        while gate.armed:
            number, action = gate.armed[0]
            if _signal.getsignal(number) is _note:
                _signal.signal(number, gate.handlers[number])
                if action is not None:
                    _sigaction(number, action, None)
            del gate.armed[:1]  # a handler that ran meanwhile may have restored all
    except BaseException:  # a handler that is restored already has raised
        _disarm()
        raise


class _Deferred:
    __slots__ = ()

    def __enter__(self) -> None:
        if get_ident() == _main:
            gate = _gate
            if not gate.nesting:
                if gate.due:  # a second Ctrl-C raised while the block before this one ended
                    absorb()
                gate.is_open = False
                try:
                    gate.nesting = 1
                    _arm()
                except BaseException:  # a handler raised that was not put off yet
                    gate.nesting = 0
                    _disarm()
                    raise
                return
            if gate.is_open:
                gate.is_open = False
                gate.suspended.append(gate.nesting)
            gate.nesting += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if get_ident() == _main:
            gate = _gate
            gate.nesting = level = gate.nesting - 1
            if not level:
                _disarm()
            elif gate.suspended and gate.suspended[-1] == level:
                gate.suspended.pop()
                gate.is_open = True
            else:
                return
            if gate.due:
                if error is not None and not isinstance(error, Exception):
                    absorb()  # Polars raises by itself, and the handler of the same Ctrl-C comes after that
                try:
                    _hand_over(sys._getframe(1))
                except BaseException as raised:
                    gate.thrown = raised
                    raise
            if type(error) is Interrupt:
                raise error.error


_deferred = _Deferred()


def deferred() -> _Deferred:
    """A block in which signals are noted. In other threads than the main one it does nothing."""
    return _deferred


def _deliver() -> None:
    """Hand over what was noted, inside a block."""
    try:
        _hand_over(sys._getframe(1))
    except Exception as error:
        raise Interrupt(error) from error


def is_due() -> bool:
    """Whether a signal was noted that this thread has to do with."""
    return bool(_gate.due) and _gate.nesting > 0 and get_ident() == _main


def can_raise() -> bool:
    """Whether `check` may raise in this thread: who waits looks often."""
    return _gate.nesting > 0 and get_ident() == _main


def check() -> None:
    """Let the handlers of signals that were noted run: here nothing is half done."""
    if _gate.due and _gate.nesting and get_ident() == _main:
        _deliver()


def absorb() -> None:
    """A ``KeyboardInterrupt`` is on its way to the user: signals that would only raise another one are one with it."""
    gate = _gate
    for number in list(gate.due):
        if gate.handlers.get(number) is signal.default_int_handler:
            del gate.due[number]


def exposed(function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
    """Call code of the user's: a signal is handled in it at once, and ends it where the handler raises."""
    gate = _gate
    if not gate.nesting or gate.is_open or get_ident() != _main:
        return function(*arguments, **named)
    if gate.due:
        _deliver()
    outer, gate.thrown = gate.thrown, None
    gate.is_open = True
    try:
        made = function(*arguments, **named)
    except BaseException as error:
        gate.is_open = False
        raised: Any = gate.thrown
        gate.thrown = outer
        if raised is None:
            raise
        if isinstance(raised, Exception):
            raise Interrupt(raised) from error
        if raised is error:
            raise
        raise raised from error
    gate.is_open = False
    caught: Any = gate.thrown
    gate.thrown = outer
    if caught is not None and not isinstance(caught, Exception):
        raise caught  # the function has swallowed it with all else, and what it gave may be wrong
    return made


def uninterrupted(function: Callable[P, T]) -> Callable[P, T]:
    """The function, inside a block of its own."""

    @wraps(function)
    def whole(*arguments: P.args, **named: P.kwargs) -> T:
        with deferred():
            return function(*arguments, **named)

    return whole


def renew() -> None:
    """Note signals whose handlers were installed inside the block, as a Spark session does when it begins."""
    if _gate.nesting and get_ident() == _main:
        _arm()


# ---- waiting inside a block


def wait_for(
    condition: Condition, predicate: Callable[[], object], timeout: float | None = None
) -> bool:
    """Wait until something is so, which the condition tells; whether it is. Checks for interrupts meanwhile."""
    deadline = None if timeout is None else monotonic() + timeout
    while not predicate():
        left = SLICE if deadline is None else min(SLICE, deadline - monotonic())
        if left <= 0:
            return False
        condition.wait(left)
        check()
    return True


def sleep(seconds: float) -> None:
    """Pause, until an interrupt is due."""
    deadline = monotonic() + seconds
    while (left := deadline - monotonic()) > 0:
        pause(min(SLICE, left) if can_raise() else left)
        check()


def acquire(lock: Any) -> None:
    """Take a lock that another thread may hold for long."""
    if not lock.acquire(blocking=False):
        while not lock.acquire(timeout=SLICE):
            check()


def try_acquire(lock: Any, timeout: float) -> bool:
    """Take a lock, in so many seconds and until an interrupt is due; whether it was taken."""
    deadline = monotonic() + timeout
    while not lock.acquire(blocking=False):
        left = min(SLICE, deadline - monotonic())
        if left <= 0 or is_due():
            return False
        if lock.acquire(timeout=left):
            return True
    return True


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """A block that has a lock which another thread may hold for long. An interrupt ends the wait for it."""
    with deferred():
        acquire(lock)
        try:
            yield
        finally:
            lock.release()


def join(thread: Thread, timeout: float) -> None:
    """Wait for the end of a thread, until an interrupt is due."""
    deadline = monotonic() + timeout
    while thread.is_alive() and not is_due() and (left := deadline - monotonic()) > 0:
        thread.join(min(SLICE, left))
