"""Interrupts: an exception of a signal's handler, such as Ctrl-C, is raised only where nothing is half done.

Python runs the handlers of signals in the main thread, between any two of its instructions. A handler that raises
(``KeyboardInterrupt`` on Ctrl-C or a notebook's stop button, ``SystemExit`` on SIGTERM, the alarm of a test) would
leave the engine in the middle of something: a message taken and not delivered, a lock held, a count wrong. So the calls
of a run put such handlers off: inside ``with deferred():`` a signal is only noted. Code in there calls ``check()``
where an exception can do no harm, and calls the user's functions by ``exposed``. Laws:

- **Deferral.** Inside ``deferred()`` no handler of the user's runs, except at ``check()``, at the end of the block, and
  in the code that ``exposed`` calls.
- **Delivery.** A signal that was noted is passed to the handler that the user had installed for it, at the next of
  these places. Several signals of one number that were noted meanwhile count as one.
- **Exposure.** While ``exposed(function)`` runs the function, a handler runs at once, and may raise an exception in the
  function. The caller gets that exception, also where the function catches it, or raises another one in its place. (An
  `Exception` is different from a ``KeyboardInterrupt`` in one case: a function that catches it and returns has dealt
  with it.) No handler runs between the end of the function and the caller.
- **Restoration.** After the block the handlers are the same as before, also the handler that Polars has installed below
  Python's. Where Python has no handler for a signal (ignored, the system's own, another thread), nothing is changed.

An exception that comes from no signal (``PyThreadState_SetAsyncExc``) cannot be put off; `runtime.local` has a law for
it (*interrupts at boundaries*).

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

SLICE = 0.1  # seconds after which a wait looks for an interrupt
_NAMES = ("TERM", "HUP", "QUIT", "BREAK", "ALRM", "VTALRM", "PROF", "USR1", "USR2", "INT")
_SIGNALS = tuple(int(getattr(signal, f"SIG{n}")) for n in _NAMES if hasattr(signal, f"SIG{n}"))
"""The signals whose handlers are known to raise. Ctrl-C is the last whose handler is restored."""

try:
    _sigaction: Any = ctypes.PyDLL(None).sigaction
except (AttributeError, OSError, TypeError):  # Windows
    _sigaction = None
_SIZE = 512  # bytes, more than a `struct sigaction` has anywhere
_ACTIONS = [
    (number, None if _sigaction is None else ctypes.create_string_buffer(_SIZE))
    for number in _SIGNALS
]
"""For each signal, room for the action that the system has for it."""


class _Gate:
    """The state of the main thread: whether it is inside a block, and which signals were noted."""

    __slots__ = ("armed", "due", "handlers", "is_open", "nesting", "suspended", "thrown")

    def __init__(self) -> None:
        self.nesting = 0  # how many blocks the thread is inside
        self.is_open = False  # whether a user's function runs
        self.suspended: list[int] = []  # levels of the blocks that a user's function has begun
        self.due: dict[int, None] = {}  # the signals that were noted
        self.thrown: BaseException | None = None  # raised by a handler in a user's function
        self.handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self.armed: list[tuple[int, Any]] = []


_gate = _Gate()
_main = main_thread().ident


class Interrupt(BaseException):
    """Wraps an `Exception` of a handler on its way out of a block, so that code inside does not take it for a
    failure."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _note(number: int, frame: FrameType | None) -> None:
    """The handler of all signals inside a block."""
    gate = _gate
    gate.due[number] = None
    if not gate.nesting:  # the block is about to end
        _disarm()
        _hand_over(frame)
    elif gate.is_open and frame is not None and frame.f_globals is not _OURS:
        # In the user's function, and not in code of this module, which may be closing a block.
        try:
            _hand_over(frame)
        except BaseException as error:
            gate.thrown = error
            raise


_OURS = globals()


def _hand_over(frame: FrameType | None) -> None:
    """Call the handlers of the signals that were noted; raise the first exception of theirs."""
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
    """Replace Python's handlers, so that signals are noted from now on."""
    gate = _gate
    gate.armed.clear()
    for number, action in _ACTIONS:
        handler = _signal.getsignal(number)
        # None, ignored, or the system's own.
        if not callable(handler) or isinstance(handler, int):
            continue
        if handler is not _note:
            if action is not None and gate.handlers.get(number) is not handler:
                _sigaction(number, None, action)
            gate.handlers[number] = handler
            _signal.signal(number, _note)
            if action is not None:  # a handler below Python's, which calls Python's, stays
                _sigaction(number, action, None)
        gate.armed.append((number, action))


def _disarm() -> None:
    """Restore the handlers, except handlers that were replaced meanwhile."""
    gate = _gate
    try:
        while gate.armed:
            number, action = gate.armed[0]
            if _signal.getsignal(number) is _note:
                _signal.signal(number, gate.handlers[number])
                if action is not None:
                    _sigaction(number, action, None)
            del gate.armed[:1]  # a handler that ran meanwhile may have restored all of them
    except BaseException:  # a handler that is restored already has raised
        _disarm()
        raise


class _HeldBack:
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


_deferred = _HeldBack()


def deferred() -> _HeldBack:
    """A block in which signals are noted. In other threads than the main one it does nothing."""
    return _deferred


def _deliver() -> None:
    """Call the handlers of noted signals, inside a block."""
    try:
        _hand_over(sys._getframe(1))
    except Exception as error:
        raise Interrupt(error) from error


def is_due() -> bool:
    """Whether a signal was noted, and this thread would handle it."""
    return bool(_gate.due) and _gate.nesting > 0 and get_ident() == _main


def can_raise() -> bool:
    """Whether `check` may raise in this thread, so that a wait should call it often."""
    return _gate.nesting > 0 and get_ident() == _main


def check() -> None:
    """Run the handlers of noted signals. Called where nothing is half done."""
    if _gate.due and _gate.nesting and get_ident() == _main:
        _deliver()


def absorb() -> None:
    """Drop noted signals that would only raise another ``KeyboardInterrupt``, since one is on its way to the user."""
    gate = _gate
    for number in list(gate.due):
        if gate.handlers.get(number) is signal.default_int_handler:
            del gate.due[number]


def exposed(function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
    """Call a user's function: signals are handled in it at once, and a handler that raises ends it."""
    gate = _gate
    if not gate.nesting or gate.is_open or get_ident() != _main:
        return function(*arguments, **named)
    if gate.due:
        _deliver()
    outer, gate.thrown = gate.thrown, None
    gate.is_open = True
    try:
        returned = function(*arguments, **named)
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
        raise caught  # the function has swallowed it, and its result may be wrong
    return returned


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception means that the user wants to end the wait, and not that the epoch failed."""
    return not isinstance(error, Exception) and bool(getattr(error, "refuses", True))


def uninterrupted(function: Callable[P, T]) -> Callable[P, T]:
    """A function that runs inside a block of its own."""

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
    """Wait on a condition until `predicate()`; return whether it holds. Checks for interrupts meanwhile."""
    deadline = None if timeout is None else monotonic() + timeout
    while not predicate():
        left = SLICE if deadline is None else min(SLICE, deadline - monotonic())
        if left <= 0:
            return False
        condition.wait(left)
        check()
    return True


def sleep(seconds: float) -> None:
    """Pause; checks for interrupts meanwhile."""
    deadline = monotonic() + seconds
    while (left := deadline - monotonic()) > 0:
        pause(min(SLICE, left) if can_raise() else left)
        check()


def acquire(lock: Any) -> None:
    """Take a lock that another thread may hold for long; checks for interrupts meanwhile."""
    if not lock.acquire(blocking=False):
        while not lock.acquire(timeout=SLICE):
            check()


def try_acquire(lock: Any, timeout: float) -> bool:
    """Try to take a lock for `timeout` seconds, and until an interrupt is due; return whether it was taken."""
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
    """A block that holds a lock which another thread may hold for long. An interrupt ends the wait for the lock."""
    with deferred():
        acquire(lock)
        try:
            yield
        finally:
            lock.release()


def join(thread: Thread, timeout: float) -> None:
    """Wait for the end of a thread, for `timeout` seconds and until an interrupt is due."""
    deadline = monotonic() + timeout
    while thread.is_alive() and not is_due() and (left := deadline - monotonic()) > 0:
        thread.join(min(SLICE, left))
