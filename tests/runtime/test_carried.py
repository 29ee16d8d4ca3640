"""The seam between a run and its carrier: a carrier of one page has its abstract members only, and carries programs."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.engine.events import Events
from riverrun.engine.instance import Maker
from riverrun.engine.messages import Inputs, Parcels
from riverrun.engine.reading import Portion
from riverrun.engine.round_history import RoundHistory
from riverrun.progress import Antichain
from riverrun.runtime.carried import CarriedRun
from riverrun.runtime.carriers import Carrier, ClusterRequest
from riverrun.state.shards import Shards


class PlainRun(CarriedRun):
    """One instance, which works while a caller waits: no coordinator, no log, no threads, no other workers."""

    def __init__(self, request: ClusterRequest) -> None:
        make = Maker(request.plan, request.history, request.memory)
        self._instance = make(0, Shards.even(1), 0, None)
        self._waiting: list[Inputs] = []
        self._over: str | None = None
        self.events = Events()
        self.rounds = RoundHistory()

    @property
    def epoch(self) -> int:
        return self.released + len(self._waiting)

    def submit(
        self,
        inputs: Inputs,
        offsets: Mapping[str, Any] | None = None,
        parcels: Parcels | None = None,
        *,
        logged: bool = True,
    ) -> int:
        self._waiting.append(inputs)
        return self.epoch - 1

    @property
    def completed(self) -> int:
        return self._instance.completed

    @property
    def released(self) -> int:
        return self._instance.completed

    @property
    def closed(self) -> str | None:
        return self._over

    def wait(self, epoch: int) -> None:
        while self.completed <= epoch:
            self._instance.feed(self.completed, self._waiting.pop(0))
            while self._instance.work():
                pass

    def read(self, name: str, epoch: int) -> Sequence[Portion]:
        return [self._instance.read(name, epoch)]

    def changes(self, name: str, epoch: int) -> Sequence[Portion]:
        return [self._instance.changes(name, epoch)]

    def frontier(self, probe: str) -> Antichain:
        return self._instance.frontier(probe)

    def status(self) -> dict[str, Any]:
        return {
            "workers": 1,
            "next": self.epoch,
            "completed": self.completed,
            "checkpoint": {"epoch": None, "writing": None},
        }

    def close(self) -> None:
        self._over = "it was closed"


class PlainCarrier(Carrier):
    place = "on one page"

    def start(self, request: ClusterRequest) -> CarriedRun:
        return PlainRun(request)

    def suitable_workers(self, on: Any) -> int:
        return 1


@pytest.fixture
def run() -> Iterator[rr.Run]:
    flow = rr.Dataflow("words")
    words = flow.input("words", {"word": pl.String})
    flow.output("counts", words.probe("words").group_by("word").count())
    with flow.run(on=PlainCarrier(), workers="auto", history=2) as run:
        yield run


def test_every_member_that_a_carrier_must_have_is_here_and_no_other() -> None:
    own = {name for name in vars(PlainRun) if not name.startswith("_")}
    assert own == PlainRun.__mro__[1].__abstractmethods__
    assert len(own) == 11


def test_rows_go_in_and_results_come_out(run: rr.Run) -> None:
    run.insert("words", [("sea",), ("sky",), ("sea",)])
    assert run.commit().done
    run.delete("words", [("sky",)])
    commit = run.commit(wait=False)
    assert not commit.done
    assert commit.wait().done
    assert run.read("counts").rows() == [("sea", 2)]
    assert sorted(run.read("counts", epoch=0).rows()) == [("sea", 2), ("sky", 1)]
    assert run.changes("counts").rows() == [("sky", 1, -1)]
    assert run.frontier("words") == Antichain([(2,)])


def test_sinks_get_each_epoch_at_its_own_boundary(run: rr.Run) -> None:
    seen: list[tuple[int, list[Any]]] = []
    sink = run.for_each_epoch("counts", lambda changes, epoch: seen.append((epoch, changes.rows())))
    for word in ("sea", "sky", "sun"):
        run.insert("words", [(word,)])
        last = run.commit(wait=False)
    last.wait()
    sink.wait()
    assert seen == [(0, [("sea", 1, 1)]), (1, [("sky", 1, 1)]), (2, [("sun", 1, 1)])]


def test_status_says_where_the_run_stands(run: rr.Run) -> None:
    run.insert("words", [("sea",)])
    run.commit()
    status = run.status()
    assert (status["epoch"], status["workers"], status["closed"]) == (0, 1, None)
    assert status["commit"]["outcome"] == "complete"
    assert run.events() == []
    assert "words" in run._repr_html_()


def test_what_a_plain_carrier_lacks_is_refused(run: rr.Run) -> None:
    with pytest.raises(rr.PlanError, match="no checkpoints"):
        run.checkpoint()
    with pytest.raises(rr.PlanError, match="always the same workers"):
        run.scale(2)


def test_the_end_of_the_run_can_be_awaited(run: rr.Run) -> None:
    assert not run.await_termination(timeout=0.01)
    ending = threading.Timer(0.05, run.close)
    ending.start()
    with suppress(rr.RiverrunError):
        assert run.await_termination(timeout=10)
    ending.join()
    with pytest.raises(rr.RiverrunError, match="closed"):
        run.commit()
