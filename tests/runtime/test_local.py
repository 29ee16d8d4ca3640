"""Runs in this process: epochs, refusals, checkpoints, losses, another number of workers."""

from __future__ import annotations

import random
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from riverrun.errors import CheckpointError, OperatorFailed, RiverrunError, TransportError
from riverrun.runtime.local import LocalCluster
from riverrun.storage.store import Storage, open_storage
from tests.chaos.programs import POISON, Counting, CountingInstance, rows_of

PROGRAM = Counting()
SEEDS = [None, 1, 2]


def check(cluster: LocalCluster, past: list[Any]) -> None:
    assert cluster.completed == cluster.epoch == len(past)
    if past:
        assert PROGRAM.read(cluster.instances, len(past) - 1) == PROGRAM.oracle(past)


def commit(cluster: LocalCluster, past: list[Any], inputs: Any) -> None:
    """Submit and wait, and know what should come of it."""
    epoch = cluster.submit(inputs)
    assert epoch == len(past)
    if PROGRAM.fails(inputs):
        with pytest.raises(OperatorFailed, match="poison"):
            cluster.wait(epoch)
    else:
        cluster.wait(epoch)
        past.append(inputs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_are_those_of_the_oracle(workers: int, seed: int | None) -> None:
    source, past = random.Random(seed), []
    with LocalCluster(PROGRAM.make_instance, workers, seed=seed) as cluster:
        for _ in range(20):
            commit(cluster, past, PROGRAM.draw(source, past))
            check(cluster, past)


@pytest.mark.parametrize("seed", SEEDS)
def test_epochs_queue_and_a_refused_one_does_not_hold_up_the_others(seed: int | None) -> None:
    with LocalCluster(PROGRAM.make_instance, 2, seed=seed) as cluster:
        good = [rows_of([at]) for at in range(3)]
        numbers = [
            cluster.submit(inputs) for inputs in (good[0], rows_of([POISON]), good[1], good[2])
        ]
        assert numbers == [0, 1, 2, 3]
        cluster.wait(0)
        assert cluster.completed == 1
        with pytest.raises(OperatorFailed):
            cluster.wait(1)
        cluster.wait(3)
        check(cluster, [good[0], {}, good[1], good[2]])
        with pytest.raises(OperatorFailed):  # it is still refused
            cluster.wait(1)


def test_the_number_of_a_refused_epoch_is_used_again() -> None:
    with LocalCluster(PROGRAM.make_instance, 2) as cluster:
        assert cluster.submit(rows_of([POISON])) == 0
        with pytest.raises(OperatorFailed):
            cluster.wait(0)
        assert cluster.epoch == 0
        assert cluster.submit(rows_of([4])) == 0
        cluster.wait(0)
        check(cluster, [rows_of([4])])


def test_waiting_for_what_was_not_submitted_is_an_error() -> None:
    with LocalCluster(PROGRAM.make_instance) as cluster, pytest.raises(ValueError, match="epoch 0"):
        cluster.wait(0)


@pytest.mark.parametrize("seed", SEEDS)
def test_lives_of_a_run(seed: int | None, tmp_path: Path) -> None:
    """Losses, refusals, other numbers of workers, and processes that end without saying so."""
    source, past = random.Random(seed or 7), []
    for _ in range(4):
        cluster = LocalCluster(
            PROGRAM.make_instance,
            source.randint(1, 3),
            checkpoint=tmp_path,
            every=3,
            policy=source.choice(("replace", "spread")),
            seed=seed,
            take_over=True,
        )
        check(cluster, past)
        for _ in range(8):
            if source.random() < 0.2:
                cluster.kill(0)
            commit(cluster, past, PROGRAM.draw(source, past))
            check(cluster, past)
            if source.random() < 0.2:
                cluster.scale(source.randint(1, 4))
                check(cluster, past)
            if source.random() < 0.2:
                assert cluster.checkpoint() == cluster.status()["checkpoint"]["number"]
        if source.random() < 0.5:
            queued = rows_of([source.randrange(9)])
            cluster.submit(queued)  # and nobody waits for it
            past.append(queued)
        if source.random() < 0.5:
            cluster.close()


@pytest.mark.parametrize("checkpoint", [None, "memory:///"])
def test_scaling_keeps_what_is_there(checkpoint: str | None) -> None:
    past: list[Any] = []
    with LocalCluster(PROGRAM.make_instance, 2, checkpoint=checkpoint, every=None) as cluster:
        for workers in (2, 3, 1, 4):
            cluster.scale(workers)
            assert len(cluster.instances) == cluster.status()["workers"] == workers
            check(cluster, past)
            commit(cluster, past, rows_of(range(20)))
            check(cluster, past)


def test_only_the_lost_range_is_read() -> None:
    class Watched(Storage):
        read = 0

        def get(self, name: str) -> Any:
            self.read += name.startswith("blocks/")
            return super().get(name)

    storage = Watched(open_storage("memory:///").store)
    past: list[Any] = []
    with LocalCluster(PROGRAM.make_instance, 4, checkpoint=storage, every=None) as cluster:
        commit(cluster, past, rows_of(range(100)))
        cluster.checkpoint()
        cluster.kill(2)
        commit(cluster, past, rows_of(range(5)))
        check(cluster, past)
        assert storage.read == 1
        commit(cluster, past, rows_of([POISON]))
        check(cluster, past)
        assert storage.read == 1  # nobody was lost: the pins are enough


def test_epochs_since_the_checkpoint_are_done_again_and_waited_for_once() -> None:
    past: list[Any] = []
    with LocalCluster(PROGRAM.make_instance, 2, checkpoint="memory:///", every=None) as cluster:
        for at in range(6):
            commit(cluster, past, rows_of([at, at + 1]))
            if at == 2:
                cluster.checkpoint()
        cluster.kill(1)
        assert cluster.status()["reported"] == 6
        cluster.wait(5)
        check(cluster, past)
        cluster.kill(0)
        assert PROGRAM.read(cluster.instances, 5) == PROGRAM.oracle(past)  # no need to wait
        cluster.kill(0)
        cluster.scale(3)
        check(cluster, past)


def test_without_a_checkpoint_a_lost_worker_ends_the_run() -> None:
    cluster = LocalCluster(PROGRAM.make_instance, 2)
    cluster.kill(0)
    with pytest.raises(CheckpointError, match="worker 0 is lost") as caught:
        cluster.submit({})
    assert "checkpoint=PATH" in str(caught.value)
    assert cluster.closed is not None
    cluster.close()


def test_without_a_path_no_checkpoint_can_be_asked_for() -> None:
    with LocalCluster(PROGRAM.make_instance) as cluster:
        with pytest.raises(CheckpointError, match="has no checkpoint path"):
            cluster.checkpoint()
        commit(cluster, [], rows_of([1]))


def test_closing_may_be_repeated_and_ends_it(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    cluster = LocalCluster(PROGRAM.make_instance, checkpoint=tmp_path, every=1)
    commit(cluster, [], rows_of([1]))
    assert cluster.closed is None
    cluster.close()
    cluster.close()
    assert cluster.closed == "it was closed"
    with pytest.raises(RiverrunError, match="it is closed"):
        cluster.submit({})
    assert set(threading.enumerate()) <= before
    assert (tmp_path / "manifests").exists()  # the checkpoint under way was finished


def test_a_path_has_one_owner(tmp_path: Path) -> None:
    first = LocalCluster(PROGRAM.make_instance, checkpoint=tmp_path)
    past: list[Any] = []
    commit(first, past, rows_of([1]))
    with pytest.raises(CheckpointError, match="in use by") as caught:
        LocalCluster(PROGRAM.make_instance, 2, checkpoint=tmp_path)
    assert caught.value.code == "checkpoint.in_use"
    second = LocalCluster(PROGRAM.make_instance, 2, checkpoint=tmp_path, take_over=True)
    check(second, past)
    with pytest.raises(CheckpointError, match="another run has written there"):
        first.submit(rows_of([2]))
    assert first.closed is not None
    with pytest.raises(CheckpointError):
        first.wait(0)
    commit(second, past, rows_of([3]))
    check(second, past)
    first.close()
    second.close()


def test_another_program_cannot_resume(tmp_path: Path) -> None:
    with LocalCluster(
        PROGRAM.make_instance, checkpoint=tmp_path, fingerprint={"n": 1}, every=1
    ) as c:
        commit(c, [], rows_of([1]))
        c.checkpoint()
    with pytest.raises(CheckpointError, match="'n' was 1 and is 2"):
        LocalCluster(PROGRAM.make_instance, checkpoint=tmp_path, fingerprint={"n": 2})


def test_the_application_gets_its_fields_back(tmp_path: Path) -> None:
    with LocalCluster(PROGRAM.make_instance, checkpoint=tmp_path) as cluster:
        cluster.application = {"batches": {"edges": 7}}
        commit(cluster, [], rows_of([1]))
        cluster.checkpoint()
    with LocalCluster(PROGRAM.make_instance, checkpoint=tmp_path) as cluster:
        assert cluster.application == {"batches": {"edges": 7}}


class Failing(Storage):
    """Refuses to write blocks while told to."""

    failing = True

    def put(self, name: str, data: Any) -> None:
        if self.failing:
            raise TransportError("storage.unreachable", f"cannot write {name}", hint="")
        super().put(name, data)


def test_a_checkpoint_that_fails_does_not_stop_the_run_and_is_made_up_for() -> None:
    storage = Failing(open_storage("memory:///").store)
    past: list[Any] = []
    with LocalCluster(PROGRAM.make_instance, 2, checkpoint=storage, every=1) as cluster:
        for at in range(4):
            commit(cluster, past, rows_of([at]))
        with pytest.raises(TransportError, match="cannot write"):
            cluster.checkpoint()
        status = cluster.status()["checkpoint"]
        assert status["failures"] > 0
        assert status["lag"] == 4
        assert "cannot write" in status["error"]
        storage.failing = False
        assert cluster.checkpoint() == 1
        assert cluster.status()["checkpoint"]["lag"] == 0
        check(cluster, past)


def test_scaling_that_cannot_write_leaves_the_run_as_it_is() -> None:
    storage = Failing(open_storage("memory:///").store)
    past: list[Any] = []
    with LocalCluster(PROGRAM.make_instance, 2, checkpoint=storage, every=None) as cluster:
        commit(cluster, past, rows_of([1, 2]))
        with pytest.raises(TransportError):
            cluster.scale(3)
        commit(cluster, past, rows_of([3]))
        check(cluster, past)
        assert len(cluster.instances) == 2


def test_what_is_covered_is_collected() -> None:
    storage = open_storage("memory:///")
    past: list[Any] = []
    with LocalCluster(
        PROGRAM.make_instance, 2, checkpoint=storage, every=None, retain=2
    ) as cluster:
        for at in range(30):
            commit(cluster, past, rows_of([at % 3]))
            if at % 5 == 4:
                cluster.checkpoint()
    assert len(storage.names("manifests")) == 2
    assert len(storage.names("log")) == 1 + 5  # the owner; what the older one of the two needs


def test_checkpoints_by_time() -> None:
    with LocalCluster(
        PROGRAM.make_instance, checkpoint="memory:///", every=timedelta(seconds=0)
    ) as cluster:
        for at in range(5):
            commit(cluster, [{}] * at, rows_of([at]))
        cluster.checkpoint()
        assert cluster.status()["checkpoint"]["number"] > 1


def test_an_unexpected_error_refuses_the_epoch() -> None:
    class Bad(CountingInstance):
        def feed(self, epoch: int, inputs: Any) -> None:
            if epoch == 1:
                raise KeyError("surprise")
            super().feed(epoch, inputs)

    with LocalCluster(Bad, 2) as cluster:
        cluster.wait(cluster.submit(rows_of([1])))
        epoch = cluster.submit(rows_of([1]))
        with pytest.raises(OperatorFailed, match="surprise") as caught:
            cluster.wait(epoch)
        assert isinstance(caught.value.__cause__, KeyError)
        assert cluster.completed == 1


def test_a_seed_repeats_itself() -> None:
    def order(seed: int) -> list[tuple[int, int]]:
        seen = []

        class Noting(CountingInstance):
            def receive(self, sender: int, payload: Any) -> None:
                seen.append((sender, self.index))
                super().receive(sender, payload)

        with LocalCluster(Noting, 3, seed=seed) as cluster:
            for at in range(3):
                cluster.wait(cluster.submit(rows_of(range(at, at + 6))))
        return seen

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1


def test_an_interrupted_epoch_is_refused_and_the_run_goes_on() -> None:
    class Interrupted(CountingInstance):
        interrupts = [KeyboardInterrupt()]  # noqa: RUF012

        def work(self) -> bool:
            if self.fed == 2 and self.interrupts:
                raise self.interrupts.pop()
            return super().work()

    past: list[Any] = []
    with LocalCluster(Interrupted, 2, checkpoint="memory:///") as cluster:
        commit(cluster, past, rows_of([1, 2]))
        epoch = cluster.submit(rows_of([3]))
        with pytest.raises(KeyboardInterrupt):
            cluster.wait(epoch)
        check(cluster, past)
        commit(cluster, past, rows_of([4]))
        check(cluster, past)


def test_without_a_path_scaling_leaves_nothing_behind() -> None:
    past: list[Any] = []
    with LocalCluster(PROGRAM.make_instance, 2) as cluster:
        commit(cluster, past, rows_of(range(9)))
        for workers in (3, 1, 2):
            cluster.scale(workers)
            check(cluster, past)
            assert [worker.pinned for worker in cluster._workers.values()] == [[1]] * workers
            assert cluster._checkpoints is None
        commit(cluster, past, rows_of([POISON]))
        commit(cluster, past, rows_of([1]))
        check(cluster, past)
        assert {len(worker.pinned) for worker in cluster._workers.values()} == {2}
