"""What every cluster does, however its messages travel: in this thread, over Flight, between processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riverrun.engine.coordinator import epochs
from riverrun.engine.coordinator.phases import Phase
from riverrun.engine.messages import Acknowledge
from riverrun.errors import CheckpointError, OperatorFailed, RiverrunError, TransportError
from riverrun.progress import Antichain
from riverrun.rows.conditions import Where
from riverrun.runtime import remote, storage_calls
from riverrun.runtime.cluster import Cluster
from riverrun.runtime.local import LocalCluster
from riverrun.runtime.network.client import Asker
from riverrun.runtime.remote import RemoteCluster
from riverrun.storage import takeover
from riverrun.storage.acknowledged import read_notes
from riverrun.storage.store import open_storage
from tests.engine.flows import (
    OUTPUTS,
    POISON,
    Model,
    changed,
    check,
    contents,
    edge_rows,
    graph_maker,
)
from tests.runtime.launchers import Processes, Threads, gone_by
from tests.soaking import first_seed

MAKER = graph_maker()
Start = Callable[..., Any]


def remotely(workers: int = 2, **options: Any) -> RemoteCluster:
    return RemoteCluster(Threads(MAKER), workers, timeout=30, **options)


def locally(workers: int = 2, **options: Any) -> LocalCluster:
    return LocalCluster(MAKER, workers, **options)


@pytest.fixture(params=["local", "threads"])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts a cluster, which is closed afterwards; no thread of it is left."""
    before, made = set(threading.enumerate()), list[Cluster]()

    def begin(workers: int = 2, **options: Any) -> Any:
        made.append((locally if request.param == "local" else remotely)(workers, **options))
        return made[-1]

    yield begin
    for cluster in made:
        cluster.close()
    gone_by(before)


def commit(cluster: Any, model: Model, **more: Any) -> int:
    epoch: int = cluster.submit(model.draw(), **more)
    cluster.wait(epoch)
    return epoch


POISONED = {"edges": edge_rows([(1, 2, 1), (POISON, 3, 1)])}


# ---- results


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_epoch_is_as_if_made_from_scratch(start: Start, workers: int) -> None:
    seed = first_seed()
    cluster, model = start(workers), Model(seed)
    for _ in range(8):
        commit(cluster, model)
        check(cluster, model)


def test_epochs_queue(start: Start) -> None:
    cluster, model = start(3), Model(5)
    numbers = [cluster.submit(model.draw()) for _ in range(6)]
    assert numbers == list(range(6))
    cluster.wait(5)
    check(cluster, model)
    cluster.wait(2)  # long done
    assert cluster.epoch == cluster.completed == 6


def test_waiting_for_what_was_not_submitted_is_an_error(start: Start) -> None:
    with pytest.raises(ValueError, match="epoch 0 was not submitted"):
        start(1).wait(0)


def test_an_epoch_without_rows(start: Start) -> None:
    cluster, model = start(2), Model(3)
    commit(cluster, model)
    cluster.wait(cluster.submit({}))
    check(cluster, model, changes=False)
    assert cluster.completed == 2


# ---- what is refused


def test_a_refused_epoch_says_why_and_leaves_no_trace(start: Start) -> None:
    cluster, model = start(2), Model(1)
    commit(cluster, model)
    for _ in range(2):
        epoch = cluster.submit(POISONED)
        with pytest.raises(OperatorFailed, match="poison was found") as caught:
            cluster.wait(epoch)
        error = caught.value
        assert error.fields["node"].startswith("flat-map")
        assert "flows.py" in error.fields["line"]
        assert isinstance(error.__cause__, ValueError)
        shown: list[str] = []
        cause: BaseException | None = error
        while cause is not None:
            trace = cause.__traceback__
            while trace is not None:
                shown.append(trace.tb_frame.f_code.co_name)
                trace = trace.tb_next
            shown.append(str(cause))
            cause = cause.__cause__
        assert "refuse_poison" in "\n".join(shown)
        assert cluster.closed is None
        # In this process, the number is given to the next one; elsewhere others may wait for it.
        assert cluster.epoch == (epoch if isinstance(cluster, LocalCluster) else epoch + 1)
        if isinstance(cluster, LocalCluster):
            check(cluster, model)
        else:  # it is run without its rows, and changes nothing
            cluster.settle(epoch)
            check(cluster, model, changes=False)
            assert not any(changed(cluster.changes(output, epoch)) for output in OUTPUTS)
    commit(cluster, model)
    check(cluster, model)


def test_a_refused_epoch_among_others_keeps_their_numbers(start: Start) -> None:
    cluster, model = start(2), Model(2)
    if isinstance(cluster, RemoteCluster):
        cluster.hold_epochs()  # or it may be refused before the next one is submitted
    first, bad, last = (
        cluster.submit(model.draw()),
        cluster.submit(POISONED),
        cluster.submit(model.draw()),
    )
    cluster.wait(first)
    with pytest.raises(OperatorFailed):
        cluster.wait(bad)
    cluster.wait(last)
    assert (first, bad, last) == (0, 1, 2)
    check(cluster, model)
    with pytest.raises(OperatorFailed):  # it is still refused
        cluster.wait(bad)


# ---- reading


def test_what_was_read_stays_as_it_was(start: Start) -> None:
    cluster, model = start(2), Model(9)
    commit(cluster, model)
    kept = []
    for _ in range(6):
        epoch = cluster.completed - 1
        wanted = {name: model.rows(name) for name in model.before}
        kept.append((wanted, {name: cluster.read(name, epoch) for name in wanted}))
        commit(cluster, model)
    for wanted, portions in kept:
        for name, rows in wanted.items():
            assert contents(portions[name]) == rows
            assert contents(portions[name]) == rows  # and again


def test_columns_and_conditions(start: Start) -> None:
    cluster = start(2)
    cluster.wait(cluster.submit({"edges": edge_rows([(at % 5, at, 1) for at in range(40)])}))
    portions = cluster.read("degrees", 0)
    found = [
        row
        for portion in portions
        for batch in portion.batches(["count"], [Where("src", ">", 1), Where("src", "<", 4)])
        for row in batch.to_pylist()
    ]
    assert found == [{"count": 8}] * 2


def test_reading_while_epochs_go_on(start: Start) -> None:
    """Each read is of one epoch: as many edges as that epoch had put there."""
    cluster = start(2, checkpoint=None)
    rows = [(src, 100, 1) for src in range(50)]
    cluster.wait(cluster.submit({"edges": edge_rows(rows)}))
    if isinstance(cluster, LocalCluster):  # one thread: between epochs
        for _ in range(5):
            cluster.submit({"edges": edge_rows(rows)})
            at = cluster.completed - 1
            assert set(contents(cluster.read("degrees", at)).elements()) == {
                (src, at + 1) for src in range(50)
            }
            cluster.wait(cluster.epoch - 1)
        return
    seen, over = set(), threading.Event()

    def go_on() -> None:
        for _ in range(25):
            cluster.wait(cluster.submit({"edges": edge_rows(rows)}))
        over.set()

    writer = threading.Thread(target=go_on)
    writer.start()
    while not over.is_set():
        at = cluster.completed - 1
        try:
            found = contents(cluster.read("degrees", at))
        except RiverrunError as error:
            if error.code == "time.compacted":  # it went on meanwhile
                continue
            raise
        assert set(found.elements()) == {(src, at + 1) for src in range(50)}
        seen.add(at)
    writer.join()
    assert len(seen) > 3


def test_status_stats_and_the_frontier_of_a_probe(start: Start) -> None:
    cluster, model = start(3), Model(4)
    for _ in range(3):
        commit(cluster, model)
    status = cluster.status()
    assert status["workers"] == 3
    assert status["phase"] == "running"
    assert status["next"] == status["completed"] == status["reported"] == 3
    assert status["closed"] is None
    stats = cluster.stats()
    assert len(stats) == 3
    assert sum(held["names:rows"]["rows"] for held in stats) >= len(model.names)
    assert cluster.frontier("edges") == Antichain([(3,)])
    assert cluster.touched() >= 0
    assert "3 workers" in repr(cluster)
    if isinstance(cluster, RemoteCluster):
        assert len(status["processes"]) == 3
        assert all(process["address"].startswith("tcp://") for process in status["processes"])
        assert (status["refused"], status["garbage"]) == (0, 0)


# ---- checkpoints


def test_a_run_goes_on_with_another_number_of_workers(start: Start, tmp_path: Path) -> None:
    model = Model(11)
    for workers in (2, 3, 1):
        cluster = start(workers, checkpoint=tmp_path, every=None)
        if cluster.completed:
            check(cluster, model, changes=False)
        commit(cluster, model)
        number = cluster.checkpoint()
        assert cluster.status()["checkpoint"]["number"] == number
        commit(cluster, model)  # not in the checkpoint: in the log
        check(cluster, model)
        cluster.close()


def test_checkpoints_are_made_by_themselves(start: Start, tmp_path: Path) -> None:
    cluster, model = start(2, checkpoint=tmp_path, every=2), Model(12)
    for _ in range(6):
        commit(cluster, model)
    deadline = time.monotonic() + 20
    while cluster.status()["checkpoint"]["epoch"] < 2:
        assert time.monotonic() < deadline, cluster.status()
        time.sleep(0.02)
    assert cluster.status()["checkpoint"]["failures"] == 0


def test_a_checkpoint_asked_for_while_a_run_goes_back_is_of_where_it_was(
    start: Start, tmp_path: Path
) -> None:
    model, numbers = Model(41), []
    with start(2, checkpoint=tmp_path, every=None) as cluster:
        commit(cluster, model)
        first = cluster.checkpoint()
        commit(cluster, model)
        commit(cluster, model)

        def ask() -> None:
            with cluster._changed:
                cluster.kill(1)
                numbers.append(cluster.checkpoint())

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(30)
        assert numbers
        assert numbers[0] > first
        assert cluster.status()["checkpoint"]["epoch"] == 3
        check(cluster, model)


def test_what_was_submitted_and_not_waited_for_is_in_the_log(start: Start, tmp_path: Path) -> None:
    model = Model(13)
    cluster = start(2, checkpoint=tmp_path)
    cluster.submit(model.draw())
    cluster.submit(model.draw())
    cluster.close()
    cluster = start(2, checkpoint=tmp_path)
    assert cluster.completed == 2
    check(cluster, model, changes=False)


def test_what_was_waited_for_is_noted_as_acknowledged(start: Start, tmp_path: Path) -> None:
    """Each carrier notes an acknowledgement itself: none is an instruction that `storage_calls` would execute."""
    cluster, storage, model = (
        start(2, checkpoint=tmp_path, every=None),
        open_storage(tmp_path),
        Model(14),
    )
    for epoch in range(3):
        commit(cluster, model)
        assert [note.epoch for note in read_notes(storage)] == [epoch + 1]
    error = cluster._execute(Acknowledge(0, 3)).error
    assert "is no instruction to the storage" in str(error)


def test_offsets_are_those_of_what_was_accepted(start: Start, tmp_path: Path) -> None:
    cluster, model = start(2, checkpoint=tmp_path, every=None), Model(14)
    assert cluster.offsets == {}
    commit(cluster, model, offsets={"a": ["one", 3], "b": ["part", 7]})
    commit(cluster, model, offsets={"a": ["one", 4]})
    accepted = {"a": [["one", 4]], "b": [["part", 7]]}
    with pytest.raises(OperatorFailed):
        cluster.wait(cluster.submit(POISONED, offsets={"a": ["one", 99]}))
    assert cluster.offsets == accepted
    cluster.hold_epochs()
    bad = cluster.submit(POISONED, offsets={"a": ["two", 99], "d": ["one", 1]})
    good = cluster.submit(model.draw())  # so the refused one keeps its number
    with pytest.raises(OperatorFailed):
        cluster.wait(bad)
    cluster.wait(good)
    assert cluster.offsets == accepted
    cluster.checkpoint()
    commit(cluster, model)
    commit(cluster, model, offsets={"a": ["three", 0], "c": ["one", 1]})
    cluster.close()
    accepted |= {"a": [["one", 4], ["three", 0]], "c": [["one", 1]]}
    cluster = start(1, checkpoint=tmp_path)
    assert cluster.offsets == accepted
    cluster.checkpoint()
    cluster.close()
    cluster = start(2, checkpoint=tmp_path)
    assert cluster.offsets == accepted
    check(cluster, model, changes=False)


def test_without_a_path_no_checkpoint_can_be_asked_for(start: Start) -> None:
    cluster, model = start(1), Model(3)
    with pytest.raises(CheckpointError, match="has no checkpoint path"):
        cluster.checkpoint()
    commit(cluster, model)
    check(cluster, model)


# ---- losses and other numbers of workers


@pytest.mark.parametrize("policy", ["replace", "spread"])
def test_lost_workers_are_made_up_for(start: Start, tmp_path: Path, policy: str) -> None:
    cluster, model = start(3, checkpoint=tmp_path, every=None, policy=policy), Model(15)
    for at in range(6):
        commit(cluster, model)
        if at == 2:
            cluster.checkpoint()
        if at in (1, 3):
            cluster.kill(at % 2)
            check(cluster, model, changes=False)  # reading waits for recovery
    check(cluster, model)
    if policy == "spread":  # those who were lost are made up for when new ones are there
        while cluster.status()["workers"] < 3:
            cluster.wait(cluster.submit({}))
    assert cluster.status()["workers"] == 3
    assert cluster.status()["reported"] >= 6
    check(cluster, model, changes=False)


def test_without_a_path_a_loss_ends_the_run(start: Start) -> None:
    cluster, model = start(2), Model(16)
    commit(cluster, model)
    cluster.kill(1)
    for attempt in (
        lambda: cluster.submit({}),
        lambda: cluster.wait(0),
        lambda: cluster.read("degrees", 0),
        cluster.stats,
    ):
        with pytest.raises(CheckpointError, match="worker 1 is lost") as caught:
            attempt()
        assert caught.value.code == "checkpoint.none"
        assert "checkpoint=PATH" in str(caught.value)
    assert "worker 1 is lost" in str(cluster.closed)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_rows_that_are_in_the_log_only_are_done_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Beyond a bound the rows since the last checkpoint are not in memory; some of these inputs are routed by key."""
    monkeypatch.setattr(epochs, "KEEP", 0)
    monkeypatch.setattr(takeover, "KEEP", 0)
    cluster, model = start(workers, checkpoint=tmp_path, every=None), Model(25)
    for at in range(8):
        commit(cluster, model)
        if at == 2:
            cluster.checkpoint()
    for index in range(workers):
        cluster.kill(index)
        check(cluster, model, changes=False)
        commit(cluster, model)
        check(cluster, model)
    cluster.close()
    again = start(workers % 3 + 1, checkpoint=tmp_path, every=None)
    check(again, model, changes=False)
    for _ in range(3):
        commit(again, model)
        check(again, model)


def test_survivors_read_nothing_after_a_resume_and_after_scaling(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    original = storage_calls._read

    def read(checkpoints: Any, instruction: Any) -> Any:
        asked.append(instruction.ranges)
        return original(checkpoints, instruction)

    monkeypatch.setattr(storage_calls, "_read", read)
    first, model = start(2, checkpoint=tmp_path, every=None), Model(26)
    for _ in range(3):
        commit(first, model)
    first.checkpoint()
    first.close()
    cluster = start(2, checkpoint=tmp_path, every=None)
    for _ in range(4):
        commit(cluster, model)
    for again in range(2):
        asked.clear()
        members = len(cluster.stats())
        cluster.kill(1)
        commit(cluster, model)
        check(cluster, model)
        assert len(asked) == 1, (again, members, asked)  # what the lost one had, and no more
        if again == 0:
            cluster.scale(3)
            for _ in range(4):
                commit(cluster, model)


def test_scaling_with_a_path(start: Start, tmp_path: Path) -> None:
    cluster, model = start(2, checkpoint=tmp_path, every=None), Model(17)
    for workers in (3, 1, 4, 4):
        commit(cluster, model)
        cluster.scale(workers)
        assert cluster.status()["workers"] == len(cluster.stats()) == workers
        check(cluster, model, changes=False)
    commit(cluster, model)
    check(cluster, model)
    with pytest.raises(ValueError, match="at least one worker"):
        cluster.scale(0)


def test_scaling_without_a_path(start: Start) -> None:
    cluster, model = start(2), Model(18)
    commit(cluster, model)
    if isinstance(cluster, RemoteCluster):
        with pytest.raises(CheckpointError, match="through the checkpoint path") as caught:
            cluster.scale(3)
        assert caught.value.code == "checkpoint.no_path"
    else:
        cluster.scale(3)
    commit(cluster, model)
    check(cluster, model)


def test_a_path_has_one_owner(start: Start, tmp_path: Path) -> None:
    first, model = start(1, checkpoint=tmp_path), Model(19)
    commit(first, model)
    with pytest.raises(CheckpointError, match="in use by"):
        start(2, checkpoint=tmp_path)
    second = start(2, checkpoint=tmp_path, take_over=True)
    with pytest.raises(CheckpointError, match="another run has written there"):
        first.wait(first.submit({}))
    check(second, model, changes=False)
    commit(second, model)
    check(second, model)


# ---- the end


def test_closing_twice_and_use_after_it(start: Start) -> None:
    cluster, model = start(2), Model(20)
    commit(cluster, model)
    assert cluster.closed is None
    cluster.close()
    cluster.close()
    assert cluster.closed == "it was closed"
    for attempt in (
        lambda: cluster.submit({}),
        lambda: cluster.wait(0),
        cluster.checkpoint,
    ):
        with pytest.raises(RiverrunError, match="it is closed"):
            attempt()
    assert cluster.await_end(0)
    assert cluster._coordinator.phase is Phase.CLOSED


def test_use_of_a_remote_one_after_it_was_closed() -> None:
    with remotely(1) as cluster:
        cluster.wait(cluster.submit({}))
    for attempt in (
        lambda: cluster.read("degrees", 0),
        cluster.stats,
        cluster.members,
        lambda: cluster.kill(0),
    ):
        with pytest.raises(RiverrunError, match="it is closed"):
            attempt()


def test_closing_wakes_who_waits() -> None:
    cluster = remotely(1)
    cluster.hold_epochs()
    cluster.submit({})
    said: list[str] = []

    def await_it() -> None:
        try:
            cluster.await_end()
            cluster.wait(0)
        except RiverrunError as error:
            said.append(error.code)

    waiting = threading.Thread(target=await_it)
    waiting.start()
    assert not cluster.await_end(0.05)
    cluster.close()
    waiting.join(10)
    assert said == ["run.closed"]


# ---- rows that workers have already


def stage(cluster: RemoteCluster, name: str, batches: list[pa.RecordBatch], at: int = 0) -> Any:
    execution, members = cluster.members()
    member, address = members[at % len(members)]
    asker = Asker(address, cluster.credentials)
    try:
        handing = asker.begin_upload((name, member, execution), batches[0].schema)
        for batch in batches:
            handing.write(batch)
        return handing.done()
    finally:
        asker.close()


def hand_in(cluster: RemoteCluster, rows: list[tuple[int, int, int]]) -> tuple[str, list[Any]]:
    """Edges at all workers; also an attempt that lost, and one of an upload that nobody names."""
    upload, other = cluster.new_upload(), cluster.new_upload()
    parcels: list[Any] = []
    for at in range(3):
        mine = [edge_rows(rows[at::3]), edge_rows(rows[at::3][:0])]
        parcels += stage(cluster, f"{upload}-{at}-1", mine, at)
        stage(cluster, f"{upload}-{at}-0", mine, at)
        stage(cluster, f"{other}-{at}-0", mine, at)
    return upload, parcels


EDGES = [(at % 7, at % 5, 1) for at in range(30)]


def test_parcels_count_once_and_only_when_named(tmp_path: Path) -> None:
    for checkpoint in (None, tmp_path):
        with remotely(2, checkpoint=checkpoint, every=None) as cluster:
            model = Model(21)
            commit(cluster, model)
            upload, parcels = hand_in(cluster, EDGES)
            cluster.forget_upload(upload, [parcel.name for parcel in parcels])
            epoch = cluster.submit(
                {"edges": edge_rows([(1, 1, 1)])}, parcels={"edges": tuple(parcels)}
            )
            cluster.wait(epoch)
            model.count({"edges": edge_rows([*EDGES, (1, 1, 1)])})
            check(cluster, model)
            with pytest.raises(TransportError, match="not waited for any more") as caught:
                stage(cluster, f"{upload}-0-2", [edge_rows(EDGES)])
            assert caught.value.code == "transport.late"
            commit(cluster, model)
            check(cluster, model)


def test_stored_parcels_survive_a_loss_and_a_resume(tmp_path: Path) -> None:
    model = Model(22)
    with remotely(2, checkpoint=tmp_path, every=None) as cluster:
        commit(cluster, model)
        cluster.checkpoint()
        upload, parcels = hand_in(cluster, EDGES)
        cluster.forget_upload(upload, [parcel.name for parcel in parcels])
        cluster.wait(cluster.submit({}, parcels={"edges": tuple(parcels)}))
        model.count({"edges": edge_rows(EDGES)})
        commit(cluster, model)
        cluster.kill(0)
        check(cluster, model, changes=False)
        commit(cluster, model)
        check(cluster, model)
    with remotely(3, checkpoint=tmp_path) as cluster:
        check(cluster, model, changes=False)
        cluster.checkpoint()
    with remotely(1, checkpoint=tmp_path) as cluster:
        check(cluster, model, changes=False)


def test_parcels_of_a_refused_epoch_do_not_count(tmp_path: Path) -> None:
    with remotely(2) as cluster:
        model = Model(23)
        commit(cluster, model)
        _, parcels = hand_in(cluster, [*EDGES, (POISON, 1, 1)])
        epoch = cluster.submit({}, parcels={"edges": tuple(parcels)})
        with pytest.raises(OperatorFailed, match="poison"):
            cluster.wait(epoch)
        commit(cluster, model)
        check(cluster, model)


def test_parcels_need_not_have_the_schema_of_other_rows() -> None:
    """Whether a column may be null is a matter of the schema; rows are rows."""
    with remotely(1) as cluster:
        model = Model(24)
        batch = edge_rows(EDGES)
        strict = pa.schema([field.with_nullable(False) for field in batch.schema])
        upload = cluster.new_upload()
        parcels = stage(cluster, f"{upload}-0-0", [batch.cast(strict)])
        cluster.wait(cluster.submit({"edges": batch}, parcels={"edges": tuple(parcels)}))
        model.count({"edges": edge_rows(EDGES + EDGES)})
        check(cluster, model)


def test_parcels_that_do_not_fit_refuse_the_epoch() -> None:
    with remotely(2) as cluster:
        model = Model(25)
        commit(cluster, model)
        upload = cluster.new_upload()
        parcels = stage(cluster, f"{upload}-0-0", [pa.record_batch({"other": ["a"], "diff": [1]})])
        epoch = cluster.submit({"edges": edge_rows(EDGES)}, parcels={"edges": tuple(parcels)})
        with pytest.raises(RiverrunError):
            cluster.wait(epoch)
        commit(cluster, model)
        check(cluster, model)


def test_rows_for_a_worker_that_is_no_more_are_refused(tmp_path: Path) -> None:
    with remotely(2, checkpoint=tmp_path) as cluster:
        execution, members = cluster.members()
        member, address = members[0]
        asker = Asker(address, cluster.credentials)
        for about in (("x-0", member + 9, execution), ("x-0", member, execution + 1), "nonsense"):
            handing = asker.begin_upload(about, edge_rows([]).schema)
            with pytest.raises((TransportError, ValueError), match=r"execution|unpack"):  # noqa: PT012
                handing.write(edge_rows(EDGES))  # the answer may be there before, or not
                handing.done()
        asker.close()


# ---- the bounded-queue law of remote


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "QUEUE", 3000)
    seen = []
    with remotely(2) as cluster:
        for _ in range(20):
            cluster.submit({"edges": edge_rows(EDGES)})
            seen.append(cluster.epoch - cluster._coordinator.released)
        cluster.wait(19)
        assert sum(contents(cluster.read("degrees", 19)).values()) == 7
    assert max(seen) <= 5


# ---- processes


def test_processes_can_be_killed(tmp_path: Path) -> None:
    """Results, a refused epoch, a real SIGKILL before and after a checkpoint, parcels, an end."""
    launcher, model = Processes(MAKER), Model(31)
    with RemoteCluster(launcher, 2, checkpoint=tmp_path, every=None, timeout=60) as cluster:
        commit(cluster, model)
        check(cluster, model)
        with pytest.raises(OperatorFailed, match="poison was found") as caught:
            cluster.wait(cluster.submit(POISONED))
        assert "refuse_poison" in str(caught.value.__cause__.__cause__)  # type: ignore[union-attr]
        pids = {process["pid"] for process in cluster.status()["processes"]}
        assert len(pids) == 2
        cluster.checkpoint()
        upload, parcels = hand_in(cluster, EDGES)
        cluster.forget_upload(upload, [parcel.name for parcel in parcels])
        cluster.wait(cluster.submit({}, parcels={"edges": tuple(parcels)}))
        model.count({"edges": edge_rows(EDGES)})
        waiting = cluster.submit(model.draw())
        launcher.processes[1].kill()
        cluster.wait(waiting)
        check(cluster, model)
        commit(cluster, model)
        check(cluster, model)
        assert cluster.status()["reported"] == 5  # the refused one too, which ran without its rows
    assert all(process.poll() is not None for process in launcher.processes.values())
    assert [launcher.why[ticket] for ticket in (2, 3)] == ["it was told to leave"] * 2


def test_a_process_that_dies_without_a_path_ends_the_run() -> None:
    launcher, model = Processes(MAKER), Model(32)
    with RemoteCluster(launcher, 1, timeout=60) as cluster:
        commit(cluster, model)
        check(cluster, model)
        launcher.processes[1].kill()
        with pytest.raises(CheckpointError, match="worker 0 is lost"):
            cluster.await_end(30)
        with pytest.raises(CheckpointError, match="worker 0 is lost"):
            cluster.submit({})
