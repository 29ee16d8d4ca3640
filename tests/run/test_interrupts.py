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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import riverrun as rr
from riverrun import interrupts
from riverrun.engine.borrowing import Borrowed, Lender, Loan
from riverrun.run import live
from tests.interrupting import HANG, Alarm, traced, watched_handlers
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
    """Law 3 of the in-process transport: nothing is told of a state that is not whole."""
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
            monkeypatch.setattr(run, "_begin_sink", begin_interrupted)
            with pytest.raises(KeyboardInterrupt):
                run.write_parquet("short", tmp_path / "out")
        monkeypatch.undo()
        return traces[0][0] <= 0

    with program().run() as run:
        begin, twice = run._begin_sink, 0
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
    finish = run._followers.finish

    def hand_out() -> None:
        signal.raise_signal(signal.SIGINT)
        interrupts.check()

    def finish_interrupted(*arguments: Any) -> None:
        if times > 1:
            signal.raise_signal(signal.SIGINT)
        finish(*arguments)

    monkeypatch.setattr(run, "_hand_out", hand_out)
    monkeypatch.setattr(run._followers, "finish", finish_interrupted)
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
    monkeypatch.setattr("riverrun.run.live.is_spark_frame", lambda rows: isinstance(rows, Frame))
    with program().run() as run:
        with _held_by_another(run._lock):
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
    monkeypatch.setattr(live, "CLOSING", 60.0)
    run, sink = _followed(tmp_path)
    began = time.monotonic()
    with _held_by_another(run._lock), pytest.raises(KeyboardInterrupt):
        run.close()
    assert time.monotonic() - began < 50  # of the minute that closing waits for a turn
    _check_nothing_is_left(run, sink, tmp_path)
