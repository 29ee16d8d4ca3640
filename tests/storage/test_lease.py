"""One run at a time uses a path, and a second one is told so."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from riverrun.errors import CheckpointError, TransportError
from riverrun.storage import directory
from riverrun.storage import lease as leases
from riverrun.storage.lease import OWNER, Lease, Owner, read_owner
from riverrun.storage.store import Storage, open_storage

CHILD = """
import sys, time
from riverrun.storage.lease import Lease
from riverrun.storage.store import open_storage
lease = Lease.acquire(open_storage(sys.argv[1]), "child", application="words")
print("mine", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEWAL", 0.1)
    monkeypatch.setattr(leases, "WATCH", 0.5)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(tmp_path)


def until(so: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def put(storage: Storage, owner: Owner) -> None:
    storage.put(OWNER, json.dumps(asdict(owner)).encode())


def of(storage: Storage) -> Owner:
    owner = read_owner(storage)
    assert owner is not None
    return owner


def running(lease: Lease) -> bool:
    return lease._thread is not None and lease._thread.is_alive()


def refused(storage: Storage, **options: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        Lease.acquire(storage, "second", **options)
    assert caught.value.code == "checkpoint.in_use"
    return caught.value


def test_a_second_run_of_this_process_is_refused_until_the_first_is_over(storage: Storage) -> None:
    before = set(threading.enumerate())
    first = Lease.acquire(storage, "first", application="words")
    error = refused(storage)
    assert "'words'" in error.message
    assert f"process {os.getpid()} on" in error.message
    assert "take_over=True" in str(error)
    assert error.fields["owner"]["identity"] == "first"
    first.release()
    assert storage.names("") == []
    Lease.acquire(storage, "second").release()
    assert set(threading.enumerate()) <= before


def test_a_run_that_was_thrown_away_is_no_owner(storage: Storage) -> None:
    before = set(threading.enumerate())
    lease = Lease.acquire(storage, "first")
    lease.cycle = lease  # type: ignore[attr-defined]  # only the garbage collector finds it
    del lease
    second = Lease.acquire(storage, "second")
    assert of(storage).identity == "second"
    second.release()
    until(lambda: set(threading.enumerate()) <= before)
    assert storage.names("") == []


def test_the_thread_does_not_keep_it_alive(storage: Storage) -> None:
    Lease.acquire(storage, "first")
    gc.collect()
    until(lambda: storage.names("") == [])


def test_another_process_is_refused_while_it_lives_and_not_when_it_was_killed(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "WATCH", 300)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "mine\n"
        begun = time.monotonic()
        assert f"process {child.pid} on" in refused(storage).message
        child.send_signal(signal.SIGKILL)
        until(lambda: not leases._is_running(child.pid))  # it is a zombie until we wait for it
        Lease.acquire(storage, "second").release()
        assert time.monotonic() - begun < 200  # not after watching it
    finally:
        child.kill()
        child.communicate()


def test_a_process_that_ends_without_closing_takes_its_file_with_it(tmp_path: Path) -> None:
    program = CHILD.replace("time.sleep(600)", "")
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_a_dead_process_may_be_used_by_another(storage: Storage) -> None:
    first = Lease.acquire(storage, "first")
    owner = of(storage)
    first.release()
    for other in (replace(owner, pid=1, started="12345"), replace(owner, pid=2**22 - 1)):
        put(storage, other)
        Lease.acquire(storage, "second").release()


@pytest.mark.parametrize("where", ["host", "boot", "namespace"])
def test_elsewhere_the_signs_of_life_are_watched(storage: Storage, where: str) -> None:
    first = Lease.acquire(storage, "first")
    elsewhere = replace(of(storage), **{where: "elsewhere", "term": 7})
    first.release()
    put(storage, elsewhere)
    over = threading.Event()

    def beat() -> None:
        at = 0
        while not over.wait(0.05):
            at += 1
            put(storage, replace(elsewhere, beat=at))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        assert "sign of life" in refused(storage).message
    finally:
        over.set()
        thread.join()
    second = Lease.acquire(storage, "second")  # it has fallen silent
    assert of(storage).term == 8
    second.release()


def test_taking_over_does_not_ask_and_the_other_one_renews_no_more(storage: Storage) -> None:
    first = Lease.acquire(storage, "first")
    second = Lease.acquire(storage, "second", take_over=True)
    assert of(storage).identity == "second"
    until(lambda: not running(first))
    beat = of(storage).beat
    until(lambda: of(storage).beat > beat + 2)
    first.release()
    assert of(storage).identity == "second"  # it takes away only its own
    second.release()
    assert storage.names("") == []


def test_a_lease_that_was_overwritten_late_or_deleted_is_written_again(storage: Storage) -> None:
    first = Lease.acquire(storage, "first")
    old = of(storage)
    second = Lease.acquire(storage, "second", take_over=True)
    until(lambda: not running(first))
    put(storage, old)
    until(lambda: of(storage).identity == "second")
    storage.delete([OWNER])
    until(lambda: (found := read_owner(storage)) is not None and found.identity == "second")
    second.release()


def test_a_storage_that_is_away_does_no_harm(tmp_path: Path) -> None:
    class Away(Storage):
        away = False

        def put(self, name: str, data: Any) -> None:
            if self.away:
                raise TransportError("storage.unreachable", "away", hint="")
            super().put(name, data)

    storage = Away(open_storage(tmp_path).store)
    lease = Lease.acquire(storage, "first")
    until(lambda: of(storage).beat > 0)
    storage.away = True
    time.sleep(0.3)
    beat = of(storage).beat
    storage.away = False
    until(lambda: of(storage).beat > beat)
    lease.release()


class Failing(Storage):
    """Nothing can be done here while it is away."""

    away = False

    def get(self, name: str) -> Any:
        self._look()
        return super().get(name)

    def put(self, name: str, data: Any) -> None:
        self._look()
        super().put(name, data)

    def delete(self, names: Any) -> None:
        self._look()
        super().delete(names)

    def _look(self) -> None:
        if self.away:
            raise TransportError("storage.unreachable", "away", hint="")


def test_a_run_that_was_closed_while_its_storage_failed_takes_its_file_with_it_later(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RELEASE", 120)
    before = set(threading.enumerate())
    failing = Failing(storage.store)
    lease = Lease.acquire(failing, "first")
    failing.away = True
    begun = time.monotonic()
    lease.release()
    assert time.monotonic() - begun < 60  # nobody waits for it
    time.sleep(0.3)
    assert of(storage).identity == "first"
    failing.away = False
    until(lambda: storage.names("") == [])  # though this process lives
    until(lambda: set(threading.enumerate()) <= before)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "mine\n"
    finally:
        child.kill()
        child.communicate()


def test_a_process_that_closed_its_run_may_use_the_path_again_at_once(storage: Storage) -> None:
    before = set(threading.enumerate())
    failing = Failing(storage.store)
    lease = Lease.acquire(failing, "first")
    failing.away = True
    lease.release()
    second = Lease.acquire(storage, "second")  # reached another way, by which it does not fail
    assert of(storage).identity == "second"
    failing.away = False
    until(lambda: not running(lease))  # it sees that the file is not its own any more
    assert of(storage).identity == "second"
    second.release()
    until(lambda: set(threading.enumerate()) <= before)
    assert storage.names("") == []


def test_a_storage_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RELEASE", 0.2)
    let_go = threading.Event()

    class Hanging(Storage):
        def delete(self, names: Any) -> None:
            let_go.wait(120)

    storage = Hanging(open_storage(tmp_path).store)
    lease = Lease(storage, of_new(open_storage(tmp_path))).start()
    begun = time.monotonic()
    lease.release()
    assert time.monotonic() - begun < 60
    let_go.set()
    until(lambda: not running(lease))


def of_new(storage: Storage) -> Owner:
    lease = Lease.acquire(storage, "first")
    owner = of(storage)
    lease.release()
    put(storage, owner)
    return owner


def test_a_file_that_is_none_is_ignored_and_said(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    for content in (b"", b"{", b"[1]", b'{"identity": 1}'):
        storage.put(OWNER, content)
        Lease.acquire(storage, "first").release()
        assert "cannot be read, and is ignored" in caplog.text
        caplog.clear()


def test_of_many_that_start_at_once_one_gets_it(storage: Storage) -> None:
    got: list[Lease] = []
    told: list[str] = []
    ready = threading.Barrier(8)

    def start(at: int) -> None:
        ready.wait()
        try:
            got.append(Lease.acquire(storage, str(at)))
        except CheckpointError as error:
            told.append(error.code)

    threads = [threading.Thread(target=start, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    assert told == ["checkpoint.in_use"] * 7
    got[0].release()


def test_whoever_starts_at_this_moment_may_take_what_is_half_written(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that start at once, one may delete the file that the other is about to link: that one writes it again."""
    linked, taken = directory._linked, []

    def late(beside: str, file: str, here: int) -> bool:
        if not taken:
            taken.append(beside)
            os.unlink(beside, dir_fd=here)
        return linked(beside, file, here)

    monkeypatch.setattr(directory, "_linked", late)
    Lease.acquire(storage, "first").release()
    assert taken


def test_what_a_killed_owner_left_unfinished_goes(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / f"{OWNER}#1").write_bytes(b"{")
    Lease.acquire(storage, "first").release()
    assert list(tmp_path.iterdir()) == []


def test_a_lost_answer_to_our_own_lease_is_not_somebody_else() -> None:
    class Forgetful(Storage):
        def create(self, name: str, data: Any) -> bool:
            assert super().create(name, data)
            return super().create(name, data)  # a client repeats what it heard no answer to

    storage = open_storage("memory:///")
    lease = Lease.acquire(Forgetful(storage.store), "me", application="words")
    with pytest.raises(CheckpointError):
        Lease.acquire(storage, "another")
    lease.release()
    Lease.acquire(storage, "another").release()
