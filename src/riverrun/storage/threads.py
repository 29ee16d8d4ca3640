"""Threads that call a storage, so that nobody has to wait for a storage that hangs.

A store may hang: a network file system that is gone, a disk that does not answer. A call into it cannot be taken back,
so a caller that must not hang gives the call to a thread. The threads are daemons: unlike threads of
`concurrent.futures` they do not keep the interpreter from ending; it waits some seconds for them. Laws:

- **In order.** The calls given to a `SerialThread` are made in the order of `submit`, one at a time.
- **Ends.** A `SerialThread` that is thrown away ends when it has made all calls that it was given. `close` drops calls
  that have not begun (unless `drop` is false), and waits at most `wait` seconds for the others.

>>> thread = SerialThread("example")
>>> done = []
>>> for number in range(3):
...     thread.submit(lambda number=number: done.append(number))
>>> thread.close(wait=10, drop=False), done
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
EXIT = 5.0  # seconds that calls under way have when the interpreter ends


class SerialThread:
    """A thread that makes one call after the other; it starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._dropped = Event()
        self._thread: Thread | None = None
        # The thread does not refer to this object; so it ends also when the object is thrown away unclosed.
        finalize(self, self._queue.put, None).atexit = False
        _THREADS.add(self)

    def submit(self, act: Callable[[], object]) -> None:
        """Have the thread call `act`, which must not raise."""
        if self._thread is None:
            self._thread = Thread(target=_work, args=(self._queue, self._dropped), daemon=True)
            self._thread.name = self._name
            self._thread.start()
        self._queue.put(act)

    def close(self, *, wait: float = 0.0, drop: bool = True) -> bool:
        """End the thread; return whether all calls are over within `wait` seconds."""
        if drop:
            self._dropped.set()
        self._queue.put(None)
        if self._thread is None:
            return True
        self._thread.join(wait)
        return not self._thread.is_alive()


_THREADS: weakref.WeakSet[SerialThread] = weakref.WeakSet()
forget_in_child(_THREADS)


@atexit.register
def _end() -> None:
    """Close all threads: a thread that returns from a call after the interpreter is gone would abort the process."""
    deadline = time.monotonic() + EXIT
    for thread in list(_THREADS):
        thread.close(wait=max(0.0, deadline - time.monotonic()))


def _work(todo: queue.SimpleQueue[Callable[[], object] | None], dropped: Event) -> None:
    while (act := todo.get()) is not None and not dropped.is_set():
        try:
            act()
        except Exception:  # later calls must be made
            _LOG.exception("something that a thread was asked for failed")
        del act  # else it would stay in memory until the next call


def in_parallel(function: Callable[[T], U], items: list[T], count: int) -> list[U]:
    """The results of a function for each item, `count` calls at a time; after one has raised, no other begins."""
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
