"""Playing a script: a run is started, the script's changes and failures are done to it, and it is read every epoch.

>>> import polars as pl, riverrun as rr
>>> from riverrun.testing import COMMIT, CRASH, insert, delete, play
>>> flow = rr.Dataflow("words")
>>> words = flow.input("words", {"word": pl.String})
>>> flow.output("counts", words.group_by("word").count())
>>> script = [
...     insert("words", [("sea",), ("sky",), ("sea",)]),
...     COMMIT,
...     CRASH(3),
...     delete("words", [("sky",)]),
...     COMMIT,
... ]
>>> [results["counts"].rows() for results in play(flow, script)]
[[('sea', 2), ('sky', 1)], [('sea', 2)]]

Laws:

- **Results for each commit.** There is one set of results for each ``COMMIT``, read when its epoch is complete, and
  readable when the run is over.
- **Repeatable.** The same script, played with the same options and a `seed`, does the same things in the same order.
- **Same rows after a failure.** Rows of a refused epoch are committed again; rows of an epoch that was under way in a
  crash are taken from the log.

Cost: that of the runs; starting a run takes about a millisecond, resuming one some tens of milliseconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from riverrun.engine.messages import MakeInstance
from riverrun.errors import OperatorFailed
from riverrun.frontends.dataflow import Dataflow
from riverrun.plan.plan import Plan
from riverrun.run import Commit, Result, Run
from riverrun.run.options import Checkpoint, RunOptions
from riverrun.runtime.carriers import ClusterRequest
from riverrun.runtime.local import LocalCarrier, LocalCluster
from riverrun.state.shards import Shards
from riverrun.storage.store import Storage, open_storage
from riverrun.testing.script import (
    CHECKPOINT,
    COMMIT,
    CRASH,
    KILL,
    REFUSE,
    Change,
    Item,
    Mark,
    whole,
)
from riverrun.testing.watching import MOST_STEPS, CutInstance, Strike, Watch, watched

Results = dict[str, Result]
_DURABLE = {CHECKPOINT.name, CRASH.name, KILL.name}
_STRIKING = {CRASH.name, KILL.name, REFUSE.name}
_LATEST_STRIKE = 12  # the last turn of an epoch at which a failure may strike


@dataclass(frozen=True)
class PlayOptions:
    """How a script is played."""

    workers: int = 1
    history: int = 1
    cut: int | None = None
    """The greatest number of rows in a piece, if the rows of an epoch are to come in pieces."""
    shuffle: int | None = None
    """A seed with which the rows of an epoch, and the pieces of all inputs, are put in another order."""
    compact: bool = False
    """Whether all states are compacted as far as possible, after every epoch."""
    seed: int | None = None
    """A seed with which workers take turns and messages are delivered."""

    def __str__(self) -> str:
        """The options that differ from `PLAIN`, as arguments."""
        pairs = [(each.name, getattr(self, each.name), each.default) for each in fields(self)]
        return ", ".join(f"{name}={value!r}" for name, value, usual in pairs if value != usual)


PLAIN = PlayOptions()


def play(
    flow: Dataflow,
    script: Iterable[Item],
    *,
    workers: int = 1,
    history: int = 1,
    cut: int | None = None,
    shuffle: int | None = None,
    compact: bool = False,
    seed: int | None = None,
    checkpoint: str | Path | None = None,
) -> list[Results]:
    """The results of `flow` after every epoch of a `script`, by the name of the output.

    `workers` and `history` are those of ``flow.run``.

    With `cut`, the rows of an epoch come in pieces of at most `cut` rows; with `shuffle`, a seed, in another order;
    with `compact`, states are compacted after every epoch; with `seed`, workers take turns at random. Checkpoints are
    in memory, unless `checkpoint` names a place.
    """
    way = PlayOptions(workers, history, cut, shuffle, compact, seed)
    return ScriptPlayer(flow.plan).play(script, way, checkpoint)


class ScriptPlayer:
    """Plays scripts on one plan, one after the other, while a `Watch` observes the plan's operators."""

    def __init__(self, plan: Plan, patience: int = MOST_STEPS) -> None:
        self.watch = Watch(patience)
        self.plan = watched(plan, self.watch)

    def play(
        self, script: Iterable[Item], way: PlayOptions = PLAIN, checkpoint: str | Path | None = None
    ) -> list[Results]:
        """The results after every epoch."""
        items = whole(script)
        place: Storage | str | Path | None = checkpoint
        if place is None and any(isinstance(i, Mark) and i.name in _DURABLE for i in items):
            place = open_storage("memory:///")
        player = _Player(self, way, place)
        try:
            return player.play(items)
        finally:
            player.close()

    def reread(self, script: Iterable[Item], way: PlayOptions = PLAIN) -> list[Results]:
        """Play a script, and read the results of all epochs at the end."""
        items = whole(script)
        player = _Player(self, way, None)
        try:
            player.play(items)
            return [player.read(epoch) for epoch in range(items.count(COMMIT))]
        finally:
            player.close()


class _CuttingCarrier(LocalCarrier):
    """The carrier of this process, whose instances are fed the rows of an epoch in pieces."""

    def __init__(self, way: PlayOptions) -> None:
        self._way = way

    def maker(self, request: ClusterRequest) -> MakeInstance:
        def make(
            index: int, shards: Shards, epoch: int, states: Mapping[str, Any] | None
        ) -> CutInstance:
            instance = CutInstance(
                request.plan, index, shards, epoch, states, history=request.history
            )
            instance.cut, instance.shuffle = self._way.cut, self._way.shuffle
            return instance

        return make


class _StageRun(Run):
    """A run whose instances are fed in pieces."""

    def __init__(
        self,
        stage: ScriptPlayer,
        way: PlayOptions,
        workers: int,
        place: Storage | str | Path | None,
    ) -> None:
        durability = None
        if place is not None:  # takes over: the run that crashed is still alive in this process
            durability = Checkpoint(place, every=None, take_over=True)
        super().__init__(
            stage.plan,
            RunOptions(
                workers, _CuttingCarrier(way), durability, history=way.history, seed=way.seed
            ),
        )

    def kill(self, worker: int) -> None:
        assert isinstance(self._cluster, LocalCluster)
        self._cluster.kill(worker)

    def compact(self) -> None:
        assert isinstance(self._cluster, LocalCluster)
        for instance in self._cluster.instances:
            assert isinstance(instance, CutInstance)
            for spine in instance.arrangements().values():
                spine.compact()


class _Player:
    """Does the items of a script to a run, and collects the results."""

    def __init__(
        self, stage: ScriptPlayer, way: PlayOptions, place: Storage | str | Path | None
    ) -> None:
        self._stage = stage
        self._watch = stage.watch
        self._way = way
        self._place = place
        self._random = random.Random(way.seed or 0)
        self._uncommitted: list[Change] = []  # since the last commit
        self._pending: list[Mark] = []
        self._watch.calm()
        self._workers = way.workers
        self._run = self._start()

    def play(self, items: Iterable[Item]) -> list[Results]:
        results_by_epoch = []
        for item in items:
            if isinstance(item, Change):
                self._uncommitted.append(item)
                self._give(item)
            elif item == COMMIT:
                self._commit()
                if self._way.compact:
                    self._run.compact()
                results_by_epoch.append(self.read())
            elif item.name == REFUSE.name or (item.name in _STRIKING and self._uncommitted):
                self._pending.append(item)
            else:
                self._do(item)
        return results_by_epoch

    def read(self, epoch: int | None = None) -> Results:
        """The results as of an epoch, in memory."""
        results = {name: self._run.read(name, epoch) for name in self._run.plan.outputs}
        for result in results.values():
            len(result)
        return results

    def close(self) -> None:
        self._watch.calm()
        self._run.close()

    def _start(self) -> _StageRun:
        self._watch.epoch()
        return _StageRun(self._stage, self._way, self._workers, self._place)

    def _give(self, change: Change) -> None:
        getattr(self._run, change.kind)(change.input, change.rows)

    def _do(self, mark: Mark) -> None:
        """Do what a mark says, between epochs."""
        self._watch.epoch()
        if mark.name == CHECKPOINT.name:
            self._run.checkpoint()
        elif mark.name == KILL.name:
            self._run.kill((mark.number or 0) % self._workers)
        elif mark.name == CRASH.name:
            self._workers = mark.number or self._workers
            self._run = self._start()  # the old run is dropped as it is
        else:
            assert mark.number is not None
            self._workers = mark.number
            self._run.scale(mark.number)

    def _commit(self) -> None:
        pending, self._pending = self._pending, []
        self._watch.epoch()
        committed: Commit | None = None
        for mark in sorted(pending, key=lambda mark: mark.name != REFUSE.name):
            after = self._random.randint(1, _LATEST_STRIKE)
            if mark.name == REFUSE.name:
                committed = committed or self._refused(after)
                continue
            committed = committed or self._run.commit(wait=False)
            self._strike(committed, after)
            self._do(mark)
            committed = Commit(self._run._commits, committed.epoch, committed._rows)
        if committed is None:
            committed = self._run.commit(wait=False)
        committed.wait()  # even if the epoch is complete: a lost worker has to be replaced first
        self._uncommitted.clear()

    def _refused(self, after: int) -> Commit | None:
        """Commit, and have the epoch fail on the way, so that it is refused; return the commit only if the epoch was
        complete before it could fail."""
        self._watch.strike(after, refuse=True)
        try:
            return self._run.commit()
        except OperatorFailed as error:
            if error.code != "testing.refused":
                raise
            for change in self._uncommitted:
                self._give(change)
            return None
        finally:
            self._watch.calm()

    def _strike(self, committed: Commit, after: int) -> None:
        """Work on an epoch until `after` turns are done, or the epoch is complete."""
        if not committed.done:
            self._watch.strike(after)
            try:
                committed.wait()
            except Strike:
                pass
            finally:
                self._watch.calm()
