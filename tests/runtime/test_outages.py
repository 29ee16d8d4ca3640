"""A storage that is away for a while: commits wait, all else goes on, and nothing is lost when it is back."""

from __future__ import annotations

import _thread
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from riverrun import retry
from riverrun.engine.coordinator.outages import Outage
from riverrun.engine.messages import Parcel
from riverrun.errors import CheckpointError, TransportError
from riverrun.runtime import local
from riverrun.runtime.cluster import Cluster
from riverrun.runtime.local import LocalCluster
from riverrun.runtime.remote import RemoteCluster
from riverrun.runtime.uploads import Uploads
from riverrun.storage.store import open_storage
from tests.engine.flows import Model, check, edge_rows, graph_maker
from tests.engine.weather import Weather
from tests.runtime.launchers import Threads, gone_by

MAKER = graph_maker()
Start = Callable[..., Any]


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Interrupts raise, also where whoever started the tests in the background had them ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def weather(monkeypatch: pytest.MonkeyPatch) -> Iterator[Weather]:
    monkeypatch.setattr(local, "NAP", 0.02)
    monkeypatch.setattr(retry, "DELAYS", (0.01, 0.02, 0.05))
    weather = Weather(monkeypatch)
    yield weather
    weather.fine()


@pytest.fixture(params=["local", "threads"])
def start(request: pytest.FixtureRequest, weather: Weather) -> Iterator[Start]:
    """Starts a cluster, which is closed afterwards; no thread of it is left."""
    before, clusters = set(threading.enumerate()), list[Cluster]()

    def begin(workers: int = 2, **options: Any) -> Any:
        if request.param == "local":
            clusters.append(LocalCluster(MAKER, workers, **options))
        else:
            clusters.append(RemoteCluster(Threads(MAKER), workers, timeout=30, **options))
        return clusters[-1]

    yield begin
    weather.fine()
    for cluster in clusters:
        cluster.close()
    gone_by(before)


def until(so: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def commit(cluster: Any, model: Model) -> int:
    epoch: int = cluster.submit(model.draw())
    cluster.wait(epoch)
    return epoch


class Beside:
    """Something that is done in another thread."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self.result: object = None
        self._act = act
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._act()
        except BaseException as error:
            self.error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> Any:
        self._thread.join(120)
        assert self.is_over
        if self.error is not None:
            raise self.error
        return self.result


def test_commits_wait_for_the_log_and_are_done_when_it_is_back(
    start: Start, weather: Weather, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "riverrun")
    cluster, model = start(2, checkpoint=tmp_path), Model(1)
    commit(cluster, model)
    assert cluster.status()["log"] == {"lag": 0, "bytes": 0, "behind": None, "error": None}
    weather.away("create", folders=["log/"])
    inputs = model.draw()
    waiting = Beside(lambda: cluster.submit(inputs))
    until(lambda: weather.failed > 7)  # more often than was once tried
    assert not waiting.is_over
    if isinstance(cluster, RemoteCluster):  # the other one belongs to the thread that waits
        status = cluster.status()["log"]
        assert status["lag"] == 1
        assert status["bytes"] > 0
        assert status["behind"] > 0
        assert "bad weather" in status["error"]
        assert cluster.completed == 1
        assert len(cluster.read("degrees", 0)) == 2  # results can be read
    weather.fine()
    epoch = waiting.wait()
    assert epoch == 1
    cluster.wait(epoch)
    check(cluster, model)
    assert cluster.status()["log"]["behind"] is None
    said = [record for record in caplog.records if record.name == "riverrun"]
    assert [record.levelname for record in said] == ["WARNING", "INFO"]
    assert "the log cannot be written" in said[0].message
    cluster.close()
    resumed = start(1, checkpoint=tmp_path)
    check(resumed, model, changes=False)


def test_what_is_in_the_log_is_worked_on_meanwhile(weather: Weather, tmp_path: Path) -> None:
    model = Model(2)
    with LocalCluster(MAKER, 2, checkpoint=tmp_path) as cluster:
        first = cluster.submit(model.draw())
        cluster._coordinator.limit = first + 1  # it may be worked on
        weather.away("create", folders=["log/"])
        done: list[int] = []

        def look() -> None:
            until(lambda: cluster.completed > first)
            done.append(cluster._coordinator.log.waiting)
            weather.fine()

        looking = Beside(look)
        second = cluster.submit(model.draw())
        looking.wait()
        assert done == [1]
        cluster.wait(second)
        check(cluster, model)


def test_it_is_said_again_and_again(
    weather: Weather,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "REMIND", 0.2)
    with LocalCluster(MAKER, checkpoint=tmp_path) as cluster:
        weather.away("create", folders=["log/"])
        waiting = Beside(lambda: cluster.submit({"edges": edge_rows([(1, 2, 1)])}))
        until(lambda: caplog.text.count("1 record waits") >= 2)
        weather.fine()
        waiting.wait()


def test_patience_ends_the_run_and_what_was_answered_for_is_kept(
    start: Start, weather: Weather, tmp_path: Path
) -> None:
    cluster, model = start(2, checkpoint=tmp_path, storage_timeout=0.5), Model(3)
    commit(cluster, model)
    weather.away("create", folders=["log/"])
    begun = time.monotonic()
    with pytest.raises(
        TransportError, match=r"cannot log epoch 1: .* storage_timeout=0.5"
    ) as caught:
        cluster.submit({"edges": edge_rows([(1, 2, 1)])})
    assert caught.value.code == "storage.timeout"
    assert time.monotonic() - begun > 0.4
    assert "storage_timeout" in cluster.closed
    cluster.close()
    weather.fine()
    resumed = start(2, checkpoint=tmp_path)
    check(resumed, model, changes=False)


def test_somebody_elses_record_is_no_outage(start: Start, tmp_path: Path) -> None:
    first, model = start(1, checkpoint=tmp_path), Model(4)
    commit(first, model)
    start(1, checkpoint=tmp_path, take_over=True)
    with pytest.raises(CheckpointError, match="another run has written there"):
        first.submit({})


@pytest.mark.parametrize("seed", [None, 1])
def test_an_interrupted_commit_keeps_its_number_and_is_an_epoch(
    weather: Weather, tmp_path: Path, seed: int | None
) -> None:
    model = Model(5)
    with LocalCluster(MAKER, 2, checkpoint=tmp_path, seed=seed) as cluster:
        commit(cluster, model)
        weather.away("create", folders=["log/"])

        def interrupt() -> None:
            until(lambda: weather.failed > 2)
            _thread.interrupt_main()

        interrupting = Beside(interrupt)
        with pytest.raises(KeyboardInterrupt):
            cluster.submit(model.draw())
        interrupting.wait()
        assert cluster.epoch == 2
        assert cluster.status()["log"]["lag"] == 1
        check(cluster, _without_last(model), changes=False)
        weather.fine()
        cluster.wait(1)
        check(cluster, model)
        commit(cluster, model)
        check(cluster, model)


def _without_last(model: Model) -> Model:
    """What the model was one epoch before."""
    older = Model(5)
    older.draw()
    return older


def test_an_interrupted_wait_does_not_wait_for_the_storage(
    weather: Weather, tmp_path: Path
) -> None:
    model = Model(6)
    with LocalCluster(MAKER, 2, checkpoint=tmp_path) as cluster:
        commit(cluster, model)
        weather.away("create", folders=["log/"])

        def interrupt(failures: int) -> None:
            until(lambda: weather.failed > failures)
            _thread.interrupt_main()

        for act in (lambda: cluster.submit(model.draw()), lambda: cluster.wait(1)):
            interrupting = Beside(lambda: interrupt(weather.failed + 2))
            with pytest.raises(KeyboardInterrupt):
                act()  # though the storage stays away
            interrupting.wait()
        weather.fine()
        cluster.wait(1)
        check(cluster, model)


def test_an_interrupted_remote_commit_is_done_later(weather: Weather, tmp_path: Path) -> None:
    model = Model(7)
    with RemoteCluster(Threads(MAKER), 2, timeout=30, checkpoint=tmp_path) as cluster:
        commit(cluster, model)
        weather.away("create", folders=["log/"])
        interrupting = Beside(lambda: (until(lambda: weather.failed > 2), _thread.interrupt_main()))
        with pytest.raises(KeyboardInterrupt):
            cluster.submit(model.draw())
        interrupting.wait()
        assert cluster.epoch == 2
        weather.fine()
        until(lambda: cluster.completed == 2)  # nobody waits for it
        check(cluster, model)


# ---- slow, or not at all


def test_a_slow_storage_slows_commits_only(start: Start, weather: Weather, tmp_path: Path) -> None:
    cluster, model = start(2, checkpoint=tmp_path, every=1), Model(8)
    weather.slow(1.2)
    for _ in range(2):
        inputs = model.draw()
        waiting = Beside(lambda inputs=inputs: cluster.submit(inputs))
        if isinstance(cluster, RemoteCluster):
            until(lambda: cluster.status()["log"]["behind"] is not None)
            assert cluster.status()["log"]["error"] is None
        cluster.wait(waiting.wait())
        check(cluster, model)
    weather.fine()
    commit(cluster, model)
    check(cluster, model)


def test_a_run_whose_storage_hangs_can_be_closed(
    start: Start, weather: Weather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LAST_CHECKPOINT", 0.5)
    cluster, model = start(2, checkpoint=tmp_path, every=None), Model(9)
    commit(cluster, model)
    weather.hangs()
    if isinstance(cluster, LocalCluster):  # it belongs to this thread: interrupt that
        interrupting = Beside(lambda: (time.sleep(1.2), _thread.interrupt_main()))
        with pytest.raises(KeyboardInterrupt):
            cluster.submit(model.draw())
        interrupting.wait()
    else:
        waiting = Beside(lambda: cluster.submit(model.draw()))
        until(lambda: cluster.status()["log"]["behind"] is not None)
        assert not waiting.is_over
    status = cluster.status()["log"]
    assert status["lag"] == 1
    assert status["behind"] > 1
    cluster.close()
    assert weather.is_hanging  # it was not waited for
    weather.fine()


def test_a_process_ends_though_its_storage_hangs(tmp_path: Path) -> None:
    program = """
import sys, threading, time
from riverrun.storage.store import Storage
from riverrun.runtime.local import LocalCluster
from tests.engine.flows import Model, graph_maker
cluster, model = LocalCluster(graph_maker(), 2, checkpoint=sys.argv[1], every=None), Model(1)
cluster.wait(cluster.submit(model.draw()))
Storage.put = Storage.create = Storage.delete = lambda *_: time.sleep(600)
threading.Timer(1.5, __import__("_thread").interrupt_main).start()
try:
    cluster.submit(model.draw())
except KeyboardInterrupt:
    cluster.close()
    print("closed")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True, text=True, timeout=100, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert ended.stdout == "closed\n", ended.stderr
    with LocalCluster(MAKER, 1, checkpoint=tmp_path) as cluster:
        assert cluster.completed == 1


def test_patience_ends_a_run_whose_storage_hangs(
    start: Start, weather: Weather, tmp_path: Path
) -> None:
    cluster, model = start(1, checkpoint=tmp_path, storage_timeout=1.5), Model(10)
    commit(cluster, model)
    weather.hangs()
    with pytest.raises(TransportError, match="it does not answer"):
        cluster.submit(model.draw())
    cluster.close()
    weather.fine()


# ---- checkpoints


@pytest.mark.parametrize("every", [1, timedelta(seconds=0.3)])
def test_a_checkpoint_comes_about_when_the_storage_is_back_and_nothing_else_happens(
    start: Start, weather: Weather, tmp_path: Path, every: Any
) -> None:
    cluster, model = start(2, checkpoint=tmp_path, every=every), Model(11)
    weather.away("put", "create", folders=["blocks/", "manifests/"])
    commit(cluster, model)
    until(lambda: cluster.status()["checkpoint"]["failures"] >= 2)
    status = cluster.status()["checkpoint"]
    assert status["lag"] == 1
    assert status["behind"] > 0
    assert "bad weather" in status["error"]
    check(cluster, model)
    weather.fine()
    until(lambda: cluster.status()["checkpoint"]["epoch"] == 1)
    assert cluster.status()["checkpoint"]["error"] is None
    assert cluster.status()["checkpoint"]["lag"] == 0


def test_a_part_that_could_not_be_written_leaves_no_files(weather: Weather, tmp_path: Path) -> None:
    with LocalCluster(MAKER, 1, checkpoint=tmp_path, every=None) as cluster:
        commit(cluster, Model(12))
        written: list[str] = []

        def some_fail(_: object, name: Any, data: Any, original: Any = None) -> None:
            if name.startswith("blocks/") and len(written) >= 2:
                raise TransportError("storage.unreachable", "full", hint="")
            written.append(name)
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"x")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("riverrun.storage.store.Storage.put", some_fail)
            with pytest.raises(TransportError):
                cluster.checkpoint()
        assert [name for name in written if name.startswith("blocks/")]
        assert list((tmp_path / "blocks").iterdir()) == []
        cluster.checkpoint()


# ---- recovery


def test_a_lost_worker_waits_until_its_states_can_be_read(
    start: Start, weather: Weather, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, model = start(2, checkpoint=tmp_path, every=None), Model(13)
    commit(cluster, model)
    cluster.checkpoint()
    commit(cluster, model)
    weather.away("get", folders=["blocks/", "manifests/"])
    before = weather.failed
    cluster.kill(1)
    back = Beside(lambda: (until(lambda: weather.failed > before + 6), weather.fine()))
    if isinstance(cluster, RemoteCluster):
        until(lambda: cluster.status()["recovery"]["error"] is not None)
    cluster.wait(1)
    back.wait()
    check(cluster, model)
    assert "cannot be read from the storage" in caplog.text
    assert cluster.status()["recovery"] == {"behind": None, "error": None}


def test_patience_ends_a_recovery(start: Start, weather: Weather, tmp_path: Path) -> None:
    cluster, model = start(2, checkpoint=tmp_path, every=None, storage_timeout=0.5), Model(14)
    commit(cluster, model)
    cluster.checkpoint()
    weather.away("get", folders=["blocks/", "manifests/"])
    cluster.kill(0)
    with pytest.raises(TransportError, match="cannot go back to a checkpoint"):
        cluster.wait(0)


@pytest.mark.parametrize("kind", ["local", "threads"])
def test_rows_that_were_handed_in_are_waited_for(
    weather: Weather, tmp_path: Path, kind: str
) -> None:
    """A parcel whose holder is gone is read from the storage: by a worker, when that can be reached."""
    model = Model(15)
    cluster: Any
    if kind == "local":
        cluster = LocalCluster(MAKER, 1, checkpoint=tmp_path)
    else:
        cluster = RemoteCluster(Threads(MAKER), 1, timeout=30, checkpoint=tmp_path)
    with cluster:
        storage, inputs = open_storage(tmp_path), model.draw()
        parcels = {
            name: tuple(
                Parcel(parcel.name, 0, parcel.rows, parcel.file, parcel.checksum)
                for parcel in Uploads(99, storage).take_in(f"0.{at}", [rows])
            )
            for at, (name, rows) in enumerate(inputs.items())
            if rows.num_rows
        }
        weather.away("get", folders=["parcels/"])
        epoch = cluster.submit({}, parcels=parcels)
        before = weather.failed
        back = Beside(lambda: (until(lambda: weather.failed > before + 6), weather.fine()))
        cluster.wait(epoch)
        back.wait()
        check(cluster, model)


def test_rows_that_are_handed_in_wait_for_the_storage(weather: Weather, tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    uploads, rows = Uploads(1, storage), edge_rows([(1, 2, 1)])
    weather.away("put")
    back = Beside(lambda: (until(lambda: weather.failed > 4), weather.fine()))
    (parcel,) = uploads.take_in("load", [rows])
    back.wait()
    assert storage.get(parcel.file or "").size > 0
    weather.away("put")
    with pytest.raises(TransportError):
        Uploads(1, storage, storage_timeout=0.1).take_in("more", [rows])
    over = threading.Event()
    over.set()
    with pytest.raises(TransportError):
        Uploads(1, storage, over=over).take_in("most", [rows])


def test_a_run_that_was_thrown_away_leaves_nothing_that_runs(tmp_path: Path) -> None:
    before, model = set(threading.enumerate()), Model(16)
    cluster = LocalCluster(MAKER, 2, checkpoint=tmp_path, every=1)
    commit(cluster, model)
    del cluster
    with LocalCluster(MAKER, 1, checkpoint=tmp_path) as cluster:
        check(cluster, model, changes=False)
    gone_by(before)


def test_the_error_at_the_end_of_patience_says_how_often_and_how_long_was_tried() -> None:
    outage = Outage("the log cannot be written", "commits wait")
    lost = TransportError("storage.unreachable", "no space left", hint="")
    for now in (100.0, 101.0, 104.0):
        outage.failed(lost, now)
    error = outage.timeout_error(5, 106.0, "write epoch 7")
    assert "failed for 6.0 s, tried 3 times, and storage_timeout=5: no space left" in error.message
    assert (error.fields["seconds"], error.fields["tries"]) == (6.0, 3)
    outage.over(107.0)
    outage.failed(lost, 110.0)
    assert "tried once" in outage.timeout_error(1, 112.0, "write epoch 8").message
