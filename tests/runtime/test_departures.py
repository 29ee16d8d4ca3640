"""How workers are lost and dismissed, and how processes are let in, without a process or a connection."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from riverrun.engine.coordinator.coordinator import Coordinator
from riverrun.engine.events import Events
from riverrun.engine.loop_rounds import LongLoops
from riverrun.engine.messages import SUPERVISOR, JoinRun, Start, Stop
from riverrun.errors import TransportError
from riverrun.runtime import admission, departures
from riverrun.runtime.admission import Admission, WorkerTerms
from riverrun.runtime.crew import Crew
from riverrun.runtime.departures import Departures
from riverrun.runtime.health.oversight import Overseer
from riverrun.runtime.health.signs import Health
from riverrun.runtime.network.connection import Credentials
from riverrun.runtime.peers import ConnectedPeers
from riverrun.runtime.starts import STARTS, Starts
from riverrun.runtime.worker_process import versions
from riverrun.storage.takeover import Opening

NEW = Opening(owner=0, number=0, epoch=0, start=0, top=0, next=1, pending=())
TERMS = WorkerTerms(None, False, 1 << 20, None, 30.0)


class Driver:
    """A coordinator and its crew; processes come and go as a test says."""

    def __init__(self, workers: int = 2, *, durable: bool = True) -> None:
        self.started: list[int] = []
        self.stopped = dict[int, threading.Event]()
        events = Events()
        health = Health(events)
        coordinator = Coordinator(workers, opening=NEW if durable else None)
        self.crew = Crew(
            coordinator, threading.Condition(threading.RLock()), events, LongLoops(events), health,
            Starts(self), ConnectedPeers(),
            carry=self.carry, tell_peers=lambda: None, is_closed=lambda: False,
        )  # fmt: skip
        overseer = Overseer(coordinator, health, 60.0, lambda workers: None, lambda *_: "advice")
        self.departures = Departures(self.crew, overseer, durable=durable)
        self.admission = Admission(
            self.crew, self.departures, Credentials(), TERMS, starting=10, kernels=["k"]
        )
        self.carry()

    def start(self, ticket: int) -> None:
        self.started.append(ticket)
        self.stopped[ticket] = threading.Event()

    def stop(self, ticket: int) -> None:
        self.stopped[ticket].set()

    def carry(self) -> None:
        for to, message in self.crew.coordinator.take():
            if to == SUPERVISOR and isinstance(message, Start):
                self.crew.starts.call(message.incarnation)
            elif to == SUPERVISOR and isinstance(message, Stop):
                self.departures.dismiss(message.incarnation)

    def come(self) -> None:
        """Every process that was started becomes a worker, and joins."""
        for ticket in self.started:
            member = self.crew.starts.incarnation_of(ticket) or self.crew.starts.grant(ticket)
            assert member is not None
            process = {"pid": 40 + member, "host": "here", "address": f"tcp://here:{member}"}
            self.crew.peers.enter(member, process)
            self.crew.coordinator.receive(member, JoinRun())
        self.carry()

    def losses(self) -> list[dict[str, Any]]:
        return list(self.crew.events.list("lost"))


def test_what_a_process_says_in_the_end_is_added_to_the_loss() -> None:
    driver = Driver()
    driver.come()
    driver.departures.suspect(1)
    (loss,) = driver.losses()
    assert (loss["worker"], loss["pid"], loss["why"]) == (0, 41, "its connection broke")
    assert driver.departures.is_recovering
    driver.departures.process_ended(1, "exit code 137")
    (loss,) = driver.losses()
    assert loss["why"] == "its connection broke; its process ended with: exit code 137"
    assert driver.crew.coordinator.members == [3, 2]
    driver.departures.recovered(caught_up=True)
    assert not driver.departures.is_recovering


def test_without_a_log_a_process_has_a_moment_to_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "LAST_WORDS", 3600.0)
    driver = Driver(durable=False)
    driver.come()
    driver.departures.suspect(1)
    assert driver.losses() == []
    driver.departures.process_ended(1, "killed by signal 9")
    assert driver.losses()[0]["why"] == "killed by signal 9"
    error = driver.crew.coordinator.error
    assert error is not None
    assert "killed by signal 9" in error.message


def test_who_does_not_leave_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "GRACE", 0.05)
    driver = Driver()
    driver.come()
    with driver.crew.changed:
        driver.departures.lose(2)
    assert driver.stopped[2].wait(20)
    assert not driver.stopped[1].is_set()


def test_who_leaves_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "GRACE", 0.2)
    driver = Driver()
    driver.come()
    with driver.crew.changed:
        driver.departures.lose(2)
        driver.departures.process_ended(2, "")
    assert not driver.stopped[2].wait(0.5)


def test_processes_that_never_become_workers_end_the_run() -> None:
    driver = Driver(1)
    for _ in range(STARTS):
        assert driver.crew.coordinator.error is None
        driver.departures.process_ended(driver.started[-1], "no module named riverrun")
    error = driver.crew.coordinator.error
    assert error is not None
    assert error.code == "run.not_ready"
    assert "no module named riverrun" in error.message


def applicant(ticket: int, **fields: Any) -> dict[str, Any]:
    address = "tcp://127.0.0.1:1"  # nobody listens there
    return {
        "ticket": ticket, "pid": 7, "host": "there", "address": address, "versions": versions(),
        **fields,
    }  # fmt: skip


def test_an_applicant_that_is_not_needed_is_told_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "GRANT", 0.05)
    driver = Driver(1)
    driver.come()
    assert driver.admission.join(applicant(99)) == {"leave": "there is no worker to be"}


def test_other_versions_end_the_run() -> None:
    driver = Driver(1)
    answer = driver.admission.join(applicant(1, versions={**versions(), "polars": "0.1"}))
    assert answer == {"leave": "there is no worker to be"}
    error = driver.crew.coordinator.error
    assert error is not None
    assert error.code == "run.versions"
    assert "and 0.1 there" in error.message


def test_a_process_that_cannot_be_connected_to_is_lost() -> None:
    driver = Driver(1)
    with pytest.raises(TransportError, match=r"127\.0\.0\.1"):
        driver.admission.join(applicant(1))
    assert driver.losses()[0]["why"].startswith("it cannot be connected to: ")
    assert driver.crew.coordinator.members == [2]
