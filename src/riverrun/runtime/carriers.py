"""Carriers: the places where workers of a run can live, and which of them a value of ``flow.run(on=...)`` means.

A `Carrier` says which run options make sense at its place, how many workers ``workers="auto"`` means there, and starts
a `CarriedRun`. A run asks `carrier_of` for its carrier; of the place where its workers live, a run knows the seam
(`carried`) and nothing else. There are three carriers: this process (``on=None``), processes of this machine
(``on="processes"``), and Spark (``on="spark"`` or a session). A user's own carrier is registered under a word, or
passed as an object: ``flow.run(on=MyCarrier())``. Laws:

- **One carrier.** Each value of `on` leads to one carrier, or is refused with an error that lists the known words.
- **Loaded when asked for.** The module of a carrier is imported when a run asks for that carrier, not before. So a run
  in this process loads nothing of Spark, and rooms above `runtime` can bring carriers that no file of `runtime`
  imports.

>>> carrier_of(None).place
'in this process'
>>> carrier_of("processes").place
'in processes of this machine'
>>> carrier_of("proceses")
Traceback (most recent call last):
    ...
riverrun.errors.PlanError: cannot run on 'proceses': `on` is one of 'processes', 'spark', or a SparkSession
...
Hint: did you mean on='processes'?

Cost: a lookup in a dict; the first time, the import of the carrier's module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from riverrun.engine.coordinator.membership import SILENCE, Policy
from riverrun.errors import PlanError
from riverrun.plan.plan import Plan
from riverrun.rows.values import show
from riverrun.runtime.carried import CarriedRun
from riverrun.runtime.health.signs import Balance
from riverrun.storage.store import Storage

EVERY = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Durability:
    """Where a run keeps its log and checkpoints, how often it makes one, and how it goes on from those that are
    there."""

    checkpoint: str | Path | Storage | None = None
    every: int | timedelta | None = EVERY
    """The distance of checkpoints, in epochs or time; with None they are made on request only."""
    retain: int = 2
    policy: Policy = "replace"
    skip_failing: bool = False
    fingerprint: Mapping[str, Any] | None = None
    """What the program is, where there is no `plan`: only a program with the same fingerprint resumes."""
    application: str = ""
    """The name of the run in errors of other runs that want the same path."""
    storage_timeout: float | None = None
    """Seconds after which a storage that fails ends the run; None for never."""
    take_over: bool = False
    """Take the path even if another run uses it, which ends that one."""
    from_checkpoint: int | None = None
    """The checkpoint to go back to, in place of the newest."""
    about: Mapping[str, Any] | None = None
    """JSON that is stored in every checkpoint besides."""
    plan: Plan | None = None
    """The program, to be compared with the program of the checkpoint."""
    rebuild: bool = False
    """Whether states that the checkpoint lacks are built from the log."""
    keep_inputs: bool | None = None
    """Whether the log keeps the rows of all epochs; None: as was promised before."""
    synced: bool = False
    """Whether files on a local disk are synced to the disk before they count."""


@dataclass(frozen=True)
class ClusterRequest:
    """The cluster that a run asks a carrier for."""

    plan: Plan
    on: Any = None
    """The value of ``on=``: a word, or an object such as a session."""
    workers: int = 1
    history: int = 1
    """How many epochs back results can be read."""
    memory: int | None = None
    """Bytes of state that each worker keeps in memory."""
    seed: int | None = None
    timeout: float = 60.0
    """Seconds within which all workers have to report."""
    tls: bool | tuple[str | Path, str | Path] = False
    silence: float = SILENCE
    """Seconds after which a worker that gives no sign of life is thought dead."""
    balance: Balance = "report"
    """What is done about stragglers."""
    most_workers: int = 1
    """The greatest number of workers, where ``balance="grow"`` adds some."""
    durability: Mapping[str, Any] = field(default_factory=dict)
    """The fields of `Durability`, except for the plan."""


class Carrier(ABC):
    """A place where the workers of runs live."""

    place: ClassVar[str]
    """The place in words, as error messages say it: "on Spark"."""
    takes: ClassVar[frozenset[str]] = frozenset()
    """Those of the options "seed", "tls", "silence" and "balance" that make sense at this place; not every place has
    them. "storage" means that a checkpoint may be an opened `Storage`, and not only its path or URL."""

    most_workers: ClassVar[int | None] = None
    """The greatest number of workers that makes sense at this place; None where something else bounds it."""

    @abstractmethod
    def start(self, request: ClusterRequest) -> CarriedRun:
        """Start the workers, and return when all of them are ready."""

    @abstractmethod
    def suitable_workers(self, on: Any) -> int:
        """How many workers ``workers="auto"`` means here."""


class FrameCarrier(Carrier):
    """A carrier whose workers live in a DataFrame engine (`runtime.frames`)."""

    @abstractmethod
    def frame_of(self, table: pa.Table, session: Any = None) -> Any:
        """A DataFrame of rows that this process has."""


_REGISTERED: dict[str | None, Carrier | str] = {
    None: "riverrun.runtime.local",
    "processes": "riverrun.runtime.processes",
    "spark": "riverrun.spark.carrier",
}
"""For each word of ``on=`` a carrier, or the name of the module that has the carrier as `CARRIER`.

Spark's module stands here by its name, and does not register itself: a module registers itself when it is imported, and
nobody imports it before a run asks for Spark, since that would load Spark for every run, or have `run` or `frontends`
know it. Metadata of the installed package could name it, and would not be there in a source tree."""
_OBJECTS = {"pyspark": "spark"}
"""For each package whose objects ``on=`` takes, the word of the carrier that they mean."""


def register(word: str, carrier: Carrier | str, *, package: str | None = None) -> None:
    """Have ``on=word`` mean a carrier.

    `carrier` is the carrier, or the name of the module that has it as `CARRIER`; a run that asks for the carrier
    imports the module. With `package`, objects of that package's classes mean the carrier too, as a Spark session does.
    """
    _REGISTERED[word] = carrier
    if package is not None:
        _OBJECTS[package] = word


def carrier_of(on: Any) -> Carrier:
    """The carrier that a value of ``on=`` means; `PlanError` for a value that means none."""
    if isinstance(on, Carrier):
        return on
    if on is None or isinstance(on, str):
        word = on
    else:
        packages = (kind.__module__.partition(".")[0] for kind in type(on).__mro__)
        word = next((_OBJECTS[package] for package in packages if package in _OBJECTS), "")
    if word not in _REGISTERED:
        raise _unknown(on)
    carrier = _REGISTERED[word]
    if isinstance(carrier, str):
        carrier = _REGISTERED[word] = import_module(carrier).CARRIER
    return carrier


def spark_frame(table: pa.Table, session: Any = None) -> Any:
    """A Spark DataFrame of rows that this process has."""
    carrier = carrier_of("spark")
    assert isinstance(carrier, FrameCarrier)
    return carrier.frame_of(table, session)


def _unknown(on: Any) -> PlanError:
    words = [word for word in _REGISTERED if word is not None]
    close = get_close_matches(on, words, n=1) if isinstance(on, str) else []
    listed = ", ".join(map(repr, words))
    return PlanError(
        "plan.run",
        f"cannot run on {show(on)}: `on` is one of {listed}, or a SparkSession",
        hint=f"did you mean on={close[0]!r}?"
        if close
        else 'flow.run(on="processes", workers=2); without `on` the run is in this process',
    )
