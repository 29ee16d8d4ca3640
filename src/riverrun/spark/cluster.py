"""A cluster on Spark: workers are tasks of a session, the coordinator is in the driver process.

A run gets one by ``flow.run(on="spark")`` or ``on=session`` (`carrier`). Several clusters can live in one session,
beside the user's own jobs. Closing a cluster ends its tasks. A session that the cluster has made is stopped then; a
session of the user's stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun import interrupts
from riverrun.engine.instance import Maker
from riverrun.engine.messages import Parcel
from riverrun.errors import PlanError
from riverrun.plan.kernels_needed import kernels_of
from riverrun.plan.plan import Plan
from riverrun.runtime.carried import ResultServer
from riverrun.runtime.frames import StreamRequest, Target
from riverrun.runtime.machine import available_cores
from riverrun.runtime.remote import RemoteCluster
from riverrun.spark.frames import of_lent
from riverrun.spark.ingest import upload, upload_of
from riverrun.spark.launcher import SparkLauncher
from riverrun.spark.security import secured
from riverrun.spark.session import (
    DATA_SLOTS,
    Site,
    active_session,
    check_slots,
    known_slots,
    open_site,
    own_python,
)
from riverrun.spark.source import register
from riverrun.spark.streams import start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ALIVE: dict[str, SparkCluster] = {}
"""The runs of this process that are on Spark, by name."""


class SparkCluster(RemoteCluster):
    """A run whose workers are tasks of a Spark session."""

    def __init__(
        self,
        plan: Plan,
        on: Any,
        workers: int = 1,
        *,
        history: int = 1,
        memory: int | None = None,
        tls: bool | tuple[str | Path, str | Path] = False,
        timeout: float = 60.0,
        **durability: Any,
    ) -> None:
        self.site = open_site(on, workers, memory, _occupied_slots())
        self.streams: dict[str, Any] = {}
        """The queries that feed the run, by the names of their streams."""
        self._plan_name = plan.name
        launcher = SparkLauncher(
            self.site, plan.name, Maker(plan, history + 1, memory), kernels_of(plan)
        )
        interrupts.renew()  # a new session installs a signal handler of its own
        try:
            interrupts.check()
            super().__init__(
                launcher,
                workers,
                host=self.site.host,
                credentials=secured(tls),
                timeout=timeout,
                plan=plan,
                **durability,
            )
        except BaseException:
            if self.site.ours:
                self.site.session.stop()
            raise
        self.frames = self

    def upload(
        self, frame: Any, target: Target, wait: Callable[[float], object] = interrupts.sleep
    ) -> list[Parcel]:
        """Hand the rows of a DataFrame to the workers, by Spark's own tasks."""
        return upload(self, self.site, frame, target, wait)

    def let_go(self, parcels: Iterable[Parcel]) -> None:
        """Have workers drop these parcels and all others of the same uploads: no epoch will name them."""
        for name in {upload_of(parcel) for parcel in parcels}:
            self.forget_upload(name, ())

    def stream(self, frame: Any, request: StreamRequest, wait: Callable[[int], None]) -> Any:
        """Start a query that feeds an input."""
        return start(self, frame, request, wait)

    def of_lent(self, number: str) -> Any:
        """A DataFrame of a result that workers lend."""
        return of_lent(self.session, self.name, number)

    def serve(self, server: ResultServer) -> None:
        """Let Spark read from this run by its `name`: the name of the dataflow, with a number behind it where another
        run has that name."""
        super().serve(server)
        self.name, taken = self._plan_name, 1
        while self.name in _ALIVE:
            taken += 1
            self.name = f"{self._plan_name}-{taken}"
        _ALIVE[self.name] = self
        _register(self.site)

    def scale(self, workers: int) -> None:
        self._check_room(workers)
        super().scale(workers)

    def _check_room(self, workers: int) -> None:
        others = _occupied_slots() - len(self._coordinator.members)
        check_slots(self.session.sparkContext, workers, others)

    def stop_streams(self) -> None:
        """End the queries that feed the run."""
        for query in self.streams.values():
            with suppress(Exception):
                query.stop()
        self.streams.clear()

    def close(self) -> None:
        try:
            if _ALIVE.get(getattr(self, "name", "")) is self:
                del _ALIVE[self.name]
                with suppress(Exception):  # the session may be gone
                    _register(self.site)
        finally:
            super().close()

    @property
    def session(self) -> SparkSession:
        """The session that the workers run on."""
        return self.site.session


def _occupied_slots() -> int:
    """How many slots the runs of this process occupy: a process has one Spark application."""
    return sum(
        len(cluster._coordinator.members) for cluster in _ALIVE.values() if not cluster.closed
    )


def free_slots(on: Any) -> int:
    """For how many workers there is room in the session `on`; for "spark", in the active or a new local session."""
    session = active_session() if on == "spark" else on
    if session is None:
        return available_cores()
    context = session.sparkContext
    known = known_slots(context)
    if known is None:
        raise PlanError(
            "plan.run",
            f"cannot run with workers='auto' on {context.master}: it does not say how many task slots it has",
            hint="give a number: flow.run(on=session, workers=4); or set spark.cores.max",
        )
    return max(known - _occupied_slots() - DATA_SLOTS, 1)


def _register(site: Site) -> None:
    """Tell a session of all runs that are alive on it."""
    runs = {
        name: (cluster.address, cluster.credentials)
        for name, cluster in _ALIVE.items()
        if cluster.site.session is site.session
    }
    with own_python(site):
        register(site.session, runs, ship=not site.local)
