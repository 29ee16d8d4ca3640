"""Interrupts at any point of any call of a run: each epoch is whole or absent, and the run goes on.

Two ways. *Traced*: the handler of the signal is called, as Python would do it, before the n-th instruction that a
call executes in the package; n is drawn, so that every place comes up, also those that a clock never hits. *Timed*:
another thread sends the signal, after a time that is drawn. After each the run must answer, outputs of one input must
agree, a further commit must be right, and what is resumed from the path must be the same.
"""

from __future__ import annotations

import faulthandler
import inspect
import os
import random
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import riverrun as rr
from riverrun import interrupts
from riverrun.engine.instance import Maker
from riverrun.run import run as run_module
from riverrun.runtime import cluster
from riverrun.runtime.carriers import Carrier, ClusterRequest
from riverrun.runtime.network.lending import Borrowed, Lender, Loan
from riverrun.runtime.remote import RemoteCluster
from tests.engine.weather import Weather
from tests.interrupting import HANDLERS, HANG, Alarm, traced, watched_handlers
from tests.runtime.launchers import Threads
from tests.soaking import Shown, draws, first_seed

pytestmark = [
    pytest.mark.skipif(
        threading.current_thread() is not threading.main_thread(),
        reason="signals are for main threads",
    ),
    pytest.mark.filterwarnings("ignore:the sink of"),  # closed before it was done, by an interrupt
    # Python prints and drops what is raised in a weak reference's callback or in `__del__`, which run in any code, also
    # the user's. A run raises it all the same when that code ends: `exposed`.
    pytest.mark.filterwarnings(
        "ignore:(?s)Exception ignored in.*(KeyboardInterrupt|SystemExit|Alarm)"
        ":pytest.PytestUnraisableExceptionWarning"
    ),
]


RAISED = (KeyboardInterrupt, Alarm, SystemExit)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    with watched_handlers():
        yield


def double(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"k": row["k"], "side": 0}, {"k": row["k"], "side": 1}]


def largest(group: pl.DataFrame) -> int:
    return int(group["k"].max())


def program() -> rr.Dataflow:
    """Every row counts once in each output, on ways of different lengths."""
    flow = rr.Dataflow("counted")
    rows = flow.input("rows", {"k": pl.Int64}).probe("given")
    text = pl.col("k").cast(pl.String).str.pad_start(12, "x")
    flow.output("short", rows.group_by("k").count("n"))
    long = rows.select(k=text.str.len_chars().cast(pl.Int64) * 0 + pl.col("k"))
    long = long.flat_map(double, {"k": pl.Int64, "side": pl.Int64}).filter(pl.col("side") == 1)
    flow.output("long", long.select("k").group_by("k").count("n"))
    flow.output(
        "groups",
        rows.with_columns(g=pl.col("k") % 3).group_by("g").apply(largest, {"most": pl.Int64}),
    )
    named = flow.input("named", {"id": pl.Int64, "v": pl.Int64}, key="id")
    flow.output("latest", named)
    return flow


class Subject:
    """A run, what it must have, and what it may have besides."""

    def __init__(
        self, workers: int, path: Path | None, start: Callable[..., Any] | None = None
    ) -> None:
        self.workers = workers
        self.path = path
        self.rows: Counter[int] = Counter()
        self.named: dict[int, int] = {}
        self.places: list[Place] = []
        self._start = start
        self.run = self.start()
        self.run.insert("rows", [(1,), (2,)])
        self.run.commit()
        self.rows.update((1, 2))

    def start(self) -> Any:
        if self._start is not None:
            return self._start(self.workers, self.path)
        durable = {} if self.path is None else {"checkpoint": self.path, "every": None}
        return program().run(workers=self.workers, **durable)

    def counts(self) -> Counter[int]:
        """What the outputs say, which must be one thing."""
        short = dict(self.run.read("short").rows())
        assert dict(self.run.read("long").rows()) == short, "outputs of one input differ"
        groups: dict[int, int] = {}
        for k in short:
            groups[k % 3] = max(groups.get(k % 3, k), k)
        assert dict(self.run.read("groups").rows()) == groups
        return Counter(short)

    def check(self, may: list[Counter[int]]) -> None:
        """After an interrupt: all is as it was, or as one of these; then something is added."""
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert interrupts._gate.nesting == 0
        self.run.status()
        self.run.rollback()
        self.run.commit()  # what was accepted and not done is done now
        found = self.counts()
        assert found in (self.rows, *may), f"{found} is none of {[self.rows, *may]}"
        self.rows = found
        self.named = dict(self.run.read("latest").rows())
        self.run.insert("rows", [(7,)])
        total = sum(found.values())
        self.run.upsert("named", [(1, total)])
        self.run.commit()
        self.rows[7] += 1
        self.named[1] = total
        assert self.counts() == self.rows
        assert dict(self.run.read("latest").rows()) == self.named
        self.check_places()

    def check_places(self) -> None:
        """Files and tables that interrupted sinks wrote are gone on with, and come to the result, each epoch once."""
        for place in self.places:
            place.check(self.run, self.rows)
        self.places = self.places[-2:] if self.path is not None else []

    def resume(self) -> None:
        """What the path has is what the run had."""
        self.run.close()
        if self.path is not None:
            self.run = self.start()
            assert self.counts() == self.rows
            self.check_places()  # by another run, which has to catch up
        self.places = []


WAYS: tuple[tuple[str, dict[str, str]], ...] = (
    ("write_parquet", {}),
    ("write_delta", {}),
    ("write_delta", {"mode": "mirror"}),
    ("write_delta", {"mode": "mirror", "key": "k"}),
)
SOON = 30.0  # seconds


@dataclass(frozen=True)
class Place:
    """Where a sink writes, and how."""

    path: Path
    way: str
    options: dict[str, str]

    def follow(self, run: Any) -> rr.Sink:
        return getattr(run, self.way)("short", self.path, **self.options)  # type: ignore[no-any-return]

    def check(self, run: Any, rows: Counter[int]) -> None:
        """Another sink goes on here; then the sum of the changes, or the mirror, is the result."""
        deadline = time.monotonic() + SOON
        while True:
            try:
                with self.follow(run) as sink:
                    sink.wait(timeout=SOON)
                break
            except rr.RiverrunError as error:  # the interrupted one may be writing its last epoch
                if error.code != "sink.taken" or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        found = self.content()
        assert found == Counter(rows.items()), f"{self}: {found} is not {rows}"

    def content(self) -> Counter[tuple[int, int]]:
        found: Counter[tuple[int, int]] = Counter()
        if self.way == "write_parquet":
            table = pq.read_table(self.path)
        else:
            table = deltalake.DeltaTable(self.path).to_pyarrow_table()
        for row in table.to_pylist():
            found[row["k"], row["n"]] += row.get("diff", 1)
        return Counter({row: count for row, count in found.items() if count})


def _plus(subject: Subject, *keys: int) -> list[Counter[int]]:
    return [subject.rows + Counter(keys)]


Call = tuple[Callable[[], Any], list[Counter[int]]]


def _calls(
    subject: Subject, tmp_path: Path, source: random.Random
) -> dict[str, Callable[[], Call]]:
    """Of each call by name, what is made ready first, the call, and what may be there after it."""
    run = subject.run
    keys = [source.randrange(40) for _ in range(source.randrange(1, 30))]

    def given() -> list[Counter[int]]:
        run.insert("rows", [(key,) for key in keys])
        return _plus(subject, *keys)

    def pieces() -> Iterator[tuple[int]]:
        yield from [(key,) for key in keys]

    def commit() -> Call:
        return run.commit, given()

    def accept() -> Call:
        may = given()
        return lambda: run.commit(wait=False), may

    def wait() -> Call:
        may = given()
        return run.commit(wait=False).wait, may

    def wait_for_several() -> Call:
        after = [subject.rows + Counter(keys)]
        run.insert("rows", [(key,) for key in keys])
        run.commit(wait=False)
        run.insert("rows", [(100,)])
        last = run.commit(wait=False)
        return last.wait, [*after, subject.rows + Counter([100]), after[0] + Counter([100])]

    def insert_and_commit() -> Call:
        def act() -> None:
            run.insert("rows", pieces())
            run.commit()

        return act, _plus(subject, *keys)

    def exchange() -> Call:
        def act() -> None:
            run.delete("rows", [(1,)])
            run.insert("rows", [(1,), (1,)])
            run.upsert("named", [(1, 5), (2, 6)])
            run.delete("named", [2])
            run.commit()

        return act, _plus(subject, 1)

    def read() -> Call:
        return lambda: [list(run.read("long")), run.changes("short").rows(), run.epoch], []

    def follow(way: str, options: dict[str, str]) -> Callable[[], Call]:
        def ready() -> Call:
            place = Place(tmp_path / f"sink-{source.randrange(1 << 40)}", way, options)

            def act() -> None:
                subject.places.append(place)
                with place.follow(run) as sink:
                    run.insert("rows", [(5,)])
                    run.commit()
                    sink.wait(timeout=20)

            return act, _plus(subject, 5)

        return ready

    def look() -> Call:
        def act() -> None:
            assert run.frontier("given").elements == ((run.completed,),)
            run.events()
            with pytest.raises(rr.PlanError, match="the loops are: none"):
                run.rounds("short")
            assert "short" in run.explain()
            assert run.schema("short").names == ["k", "n"]
            assert not run.await_termination(timeout=0.01)
            assert run.spark is None
            run._repr_html_()

        return act, []

    def hand_on() -> Call:
        def act() -> None:
            result = run.read("short")
            rows = sorted(result.rows())
            assert sorted(result.to_polars().rows()) == rows
            assert sorted(tuple(row.values()) for row in result.to_dicts()) == rows
            assert result.to_arrow().num_rows == len(result.to_pandas()) == len(rows)

        return act, []

    def restore() -> Call:
        run.checkpoint()
        expected = sorted(run.read("short").rows())

        def act() -> None:
            assert sorted(rr.read_checkpoint(subject.path, "short").rows()) == expected

        return act, []

    def tell() -> Call:
        def act() -> None:
            seen: list[int] = []
            try:
                with run.for_each_epoch(
                    "short", lambda _, epoch: seen.append(epoch), start="now"
                ) as sink:
                    for key in (6, 6):
                        run.insert("rows", [(key,)])
                        run.commit()
                    sink.wait(timeout=20)
            finally:
                assert seen == sorted(set(seen)), "an epoch was given twice"

        return act, [*_plus(subject, 6), *_plus(subject, 6, 6)]

    def rollback() -> Call:
        given()
        return run.rollback, []

    calls: dict[str, Callable[[], Call]] = {
        "commit": commit,
        "accept": accept,
        "wait": wait,
        "wait for several": wait_for_several,
        "insert and commit": insert_and_commit,
        "exchange": exchange,
        "read": read,
        "status": lambda: (run.status, []),
        "rollback": rollback,
        **{
            " ".join(["follow", way, *options.values()]): follow(way, options)
            for way, options in WAYS
        },
        "look": look,
        "hand on": hand_on,
        "tell": tell,
        "close": lambda: (run.close, []),
        "start": lambda: (subject.start, []),
        "scale": lambda: (lambda: run.scale(source.randrange(1, 4)), []),
    }
    if subject.path is not None:
        calls["checkpoint"] = lambda: (run.checkpoint, [])
        calls["restore"] = restore
    return calls


def _try(
    subject: Subject, name: str, tmp_path: Path, source: random.Random, lengths: dict[Any, int]
) -> bool:
    """One call, interrupted at an instruction that is drawn; whether it was."""
    fine = source.random() < 0.3
    key = (name, subject.workers, subject.path is None, fine)
    act, may = _calls(subject, tmp_path, source)[name]()
    if name == "start" and subject.path is not None:
        subject.run.close()  # the path has one run at a time
    number = source.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
    at = source.randrange(1, lengths.get(key, 4000) + 50)
    again = source.choice([0, source.randrange(1, 3000)]) if number == signal.SIGINT else 0
    interrupted, made = False, None
    with traced(at, number, fine, again) as left:
        try:
            made = act()
        except RAISED:
            interrupted = True
        except rr.RiverrunError as error:  # of an epoch or a sink that the interrupt has ended
            if error.code not in ("sink.never", "run.interrupted"):
                raise
    lengths[key] = max(lengths.get(key, 0), at - left[0])
    if name == "start":
        if made is not None:
            made.close()
        if subject.path is not None:
            subject.run = subject.start()  # the path is free at once
            assert subject.counts() == subject.rows
    elif name == "close":
        subject.run.close()
        assert subject.run.status()["closed"]
        if subject.path is None:
            subject.__init__(subject.workers, None)  # type: ignore[misc]
        else:
            subject.run = subject.start()
            assert subject.counts() == subject.rows
    subject.check(may)
    return interrupted


def test_every_public_call_is_among_those_that_are_interrupted() -> None:
    text = inspect.getsource(_calls) + inspect.getsource(Place)
    elsewhere = {
        "stream",
        "to_spark",
        *(way for way, _ in WAYS),
    }  # on Spark alone: not interrupted here
    inside = {"active", "give", "fail", "status", "wait_for_room"}  # of a sink: the run calls these
    values = {"name", "error", "of", "done"}
    for kind, left in (
        (rr.Run, elsewhere),
        (rr.Commit, values),
        (rr.Result, values | elsewhere),
        (rr.Sink, values | inside),
    ):
        public = {name for name in dir(kind) if not name.startswith("_")}
        missing = {name for name in public - left if f".{name}" not in text}
        assert not missing, f"{kind.__name__}: {missing}"


EVERYWHERE = [(1, False), (1, True), (2, False), (2, True), (3, False), (3, True)]


@pytest.mark.parametrize(("workers", "durable"), EVERYWHERE)
def test_calls_that_are_interrupted_at_any_instruction(
    workers: int, durable: bool, tmp_path: Path
) -> None:
    _interrupt_calls(workers, durable, tmp_path, 30, workers * 10 + durable)


@pytest.mark.soak
@pytest.mark.parametrize(("workers", "durable"), EVERYWHERE)
def test_many_calls_that_are_interrupted_at_any_instruction(
    workers: int, durable: bool, tmp_path: Path
) -> None:
    trials = draws(30, sample=70, soak=600)
    _interrupt_calls(workers, durable, tmp_path, trials, first_seed(100 + workers * 10 + durable))


def _interrupt_calls(workers: int, durable: bool, tmp_path: Path, trials: int, seed: int) -> None:
    source = random.Random(seed)
    subject = Subject(workers, tmp_path / "path" if durable else None)
    shown = Shown(hits=6)
    lengths: dict[Any, int] = {}
    for trial in shown.turns(trials):
        name = source.choice(list(_calls(subject, tmp_path, source)))
        try:
            faulthandler.dump_traceback_later(HANG, exit=True)
            shown["hits"] += _try(subject, name, tmp_path, source, lengths)
            if trial % 25 == 24:
                subject.resume()
                if subject.path is None:
                    subject = Subject(workers, None)
        except BaseException as error:
            error.add_note(
                f"trial {trial}: {name}, {workers} workers, durable: {durable}, SEED={seed}"
            )
            raise
    subject.run.close()


@pytest.mark.parametrize(("workers", "durable"), EVERYWHERE[:4])
def test_commits_that_are_interrupted_at_any_time(
    workers: int, durable: bool, tmp_path: Path
) -> None:
    _interrupt_commits(workers, durable, tmp_path, 40, workers * 10 + durable)


@pytest.mark.soak
@pytest.mark.parametrize(("workers", "durable"), EVERYWHERE[:4])
def test_many_commits_that_are_interrupted_at_any_time(
    workers: int, durable: bool, tmp_path: Path
) -> None:
    trials = draws(40, sample=150, soak=800)
    _interrupt_commits(workers, durable, tmp_path, trials, first_seed(workers * 10 + durable))


def _interrupt_commits(workers: int, durable: bool, tmp_path: Path, trials: int, seed: int) -> None:
    source = random.Random(seed)
    subject = Subject(workers, tmp_path / "path" if durable else None)
    shown = Shown(hits=6)
    for trial in shown.turns(trials):
        faulthandler.dump_traceback_later(HANG, exit=True)
        keys = [source.randrange(40) for _ in range(20)]
        may = _plus(subject, *keys)
        subject.run.insert("rows", [(key,) for key in keys])
        timer = threading.Timer(source.random() * 0.006, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            try:
                subject.run.commit()
                if durable and trial % 5 == 0:
                    subject.run.checkpoint()
            finally:
                timer.join()
                time.sleep(0.001)
        except KeyboardInterrupt:
            shown["hits"] += 1
        timer.join()
        try:
            subject.check(may)
        except BaseException as error:
            error.add_note(f"trial {trial}, SEED={seed}")
            raise
    subject.resume()
    subject.run.close()


def _endless(row: dict[str, Any]) -> list[dict[str, Any]]:
    while row["k"] == 0:
        time.sleep(0.01)
    return [row]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_that_does_not_end_is_stopped(workers: int, tmp_path: Path) -> None:
    flow = rr.Dataflow("endless")
    rows = flow.input("rows", {"k": pl.Int64})
    flow.output("n", rows.flat_map(_endless, {"k": pl.Int64}).group_by("k").count("n"))
    with flow.run(workers=workers, checkpoint=tmp_path) as run:
        run.insert("rows", [(1,)])
        run.commit()
        run.insert("rows", [(0,), (2,)])
        refused = run.commit(wait=False)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            refused.wait()
        timer.join()
        run.insert("rows", [(3,)])
        run.commit()
        assert run.read("n").rows() == [(1, 1), (3, 1)]
        assert run.completed == 2


def test_what_no_signal_causes_ends_the_run_and_not_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupts-at-boundaries law of the local cluster: no result is given of a state that is not whole."""
    with program().run(workers=2, checkpoint=tmp_path) as run:
        run.insert("rows", [(1,)])
        run.commit()
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise MemoryError

            patch.setattr(run._cluster, "_deliver", fail)
            run.insert("rows", [(2,)])
            with pytest.raises(MemoryError):
                run.commit()
        for call in (run.commit, lambda: run.read("short"), run.checkpoint, lambda: run.scale(1)):
            with pytest.raises(rr.RiverrunError) as caught:
                call()
            assert caught.value.code in ("run.torn", "run.closed")
        assert "halfway" in str(run.status()["closed"])
    with program().run(checkpoint=tmp_path) as run:
        assert dict(run.read("short").rows()) in ({1: 1}, {1: 1, 2: 1})
        run.insert("rows", [(3,)])
        run.commit()
        assert dict(run.read("long").rows())[3] == 1


class Forgotten:
    """Something with a weak reference to it."""


def test_an_interrupt_that_python_drops_in_a_callback_is_raised_by_the_run() -> None:
    def interrupt(_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    def forget(row: dict[str, Any]) -> list[dict[str, Any]]:
        forgotten = Forgotten()
        kept = weakref.ref(forgotten, interrupt)
        del forgotten
        assert kept() is None
        return [row]

    flow = rr.Dataflow("forgetting")
    rows = flow.input("rows", {"k": pl.Int64})
    flow.output("out", rows.flat_map(forget, {"k": pl.Int64}))
    with flow.run() as run:
        run.insert("rows", [(1,)])
        with pytest.raises(KeyboardInterrupt):
            run.commit()


# ---- closing


def _followed(path: Path) -> tuple[Any, Any]:
    """A run on a path, and a sink of it that was not given the last epoch."""
    run = program().run(workers=2, checkpoint=path, every=None)
    sink = run.for_each_epoch("short", lambda changes, epoch: None, start="now")
    run.insert("rows", [(1,)])
    run._cluster.wait(run.commit(wait=False).epoch)
    return run, sink


def _check_nothing_is_left(run: Any, sink: Any, path: Path) -> None:
    assert run.status()["closed"] == "it was closed"
    sink._thread.join(5)
    assert not sink._thread.is_alive()
    with program().run(checkpoint=path, every=None) as another:  # it waits for nobody's lease
        assert another.read("short").rows()


def test_a_second_interrupt_leaves_no_sink_that_nobody_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def follow_interrupted(again: int) -> bool:
        """The first interrupt comes when the sink is there, the second so many lines later; whether it does."""
        with ExitStack() as tracing:

            def begin_interrupted(*arguments: Any) -> rr.Sink:
                sink = begin(*arguments)
                signal.raise_signal(signal.SIGINT)
                traces.append(tracing.enter_context(traced(again, signal.SIGINT, False)))
                return sink

            traces: list[list[int]] = []
            monkeypatch.setattr(run._sink_maker, "_begin", begin_interrupted)
            with pytest.raises(KeyboardInterrupt):
                run.write_parquet("short", tmp_path / "out")
        monkeypatch.undo()
        return traces[0][0] <= 0

    with program().run() as run:
        begin, twice = run._sink_maker._begin, 0
        for again in range(1, 80):
            twice += follow_interrupted(again)
            with run.write_parquet("short", tmp_path / "out") as sink:
                sink.wait(timeout=SOON)
        assert twice > 20


@pytest.mark.parametrize("times", [1, 2])
def test_closing_that_is_interrupted_while_sinks_are_given_the_last_epoch(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sink = _followed(tmp_path)
    finish = run._sinks.finish

    def hand_out() -> None:
        signal.raise_signal(signal.SIGINT)
        interrupts.check()

    def finish_interrupted(*arguments: Any) -> None:
        if times > 1:
            signal.raise_signal(signal.SIGINT)
        finish(*arguments)

    monkeypatch.setattr(run._pacing, "hand_out", hand_out)
    monkeypatch.setattr(run._sinks, "finish", finish_interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.close()
    _check_nothing_is_left(run, sink, tmp_path)


def test_closing_that_is_interrupted_anywhere_leaves_nothing(tmp_path: Path) -> None:
    _interrupt_closing(tmp_path, 12, 1)


@pytest.mark.soak
def test_closing_that_is_interrupted_anywhere_often_leaves_nothing(tmp_path: Path) -> None:
    _interrupt_closing(tmp_path, draws(12, sample=40, soak=300), first_seed(2))


def _interrupt_closing(tmp_path: Path, trials: int, seed: int) -> None:
    source = random.Random(seed)
    length, shown = 100, Shown(hits=trials // 2 + 1)
    for trial in shown.turns(trials):
        faulthandler.dump_traceback_later(HANG, exit=True)
        run, sink = _followed(tmp_path)
        # The first line of `close` is not inside of it yet.
        at, again = source.randrange(2, source.choice([30, length])), source.randrange(1, 40)
        try:
            with traced(at, signal.SIGINT, False, source.choice([0, again])) as left:
                run.close()
        except KeyboardInterrupt:
            shown["hits"] += 1
        length = max(length, at - left[0])
        try:
            _check_nothing_is_left(run, sink, tmp_path)
        except BaseException as error:
            error.add_note(f"trial {trial}: line {at}, then {again}, SEED={seed}")
            raise


# ---- locks


@contextmanager
def _held_by_another(lock: Any) -> Iterator[None]:
    """Another thread has a lock for two minutes, and Ctrl-C comes soon."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait(120)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    try:
        yield
        assert time.monotonic() - began < 60
    finally:
        done.set()
        holder.join()
        timer.join()


def test_whoever_waits_for_loans_that_another_thread_renews_can_be_interrupted() -> None:
    schema = pa.schema({"n": pa.int64()}).serialize().to_pybytes()
    lender = Lender(None, None, lambda *_: None, lambda _: False)  # type: ignore[arg-type]
    loan = Loan("nowhere", 1, [], lambda *_: None)
    borrowed = Borrowed(lender, "read", "out", 0, schema, loan)
    with _held_by_another(borrowed._lock), pytest.raises(KeyboardInterrupt), interrupts.deferred():
        borrowed.renew(1)
    with interrupts.held(borrowed._lock):
        assert borrowed._lock.locked()
    assert not borrowed._lock.locked()


class Frame:
    """What a DataFrame of Spark looks like to a run that is not on Spark."""

    def toArrow(self) -> pa.Table:  # noqa: N802
        return pa.table({"k": [1]})


@pytest.mark.parametrize("call", ["insert", "delete"])
@pytest.mark.parametrize("rows", [Frame(), [(1,)]], ids=["frame", "rows"])
def test_whoever_gives_rows_waits_for_no_turn(
    call: str, rows: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.run.run.is_spark_frame", lambda rows: isinstance(rows, Frame))
    with program().run() as run:
        with _held_by_another(run._turn):
            getattr(run, call)("rows", rows)
            with pytest.raises(KeyboardInterrupt):
                time.sleep(10)
        assert run.status()["waiting_rows"]["rows"] == 1
        run.rollback()
        assert run.status()["waiting_rows"]["rows"] == 0
        run.insert("rows", rows)
        run.commit()
        assert run.read("short").rows() == [(1, 1)]


def test_closing_waits_for_no_turn_after_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "LAST_TURN", 60.0)
    run, sink = _followed(tmp_path)
    began = time.monotonic()
    with _held_by_another(run._turn), pytest.raises(KeyboardInterrupt):
        run.close()
    assert time.monotonic() - began < 50  # of the minute that closing waits for a turn
    _check_nothing_is_left(run, sink, tmp_path)


# ---- what an interrupted commit has left


class OnThreads(Carrier):
    """Workers are threads, with all of the wire between them and the run."""

    place = "on threads"

    def start(self, request: ClusterRequest) -> RemoteCluster:
        launcher = Threads(Maker(request.plan, request.history + 1, request.memory))
        durability = dict(request.durability)
        return RemoteCluster(launcher, request.workers, timeout=60, plan=request.plan, **durability)

    def suitable_workers(self, on: object) -> int:
        return 2


CARRIERS: dict[str, Any] = {"here": None, "threads": OnThreads(), "processes": "processes"}


SETTLED = ("gathered", "refused", "complete")


class Caller:
    """Somebody who goes by what can be seen after an interrupt, and has every row there once."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.rows: Counter[int] = Counter()
        self.hits: Counter[str] = Counter()

    def insert(self) -> int:
        row = len(self.rows)
        self.run.insert("rows", [(row,)])
        self.rows[row] = 1
        return row

    def turn(self, name: str, interrupting: Callable[[], Any], *, twice: bool) -> None:
        """An interrupted commit of a row; whoever interrupts twice may get no answer that is settled."""
        run = self.run
        first, earlier = run.status()["next"], None
        if name == "behind another":
            earlier = self.insert()
            run.commit(wait=False)
        epoch, row = run.status()["next"], self.insert()
        act = run.commit if name != "wait" else run.commit(wait=False).wait
        try:
            with interrupting():
                act()
        except RAISED as error:
            left = self.left(epoch)
            self.hits[left] += 1
            if not twice:  # what is not settled may be by the time that somebody looks
                self.check_note(left, epoch, error)
            before_the_call = name == "wait" and not hasattr(error, "__notes__")
            assert left in SETTLED or twice or before_the_call, f"{left}: {run.status()}"
            assert name != "wait" or left != "gathered"
            if earlier is not None and first in run.status()["commit"]["others"]:
                run.insert("rows", [(earlier,)])
            if left in ("refused", "refusing"):
                run.insert("rows", [(row,)])
        run.commit()
        assert dict(run.read("n").rows()) == self.rows
        assert run.status()["next"] == run.completed

    def left(self, epoch: int) -> str:
        """What an interrupt has left, from public state alone."""
        status = self.run.status()
        if status["waiting_rows"]["rows"]:
            return "gathered"
        assert status["commit"]["epoch"] == epoch
        outcome: str = status["commit"]["outcome"]
        assert outcome != "complete" or self.run.completed > epoch
        return outcome

    def check_note(self, left: str, epoch: int, error: BaseException) -> None:
        """The exception says the same; and nothing where it came before the call, or after it."""
        said = {
            "gathered": "no epoch was made: 1 row is still gathered",
            "refused": f"epoch {epoch} was refused: its 1 row is dropped",
            "complete": f"epoch {epoch} is complete: its 1 row is in the results",
        }
        notes = getattr(error, "__notes__", [])
        assert all(note.startswith(said[left]) for note in notes), (left, notes)
        assert len(notes) == 1 or left != "refused"


@contextmanager
def _alarmed(seconds: float) -> Iterator[None]:
    """The handler of the alarm is called after so long."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _interrupt_main(number: int, frame: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def _settle_commits(
    carrier: str,
    workers: int,
    path: Path | None,
    trials: int,
    seed: int,
) -> Counter[str]:
    """Interrupt so many commits, at a line that is drawn or after a time that is drawn; what that has left."""
    source = random.Random(seed)
    flow = rr.Dataflow("once")
    rows = flow.input("rows", {"k": pl.Int64})
    pause = 0.0 if carrier == "here" else 0.01  # so that an interrupt comes while others work

    def slowly(row: dict[str, Any]) -> list[dict[str, Any]]:
        time.sleep(pause)
        return [row]

    flow.output("n", rows.flat_map(slowly, {"k": pl.Int64}).group_by("k").count("n"))
    options: dict[str, Any] = {"workers": workers, "on": CARRIERS[carrier]}
    if path is not None:
        options |= {"checkpoint": path, "every": None}
    lines, seconds, shown = 500, 0.01, Shown(hits=trials // 4, refused=1)
    with flow.run(**options) as run:
        caller = Caller(run)
        caller.turn("commit", nullcontext, twice=False)
        for trial in shown.turns(trials):
            faulthandler.dump_traceback_later(HANG, exit=True)
            name = source.choice(["commit", "commit", "wait", "behind another"])
            number = source.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
            at, after = source.randrange(1, lines), seconds * 10 ** source.uniform(-2, 0)
            again = source.choice([0, 0, 0, source.randrange(1, 200)])
            how = f"signal {number} at line {at} and {again} lines later"
            interrupting: Callable[[], Any] = partial(traced, at, number, False, again)
            if source.random() < 0.5:
                again, how = 0, f"alarm {number} after {after} s"
                interrupting = partial(_alarmed, after)
                if number != signal.SIGALRM:
                    signal.signal(signal.SIGALRM, _interrupt_main)
            began, length = time.monotonic(), shown["hits"]
            try:
                caller.turn(name, interrupting, twice=bool(again))
            except BaseException as error:
                error.add_note(f"trial {trial}: {name}, {how}, SEED={seed}")
                raise
            finally:
                signal.signal(signal.SIGALRM, HANDLERS[signal.SIGALRM])
            shown["hits"], shown["refused"] = caller.hits.total(), caller.hits["refused"]
            if shown["hits"] == length:  # it was over before: look earlier
                lines, seconds = max(50, lines * 4 // 5), max(0.001, seconds * 0.8)
            else:
                lines, seconds = lines * 5 // 4, min(seconds * 1.25, time.monotonic() - began)
    if path is not None:
        with flow.run(**options) as run:
            assert dict(run.read("n").rows()) == caller.rows
    return caller.hits


@pytest.mark.parametrize(("workers", "durable"), EVERYWHERE[:4])
def test_an_interrupted_commit_leaves_one_of_three_outcomes(
    workers: int, durable: bool, tmp_path: Path
) -> None:
    path = tmp_path / "path" if durable else None
    hits = _settle_commits("here", workers, path, 60, workers * 10 + durable)
    assert hits["refused"] > 5


@pytest.mark.parametrize(("carrier", "durable"), [("threads", True), ("processes", False)])
def test_an_interrupted_commit_of_workers_elsewhere_leaves_one_of_three_outcomes(
    carrier: str, durable: bool, tmp_path: Path
) -> None:
    path = tmp_path / "path" if durable else None
    assert _settle_commits(carrier, 2, path, 20, 7)["refused"]  # it goes on until one is refused


@pytest.mark.soak
@pytest.mark.parametrize("carrier", ["here", "threads", "processes"])
@pytest.mark.parametrize(("workers", "durable"), EVERYWHERE[:4])
def test_many_interrupted_commits_leave_one_of_three_outcomes(
    carrier: str, workers: int, durable: bool, tmp_path: Path
) -> None:
    path, seed = tmp_path / "path" if durable else None, first_seed(30 + workers * 10 + durable)
    trials = (
        draws(60, sample=120, soak=1000) if carrier == "here" else draws(20, sample=30, soak=200)
    )
    hits = _settle_commits(carrier, workers, path, trials, seed)
    print(carrier, workers, durable, dict(hits))


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[tuple[Any, Callable[[], None]]]:
    """A run with a row in it, whose function blocks at row 0 after it has called what it is to call."""
    calls: list[Callable[[], None]] = []

    def block(row: dict[str, Any]) -> list[dict[str, Any]]:
        if row["k"] == 0 and calls:
            calls.pop()()
            time.sleep(60)
        return [row]

    flow = rr.Dataflow("blocking")
    rows = flow.input("rows", {"k": pl.Int64}).flat_map(block, {"k": pl.Int64})
    flow.output("n", rows.group_by("k").count("n"))
    with flow.run(checkpoint=tmp_path, every=None) as run:
        run.insert("rows", [(1,)])
        run.commit()
        yield run, calls.append


def _interrupted_commit(run: Any, *after: float) -> tuple[str, float]:
    """The note of a commit that is interrupted after so many seconds, and how long it took."""
    timers = [threading.Timer(each, os.kill, (os.getpid(), signal.SIGINT)) for each in after]
    began = time.monotonic()
    for timer in timers:
        timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        run.commit()
    took = time.monotonic() - began
    for timer in timers:
        timer.join()
    (note,) = caught.value.__notes__
    return note, took


def test_a_commit_that_the_storage_does_not_take_stays_accepted(
    blocking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run, _), weather = blocking, Weather(monkeypatch)
    weather.away("create", folders=["log/"])
    run.insert("rows", [(2,)])
    note, _ = _interrupted_commit(run, 0.5)
    assert note.startswith("epoch 1 is accepted and not complete: its 1 row is not to be inserted")
    accepted = {"epoch": 1, "rows": 1, "outcome": "accepted", "others": []}
    assert run.status()["commit"] == accepted
    assert "bad weather" in run.status()["log"]["error"]
    weather.fine()
    run.commit()
    assert run.read("n").rows() == [(1, 1), (2, 1)]


def test_a_refusal_that_the_storage_does_not_take_is_said_and_made_up_for(
    blocking: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (run, call), weather = blocking, Weather(monkeypatch)
    call(lambda: weather.away("create", folders=["log/"]))
    run.insert("rows", [(0,)])
    note, _ = _interrupted_commit(run, 1.0)
    assert note.startswith("epoch 1 is refused: its 1 row is dropped here, and the log is not told")
    assert run.status()["commit"]["outcome"] == "refusing"
    weather.fine()
    run.insert("rows", [(0,)])
    run.commit()
    assert run.status()["commit"]["outcome"] == "complete"
    assert run.read("n").rows() == [(0, 1), (1, 1)]


def test_a_second_interrupt_does_not_wait_for_the_storage(
    blocking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "SETTLING", 50.0)
    (run, _), weather = blocking, Weather(monkeypatch)
    weather.hangs()
    run.insert("rows", [(2,)])
    note, took = _interrupted_commit(run, 0.3, 1.5)
    assert note.startswith("epoch 1 is accepted")
    assert 1.4 < took < 40
    weather.fine()
    run.commit()
    assert run.read("n").rows() == [(1, 1), (2, 1)]


def test_a_note_tells_of_each_refused_epoch_once(blocking: Any) -> None:
    run, call = blocking
    told = []
    for _ in range(2):
        call(lambda: None)
        run.insert("rows", [(0,)])
        run.commit(wait=False)
        run.insert("rows", [(2,)])
        note, _ = _interrupted_commit(run, 1.0)
        told.append(note)
        assert run.status()["commit"]["others"] == [run.status()["commit"]["epoch"] - 1]
    assert told == [
        "epoch 2 was refused: its 1 row is dropped; epoch 1, which was under way, was refused too",
        "epoch 4 was refused: its 1 row is dropped; epoch 3, which was under way, was refused too",
    ]


def test_an_epoch_that_waits_behind_the_one_that_does_not_end_is_refused_with_it(
    blocking: Any, tmp_path: Path
) -> None:
    run, call = blocking
    call(lambda: None)
    run.insert("rows", [(0,)])
    run.commit(wait=False)
    run.insert("rows", [(2,)])
    between = run.commit(wait=False)
    run.insert("rows", [(3,), (4,)])
    note, _ = _interrupted_commit(run, 1.0)
    assert note == (
        "epoch 3 was refused: its 2 rows are dropped; epoch 1, which was under way, was refused too"
    )
    left = {"epoch": 3, "rows": 2, "outcome": "refused", "others": [1]}
    assert run.status()["commit"] == left
    between.wait()
    assert run.read("n").rows() == [(1, 1), (2, 1)]
    run.insert("rows", [(5,)])
    run.commit()
    complete = run.completed
    run.close()
    flow = rr.Dataflow("blocking")  # what is resumed has the same numbers
    rows = flow.input("rows", {"k": pl.Int64})
    flow.output("n", rows.group_by("k").count("n"))
    with flow.run(checkpoint=tmp_path, rebuild=True) as resumed:
        assert resumed.read("n").rows() == [(1, 1), (2, 1), (5, 1)]
        assert resumed.completed == complete
