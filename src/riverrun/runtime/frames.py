"""Frames: what a run asks of the engine of DataFrames that its carrier lives in.

Where a carrier lives in such an engine, Spark, DataFrames need not come through this process: the engine's own
tasks hand rows to the workers, and fetch results from them. A cluster of such a carrier has a `Frames` as
`Cluster.frames`; the clusters of all others have None, and their runs take the rows of a DataFrame through this
process.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from riverrun.engine.messages import Parcel
from riverrun.rows.commands import InputRows
from riverrun.runtime.carriers import Carrier, carrier_of


@dataclass(frozen=True)
class Target:
    """Where rows go, and as what."""

    form: InputRows
    """The columns of the input, and its key."""
    delete: bool
    attempt: str
    """What is being done, for messages: "insert into 'edges'"."""
    sequence: int = 0
    """Where the numbers of commands start, for inputs with a key."""


@dataclass(frozen=True)
class StreamRequest:
    """What a streaming DataFrame is to do: feed an input, every batch of it as an epoch."""

    input: str
    stream: str
    """What the stream is told apart by: the input's name, where no other is given."""
    mode: str
    target: Target
    checkpoint: str | Path | None = None
    """Where the engine keeps how far the stream is; by default below the checkpoint path of the run."""
    trigger: Mapping[str, Any] | None = None


class Frames(Protocol):
    """The engine of DataFrames that a cluster lives in."""

    @property
    def session(self) -> Any:
        """What the user talks to the engine by."""

    def upload(self, frame: Any, target: Target) -> list[Parcel]:
        """Have the engine's tasks hand the rows of a DataFrame to the workers; the parcels that count."""

    def let_go(self, parcels: Iterable[Parcel]) -> None:
        """Nobody will name these parcels, nor others of their uploads."""

    def stream(self, frame: Any, request: StreamRequest, wait: Callable[[int], None]) -> Any:
        """Start a query that feeds an input; `wait` returns when an epoch is complete."""

    def stop_streams(self) -> None:
        """Have the queries end that feed this run."""

    def of_lent(self, number: str) -> Any:
        """A DataFrame of a result that workers lend, by the number under which the run knows it."""


class FrameCarrier(Carrier):
    """A carrier in an engine of DataFrames."""

    @abstractmethod
    def frame_of(self, table: pa.Table, session: Any = None) -> Any:
        """Rows of this process as a DataFrame."""


def spark_frame(table: pa.Table, session: Any = None) -> Any:
    """Rows of this process as a DataFrame of Spark."""
    carrier = carrier_of("spark")
    assert isinstance(carrier, FrameCarrier)
    return carrier.frame_of(table, session)
