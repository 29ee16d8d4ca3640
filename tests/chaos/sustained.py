"""Sustained losses: workers are killed every few seconds, and all users of the run make progress.

    python -m tests.chaos.sustained --seconds 300 --seed 7 --on processes --takeovers
    python -m tests.chaos.sustained --seconds 300 --on spark

Threads commit, read, iterate results slowly, follow, make checkpoints, scale; on Spark a stream feeds an input, and
Spark's tasks read results. With takeovers, another run takes the path over from time to time. Laws:

- **All get on.** Each of these threads finishes something at least every `stall` seconds.
- **Right.** A result that is read equals recomputation over the commits up to the newest commit in it, and has all
  commits that were acknowledged before the read. The changes of a follower, and the files of a sink, add up to it.
- **Nobody notices.** No error is raised but those that the docs name (`EXCUSED`), and a stream never ends.
- **Clean.** In the end the run holds no more of its machine than it needs (`footprint`).

All choices come from the seed; the machine decides at which moment a kill strikes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

import riverrun as rr
from riverrun.errors import RiverrunError
from tests.chaos.besieged import ProcessRun, Siege, alive, temporary_folder
from tests.chaos.footprint import Footprint
from tests.runtime.launchers import Processes

Row = tuple[Any, ...]
STALL = 90.0  # seconds; the machine may be busy with others
LIMIT = 600.0  # seconds
KEYS = 40
HISTORY = {"processes": 8, "spark": 1000}
"""How many epochs can be read: a job of Spark may take long, and its epoch is to be kept for as long."""
EXCUSED = {
    "read": {"time.compacted"},  # docs/failure.md: the epoch is not kept any more
    "iterate": {"time.compacted"},
    "scale": {"run.no_newcomer"},
}
"""What may be raised instead of finishing, by who does it."""
ENDED = ("log.taken", "checkpoint.taken_over", "run.taken_over", "run.closed")


class Wrong(AssertionError):
    """A law is broken."""


def program() -> rr.Dataflow:
    """Counts of rows that are committed, and of rows that are streamed."""
    flow = rr.Dataflow("sustained")
    rows = flow.input("given", {"k": pl.Int64, "v": pl.Int64})
    flow.output("out", rows.group_by("k").agg(n=rr.count(), last=rr.max("v")))
    streamed = flow.input("streamed", {"k": pl.Int64, "v": pl.Int64})
    flow.output("counts", streamed.group_by("k").count())
    return flow


class Commits:
    """Commit number c inserts rows whose value is c, and deletes some of those of c - 2: a function of the seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: list[Counter[Row]] = []

    def change(self, number: int) -> tuple[list[Row], list[Row]]:
        """What a commit inserts and deletes."""
        source = random.Random(f"{self._seed}.{number}")
        new = [(source.randrange(KEYS), number) for _ in range(source.randrange(1, 60))]
        if number < 2:
            return new, []
        before, _ = self.change(number - 2)
        return new, source.sample(before, len(before) // 2)

    def expected(self, number: int) -> list[Row]:
        """The output after a commit, from scratch."""
        rows: Counter[Row] = Counter()
        for each in range(number + 1):
            new, old = self.change(each)
            rows.update(new)
            rows.subtract(old)
        groups: dict[int, list[int]] = {}
        for k, v in rows.elements():
            groups.setdefault(k, []).append(v)
        return sorted((k, len(values), max(values)) for k, values in groups.items())


@dataclass
class Report:
    """What was done."""

    kills: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    """Of each, the longest time in which it finished nothing."""


class Sustained:
    """A run, or one after the other, under losses; `go` returns what was done, or raises what is wrong."""

    def __init__(
        self,
        seed: int,
        seconds: float,
        path: str,
        *,
        spark: Any = None,
        takeovers: bool = False,
        interval: float = 3.0,
        least: int = 3,
        kills: int = 3,
        stall: float = STALL,
        say: Callable[[str], None] = print,
        victims: Callable[[list[int]], list[int]] | None = None,
    ) -> None:
        """It goes on for so many seconds, and until everybody has finished something `least` times and so many `kills`
        were done, for `LIMIT` seconds more at most; `victims` says whom to kill in place of a worker."""
        self.seed, self.seconds, self.path, self.spark = seed, seconds, path, spark
        self.takeovers, self.interval, self.least, self._say = takeovers, interval, least, say
        self.victims, self.kills, self.stall = victims, kills, stall
        self.commits, self.report = Commits(seed), Report()
        self.begun = time.monotonic()
        self.stop = threading.Event()
        self.trouble: list[BaseException] = []
        self.last: dict[str, float] = {}
        self.acknowledged = -1
        self.next = 0
        self.sunk: list[tuple[int, int, list[Row]]] = []
        self.generation = 0
        self.files = Path(f"{path}-in")
        self.query: Any = None
        self.put = 0

    def say(self, text: str) -> None:
        self._say(f"{time.monotonic() - self.begun:8.3f} {text}")

    # ---- the run

    def _start(self, **options: Any) -> Any:
        workers = random.Random(f"{self.seed}.{self.generation}").randrange(1, 4)
        history = HISTORY["processes" if self.spark is None else "spark"]
        options = {"workers": workers, "checkpoint": self.path, "every": 5, **options}
        options["history"] = history
        if self.spark is not None:
            run = program().run(on=self.spark, timeout=self.stall, silence=4.0, **options)
        else:
            run = ProcessRun(program().plan, Processes, **options)
        self.sunk, self.sums = [], Counter[Row]()
        run.for_each_epoch("out", self._follow)
        if not self.takeovers:
            self.sink = run.write_parquet("out", f"{self.path}-out")
        return run

    def _follow(self, changes: Any, epoch: int) -> None:
        rows = list(zip(*changes.to_arrow().to_pydict().values(), strict=True))
        self.sunk.append((changes.from_epoch, epoch, rows))
        self._finished("follow")

    # ---- what they do

    def _commit(self, run: Any, source: random.Random) -> None:
        new, old = self.commits.change(self.next)
        run.rollback()
        run.insert("given", new)
        run.delete("given", old)
        run.commit()
        self.acknowledged, self.next = self.next, self.next + 1

    def _check(self, rows: list[Row], least: int) -> None:
        if not rows:
            if least >= 0:
                raise Wrong(f"nothing was read, and commit {least} was acknowledged")
            return
        newest = max(last for *_, last in rows)
        if newest < least:
            raise Wrong(f"read as of commit {newest}, and {least} was acknowledged before")
        if sorted(rows) != self.commits.expected(newest):
            raise Wrong(f"as of commit {newest}: {rows}, not {self.commits.expected(newest)}")

    def _await_first(self, run: Any) -> None:
        """There is nothing to read before the first epoch; and readers leave room for others."""
        self.stop.wait(0.02)
        while run.epoch is None and not run._cluster.closed:
            time.sleep(0.02)

    def _read(self, run: Any, source: random.Random) -> None:
        self._await_first(run)
        least = self.acknowledged
        self._check(run.read("out").rows(), least)

    def _iterate(self, run: Any, source: random.Random) -> None:
        """Somebody who takes time over a result."""
        self._await_first(run)
        least, rows = self.acknowledged, list[Row]()
        for portion in run.read("out").portions:
            self.stop.wait(source.uniform(0, 0.4))
            for batch in portion.batches():
                rows += [tuple(row.values()) for row in batch.to_pylist()]
        self._check(rows, least)

    def _checkpoint(self, run: Any, source: random.Random) -> None:
        self.stop.wait(source.uniform(0.2, 1.5))
        run.checkpoint()

    def _scale(self, run: Any, source: random.Random) -> None:
        self.stop.wait(source.uniform(1, 5))
        run.scale(source.randrange(1, 4))

    def _spark_read(self, run: Any, source: random.Random) -> None:
        self._await_first(run)
        least = self.acknowledged
        self._check([tuple(row) for row in run.read("out").to_spark().collect()], least)

    def _stream(self, run: Any, source: random.Random) -> None:
        """A file is put, and its rows are there, by and by."""
        batch = self.query.lastProgress["batchId"] if self.query.lastProgress else -1
        self._put_file()
        deadline = time.monotonic() + self.stall
        while not self.stop.is_set():
            if not self.query.isActive:
                raise Wrong(f"the stream has ended: {self.query.exception()}")
            progress = self.query.lastProgress
            if progress and progress["batchId"] > batch:
                return
            if time.monotonic() > deadline:
                raise Wrong("the stream does not take its files")
            time.sleep(0.05)

    def _put_file(self) -> None:
        scratch = self.files / f".{self.put}"
        scratch.write_text(f'{{"k": {self.put % 7}, "v": {self.put}}}\n' * 3)
        scratch.rename(self.files / f"{self.put:06}.json")
        self.put += 1

    def _take_over(self, run: Any, source: random.Random) -> None:
        """Another run on the same path; the one before ends."""
        self.stop.wait(source.uniform(6, 12))
        if self.stop.is_set():
            return
        self.generation += 1
        with self.turning:
            new = self._start(take_over=True)
            self.next = self._newest(new) + 1
            if self.next <= self.acknowledged:
                raise Wrong(f"commit {self.acknowledged} was acknowledged, and is not there")
            self.run = new
        self.say(f"taken over at commit {self.next - 1}")
        run.close()

    def _newest(self, run: Any) -> int:
        if run.epoch is None:
            return -1
        return max((last for *_, last in run.read("out").rows()), default=-1)

    # ---- all at once

    def go(self) -> Report:
        """Live for so long; raise what is wrong."""
        acts: dict[str, Callable[[Any, random.Random], None]] = {
            "commit": self._commit,
            "read": self._read,
            "iterate": self._iterate,
            "checkpoint": self._checkpoint,
            "scale": self._scale,
        }
        if self.spark is not None:
            acts |= {"spark read": self._spark_read, "stream": self._stream}
        if self.takeovers:
            acts["take over"] = self._take_over
        self.turning = threading.Lock()
        siege = Siege(self.seed, 0, "processes" if self.spark is None else "spark", path=self.path)
        with temporary_folder(siege) as folder:
            footprint = Footprint(self.path, folder)
            self.run = self._start()
            try:
                self._live(acts)
                self._finish()
                footprint.settled(self.run, children=self.spark is None)
            except BaseException:
                with suppress(Exception):
                    self.say(f"FAILED: {self.report} {self.run._cluster.status()}")
                raise
            finally:
                self.stop.set()
                if self.query is not None:
                    self.query.stop()
                self.run.close()
            footprint.gone(self.run._cluster.address)
        return self.report

    def _live(self, acts: dict[str, Callable[[Any, random.Random], None]]) -> None:
        if self.spark is not None:
            self.files.mkdir()
            frame = self.spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
            self.query = self.run.stream(
                "streamed", frame.json(str(self.files)), processingTime="200 milliseconds"
            )
        names = [*acts, "follow"]
        self.last = dict.fromkeys(names, time.monotonic())
        threads = [
            threading.Thread(target=self._again_and_again, args=each, name=each[0], daemon=True)
            for each in acts.items()
        ]
        threads.append(threading.Thread(target=self._kill_on, name="killer", daemon=True))
        for thread in threads:
            thread.start()
        try:
            while not self.trouble and not self._is_over(names):
                self.stop.wait(0.2)
                for name in names:
                    if time.monotonic() - self.last[name] > self.stall:
                        raise Wrong(f"{name} has finished nothing for {self.stall:.0f} s")
        finally:
            self.stop.set()
            for thread in threads:
                thread.join(self.stall)
        if self.trouble:
            raise self.trouble[0]
        if any(thread.is_alive() for thread in threads):
            raise Wrong(f"{[thread.name for thread in threads if thread.is_alive()]} do not end")

    def _is_over(self, names: list[str]) -> bool:
        """Whether the time is up and every thread has finished something often enough; the *all get on* law limits how
        long that takes."""
        if time.monotonic() - self.begun > self.seconds + LIMIT:
            raise Wrong(f"too little was shown in {self.seconds + LIMIT:.0f} s: {self.report}")
        enough = all(self.report.finished[name] >= self.least for name in names)
        enough = enough and self.report.kills >= self.kills
        return enough and time.monotonic() - self.begun > self.seconds

    def _again_and_again(self, name: str, act: Callable[[Any, random.Random], None]) -> None:
        source = random.Random(f"{self.seed}.{name}")
        while not self.stop.is_set():
            run = self.run
            try:
                act(run, source)
                if not self.stop.is_set():
                    self._finished(name)
            except RiverrunError as error:
                if run is not self.run or (self.takeovers and run._cluster.closed):
                    self._await_another(run)
                elif error.code in EXCUSED.get(name, ()):
                    self.report.excused[f"{name}: {error.code}"] += 1
                else:
                    self._fail(name, error)
                    return
            except BaseException as error:
                self._fail(name, error)
                return

    def _await_another(self, run: Any) -> None:
        deadline = time.monotonic() + self.stall
        while self.run is run and not self.stop.is_set() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _fail(self, name: str, error: BaseException) -> None:
        self.say(f"in {name}: {type(error).__name__}: {error}")
        self.trouble.append(error)
        self.stop.set()

    def _finished(self, name: str) -> None:
        now = time.monotonic()
        took = now - self.last.get(name, now)
        self.report.slowest[name] = max(self.report.slowest.get(name, 0.0), round(took, 1))
        self.report.finished[name] += 1
        self.last[name] = now

    # ---- kills

    def _kill_on(self) -> None:
        source = random.Random(f"{self.seed}.kills")
        while not self.stop.wait(source.uniform(0.3, 1.7) * self.interval):
            run = self.run
            try:
                before = run._cluster.status()["reported"]
                pids = [each["pid"] for each in run._cluster.status()["processes"] if each]
                count = source.choice((1, 1, 1, 2))
                chosen = source.sample(pids, min(count, len(pids)))
                chosen = chosen if self.victims is None else self.victims(chosen)
                for pid in filter(alive, chosen):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    self.report.kills += 1
                self.say(f"killed {chosen} of {pids} at epoch {before}")
                # A run in which no epoch is ever complete ends, rightly: leave it a chance for one.
                while run is self.run and run._cluster.status()["reported"] == before:
                    if self.stop.wait(0.05):
                        return
            except RiverrunError:
                self._await_another(run)

    # ---- the end

    def _finish(self) -> None:
        """All is as if made from scratch, and told once."""
        run = self.run
        if self.query is not None:
            self.query.processAllAvailable()
            counts: Counter[int] = Counter()
            for number in range(self.put):
                counts[number % 7] += 3
            if run.read("counts").rows() != sorted(counts.items()):
                raise Wrong(f"streamed: {run.read('counts').rows()}, not {sorted(counts.items())}")
        run.rollback()
        run.commit()
        self._check(run.read("out").rows(), self.acknowledged)
        whole = Counter(run.read("out").rows())
        for sink in run._sinks._sinks:
            sink.wait(run.epoch, self.stall)
        sums, following = Counter[Row](), 0
        for first, epoch, rows in self.sunk:
            if following and first != following:
                raise Wrong(f"{following} was to follow, and {first} to {epoch} came")
            following = epoch + 1
            for *row, diff in rows:
                sums[tuple(row)] += diff
        if +sums != whole or min(sums.values(), default=0) < 0:
            raise Wrong(f"told: {+sums}, not {whole}")
        if not self.takeovers:
            self._check_files(whole)

    def _check_files(self, whole: Counter[Row]) -> None:
        sums: Counter[Row] = Counter()
        for name in Path(f"{self.path}-out").glob("**/*.parquet"):
            for k, n, last, diff, _ in pl.read_parquet(name).iter_rows():
                sums[k, n, last] += diff
        if +sums != whole:
            raise Wrong(f"files: {+sums}, not {whole}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tests.chaos.sustained")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--interval", type=float, default=3)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--on", choices=("processes", "spark"), default="processes")
    parser.add_argument("--takeovers", action="store_true")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 20) if options.seed is None else options.seed
    print(f"--seed {seed}", flush=True)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="riverrun-sustained-"))
        spark = None
        if options.on == "spark":
            from tests.spark.standalone import session

            spark = stack.enter_context(session("local[7]", spark_log_level="OFF"))
        report = Sustained(
            seed, options.seconds, str(Path(folder, "run")), spark=spark, takeovers=options.takeovers,
            interval=options.interval, say=lambda text: print(text, flush=True),
        ).go()  # fmt: skip
    print(json.dumps(vars(report)), flush=True)


if __name__ == "__main__":
    main()
