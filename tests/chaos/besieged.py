"""A life: one driver process with a run under load, whose workers are killed while laws are checked.

A feeder commits, waiting for some epochs and not for others; a meddler asks for checkpoints and other numbers of
workers; the killer kills. From time to time all three hold still, and the run is judged. Laws:

- **Right.** Every output as of the last epoch equals recomputation over all committed rows.
- **Once.** A follower gets every epoch once, in order. Its changes up to an epoch add up to the result as of that
  epoch; so do the files of a sink, across all lives.
- **Soon.** After a kill, the next epoch is complete within `PATIENCE`.
- **Clean.** No lease, parcel, process or thread is left when nobody needs it. After every recovery the run holds no
  more of its machine than before (`footprint`).
- **Shown.** A life goes on until it has done its kills and compared often enough, for `LIMIT` seconds at most.

All choices come from the seed; the machine decides at which moment a kill strikes.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import polars as pl

from riverrun.errors import CheckpointError, OperatorFailed
from riverrun.run.options import RunOptions, run_options
from riverrun.run.run import Run
from tests.chaos.footprint import Footprint
from tests.chaos.loads import Change, Row, load_of
from tests.runtime.launchers import Launched, Processes, Threads

PATIENCE = 90.0  # seconds for a recovery; the machine may be busy with others
LAG = 12  # commits that are under way
SILENCE = 4.0  # seconds
LIMIT = 900.0  # seconds for a life to show something, besides 30 for each kill


class Wrong(AssertionError):
    """A law is broken."""


@dataclass(frozen=True)
class Siege:
    """What is done to a run."""

    seed: int
    kills: int
    on: str = "processes"
    """threads, processes, spark or standalone."""
    program: str = "count"
    path: str = ""
    workers: int = 2
    most: int = 4
    life: int = 0
    stream: bool = False
    frames: bool = False
    poison: float = 0.0
    endless: bool = False
    """Whether the load goes on when all kills are done, until this process is killed too."""
    kinds: tuple[str, ...] = ()
    """Which kinds of kills; by default all that the place knows."""
    first: tuple[str, ...] = ()
    """What to begin with."""
    comparisons: int = 4
    """How many there must have been."""


@dataclass
class Report:
    """What was done."""

    kills: Counter[str] = field(default_factory=Counter)
    epochs: int = 0
    commits: int = 0
    comparisons: int = 0
    recoveries: list[float] = field(default_factory=list)
    checkpoints: int = 0
    scalings: int = 0
    refusals: int = 0
    retries: Counter[str] = field(default_factory=Counter)

    @property
    def killed(self) -> int:
        """How many processes got a kill -9, or were declared lost where they are threads: not those that woke up."""
        return self.kills.total() - self.kills["zombie"]

    def add(self, other: Report) -> None:
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(mine, Counter):
                mine.update(value)
            elif name == "epochs":  # they are counted from the beginning of the path
                self.epochs = max(self.epochs, value)
            else:
                setattr(self, name, mine + value)

    def summed(self) -> dict[str, Any]:
        """For a line of JSON."""
        return {
            **vars(self),
            "killed": self.killed,
            "recoveries": len(self.recoveries),
            "p50_recovery_s": round(median(self.recoveries), 3) if self.recoveries else None,
            "slowest_recovery_s": round(max(self.recoveries), 3) if self.recoveries else None,
        }


class ProcessRun(Run):
    """A run whose workers are processes, or threads, without Spark."""

    def __init__(self, plan: Any, launcher: Callable[[Any], Any], **options: Any) -> None:
        on = Launched(launcher, {"timeout": PATIENCE, "silence": SILENCE})
        own = {name: options.pop(name) for name in {*options} & {*RunOptions.__slots__}}
        super().__init__(plan, run_options(options, on=on, **own))

    @property
    def launcher(self) -> Any:
        return self._cluster.launcher  # type: ignore[attr-defined]


KINDS = {
    "threads": ("lost", "two", "reading"),
    "processes": ("kill", "kill", "kill", "two", "replacement", "newborn", "zombie", "reading"),
    "spark": ("kill", "kill", "kill", "two", "replacement", "zombie", "reading"),
    "standalone": ("kill", "kill", "two", "replacement", "zombie", "reading", "executor"),
}


def besiege(
    siege: Siege,
    spark: Any = None,
    say: Callable[[str], None] = print,
    spent: Callable[[Report, list[int]], None] | None = None,
) -> Report:
    """Live a life; return what was done, or raise what is wrong.

    One without end tells `spent` what was done, and who its workers are, and goes on until it is killed.
    """
    before = set(threading.enumerate())
    with temporary_folder(siege) as folder:
        return _besiege(siege, spark, say, spent, before, folder)


@contextmanager
def temporary_folder(siege: Siege) -> Iterator[Path | None]:
    """A folder of its own for temporary files of this process, and of workers that inherit its environment."""
    if siege.on != "processes":
        yield None
        return
    beside = Path(
        siege.path
    ).parent  # whoever made that takes it away, also where this process is killed
    with (
        tempfile.TemporaryDirectory(dir=beside) as folder,
        patch.dict(os.environ, TMPDIR=folder),
        patch.object(tempfile, "tempdir", folder),
    ):
        yield Path(folder)


def _besiege(
    siege: Siege,
    spark: Any,
    say: Callable[[str], None],
    spent: Callable[[Report, list[int]], None] | None,
    before: set[threading.Thread],
    folder: Path | None,
) -> Report:
    footprint = Footprint(siege.path, folder)
    life = Life(siege, spark, say, footprint)
    life.spent = spent
    try:
        life.go()
    except BaseException as error:
        say(f"FAILED: {type(error).__name__}: {error}")
        with suppress(Exception):
            say(f"  {life.run._cluster.status()}")
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        life.stop.set()
        life.turn = threading.RLock()
        life.run.close()
        raise
    check_gone(life.seen, before)
    if siege.on != "threads":
        footprint.gone(life.run._cluster.address)  # type: ignore[attr-defined]
    return life.report


class Life:
    def __init__(
        self, siege: Siege, spark: Any, say: Callable[[str], None], footprint: Footprint
    ) -> None:
        self.siege, self.spark, self.footprint = siege, spark, footprint
        self.begun = time.monotonic()
        self.spent: Callable[[Report, list[int]], None] | None = None
        self._say = say
        self.source = random.Random(f"{siege.seed}.{siege.life}")
        self.report = Report()
        self.load = load_of(siege.program, siege.seed, siege.poison)
        self.stop = threading.Event()
        self.turn = threading.RLock()
        self.trouble: list[BaseException] = []
        self.seen: set[int] = set()
        self.snapshots: dict[int, tuple[int, Callable[[], list[Row]]]] = {}
        self.sunk: list[tuple[int, int, list[Row]]] = []
        self.sums: Counter[Row] = Counter()
        self.next = 0
        self.lengths: list[float] = [0.02]
        self.first = list(siege.first)
        self.files = Path(siege.path).parent / "files"
        every = self.source.choice((None, 1, 3, 10, 40, timedelta(seconds=0.5)))
        workers = siege.workers if siege.life == 0 else self.source.randint(1, siege.most)
        self.say(f"life {siege.life} of {siege}: {workers} workers, every={every}")
        self.run = self._start(workers, every)
        self.say(f"at epoch {self.run.epoch}, {self.pids()}")
        self._take_up()

    def say(self, text: str) -> None:
        self._say(f"{time.monotonic() - self.begun:8.3f} {text}")

    def _start(self, workers: int, every: Any) -> Run:
        siege, flow = self.siege, self.load.program.flow
        options = {"workers": workers, "checkpoint": siege.path, "every": every}
        options["recovery"] = self.source.choice(("replace", "spread"))
        if siege.poison:
            options["skip_failing"] = True
        if self.spark is None:
            launcher = Threads if siege.on == "threads" else Processes
            return ProcessRun(flow.plan, launcher, **options)
        return flow.run(on=self.spark, timeout=PATIENCE, silence=SILENCE, **options)

    def _take_up(self) -> None:
        """Know what other lives have committed, and follow on."""
        if self.run.epoch is not None:
            ((_, mark),) = self.rows("passed marks") or [(0, -1)]
            self.load.draw_until(mark)
            self.say(f"the last commit that counts is {mark}")
        self.sink = self.run.for_each_epoch("out", self._take_changes)
        self.written = self.run.write_parquet("out", f"{self.siege.path}-out")
        self.query = None
        if self.siege.stream:
            self.files.mkdir(exist_ok=True)
            for number in range(len(list(self.files.glob("*.json")))):
                self.load.streamed.update(self.load.batch_of_stream(number))
            self._stream()

    def _stream(self) -> None:
        frame = self.spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 2)
        mode = "upsert" if self.load.program.keyed else "insert"
        self.query = self.run.stream(
            "a", frame.json(str(self.files)), mode=mode, processingTime="100 milliseconds"
        )

    def _take_changes(self, changes: Any, epoch: int) -> None:
        rows = list(zip(*changes.to_arrow().to_pydict().values(), strict=True))
        self.sunk.append((changes.from_epoch, epoch, rows))

    # ---- what goes on all the while

    def go(self) -> None:
        feeder = threading.Thread(target=self._guarded, args=(self._feed,), name="feeder")
        meddler = threading.Thread(target=self._guarded, args=(self._meddle,), name="meddler")
        threading.Thread(target=self._watch, name="watcher", daemon=True).start()
        feeder.start()
        meddler.start()
        try:
            while (not self._has_shown() or self.siege.endless) and not self.trouble:
                if time.monotonic() - self.begun > LIMIT + 30 * self.siege.kills:
                    raise Wrong(f"too little was shown in {LIMIT:.0f} s: {self.report.summed()}")
                if self.report.killed >= self.siege.kills:
                    self.judge()
                    if not self.siege.endless:
                        continue
                    assert self.spent is not None
                    self.report.epochs = self.run.completed
                    self.spent(self.report, self.pids())
                    self.stop.wait()  # until it is killed, under load
                    break
                self._strike()
                if self.source.random() < 0.3:
                    self.judge()
        finally:
            self.stop.set()
            meddler.join(PATIENCE)
            feeder.join(PATIENCE)
        if self.trouble:
            raise self.trouble[0]
        if feeder.is_alive() or meddler.is_alive():
            raise Wrong("the feeder or the meddler does not come back")
        self.judge()
        self._check_leases()
        self.report.epochs = self.run.completed
        self.run.close()
        self._check_files()

    def _has_shown(self) -> bool:
        """Whether all kills were done, and, with the comparisons at the end, enough was compared."""
        return (
            self.report.killed >= self.siege.kills
            and self.report.comparisons + 3 >= self.siege.comparisons
        )

    def _watch(self) -> None:
        """Tell where a run stands that stands still."""
        last, since = -1, time.monotonic()
        while not self.stop.wait(1):
            status = self.status()
            if status["reported"] != last:
                last, since = status["reported"], time.monotonic()
            elif time.monotonic() - since > 4:
                cluster: Any = self.run._cluster
                names = ("phase", "execution", "queued", "completed", "reported", "checkpoint")
                shown = {name: status[name] for name in names}
                self.say(
                    f"stands still: {shown} members {cluster._coordinator.members} "
                    f"joined {cluster._coordinator.membership._joined} {cluster._crew.starts}"
                )

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.say(f"in {threading.current_thread().name}: {type(error).__name__}: {error}")
            self.trouble.append(error)
            self.stop.set()

    def _feed(self) -> None:
        waiting: list[tuple[Any, Change]] = []
        source = random.Random(f"{self.siege.seed}.{self.siege.life}.feed")
        while not self.stop.is_set():
            with self.turn:
                if self.siege.stream and self.load.number % 10 == 5:
                    self._put_file()
                change = self.load.draw()
                self._apply(change, source)
                start, wait = time.monotonic(), source.random() < 0.3
                try:
                    commit = self.run.commit(wait=wait)
                except OperatorFailed as error:
                    self._expect_poison(change, error)
                    continue
                finally:
                    self.report.commits += 1
                    if wait:
                        self.lengths = [*self.lengths[-20:], time.monotonic() - start]
                if not wait:
                    waiting.append((commit, change))
                if source.random() < 0.3 and not change.poison:
                    self.snapshots[commit.epoch] = change.number, self.load.expected_later()
            while len(waiting) > LAG or (waiting and source.random() < 0.05):
                commit, change = waiting.pop(0)
                try:
                    commit.wait()
                except OperatorFailed as error:
                    self._expect_poison(change, error)

    def _expect_poison(self, change: Change, error: OperatorFailed) -> None:
        if not change.poison or "poison" not in str(error):
            raise error
        self.report.refusals += 1

    def _apply(self, change: Change, source: random.Random) -> None:
        run, keyed = self.run, self.load.program.keyed
        for name, rows in change.old.items():
            run.delete(name, [(k,) for k, _ in rows] if keyed else rows)
        for name, rows in change.new.items():
            frame_or_rows: Any = rows
            if self.siege.frames and len(rows) > 10 and source.random() < 0.3:
                names = self.load.columns(name)
                frame = pl.DataFrame(rows, names, orient="row").to_arrow()
                frame_or_rows = self.spark.createDataFrame(frame).repartition(1 if keyed else 2)
                if keyed:  # rows of one partition keep their order
                    frame_or_rows = frame_or_rows.coalesce(1)
            (run.upsert if keyed else run.insert)(name, frame_or_rows)
        run.upsert("marks", [(0, -1 if change.poison else change.number)])

    def _put_file(self) -> None:
        number = len(list(self.files.glob("*.json")))
        rows = self.load.batch_of_stream(number)
        scratch = self.files / f".{number}"
        scratch.write_text("".join(f'{{"k": {k}, "v": {v}}}\n' for k, v in rows))
        scratch.rename(self.files / f"{number:06}.json")
        self.load.streamed.update(rows)

    def _meddle(self) -> None:
        source = random.Random(f"{self.siege.seed}.{self.siege.life}.meddle")
        while not self.stop.wait(source.uniform(0.05, 2.0)):
            what = source.choice(("checkpoint", "checkpoint", "scale"))
            workers = source.randint(1, self.siege.most)
            try:
                if what == "checkpoint":
                    number = self.run.checkpoint()
                    self.say(f"checkpoint {number}")
                    self.report.checkpoints += 1
                else:
                    self.run.scale(workers)
                    self.say(f"scaled to {workers}")
                    self.report.scalings += 1
            except CheckpointError as error:
                if self.run._cluster.closed:
                    raise
                self.say(f"no {what}: {error.code}: {error.message[:200]}")
                self.report.retries[f"{what}: {error.code}"] += 1

    # ---- kills

    def pids(self) -> list[int]:
        pids = [each["pid"] for each in self.status()["processes"] if each]
        self.seen.update(pids)
        return pids

    def _some(self, count: int = 1) -> list[int]:
        """Any so many of them; fewer while others are being replaced."""
        pids = self.pids()
        return self.source.sample(pids, min(count, len(pids)))

    def status(self) -> dict[str, Any]:
        return self.run._cluster.status()

    def _strike(self) -> None:
        """Kill, and wait until the run has recovered."""
        kind = self.source.choice(self.siege.kinds or KINDS[self.siege.on])
        if self.first:
            kind = self.first[0]
        length = median(self.lengths)
        time.sleep(self.source.uniform(0, 1.5) * min(length, 2.0))
        before = self.status()["reported"]
        victims = getattr(self, f"_{kind}")()
        start = time.monotonic()
        if not victims:
            return
        self.first = self.first[1:]  # those before had somebody to strike
        if kind in ("replacement", "zombie", "newborn"):
            before = self.status()["reported"]
        self.report.kills[kind] += len(victims)
        self.say(f"{kind}: {victims} at epoch {before}, {self.report.killed} so far")
        if self.source.random() < 0.15:
            return  # the next one comes while it recovers
        self._await(lambda: self._recovered(victims, before), f"recovery from {kind} of {victims}")
        taken = time.monotonic() - start
        if kind not in (
            "reading",
            "zombie",
        ):  # these were waited for before, or are waited for by design
            self.report.recoveries.append(taken)
        self.say(f"recovered in {taken:.3f} s, {self.pids()}")
        if self.siege.on != "threads":
            with self._quiet():
                self.footprint.settled(self.run, children=self.siege.on == "processes")

    def _recovered(self, victims: list[int], before: int) -> bool:
        status = self.status()
        now = {each.get("pid") for each in status["processes"]}
        return (
            status["phase"] == "running"
            and status["completed"] >= status["reported"] > before
            and (self.siege.on == "threads" or not now & set(victims))
        )

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if self.trouble:
                raise self.trouble[0]
            if time.monotonic() > deadline:
                raise Wrong(f"no {what} within {PATIENCE:.0f} s: {self.status()}")
            time.sleep(0.005)

    def _send(self, victims: list[int], sign: int = signal.SIGKILL) -> list[int]:
        """Those that were there to be killed."""
        reached = [pid for pid in victims if alive(pid)]  # killed before, it may not be buried yet
        for pid in reached:
            with suppress(ProcessLookupError):
                os.kill(pid, sign)
        return reached

    def _kill(self, count: int = 1) -> list[int]:
        if self.siege.on == "threads":
            return self._lost(count)
        return self._send(self._some(count))

    def _two(self) -> list[int]:
        return self._kill(2)

    def _lost(self, count: int = 1) -> list[int]:
        done = []
        for _ in range(count):
            index = self.source.randrange(self.status()["workers"])
            with suppress(IndexError):
                self.run._cluster.kill(index)
                done.append(index)
        return done

    def _replacement(self) -> list[int]:
        """Kill one, then whoever comes for it, as soon as it is there."""
        before = set(self.pids())
        first = self._kill()
        self._await(lambda: bool(set(self.pids()) - before), f"replacement of {first}")
        time.sleep(self.source.choice((0, 0, 0.01, 0.1, 0.3)))
        new = sorted(set(self.pids()) - before)
        return first + self._send(new[:1])

    def _newborn(self) -> list[int]:
        """Kill one, then the process that is started for it, before it has reported."""
        processes = self.run.launcher.processes  # type: ignore[attr-defined]
        known = set(processes)
        first = self._kill()
        self._await(lambda: bool(set(processes) - known), f"replacement of {first}")
        time.sleep(self.source.uniform(0, 1.2))
        (ticket, *_) = sorted(set(processes) - known)
        pid = processes[ticket].pid
        self.seen.add(pid)
        return first + self._send([pid] if processes[ticket].poll() is None else [])

    def _zombie(self) -> list[int]:
        """Stop one until it is thought dead; then let it go on."""
        victims = self._send(self._some(), signal.SIGSTOP)
        self._await(
            lambda: not set(self.pids()) & set(victims), f"sign that {victims} is thought dead"
        )
        time.sleep(self.source.uniform(0, 4))
        self._send(victims, signal.SIGCONT)
        return victims

    def _reading(self) -> list[int]:
        """Kill one while results are read and compared."""
        killed: list[int] = []
        length = self.source.uniform(0, 0.3)
        striking = threading.Timer(length, lambda: killed.extend(self._kill()))
        striking.start()
        self.judge()
        striking.join()
        return killed

    def _executor(self) -> list[int]:
        """Kill the JVM that has a worker, and with it whatever else it has."""
        with suppress(OSError, ValueError):
            return self._send([parent(parent(worker)) for worker in self._some()])
        return []

    # ---- judgement

    def rows(self, output: str) -> list[Row]:
        """What an output has; whoever had it may be killed while it is fetched: nobody notices."""
        return self.run.read(output).rows()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        deadline = time.monotonic() + PATIENCE
        while not self.turn.acquire(timeout=1):
            if self.trouble:
                raise self.trouble[0]
            if time.monotonic() > deadline:
                raise Wrong(f"a commit takes longer than {PATIENCE:.0f} s: {self.status()}")
        try:
            if self.query is not None:
                self.query.processAllAvailable()  # which raises what it died of
            last = self.run._cluster.epoch - 1
            with suppress(OperatorFailed):
                self.run._wait(last)
            yield
        finally:
            self.turn.release()

    def judge(self) -> None:
        """All is as if made from scratch, and told once."""
        with self._quiet():
            epoch = self.run.epoch
            if epoch is None:
                return
            rows, expected = self.rows("out"), self.load.expected()
            marks = self.rows("passed marks")
            if rows != expected:
                raise Wrong(f"epoch {epoch}: {different(rows, expected)}")
            if marks != ([(0, self.load.mark)] if self.load.mark >= 0 else []):
                raise Wrong(f"epoch {epoch}: marks are {marks}, not {self.load.mark}")
            if self.run.epoch != epoch:
                raise Wrong(f"epoch {self.run.epoch} came out of nothing")
            self.sink.wait(epoch, PATIENCE)
            self._judge_changes(epoch, expected)
            self.report.comparisons += 2
            self.say(f"right: epoch {epoch}, commit {self.load.mark}, {len(rows)} rows")

    def _judge_changes(self, last: int, expected: list[Row]) -> None:
        """The *once* law, for the changes that the follower got since the last look."""
        sunk, self.sunk = self.sunk, []
        for first, epoch, rows in sunk:
            if first != self.next and self.next:
                raise Wrong(f"{self.next} was to follow, and {first} to {epoch} came")
            for *row, diff in rows:
                self.sums[tuple(row)] += diff
            self.next = epoch + 1
            if epoch in self.snapshots and not self.siege.stream:
                number, snapshot = self.snapshots.pop(epoch)
                wanted = snapshot()
                added_up = sorted((+self.sums).elements())
                if added_up != wanted:
                    raise Wrong(f"as of {epoch} (commit {number}): {different(added_up, wanted)}")
                self.report.comparisons += 1
        added_up = sorted((+self.sums).elements())
        if self.next != last + 1 or added_up != expected or min(self.sums.values(), default=0) < 0:
            raise Wrong(f"told up to {self.next - 1} of {last}: {different(added_up, expected)}")
        self.sums = +self.sums
        self.snapshots.clear()

    def _check_leases(self) -> None:
        """The *clean* law, for workers: they keep nothing that nobody needs."""
        with suppress(OperatorFailed):
            self.run.commit()  # parcels of an epoch go with the one after it

        def clean() -> bool:
            gc.collect()
            cluster: Any = self.run._cluster
            held = [answer for _, answer in cluster._questions.ask_all("stats")]
            self.held = [(each["leases"], each["parcels"]) for each in held]
            return not any(leases or parcels for leases, parcels in self.held)

        deadline = time.monotonic() + 15
        while not clean():
            if time.monotonic() > deadline:
                raise Wrong(f"leases and parcels are left at the workers: {self.held}")
            time.sleep(0.2)
        if self.query is not None:
            self.query.stop()

    def _check_files(self) -> None:
        """The *once* law, for a sink: the files of all lives add up, with each epoch in one file."""
        names = sorted(Path(f"{self.siege.path}-out").glob("**/*.parquet"))
        sums: Counter[Row] = Counter()
        epochs: Counter[int] = Counter()
        for name in names:
            rows = pl.read_parquet(name)
            epochs.update(rows["epoch"].unique().to_list())
            for *row, diff in rows.drop("epoch").select(pl.exclude("diff"), "diff").iter_rows():
                sums[tuple(row)] += diff
        doubled = [epoch for epoch, files in epochs.items() if files > 1]
        if doubled:
            raise Wrong(f"epochs {doubled} are in several files")
        if sorted((+sums).elements()) != self.load.expected() or min(sums.values(), default=0) < 0:
            raise Wrong(f"files: {different(sorted((+sums).elements()), self.load.expected())}")
        self.report.comparisons += 1


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def check_gone(pids: set[int], before: set[threading.Thread], seconds: float = 20) -> None:
    """The *clean* law, for a life that is over: nothing is left of it. Spark uses its Python processes again, so these
    live on."""
    deadline = time.monotonic() + seconds
    ours = {pid for pid in pids if pid != os.getpid()}
    while True:
        left = {pid for pid in ours if alive(pid) and parent(pid) == os.getpid()}
        threads = {
            thread.name
            for thread in set(threading.enumerate()) - before
            if not isinstance(thread, threading._DummyThread)
            and not thread.name.startswith(("Thread-", "ThreadPoolExecutor"))  # Spark's
        }
        if not left and not threads:
            return
        if time.monotonic() > deadline:
            raise Wrong(f"left over: processes {left}, threads {threads}")
        time.sleep(0.05)


def different(rows: list[Row], expected: list[Row]) -> str:
    """What is too much, and what is missing."""
    more, less = Counter(rows), Counter(expected)
    return f"{len(rows)} rows; too many {list((more - less).items())[:5]}, missing {list((less - more).items())[:5]}"
