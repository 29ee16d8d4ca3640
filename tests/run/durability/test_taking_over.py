"""Law: whoever takes a path over runs afterwards, against an owner that commits and publishes as fast as it can.

Owners are processes of their own, in a tight loop of commits and checkpoints; one or several take over at once. After
each round exactly one run can commit, every epoch that anybody's ``commit()`` acknowledged is there, once, and those
that were put out have ended with an error that says so.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
from riverrun import retry
from riverrun.engine.messages import Collect
from riverrun.errors import CheckpointError
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.log import Log
from riverrun.storage.store import open_storage
from riverrun.storage.takeover import take_over
from tests.soaking import draws

ROOT = Path(__file__).parents[3]
OWNER = """
import sys
from riverrun.errors import RiverrunError
from tests.run.durability.test_taking_over import program
path, name, every, retain = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
run = program().run(checkpoint=path, every=every, retain=retain, take_over=True)
print("up", flush=True)
number = 0
try:
    while True:
        run.insert("rows", [(name, number)])
        run.commit()
        number += 1
        print(number, flush=True)
except RiverrunError as error:
    print("ended", error.code, flush=True)
"""


def program() -> rr.Dataflow:
    flow = rr.Dataflow("race")
    flow.output("rows", flow.input("rows", {"owner": pl.Int64, "number": pl.Int64}))
    return flow


class Owner:
    """A process that commits in a tight loop, and what it has told of it."""

    def __init__(self, path: Path, name: int, every: int, retain: int) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(path), str(name), str(every), str(retain)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.acknowledged = 0
        self.ended: str | None = None
        self.up = threading.Event()
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ended"):
                self.ended = line.split()[1]
            elif line.strip().isdigit():
                self.acknowledged = int(line)
            self.up.set()

    def await_commits(self, number: int) -> None:
        deadline = time.monotonic() + 120
        while self.acknowledged < number and time.monotonic() < deadline:
            assert self.process.poll() is None, self.process.stderr
            time.sleep(0.01)
        assert self.acknowledged >= number

    def await_end(self) -> None:
        self.process.wait(120)
        self.thread.join(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def check_rows(run: Any, owners: list[Owner], own: dict[int, int]) -> None:
    """Of each owner a prefix of what it has committed, at least all that was acknowledged, each once."""
    found = Counter(run.read("rows").rows())
    assert set(found.values()) <= {1}
    by_owner: dict[int, list[int]] = {}
    for owner, number in sorted(found):
        by_owner.setdefault(owner, []).append(number)
    for numbers in by_owner.values():
        assert numbers == list(range(len(numbers)))
    for owner in owners:
        there = len(by_owner.get(owner.name, []))
        assert owner.acknowledged <= there <= owner.acknowledged + 1
    for name, count in own.items():
        assert len(by_owner.get(name, [])) == count


@pytest.mark.parametrize(("every", "retain"), [(1, 1), (20, 2)])
def test_a_busy_owner_is_taken_over_from_each_time(tmp_path: Path, every: int, retain: int) -> None:
    owners: list[Owner] = []
    own: dict[int, int] = {}
    for round_ in range(draws(1, sample=5, soak=15)):
        owner = Owner(tmp_path, round_, every, retain)
        try:
            owner.await_commits(15)
            with program().run(checkpoint=tmp_path, take_over=True, every=None) as run:
                run.insert("rows", [(1000 + round_, 0)])
                run.commit()
                own[1000 + round_] = 1
                owner.await_end()
                owners.append(owner)
                assert owner.ended in ("log.taken", "checkpoint.taken_over")
                check_rows(run, owners, own)
        finally:
            owner.kill()


def test_two_take_over_at_once(tmp_path: Path) -> None:
    """Of an owner and two contenders one goes on, and has all that the others were told is complete."""
    name, past = 0, []
    for _ in range(draws(1, sample=3, soak=10)):
        first = Owner(tmp_path, name, 5, 1)
        first.await_commits(5)
        rivals = [Owner(tmp_path, name + 1 + at, 5, 1) for at in range(2)]
        try:
            for rival in rivals:
                rival.up.wait(120)
            past += [first, *rivals]
            deadline = time.monotonic() + 120
            while sum(o.process.poll() is None for o in (first, *rivals)) > 1:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            (left,) = [o for o in (first, *rivals) if o.process.poll() is None]
            assert left is not first
            before = left.acknowledged
            left.await_commits(before + 3)  # it goes on
            left.kill()
            left.thread.join(30)
            for gone in (first, *rivals):
                gone.await_end()
                assert gone is left or gone.ended in ("log.taken", "checkpoint.taken_over")
            with program().run(checkpoint=tmp_path) as run:
                check_rows(run, past, {})
        finally:
            for owner in (first, *rivals):
                owner.kill()
        name += 3


# ---- the same, move by move


class Busy(Log):
    """The log of one who takes over, while the owner before goes on at every request."""

    def __init__(self, storage: Any, act: Any) -> None:
        super().__init__(storage)
        self.act = act

    def positions(self) -> list[int]:
        found = super().positions()
        self.act()
        return found

    def read(self, position: int) -> Any:
        record = super().read(position)
        self.act()
        return record

    def create(self, position: int, data: bytes) -> bool:
        self.act()
        return super().create(position, data)


def test_an_owner_that_appends_faster_than_it_is_read_is_put_out(tmp_path: Path) -> None:
    """At each request of who takes over the owner has appended another record."""
    storage = open_storage("memory:///")
    before = Log(storage)
    first = take_over(Checkpoints(storage), before, identity="first")
    position = iter(range(first.next, 1 << 20))
    appended: list[int] = []

    def append() -> None:
        at = next(position)
        header = {"kind": "epoch", "epoch": at - 1, "owner": first.owner, "reported": 0}
        try:
            before.append(at, header, {})
        except CheckpointError as error:
            assert error.code == "log.taken"  # noqa: PT017
            busy.act = lambda: None
        else:
            appended.append(at)

    busy = Busy(storage, append)
    tries = iter(range(1 << 20))
    create = busy.create

    def slow(at: int, data: bytes) -> bool:
        # Only every third time the owner is slower than who looks for the end.
        if next(tries) % 3 == 2:
            return Log.create(busy, at, data)
        return create(at, data)

    busy.create = slow  # type: ignore[method-assign]
    second = take_over(Checkpoints(storage), busy, identity="second")
    assert second.owner == len(appended) + 1
    assert len(second.pending) == len(appended)


def test_promised_checkpoints_stay_though_the_owner_before_goes_on(tmp_path: Path) -> None:
    """Whoever was put out publishes what it has, and collects nothing, however often it is asked to."""
    owner = program().run(checkpoint=tmp_path, every=None, retain=1)
    for number in range(3):
        owner.insert("rows", [(0, number)])
        owner.commit()
        owner.checkpoint()
    with program().run(checkpoint=tmp_path, take_over=True, every=None, workers=2) as heir:
        cluster = owner._cluster
        for _ in range(3):
            cluster._execute(Collect(1))
        heir._cluster.kill(0)  # it reads the checkpoint again
        heir._cluster.kill(1)
        assert heir.read("rows").rows() == [(0, 0), (0, 1), (0, 2)]
        owner.insert("rows", [(0, 3)])
        with pytest.raises(rr.CheckpointError) as caught:
            owner.commit()
        assert caught.value.code == "log.taken"


def test_a_storage_that_fails_right_after_the_path_is_owned_is_asked_again(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The owner before is put out: who comes after it does not give up at the first failure."""
    monkeypatch.setattr(retry, "DELAYS", (0.001,))
    with program().run(checkpoint=tmp_path, every=1) as run:
        for number in range(5):
            run.insert("rows", [(0, number)])
            run.commit()

    class Failing(Log):
        left = 0

        def own(self, position: int) -> None:
            super().own(position)
            self.left = failures

    storage = open_storage(tmp_path)
    names = type(storage).names

    def fails(self: Any, folder: str) -> Any:
        if log.left:
            log.left -= 1
            raise rr.TransportError("storage.unreachable", "harm", hint="try again")
        return names(self, folder)

    monkeypatch.setattr(type(storage), "names", fails)
    fingerprint = program().plan.fingerprint
    for failures in range(5):
        log = Failing(storage)
        checkpoints = Checkpoints(storage)
        opening = take_over(checkpoints, log, identity=f"after {failures}", fingerprint=fingerprint)
        assert opening.epoch + len(opening.pending) == 5
        assert log.left == 0
