"""Lines: to a worker that may be given up while one waits for it.

A process that is stopped, or a machine that is cut off, breaks no connection: whoever asked it waits
as long as it stays silent. The coordinator finds out (`coordinator.tick`); here is how all others learn
of it. Laws:

1. **Given up together.** A question to a worker, or a read of its rows, ends with a `TransportError`
   soon after the worker is given up, whatever its connection does.
2. **In order.** Questions on one line are asked one after the other.

>>> from threading import Timer
>>> class Silent:
...     address = "nowhere"
...
...     def ask(self, question, argument):
...         Event().wait()
...
...     def close(self):
...         pass
>>> line = Line(Silent())
>>> Timer(0.05, line.close).start()
>>> line.ask("read")
Traceback (most recent call last):
riverrun.errors.TransportError: cannot hear from the worker at nowhere: it was given up
Hint: ask again: another one takes its place

Cost: about 0.05 ms for a question, and for a read, besides.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any

from riverrun import interrupts
from riverrun.engine.asking import Asker
from riverrun.errors import TransportError

LOOK = 0.5  # seconds after which whoever waits for rows looks whether the worker is still one
AHEAD = 4


class Line:
    """Questions to one worker, asked by a thread of their own."""

    def __init__(self, asker: Asker) -> None:
        self.address = asker.address
        self._asker = asker
        self._lock = Lock()
        self._open = True
        self._thread: Thread | None = None
        self._asked: queue.SimpleQueue[tuple[Future[Any], str, Any] | None] = queue.SimpleQueue()
        self._waiting: set[Future[Any]] = set()

    def ask(
        self,
        question: str,
        argument: Any = None,
        unheard: Callable[[Any], None] | None = None,
    ) -> Any:
        """The answer to a question; raises what it was answered with, or that the worker was given up.

        `unheard` is given the answer that comes after whoever asked was interrupted.
        """
        future: Future[Any] = Future()
        with self._lock:
            if not self._open:
                raise given_up(self.address)
            self._waiting.add(future)
            if self._thread is None:
                self._thread = Thread(target=self._work, name="riverrun-line", daemon=True)
                self._thread.start()
        self._asked.put((future, question, argument))
        try:
            while not future.done() and interrupts.can_raise():
                wait([future], interrupts.SLICE)
                interrupts.check()
        except BaseException:
            if unheard is not None:
                future.add_done_callback(lambda done: _hand_on(done, unheard))
            raise
        return future.result()

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            future, question, argument = asked
            try:
                if self._open:
                    answer = self._asker.ask(question, argument)
                    with suppress(InvalidStateError):
                        future.set_result(answer)
            except BaseException as error:
                with suppress(InvalidStateError):
                    future.set_exception(error)
            with self._lock:
                self._waiting.discard(future)

    def close(self) -> None:
        """Give the worker up."""
        with self._lock:
            self._open = False
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            with suppress(InvalidStateError):
                future.set_exception(given_up(self.address))
        self._asked.put(None)
        self._asker.close()  # the thread may be waiting for an answer that never comes


def _hand_on(future: Future[Any], unheard: Callable[[Any], None]) -> None:
    if future.exception() is None:
        unheard(future.result())


def watched(address: str, rows: Iterator[Any], gone: Callable[[], bool]) -> Iterator[Any]:
    """What an iterator gives, fetched by a thread; ends with an error when `gone` says that nothing will come."""
    got: queue.Queue[tuple[str, Any]] = queue.Queue(AHEAD)
    over = Event()

    def hand(kind: str, what: Any) -> None:
        while not over.is_set():
            with suppress(queue.Full):
                got.put((kind, what), timeout=LOOK)
                return

    def fetch() -> None:
        try:
            for each in rows:
                hand("rows", each)
                if over.is_set():
                    return
            hand("end", None)
        except BaseException as error:
            hand("error", error)

    Thread(target=fetch, name="riverrun-fetch", daemon=True).start()
    try:
        while True:
            interrupts.check()
            try:
                kind, what = got.get(timeout=interrupts.SLICE if interrupts.can_raise() else LOOK)
            except queue.Empty:
                if gone():
                    raise given_up(address) from None
                continue
            if kind == "end":
                return
            if kind == "error":
                raise what
            yield what
    finally:
        over.set()


def given_up(address: str) -> TransportError:
    """The error of one who waits for a worker that is none any more."""
    return TransportError(
        "transport.given_up",
        f"cannot hear from the worker at {address}: it was given up",
        hint="ask again: another one takes its place",
        address=address,
    )
