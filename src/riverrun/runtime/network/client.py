"""The client of a process of a run: asks it questions, fetches rows from it, hands rows to it.

The driver, tasks of Spark and workers use it; the other end is an `endpoint`. The module is light, like `codec.plain`,
and needs no engine. A process that is stopped, or a machine that is cut off, breaks no connection, so a caller could
wait for ever; but the coordinator notices in the end that a worker is gone, and *gives the worker up*. There are four
parts:

- An `Asker` asks questions, fetches rows (`rows`) and hands rows in (`begin_upload`), for any number of threads: each
  call has a connection of its own, which a later call uses again.
- A `QuestionLine` asks one worker questions through an `Asker`. When the worker is given up, the line is closed.
- `watched` passes on rows that a thread fetches, until a function `gone` says that their worker was given up.
- `fetch_loans` gives the rows that workers *lend* (they keep them under a number, a *loan*), also when such workers are
  lost meanwhile. The caller says how the rows of a loan are fetched, and which loans take the place of a lost one.

Laws:

- **Given up together.** A question on a line, or a read of `watched` rows, ends with a `TransportError` soon after the
  worker is given up, whatever the connection does.
- **In order.** Questions on one line are asked one after the other.
- **Neither twice nor never.** `fetch_loans` gives each row once, though workers die and shards change hands meanwhile.

>>> class Silent:
...     address = "nowhere"
...
...     def ask(self, question, argument):
...         Event().wait()
...
...     def close(self):
...         pass
>>> from threading import Timer
>>> line = QuestionLine(Silent())
>>> Timer(0.05, line.close).start()
>>> line.ask("read")
Traceback (most recent call last):
riverrun.errors.TransportError: cannot hear from the worker at nowhere: it was given up
Hint: ask again: another one takes its place

Cost: a question takes some 0.2 ms, and 0.05 ms more on a line.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, TypeVar

import pyarrow as pa

from riverrun import interrupts
from riverrun.errors import BadMessage, RiverrunError, TransportError
from riverrun.retry import Tries, say
from riverrun.runtime.codec.plain import pack, revive, unpack
from riverrun.runtime.network.connection import (
    ANSWER,
    ASK,
    BATCH,
    END,
    ERROR,
    ROWS,
    SCHEMA,
    UPLOAD,
    Connection,
    Credentials,
    Packet,
    pieces_of,
    unreachable,
)
from riverrun.state.soundness import UnsoundRows, read_body

__all__ = ["Asker", "Credentials", "RowUpload", "fetch_loans"]

L = TypeVar("L")

LENDER_LOOK = (
    0.5  # seconds after which a reader that waits for rows asks whether the worker was given up
)
AHEAD = 4  # batches that are fetched ahead of the reader

REUSE = 300.0
"""Seconds after which an idle connection is not used again: the other end closes it after twice that."""


class Asker:
    """Asks a process questions, fetches rows from it, and hands rows in."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self.address = address
        self._credentials = credentials
        self._lock = Lock()
        self._idle: list[tuple[float, Connection]] = []
        self._used: set[Connection] = set()
        self._open = True

    def ask(self, question: str, argument: Any = None, *, within: float | None = None) -> Any:
        """The answer to a question; an error that the other end answers with is raised here."""
        with _Call(self, within) as call:
            call.send(ASK, pack((question, argument)))
            packet = call.receive()
            call.keep()
            return unpack(packet.head)

    def rows(self, ticket: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a ticket, as they come."""
        with _Call(self) as call:
            call.send(ROWS, pack(ticket))
            schema = pa.ipc.read_schema(pa.py_buffer(call.receive(SCHEMA).head))
            while (packet := call.receive(BATCH, END)).kind == BATCH:
                if packet.body is None:
                    raise BadMessage("a packet has no rows")
                yield read_body(packet.body, schema)
            call.keep()

    def begin_upload(self, about: Any, schema: pa.Schema) -> RowUpload:
        """Begin to hand rows in."""
        call = _Call(self)
        with call.watched():
            call.send(UPLOAD, pack((about, schema.serialize().to_pybytes())))
        return RowUpload(call)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections; calls that are under way in other threads fail."""
        with self._lock:
            self._open = False
            connections = [*self._used, *(each for _, each in self._idle)]
            self._idle.clear()
        for each in connections:
            each.close()

    def _connect(self, within: float | None) -> Connection:
        while True:
            with self._lock:
                if not self._open:
                    raise unreachable(self.address, OSError("it was closed here"))
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                break
            since, connection = idle
            if time.monotonic() - since < REUSE and not connection.has_something:
                return self._use(connection)
            connection.close()
        return self._use(self._credentials.connect(self.address, within))

    def _use(self, connection: Connection) -> Connection:
        with self._lock:
            self._used.add(connection)
            is_open = self._open
        if not is_open:
            connection.close()
        return connection

    def _give_back(self, connection: Connection, again: bool) -> None:
        with self._lock:
            self._used.discard(connection)
            if again and self._open:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()


class _Call:
    """One call: has a connection until the call is over, and raises failures as errors of Riverrun."""

    def __init__(self, asker: Asker, within: float | None = None) -> None:
        self._asker = asker
        self._address = asker.address
        self._deadline = None if within is None else time.monotonic() + within
        self._keep = False
        self._is_said = True  # whether all is sent that the other end waits for
        self._connection = asker._connect(within)

    def send(self, kind: int, head: bytes = b"", body: Any = None) -> None:
        self._wait_until()
        self._is_said = kind not in (UPLOAD, BATCH)
        self._connection.send(kind, head, body)

    def receive(self, *kinds: int) -> Packet:
        """The next packet, of one of these kinds; an error that comes instead is raised."""
        self._wait_until()
        packet = self._connection.receive()
        if packet is None:
            raise ConnectionResetError("the other end has closed the connection")
        if packet.kind == ERROR:
            self._keep = self._is_said
            revived = revive(unpack(packet.head))
            raise revived from revived.__cause__
        if packet.kind not in (kinds or (ANSWER,)):
            raise BadMessage(f"a packet of kind {packet.kind} is not what was asked for")
        return packet

    def _wait_until(self) -> None:
        if self._deadline is not None:
            self._connection.set_timeout(max(self._deadline - time.monotonic(), 0.001))

    @property
    def has_answer(self) -> bool:
        """Whether the other end has answered already."""
        return self._connection.has_something

    def keep(self) -> None:
        """Note that the call is complete: the connection can be used again."""
        self._keep = True

    def close(self) -> None:
        if self._keep and self._deadline is not None:
            with suppress(OSError):
                self._connection.set_timeout(None)
        self._asker._give_back(self._connection, self._keep)

    def watched(self) -> _CallGuard:
        """A block of the call: where the block fails, the call is over."""
        return _CallGuard(self, ends=False)

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        _CallGuard(self, ends=True).__exit__(kind, error, trace)


class _CallGuard:
    """A block of a call, which ends the call when the block fails, or in any case if `ends`."""

    def __init__(self, call: _Call, *, ends: bool) -> None:
        self._call = call
        self._ends = ends

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None or self._ends:
            self._call.close()
        if isinstance(error, OSError | BadMessage | UnsoundRows | pa.ArrowException):
            raise unreachable(self._call._address, error) from error


class RowUpload:
    """Rows on their way to a process."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    def write(self, batch: pa.RecordBatch) -> None:
        """Send rows, in packets of a bounded size; a row is never cut."""
        with self._call.watched():
            for piece in pieces_of(batch):
                if self._call.has_answer:  # the receiver refuses the rows: `receive` raises why
                    self._call.receive()
                self._call.send(BATCH, b"", piece.serialize())

    def done(self) -> Any:
        """Say that all rows were written; return the answer of the receiver."""
        with self._call as call:
            call.send(END)
            packet = call.receive()
            call.keep()
            return unpack(packet.head)


def fetch_loans(
    loans: Iterable[L],
    fetch: Callable[[L], Iterator[pa.RecordBatch]],
    renew: Callable[[L], Iterable[L]],
    what: str,
    *,
    ordered: bool,
    wait: Callable[[float], object] = interrupts.sleep,
) -> Iterator[pa.RecordBatch]:
    """The rows of all loans. A loan whose rows cannot be fetched is replaced by the loans that `renew` gives for it.

    Where rows are `ordered` (the *one order* law of `engine.reading`), fetching goes on behind the rows that were given
    already. Otherwise the rows of a loan are given when all of them are here. `what` completes "cannot ...".

    >>> from riverrun.errors import TransportError
    >>> rows = {"a": [[1, 2], [3]], "b": [[1]], "c": [[2, 3, 4]], "d": [[5]]}
    >>> def fetch(loan):
    ...     for each in rows[loan]:
    ...         yield pa.record_batch({"n": each})
    ...     if loan == "a":
    ...         raise TransportError("transport.unreachable", "its worker died", hint="")
    >>> batches = fetch_loans(["a", "d"], fetch, lambda lost: ["b", "c"], "read", ordered=True)
    >>> [batch.column(0).to_pylist() for batch in batches]
    [[1, 2], [3], [4], [5]]
    """
    queue, known = deque(loans), 0
    """How many rows of the first loans in the queue were given already."""
    tries, is_lost = Tries(what), False
    while queue:
        loan, seen = queue[0], 0
        try:
            if is_lost:
                renewed = list(renew(loan))
                queue.popleft()
                queue.extendleft(reversed(renewed))
                is_lost = False
                continue
            batches = fetch(loan)
            for batch in batches if ordered else list(batches):
                news = batch.slice(max(known - seen, 0))
                seen += batch.num_rows
                if seen > known:
                    tries.succeeded(time.monotonic())
                if news.num_rows or not batch.num_rows:
                    yield news
            queue.popleft()
            known = max(known - seen, 0)
        except RiverrunError as error:
            known = max(known, seen)
            pause = tries.failed(error, time.monotonic())
            say(tries, time.monotonic())
            wait(pause)
            is_lost = True


class QuestionLine:
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
        """The answer to a question; raises the error that the worker answers with, or that the worker was given up.

        Where the caller is interrupted, `unheard` gets the answer that comes afterwards.
        """
        future: Future[Any] = Future()
        with self._lock:
            if not self._open:
                raise worker_gone(self.address)
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
        """Give the worker up: questions that wait for it end with an error."""
        with self._lock:
            self._open = False
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            with suppress(InvalidStateError):
                future.set_exception(worker_gone(self.address))
        self._asked.put(None)
        self._asker.close()  # the thread may be waiting for an answer that never comes


def _hand_on(future: Future[Any], unheard: Callable[[Any], None]) -> None:
    if future.exception() is None:
        unheard(future.result())


def watched(address: str, rows: Iterator[Any], gone: Callable[[], bool]) -> Iterator[Any]:
    """The rows of an iterator, fetched by a thread; ends with an error when `gone` says that no more will come."""
    got: queue.Queue[tuple[str, Any]] = queue.Queue(AHEAD)
    over = Event()

    def hand(kind: str, what: Any) -> None:
        while not over.is_set():
            with suppress(queue.Full):
                got.put((kind, what), timeout=LENDER_LOOK)
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
                kind, what = got.get(
                    timeout=interrupts.SLICE if interrupts.can_raise() else LENDER_LOOK
                )
            except queue.Empty:
                if gone():
                    raise worker_gone(address) from None
                continue
            if kind == "end":
                return
            if kind == "error":
                raise what
            yield what
    finally:
        over.set()


def worker_gone(address: str) -> TransportError:
    """The error of a caller that waits for a worker which was given up."""
    return TransportError(
        "transport.given_up",
        f"cannot hear from the worker at {address}: it was given up",
        hint="ask again: another one takes its place",
        address=address,
    )
