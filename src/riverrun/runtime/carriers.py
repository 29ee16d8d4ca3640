"""Carriers: what a run can stand on, by the word or the object that ``flow.run(on=...)`` is given.

A run knows the interface `Cluster` and nothing else of the place where its workers live. A `Carrier` is such a
place: it says which options make sense there, how many workers ``"auto"`` is, and starts the cluster. There are
three: this process (``on=None``), processes of this machine (``on="processes"``), and Spark (``on="spark"`` or a
session). A carrier of somebody else's is registered under a word, or given itself: ``flow.run(on=MyCarrier())``.
Laws:

- **One carrier.** What `on` is leads to one carrier, or is refused with the words that are known.
- **Loaded when asked for.** The module of a carrier is imported when a run asks for that carrier, not before. So a run
  in this process loads nothing of Spark, and the rooms above this one can bring carriers that this one never imports.

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

Cost: a look into a dict, and at first the import of the carrier.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from riverrun.engine.coordinator.membership import SILENCE
from riverrun.errors import PlanError
from riverrun.plan.plan import Plan
from riverrun.rows.values import show
from riverrun.runtime.cluster import Cluster
from riverrun.runtime.health.signs import Balance


@dataclass(frozen=True)
class Order:
    """What a run asks of a carrier."""

    plan: Plan
    on: Any = None
    """What the user gave: the word, or an object such as a session."""
    workers: int = 1
    history: int = 1
    """How many epochs back results can be read."""
    memory: int | None = None
    """Bytes of state that each worker keeps in memory."""
    seed: int | None = None
    timeout: float = 60.0
    """Seconds that workers have to come up."""
    tls: bool | tuple[str | Path, str | Path] = False
    silence: float = SILENCE
    balance: Balance = "report"
    most_workers: int = 1
    """How many workers there may be, where stragglers get help."""
    durability: Mapping[str, Any] = field(default_factory=dict)
    """The fields of `cluster.Durability`, but for the plan."""


class Carrier(ABC):
    """A place where the workers of runs live."""

    place: ClassVar[str]
    """Where that is, as messages say it: "on Spark"."""
    takes: ClassVar[frozenset[str]] = frozenset()
    """Which of the options that not every place has make sense there: "seed", "tls", "balance"."""

    @abstractmethod
    def start(self, order: Order) -> Cluster:
        """Start a cluster; it is ready when this returns."""

    @abstractmethod
    def suitable_workers(self, on: Any) -> int:
        """How many workers ``workers="auto"`` is."""


_REGISTERED: dict[str | None, Carrier | str] = {
    None: "riverrun.runtime.local",
    "processes": "riverrun.runtime.processes",
    "spark": "riverrun.spark.carrier",
}
"""By word, a carrier, or the module that has it as `CARRIER`."""
_OBJECTS = {"pyspark": "spark"}
"""By package, the word of the carrier that takes objects of its classes."""


def register(word: str, carrier: Carrier | str, *, package: str | None = None) -> None:
    """Have ``on=word`` mean a carrier: itself, or the module that has it as `CARRIER`, imported when it is asked for.

    With a `package`, objects of its classes mean the carrier too, as a session does.
    """
    _REGISTERED[word] = carrier
    if package is not None:
        _OBJECTS[package] = word


def carrier_of(on: Any) -> Carrier:
    """The carrier that ``on=`` leads to."""
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
