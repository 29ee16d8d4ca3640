"""Workers that are lost again and again: an end that says why; those that are not, go on."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun.engine.coordinator.losses import RECOVERIES, Losses, advice_on_exit
from riverrun.engine.instance import Maker
from riverrun.errors import TransportError
from riverrun.runtime import remote
from riverrun.runtime.remote import RemoteCluster
from tests.engine.flows import Model, check, edge_rows, graph_maker
from tests.runtime.launchers import Processes, Threads, gone_by


def deadly_maker(most: int) -> Maker:
    """A program that a number at or above `most` kills, as the lack of memory would."""

    def risky(frame: pl.DataFrame) -> pl.DataFrame:
        if frame["src"].max() >= most:  # type: ignore[operator]
            os.kill(os.getpid(), signal.SIGKILL)
        return frame

    flow = rr.Dataflow("deadly")
    shape = {"src": pl.Int64, "dst": pl.Int64}
    edges = flow.input("edges", shape).map_batches(risky, shape)
    flow.output("degrees", edges.group_by("src").count())
    return Maker(flow.plan)


def test_an_epoch_that_kills_its_worker_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.engine.coordinator.losses.RECOVERIES", 2)
    with RemoteCluster(Processes(deadly_maker(100)), 2, checkpoint=tmp_path, timeout=60) as cluster:
        cluster.wait(cluster.submit({"edges": edge_rows([(1, 2, 1), (3, 4, 1)])}))
        epoch = cluster.submit({"edges": edge_rows([(1, 2, 1), (100, 4, 1)])})
        with pytest.raises(TransportError, match="3 times in a row a worker was lost") as caught:
            cluster.wait(epoch)
    error = caught.value
    assert error.code == "run.losing"
    assert error.fields["epoch"] == epoch
    assert error.fields["worker"] == 1
    assert f"before epoch {epoch} was complete" in error.message
    assert "signal 9" in error.message
    assert "memory" in str(error.hint)
    # Nothing is lost: whoever can bear it does the epoch.
    with RemoteCluster(Processes(deadly_maker(101)), 1, checkpoint=tmp_path, timeout=60) as cluster:
        assert cluster.completed == epoch + 1


def test_processes_that_die_after_they_have_reported_end_the_run(tmp_path: Path) -> None:
    class Frail(Threads):
        """A process that reports and is gone, each time."""

        def _live(self, ticket: int) -> None:
            from riverrun.runtime.network.client import Asker
            from riverrun.runtime.network.endpoint import Endpoint
            from riverrun.runtime.worker_process import versions

            endpoint = Endpoint("127.0.0.1", Deaf(), self.rendezvous.credentials)
            asker = Asker(self.rendezvous.address, self.rendezvous.credentials)
            about = {"address": endpoint.address, "pid": ticket, "host": "here"}
            asker.ask("join", {**about, "ticket": ticket, "versions": versions()})
            self.ended(ticket, "exit code 137")
            asker.close()
            endpoint.shutdown()

    class Deaf:
        def receive(self, *given: Any) -> None: ...
        def ended(self, *given: Any) -> None: ...

    before = set(threading.enumerate())
    with pytest.raises(TransportError, match="before it took part") as caught:
        RemoteCluster(Frail(graph_maker()), 1, checkpoint=tmp_path, timeout=60)
    gone_by(before, 30)  # links to them too
    assert caught.value.code == "run.losing"
    assert "exit code 137" in caught.value.message


def test_losses_far_apart_do_not_end_a_run(tmp_path: Path) -> None:
    model = Model(5)
    with RemoteCluster(Threads(graph_maker()), 2, checkpoint=tmp_path, timeout=30) as cluster:
        for turn in range(RECOVERIES + 4):
            cluster.wait(cluster.submit(model.draw()))
            cluster.kill(turn % 2)
        cluster.wait(cluster.submit(model.draw()))
        check(cluster, model)


def test_other_numbers_of_workers_are_no_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.engine.coordinator.losses.RECOVERIES", 1)
    model = Model(6)
    with RemoteCluster(Threads(graph_maker()), 3, checkpoint=tmp_path, timeout=30) as cluster:
        cluster.wait(cluster.submit(model.draw()))
        for workers in (2, 1, 3, 1, 2, 1):
            cluster.scale(workers)
        threading.Event().wait(2 * remote.TICK)
        cluster.wait(cluster.submit(model.draw()))
        check(cluster, model)


def test_several_at_once_are_one_recovery() -> None:
    losses = Losses(most=1)
    for member in (1, 2, 3):
        losses.took_part(1, member - 1, member)
    for member in (1, 2, 3):
        losses.lost(member, {"pid": member, "host": "here"}, epoch=0, reported=0)
    assert losses.too_many(reported=0) is None
    losses.took_part(2, 0, 4)
    losses.lost(4, {"pid": 4, "host": "here"}, epoch=0, reported=0)
    assert losses.too_many(reported=0) is not None
    assert losses.too_many(reported=1) is None  # an epoch is complete


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("", "lack of memory"),
        ("signal 9", "lack of memory"),
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", "memory"),
        ("exit code 139", "native code"),
        ("ImportError: no module", "log of that process"),
    ],
)
def test_ways_to_end_are_explained(why: str, told: str) -> None:
    assert told in advice_on_exit(why)
