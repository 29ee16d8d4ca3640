"""Asking: questions to a process of a run, rows from it, rows to it. The calling side of `flight`.

Light, like `wire`: whoever asks need not have the engine.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from riverrun.engine.wire import BadFrame, pack, revive, unpack
from riverrun.errors import TransportError

TOKEN = "riverrun-token"


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
