"""Frames: what a run asks of the DataFrame engine, Spark, that its workers live in.

Where workers live in such an engine, the rows of a DataFrame need not come through this process: the engine's own
tasks hand rows to the workers, and fetch results from the workers. A cluster that lives in such an engine has a
`Frames` as `CarriedRun.frames`, and the run calls it where DataFrames go in or out. For all other clusters
`CarriedRun.frames` is None, and their runs bring the rows of a DataFrame through this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from riverrun.engine.messages import Parcel
from riverrun.rows.commands import InputRows


@dataclass(frozen=True)
class Target:
    """The input that rows go to, and what the rows do there: insert or delete."""

    form: InputRows
    """The columns of the input, and its key."""
    delete: bool
    """Whether the rows are deleted from the input, rather than inserted."""
    attempt: str
    """What is attempted, for error messages: "insert into 'edges'"."""
    sequence: int = 0
    """The number of the first command, for inputs with a key."""


@dataclass(frozen=True)
class StreamRequest:
    """How a streaming DataFrame feeds an input: each of its batches becomes an epoch."""

    input: str
    stream: str
    """The name by which the run knows the stream: that of the input, unless the user gives another."""
    mode: str
    target: Target
    checkpoint: str | Path | None = None
    """Where the engine stores how far the stream has been read; by default below the checkpoint path of the run."""
    trigger: Mapping[str, Any] | None = None


class Frames(Protocol):
    """The DataFrame engine that a cluster lives in."""

    @property
    def session(self) -> Any:
        """The user's handle of the engine, such as a Spark session."""

    def upload(self, frame: Any, target: Target) -> list[Parcel]:
        """Have the engine's tasks hand the rows of a DataFrame to the workers.

        Returns the parcels for the next epoch to name; parcels of tasks that failed or ran twice are not among them.
        """

    def let_go(self, parcels: Iterable[Parcel]) -> None:
        """Drop parcels that no epoch will name, with all other parcels of the same uploads."""

    def stream(self, frame: Any, request: StreamRequest, wait: Callable[[int], None]) -> Any:
        """Start a streaming query that feeds an input. ``wait(epoch)`` returns when the epoch is complete."""

    def stop_streams(self) -> None:
        """End the streaming queries that feed this run."""

    def of_lent(self, number: str) -> Any:
        """A DataFrame that reads a lent result; `number` is the one under which the run keeps the result."""
