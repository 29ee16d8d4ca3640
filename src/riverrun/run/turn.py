"""Turns: threads that share a run take turns, and nothing interrupts a call halfway.

A `Run` has one `Turn`. Whatever the run does that must not happen twice at a time happens ``with turn:``; whatever only
must not be interrupted halfway is a method marked `whole`. This is the only lock that the calls of a run take. Laws:

- **One at a time.** Of the blocks ``with turn:`` one is done at a time. A thread that has the turn may begin another
  block inside.
- **Interrupts outside.** From before the wait for the turn until after its end a signal's handler is put off
  (`interrupts`). It may end the wait, and then the block is not begun.
- **Own process.** In a forked process `check`, and so every method marked `whole` or `in_turn`, is refused before the
  lock is touched (`forks`).

>>> turn = Turn("the run of 'words'")
>>> with turn, turn:
...     with turn.within(seconds=1) as is_mine:
...         is_mine
True

Cost: a microsecond for a block that need not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import RLock
from types import TracebackType
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from riverrun.forks import ProcessMark
from riverrun.interrupts import acquire, deferred, try_acquire


class Turn:
    """The turn of the threads that share a run."""

    __slots__ = ("_lock", "_mark", "_owner")

    def __init__(self, owner: str) -> None:
        """`owner` is the run, as errors call it."""
        self._lock = RLock()
        self._mark = ProcessMark()
        self._owner = owner

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that the run belongs to."""
        return self._mark.is_ours

    def check(self, attempt: str) -> None:
        """Refuse an attempt in a forked process."""
        self._mark.check(attempt, self._owner)

    def __enter__(self) -> None:
        block = deferred()
        block.__enter__()
        try:
            acquire(self._lock)
        except BaseException as error:
            block.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
        deferred().__exit__(kind, error, trace)

    @contextmanager
    def within(self, seconds: float) -> Iterator[bool]:
        """A block that has the turn if it comes within some seconds, and before an interrupt; whether it has."""
        with deferred():
            is_mine = try_acquire(self._lock, seconds)
            try:
                yield is_mine
            finally:
                if is_mine:
                    self._lock.release()


class _TakesTurns(Protocol):
    _turn: Turn


P = ParamSpec("P")
T = TypeVar("T")
Taker = TypeVar("Taker", bound=_TakesTurns)


def whole(method: Callable[Concatenate[Taker, P], T]) -> Callable[Concatenate[Taker, P], T]:
    """A call that nothing interrupts halfway, in the process that the run belongs to."""

    attempt = method.__name__.strip("_")

    @wraps(method)
    def call(self: Taker, /, *arguments: P.args, **named: P.kwargs) -> T:
        self._turn.check(attempt)
        with deferred():
            return method(self, *arguments, **named)

    return call


def in_turn(method: Callable[Concatenate[Taker, P], T]) -> Callable[Concatenate[Taker, P], T]:
    """A call that is `whole`, and has the turn."""

    attempt = method.__name__.strip("_")

    @wraps(method)
    def call(self: Taker, /, *arguments: P.args, **named: P.kwargs) -> T:
        self._turn.check(attempt)
        with self._turn:
            return method(self, *arguments, **named)

    return call
