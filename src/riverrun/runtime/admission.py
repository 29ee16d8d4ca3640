"""Admission: how a process that comes to the rendezvous becomes a worker of a remote cluster, or is told to leave.

A process that was started for a worker asks the *rendezvous*, the endpoint of the driver, which worker it is.
`remote.RemoteCluster` passes the question on to `Admission.join`, in the thread of the connection; `join` acquires the
lock of the `crew`. Laws:

- **Told to leave.** Where no incarnation waits for a process, a process that comes waits `GRANT` seconds for one, and
  is then told to leave.
- **Copies wait.** Spark may run the task of a worker twice. Then two processes have one ticket (`starts`). While one of
  them is a worker, the other waits, and may become any worker that is missing. The waiting process is not told to
  leave: when a copy of a task ends, Spark takes the task for done, and ends the worker.
- **Same versions.** A process whose versions of packages differ from ours ends the run, with an error that names them.
- **One answer.** The answer to a process that is to be a worker has all that a worker has to know of the run, besides
  the plan, with which the process was started.

Cost: a connection in each direction.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Thread
from typing import Any

from riverrun.engine.messages import COORDINATOR
from riverrun.errors import TransportError
from riverrun.runtime.crew import Crew
from riverrun.runtime.departures import Departures
from riverrun.runtime.network.client import Asker, QuestionLine
from riverrun.runtime.network.connection import Credentials
from riverrun.runtime.network.link import Link
from riverrun.runtime.worker_process import versions

GRANT = 10.0  # seconds that a process waits for an identity


@dataclass(frozen=True, slots=True)
class WorkerTerms:
    """What a worker is told of its run."""

    checkpoint: str | None
    synced: bool
    window: int
    storage_timeout: float | None
    silence: float


class Admission:
    """Grants identities to the processes that come."""

    def __init__(
        self,
        crew: Crew,
        departures: Departures,
        credentials: Credentials,
        terms: WorkerTerms,
        *,
        starting: int,
        kernels: Iterable[str],
    ) -> None:
        """A process may be silent for `starting` ticks from its grant until it joins. `kernels` are those that the plan
        calls."""
        self._crew = crew
        self._departures = departures
        self._credentials = credentials
        self._terms = terms
        self._starting = starting
        self.kernels = dict.fromkeys(kernels)
        """The kernels that the plan calls, and others that workers have called."""

    def join(self, applicant: Mapping[str, Any]) -> dict[str, Any]:
        """Grant a process the identity of a worker, or tell it to leave (the law told to leave)."""
        crew = self._crew
        with crew.changed:
            self._check_versions(applicant)
            incarnation = self._grant(applicant)
        if incarnation is None:
            return {"leave": "there is no worker to be"}
        if not self._connect(incarnation, applicant["address"]):
            return {"leave": "it was given up before it began"}
        terms = self._terms
        return {
            "incarnation": incarnation,
            "checkpoint": terms.checkpoint,
            "synced": terms.synced,
            "window": terms.window,
            "storage_timeout": terms.storage_timeout,
            "silence": terms.silence,
            "kernels": list(self.kernels),
        }

    def _check_versions(self, applicant: Mapping[str, Any]) -> None:
        """End the run if a process has other versions (*same versions*)."""
        differ, where = _different(applicant["versions"]), applicant["host"]
        if differ:
            self._crew.end(
                TransportError(
                    "run.versions",
                    f"cannot run: versions differ between this process and a worker on {where}: {differ}",
                    hint="install the same versions everywhere: pip install with one lock file",
                )
            )

    def _grant(self, applicant: Mapping[str, Any]) -> int | None:
        """The incarnation that a process is to be, for which it may have to wait; None if it is to leave."""
        crew, ticket = self._crew, applicant["ticket"]
        deadline = time.monotonic() + GRANT
        while not crew.starts.ungranted and not crew.is_over:
            if self._has_twin(ticket):
                deadline = time.monotonic() + GRANT
            left = deadline - time.monotonic()
            if left <= 0:
                break
            crew.changed.wait(left)
        incarnation = None if crew.is_over else crew.starts.grant(ticket)
        if incarnation is not None:
            crew.coordinator.membership.grant(incarnation, self._starting)
            process = {key: applicant[key] for key in ("pid", "host", "address")}
            crew.peers.enter(incarnation, process)
        return incarnation

    def _has_twin(self, ticket: int) -> bool:
        """Whether another process of the same start is a worker, so that this process is a copy of it and waits as a
        spare.

        If the copy ended, Spark would take the task for done, and end the worker.
        """
        granted = self._crew.starts.incarnation_of(ticket)
        return granted is not None and self._crew.knows(granted)

    def _connect(self, incarnation: int, address: str) -> bool:
        """Connect with a process that was granted an identity; False if it was lost meanwhile."""
        crew, terms = self._crew, self._terms
        try:
            link = Link(
                address,
                COORDINATOR,
                self._credentials,
                window=terms.window,
                silence=terms.silence,
            )
        except TransportError as error:
            with crew.changed:
                sign = f"it cannot be connected to: {error.message}"
                self._departures.lose(incarnation, sign=sign)
            raise
        with crew.changed:
            if crew.is_closed() or not crew.knows(incarnation):
                Thread(target=link.close, daemon=True).start()
                return False
            line = QuestionLine(Asker(address, self._credentials))
            crew.peers.connect(incarnation, link, line)
            crew.tell_peers()
        return True


def _different(theirs: Mapping[str, str]) -> str:
    ours = versions()
    return ", ".join(
        f"{name} {ours[name]} here and {theirs.get(name)} there"
        for name in ours
        if theirs.get(name) != ours[name]
    )
