"""Lanes: threads that wait for a storage, and that nobody has to wait for.

A store may hang: a network file system that is gone, a disk that does not answer. No call into it can be taken back, so
whoever must not hang gives the call to a thread. These are daemons: unlike those of `concurrent.futures`, the
interpreter ends without them, after some seconds. Laws:

1. What is given to a lane is done in that order, one at a time.
2. A lane that is thrown away ends when it has done what it was given; `close` drops what has not begun,
   and waits for what has at most as long as it is told to.

>>> lane = Lane("example")
>>> done = []
>>> for number in range(3):
...     lane.submit(lambda number=number: done.append(number))
>>> lane.close(wait=10, drop=False), done
(True, [0, 1, 2])
>>> in_parallel(len, ["a", "bb", "ccc"], 2)
[1, 2, 3]
"""

from __future__ import annotations

import atexit
import logging
import queue
import time
import weakref
from collections.abc import Callable
from threading import Event, Thread
from typing import TypeVar

from riverrun.forks import finalize, forget_in_child

T = TypeVar("T")
U = TypeVar("U")

_LOG = logging.getLogger(__name__)
EXIT = 5.0  # seconds that what is under way has when the interpreter ends


class Lane:
    """A thread that does one thing after the other; it starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._dropped = Event()
        self._thread: Thread | None = None
        # Thrown away without an end: the thread does not know this object, and is told all the same.
        finalize(self, self._queue.put, None).atexit = False
        _LANES.add(self)

    def submit(self, act: Callable[[], object]) -> None:
        """Have something done. It must not raise."""
        if self._thread is None:
            self._thread = Thread(target=_work, args=(self._queue, self._dropped), daemon=True)
            self._thread.name = self._name
            self._thread.start()
        self._queue.put(act)

    def close(self, *, wait: float = 0.0, drop: bool = True) -> bool:
        """Take no more; whether all is over within so many seconds."""
        if drop:
            self._dropped.set()
        self._queue.put(None)
        if self._thread is None:
            return True
        self._thread.join(wait)
        return not self._thread.is_alive()


_LANES: weakref.WeakSet[Lane] = weakref.WeakSet()
forget_in_child(_LANES)


@atexit.register
def _end() -> None:
    """A thread that comes back into an interpreter that is gone would end it with an abort."""
    deadline = time.monotonic() + EXIT
    for lane in list(_LANES):
        lane.close(wait=max(0.0, deadline - time.monotonic()))


def _work(todo: queue.SimpleQueue[Callable[[], object] | None], dropped: Event) -> None:
    while (act := todo.get()) is not None and not dropped.is_set():
        try:
            act()
        except Exception:  # what comes after must be done
            _LOG.exception("something that a thread was asked for failed")
        del act  # or it would be kept until the next one comes


def in_parallel(function: Callable[[T], U], items: list[T], count: int) -> list[U]:
    """What a function gives for each item, `count` at a time; after one has raised, no other begins."""
    results: dict[int, U] = {}
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    over: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    stop = Event()
    for at in range(len(items)):
        todo.put(at)

    def work() -> None:
        raised: BaseException | None = None
        while not stop.is_set():
            try:
                at = todo.get_nowait()
            except queue.Empty:
                break
            try:
                results[at] = function(items[at])
            except BaseException as error:
                raised = error
                stop.set()
        over.put(raised)

    threads = [Thread(target=work, daemon=True) for _ in range(min(count, len(items)))]
    for thread in threads:
        thread.start()
    try:
        errors = [error for error in (over.get() for _ in threads) if error is not None]
    except BaseException:
        stop.set()
        raise
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[at] for at in range(len(items))]
