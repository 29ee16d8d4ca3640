"""Asking: questions to a process of a run, rows from it, rows to it. The calling side of `flight`.

Light, like `wire`: whoever asks need not have the engine.

Rows that are *lent* (a worker keeps them under a number, a *loan*) are fetched by `fetch_loans`, which outlives the
worker: what was lost with it is lent anew by whoever has it now. Law: **neither twice nor never**. Each row is given
once, though workers die and shards change hands while rows are fetched.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from riverrun.engine.wire import BadFrame, pack, revive, unpack
from riverrun.errors import RiverrunError, TransportError
from riverrun.retry import Tries, say

TOKEN = "riverrun-token"
L = TypeVar("L")


@dataclass(frozen=True)
class Security:
    """What members of a run know and nobody else: a token; with TLS, also a key and its certificate."""

    token: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    name: str = "riverrun"
    """The name that the certificate is made out to."""

    def location(self, host: str, port: int) -> str:
        shown = f"[{host}]" if ":" in host else host
        return f"{'grpc' if self.key is None else 'grpc+tls'}://{shown}:{port}"

    def connect(self, address: str) -> flight.FlightClient:
        if self.key is None:
            return flight.connect(address)
        return flight.connect(
            address,
            tls_root_certs=self.certificate,
            cert_chain=self.certificate,
            private_key=self.key,
            override_hostname=self.name,
        )

    @property
    def options(self) -> flight.FlightCallOptions:
        return self.options_within(None)

    def options_within(self, seconds: float | None) -> flight.FlightCallOptions:
        headers = [(TOKEN.encode(), self.token.encode())]
        return flight.FlightCallOptions(timeout=seconds, headers=headers)


class Asker:
    """Asks a process questions, fetches rows from it, and hands rows in."""

    def __init__(self, address: str, security: Security) -> None:
        self.address = address
        self._security = security
        self._client = security.connect(address)

    def ask(self, question: str, argument: Any = None, *, within: float | None = None) -> Any:
        """The answer to a question; whatever it was answered with is raised here."""
        action = flight.Action(question, pack(argument))
        with _heard(self.address):
            (result,) = self._client.do_action(action, self._security.options_within(within))
        return unpack(result.body)

    def rows(self, ticket: Any) -> Iterator[pa.RecordBatch]:
        """Rows, as they come."""
        with _heard(self.address):
            reader = self._client.do_get(flight.Ticket(pack(ticket)), self._security.options)
            for chunk in chunks(reader):
                yield chunk.data

    def stage(self, about: Any, schema: pa.Schema) -> Stage:
        """Begin to hand rows in."""
        with _heard(self.address):
            descriptor = flight.FlightDescriptor.for_command(pack(about))
            return Stage(self, *self._client.do_put(descriptor, schema, self._security.options))

    def close(self) -> None:
        self._client.close()


class Stage:
    """Rows on their way to a process."""

    def __init__(self, asker: Asker, writer: Any, answers: Any) -> None:
        self._asker = asker
        self._writer = writer
        self._answers = answers

    def write(self, batch: pa.RecordBatch) -> None:
        with _heard(self._asker.address):
            self._writer.write_batch(batch)

    def done(self) -> Any:
        """All rows were written: what the receiver says to that."""
        with _heard(self._asker.address):
            self._writer.done_writing()
            answer = self._answers.read()
            self._writer.close()
        return unpack(answer)


class _heard:  # noqa: N801
    """Turns what Flight raises into what was raised at the other end."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or not isinstance(error, flight.FlightError | pa.ArrowException | OSError):
            return
        told = getattr(error, "extra_info", None)
        if told:
            try:
                described = unpack(told)
            except BadFrame:
                described = None
            if described is not None:
                revived = revive(described)
                raise revived from revived.__cause__
        raise unreachable(self._address, error) from error


def unreachable(address: str, error: BaseException) -> TransportError:
    """The error of one who cannot talk to a process."""
    if isinstance(error, flight.FlightUnauthenticatedError):
        return TransportError(
            "transport.token",
            f"cannot talk to {address}: it refuses our token",
            hint="a token belongs to one run: use the address and token of a run that is alive",
            address=address,
        )
    said = str(error).split(". Detail:")[0][:300]
    return TransportError(
        "transport.unreachable",
        f"cannot talk to {address}: {type(error).__name__}: {said}",
        hint="the process there has ended, or the network does not let us through",
        address=address,
    )


def chunks(reader: Any) -> Iterator[Any]:
    """What a stream brings."""
    while True:
        try:
            yield reader.read_chunk()
        except StopIteration:
            return


def fetch_loans(
    loans: Iterable[L],
    fetch: Callable[[L], Iterator[pa.RecordBatch]],
    renew: Callable[[L], Iterable[L]],
    what: str,
    *,
    ordered: bool,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """The rows of all loans. A loan whose rows cannot be fetched is replaced by those that `renew` gives for it.

    Where rows are `ordered` (the one-order law of `reading`), fetching goes on behind those that were given already.
    Otherwise the rows of a loan are given when all of them are here. `what` completes "cannot ...".

    >>> rows = {"a": [[1, 2], [3]], "b": [[1]], "c": [[2, 3, 4]], "d": [[5]]}
    >>> def fetch(loan):
    ...     for each in rows[loan]:
    ...         yield pa.record_batch({"n": each})
    ...     if loan == "a":
    ...         raise TransportError("transport.unreachable", "its worker died", hint="")
    >>> found = fetch_loans(["a", "d"], fetch, lambda lost: ["b", "c"], "read", ordered=True)
    >>> [batch.column(0).to_pylist() for batch in found]
    [[1, 2], [3], [4], [5]]
    """
    queue, known = deque(loans), 0
    """Of the rows that the first loans in the queue have, so many were given."""
    tries = Tries(what)
    while queue:
        loan, seen = queue[0], 0
        try:
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
            queue.popleft()
            queue.extendleft(reversed(list(renew(loan))))
