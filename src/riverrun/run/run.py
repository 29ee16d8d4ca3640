"""A run: a dataflow that is alive. Rows go in, epochs are committed, results are read.

Users get a `Run` from ``flow.run()``. Threads may share a run; their calls take turns. Laws:

- **Whole epochs.** Rows are gathered until ``commit``, which makes one epoch of them, whole or not at all. When
  something in the epoch fails, the epoch is refused, the run is as before the commit, and goes on.
- **As from scratch.** ``read`` gives a result as of a complete epoch: the rows that the program, run from scratch over
  all rows committed up to that epoch, would give.
- **Logged first.** With ``checkpoint=path``, an epoch is in the log at the path before ``commit`` returns. A run that
  is started on the same path later goes on after the last logged epoch.
- **Interrupts between steps.** Ctrl-C, and whatever else the handler of a signal raises, arrives where nothing is half
  done (`interrupts`), and the run goes on. In a forked process every call is refused (`forks`).
- **Settled interrupt.** When an interrupt leaves ``commit`` or ``Commit.wait``, the rows are still *gathered*, or their
  epoch is *complete*, or the epoch is *refused* and its rows are dropped. Where the storage does not answer in time, or
  a second interrupt cuts the wait for the storage short, the epoch is *accepted* and done later, or *refusing*: its
  refusal is on the way to the log. A note of the exception says which of these holds, and so does
  ``status()["commit"]``.
- **Clean close.** Closing leaves nothing behind, however often it is interrupted: threads end, and the path is free.

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("words")
>>> words = flow.input("words", {"word": pl.String})
>>> flow.output("counts", words.group_by("word").count())
>>> with flow.run() as run:
...     run.insert("words", [("sea",), ("sky",), ("sea",)])
...     run.commit()
...     run.read("counts").rows()
...     run.delete("words", [("sky",)])
...     run.commit()
...     run.changes("counts").rows()
<Commit of epoch 0: done>
[('sea', 2), ('sky', 1)]
<Commit of epoch 1: done>
[('sky', 1, -1)]
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import partial, wraps
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import polars as pl
import pyarrow as pa

from riverrun.attributes import formerly, missing_attribute
from riverrun.engine.events import KINDS
from riverrun.engine.messages import Parcel
from riverrun.engine.reading import Portion
from riverrun.errors import PlanError, RiverrunError, SchemaError, TimeViolation
from riverrun.forks import ProcessMark
from riverrun.interrupts import Interrupt, acquire, check, deferred, held, try_acquire
from riverrun.operators.shared.rules import as_time
from riverrun.plan.explain import explain
from riverrun.plan.kernels_needed import kernels_of
from riverrun.plan.loop_figures import loops_of
from riverrun.plan.operator import Role
from riverrun.plan.optimizer import narrowed
from riverrun.plan.picture.svg import to_svg
from riverrun.plan.plan import Node, Plan
from riverrun.progress import Antichain
from riverrun.rows.convert import is_spark_frame
from riverrun.rows.values import listed, show
from riverrun.run.inputs import Inlet
from riverrun.run.options import (
    RunOptions,
    as_bytes,
    as_seconds,
    check_count,
    check_flag,
    check_on,
    check_timeout,
    identity_of,
)
from riverrun.run.pacing import Pacing
from riverrun.run.result import Result
from riverrun.run.rounds import Rounds
from riverrun.run.serve import Serving
from riverrun.run.sinks.delta import DeltaTable
from riverrun.run.sinks.destination import Destination, Kept
from riverrun.run.sinks.function import Function
from riverrun.run.sinks.parquet import ParquetDirectory
from riverrun.run.sinks.queue import FINISH, Followed, Followers, Sink, content
from riverrun.runtime.carriers import ClusterRequest, carrier_of
from riverrun.runtime.cluster import Cluster, Standing, freeze, is_interrupt
from riverrun.runtime.frames import Frames, StreamRequest, Target
from riverrun.runtime.stored_outputs import describe_outputs
from riverrun.state.preparing import make_ready
from riverrun.state.types import shown_schema

_ELSEWHERE = {
    "stop": "close()",
    "shutdown": "close()",
    "append": "insert(name, rows)",
    "update": "upsert(name, rows) replaces rows of an input with a key; else delete and insert",
    "flush": "commit()",
    "output": "outputs are declared before the run: flow.output(name, collection)",
    "input": "inputs are declared before the run: flow.input(name, schema)",
    "subscribe": "for_each_epoch(name, function)",
    "iterations": "rounds(name)",
}
TRIES = 3
NARROW = 8  # columns up to which Arrow copies a batch quicker by joining it to nothing than by writing and reading it
CLOSING = 5.0  # seconds
TURN = 1.0  # seconds that `status` waits for its turn

P = ParamSpec("P")
T = TypeVar("T")


def _whole(method: Callable[Concatenate[Run, P], T]) -> Callable[Concatenate[Run, P], T]:
    """A call that nothing interrupts halfway, in the process that the run belongs to."""

    attempt = method.__name__.strip("_")

    @wraps(method)
    def call(self: Run, /, *arguments: P.args, **named: P.kwargs) -> T:
        self._mark.check(attempt, self._owner)
        with deferred():
            return method(self, *arguments, **named)

    return call


def _in_turn(method: Callable[Concatenate[Run, P], T]) -> Callable[Concatenate[Run, P], T]:
    """Threads that share a run take turns."""

    attempt = method.__name__.strip("_")

    @wraps(method)
    def call(self: Run, /, *arguments: P.args, **named: P.kwargs) -> T:
        self._mark.check(attempt, self._owner)
        with deferred():
            acquire(self._lock)
            try:
                return method(self, *arguments, **named)
            finally:
                self._lock.release()

    return call


class Commit:
    """An epoch that was committed."""

    __slots__ = ("_rows", "_run", "epoch")

    def __init__(self, run: Run, epoch: int, rows: int) -> None:
        self._run = run
        self._rows = rows
        self.epoch = epoch

    @property
    def done(self) -> bool:
        """Whether the results of the epoch are complete."""
        return self._run.completed > self.epoch

    def wait(self) -> Self:
        """Return when the results of the epoch are complete; if the epoch failed, raise its error."""
        self._run._check_outside(f"wait for epoch {self.epoch}")
        self._run._await(self.epoch, self._rows)
        return self

    def __repr__(self) -> str:
        return f"<Commit of epoch {self.epoch}: {'done' if self.done else 'under way'}>"


class Run:
    """A dataflow that is alive. Make one with ``flow.run()``."""

    def __init__(self, plan: Plan, options: RunOptions) -> None:
        freeze()  # before there is anything of this run
        carrier = carrier_of(options.on)
        workers = options.workers
        if workers == "auto":
            workers = carrier.suitable_workers(options.on)
        check_on(options, carrier, workers)
        budget = as_bytes(options.memory)
        if options.checkpoint is None:
            plan = narrowed(plan)
        make_ready(kernels_of(plan))
        self.plan = plan
        self._mark = ProcessMark()
        self._owner = f"the run of {plan.name!r}"
        self._lock = RLock()
        self._ended = False
        self._hurried = False  # whether closing was interrupted
        self._last: _Committing | None = None  # the last call of `commit` or `Commit.wait`
        self._history = options.history
        self._inlets = {name: Inlet(node, plan) for name, node in plan.inputs.items()}
        self._readable = plan.readable
        self._loops = loops_of(plan)
        self._followers = Followers()
        self._kept = set[str]()
        """The places of files or tables that sinks of this run were begun for, as they are shown."""
        recovery = options.recovery
        durability: dict[str, Any] = {"policy": recovery.policy, "application": plan.name}
        if options.checkpoint is not None:
            chosen = {
                each.name: getattr(options.checkpoint, each.name)
                for each in fields(options.checkpoint)
            }
            chosen["storage_timeout"] = as_seconds(options.checkpoint.storage_timeout)
            durability |= {
                "checkpoint": chosen.pop("path"),
                "about": describe_outputs(plan),
                **chosen,
            }
        self._identity = identity_of(durability.get("checkpoint"))
        request = ClusterRequest(
            plan,
            options.on,
            workers,
            history=options.history,
            memory=budget,
            seed=options.seed,
            timeout=options.timeout,
            tls=options.security.tls,
            silence=recovery.silence,
            balance=recovery.balance,
            most_workers=recovery.max_workers or workers,
            durability=durability,
        )
        self._cluster: Cluster
        self._serving = Serving(self, partial(held, self._lock))
        started = False
        try:
            with deferred():
                self._cluster = carrier.start(request)
                self._pacing = Pacing(
                    plan.name, self._cluster, self._followers, self._lock, self.changes
                )
                started = True
                self._cluster.serve(self._serving)
        except BaseException:
            if (
                started
            ):  # the caller gets the error and not the run, so nobody else can close the run
                self.close()
            raise

    # -- rows in

    def insert(self, name: str, rows: Any) -> None:
        """Add `rows` to the input called `name`: a DataFrame of Spark, Arrow, pandas, Polars, dicts or tuples."""
        if is_spark_frame(rows):
            self._hand_in(name, rows, "insert into")
        else:
            self._insert(name, rows)

    def _insert(self, name: str, rows: Any, what: str = "insert into") -> None:
        # Signals are not put off: rows may come from a generator without an end, and adding them is one instruction.
        inlet = self._inlet(name, what)
        inlet.add(_owned(rows, inlet.form.conform(rows, f"{what} {name!r}")), 1)

    def delete(self, name: str, rows: Any) -> None:
        """Take `rows` out of the input called `name`, once each; from an input with a key, the rows with these keys."""
        if is_spark_frame(rows):
            self._hand_in(name, rows, "delete from")
        else:
            self._delete(name, rows)

    def _delete(self, name: str, rows: Any) -> None:
        inlet = self._inlet(name, "delete from")
        inlet.add(_owned(rows, inlet.form.deletion(rows, f"delete from {name!r}")), -1)

    def upsert(self, name: str, rows: Any) -> None:
        """Put `rows` in place of those with the same key, in the input called `name`."""
        self._check_keyed(name)
        if is_spark_frame(rows):
            self._hand_in(name, rows, "upsert into")
        else:
            self._insert(name, rows, "upsert into")

    def _check_keyed(self, name: str) -> None:
        if not self._inlet(name, "upsert into").key:
            raise SchemaError(
                "schema.no_key",
                f"cannot upsert into {name!r}: it was declared without a key",
                hint=f'declare it with one: flow.input({name!r}, ..., key="id")',
                input=name,
            )

    # -- rows of Spark

    def _hand_in(self, name: str, frame: Any, what: str) -> None:
        """Take the rows of a DataFrame: by Spark's own tasks where the run is on Spark, else through this process."""
        self._inlet(name, what)
        frames = self._cluster.frames
        if frames is not None:
            with deferred():
                self._upload(frames, name, frame, what)
        elif what.startswith("delete"):
            self._delete(name, frame.toArrow())
        else:
            self._insert(name, frame.toArrow(), what)

    def _upload(self, frames: Frames, name: str, frame: Any, what: str) -> None:
        acquire(self._lock)
        try:
            inlet = self._inlet(name, what)
            sequence = inlet.reserve()
        finally:
            self._lock.release()
        parcels: list[Parcel] = []
        try:
            parcels = frames.upload(frame, self._target(inlet, what, sequence))
            acquire(self._lock)
        except BaseException:
            inlet.give_up(sequence)
            frames.let_go(parcels)
            raise
        try:
            inlet.add_parcels(sequence, parcels)
        finally:
            self._lock.release()

    def _target(self, inlet: Inlet, what: str, sequence: int = 0) -> Target:
        delete = what.startswith("delete")
        return Target(inlet.form, delete, f"{what} {inlet.name!r}", sequence)

    def stream(
        self,
        name: str,
        frame: Any,
        *,
        mode: str = "insert",
        stream: str | None = None,
        checkpoint: str | Path | None = None,
        **trigger: Any,
    ) -> Any:
        """Have `frame`, a streaming DataFrame, feed the input called `name`: each of its batches becomes an epoch.

        `mode` is "insert", "upsert" or "delete". Returns Spark's StreamingQuery. A batch that Spark repeats is
        recognised, also by a run that was resumed. For that a query is known by its `checkpoint`, by default a folder
        of the run's own checkpoint path, and by the name of the input, or by `stream` where several streams feed one
        input. `trigger` is as Spark's: ``processingTime="1 second"``, ``availableNow=True``.
        """
        inlet = self._inlet(name, f"{mode} into")
        frames = self._cluster.frames
        if frames is None:
            raise PlanError(
                "spark.stream",
                f"cannot stream into {name!r}: streams are Spark's, and the run is not on Spark",
                hint="run on Spark: flow.run(on=spark); elsewhere insert the rows, and commit",
            )
        if mode == "upsert":
            self._check_keyed(name)
        target = self._target(inlet, f"{mode} {'from' if mode == 'delete' else 'into'}")
        request = StreamRequest(name, stream or name, mode, target, checkpoint, trigger)
        with deferred():
            return frames.stream(frame, request, self._wait)

    @property
    def spark(self) -> Any:
        """The Spark session that the run is on; None where it is not on Spark."""
        return None if self._cluster.frames is None else self._cluster.frames.session

    @_whole
    def await_termination(self, timeout: float | None = None) -> bool:
        """Return True when the run is over, or False after `timeout` seconds; raise the error that the run died of."""
        if timeout is not None:
            check_timeout(
                timeout,
                "await the end of the run with",
                hint="leave it out to wait for as long as it takes",
            )
        return self._cluster.await_end(timeout)

    @_whole
    def commit(self, wait: bool = True) -> Commit:
        """Make an epoch of the rows gathered since the last commit; return when the results are complete.

        With ``wait=False``, return as soon as the rows are accepted (and logged, where there is a
        checkpoint path). Where a sink is far behind, the call first waits for the sink.
        """
        check_flag(wait, "wait")
        self._check_outside("commit")
        this = self._last = _Committing(self._cluster.completed)
        try:
            self._commit(this, wait)
            check()
        except BaseException as error:
            if is_interrupt(error):
                self._settle(this, error, refuse=wait)
            raise
        assert this.epoch is not None
        return Commit(self, this.epoch, this.rows)

    def _commit(self, this: _Committing, wait: bool) -> None:
        self._followers.wait_for_room()
        acquire(self._lock)
        try:
            self._check_open("commit")
            rows = sum(inlet.rows for inlet in self._inlets.values())
            alone = not self._cluster.goes_on
            epoch = self._submit()
            this.epoch, this.rows = epoch, rows
            if alone:
                self._cluster.await_log(epoch)
            done = alone and (not wait or self._pacing.advance(epoch, rows))
        finally:
            self._lock.release()
        if not alone:  # not in turn: the storage may be away, and others want to read
            self._cluster.await_log(epoch)
            done = not wait
        if not done:
            self._wait(epoch, rows)

    @_whole
    def _await(self, epoch: int, rows: int) -> None:
        """For `Commit.wait`."""
        this = self._last = _Committing(self._cluster.completed, epoch, rows)
        try:
            self._wait(epoch, rows)
            check()
        except BaseException as error:
            if is_interrupt(error):
                self._settle(this, error, refuse=True)
            raise

    def _settle(self, this: _Committing, error: BaseException, *, refuse: bool) -> None:
        """Before an interrupt goes on to the user, settle the epoch, and note the outcome on the exception
        (the settled-interrupt law)."""
        if this.epoch is not None and refuse:
            self._cluster.settle_interrupt(this.epoch, error)
        raised = error.error if isinstance(error, Interrupt) else error
        raised.add_note(self._settled(this))

    def _settled(self, this: _Committing) -> str:
        """What has become of the rows of an interrupted call, in words."""
        epoch, rows = this.epoch, _count(this.rows)
        if epoch is None:
            gathered = sum(inlet.rows for inlet in self._inlets.values())
            return f"no epoch was made: {_count(gathered)} still gathered, for the next commit()"
        note = {
            Standing.COMPLETE: f"epoch {epoch} is complete: its {rows} in the results",
            Standing.REFUSED: f"epoch {epoch} was refused: its {rows} dropped",
            Standing.REFUSING: f"epoch {epoch} is refused: its {rows} dropped here, and the log is not told yet; a run "
            "that is resumed before it is has the epoch",
            Standing.ACCEPTED: f"epoch {epoch} is accepted and not complete: its {rows} not to be inserted again, the "
            "next call that waits does the epoch",
        }[self._cluster.standing(epoch)]
        others = this.others(self._cluster)
        if others:
            note += f"; epoch {', '.join(map(str, others))}, which was under way, was refused too"
        return note

    def _submit(self) -> int:
        """Make an epoch of the gathered rows; rows that are not accepted stay gathered."""
        inputs, parcels = {}, {}
        for name, inlet in self._inlets.items():
            batch, handed_in = inlet.gathered()
            if batch is not None:
                inputs[name] = batch
            if handed_in:
                parcels[name] = handed_in
        before = self._cluster.epoch
        try:
            return self._cluster.submit(inputs, parcels=parcels, logged=False)
        finally:
            if self._cluster.epoch > before:
                for inlet in self._inlets.values():
                    inlet.drop()

    @_in_turn
    def rollback(self) -> None:
        """Forget the rows gathered since the last commit."""
        dropped = [parcel for inlet in self._inlets.values() for parcel in inlet.clear()]
        if self._cluster.frames is not None and dropped:
            self._cluster.frames.let_go(dropped)

    @_whole
    def _wait(self, epoch: int, rows: int = 0) -> None:
        self._pacing.wait(epoch, rows)

    # -- results out

    @property
    def epoch(self) -> int | None:
        """The last epoch that is complete; None before the first."""
        return self._cluster.completed - 1 if self._cluster.completed else None

    @property
    def completed(self) -> int:
        """How many epochs are complete."""
        return self._cluster.completed

    @formerly(as_of="run.read(name, epoch=...), as in run.changes")
    @_in_turn
    def read(self, name: str, epoch: int | None = None) -> Result:
        """The output or state called `name` as of an `epoch` within ``history``, by default the last complete epoch.

        The rows of a state are those of its ``entries()``.
        """
        self._named(name, "read")
        self._check_open("read")
        return self._at(epoch, f"read {name!r}", name, self._cluster.read)

    @_in_turn
    def changes(self, name: str, epoch: int | None = None) -> Result:
        """The changes of an `epoch`, by default the last complete one, to the output or state called `name`: its rows
        that came or went, with a column `diff`."""
        self._named(name, "tell the changes of")
        self._check_open("tell changes")
        return self._at(epoch, f"tell the changes of {name!r}", name, self._cluster.changes)

    def _at(
        self,
        asked: int | None,
        what: str,
        name: str,
        read: Callable[[str, int], Sequence[Portion]],
    ) -> Result:
        """Read as of the epoch `asked`; None is the last one, even where epochs go on during the read."""
        for _ in range(TRIES):
            epoch = self._epoch(asked, what)
            try:
                return self._as_result(name, read(name, epoch), epoch)
            except TimeViolation:
                if asked is not None:
                    raise
        with self._cluster.still():
            epoch = self._epoch(asked, what)
            return self._as_result(name, read(name, epoch), epoch)

    def _as_result(self, name: str, portions: Sequence[Portion], epoch: int) -> Result:
        result = Result.of(name, portions[0].schema, portions, epoch)
        if self._cluster.frames is not None:
            result.lent = self._lent
        return result

    def _lent(self, result: Result) -> Any:
        assert self._cluster.frames is not None
        return self._cluster.frames.of_lent(self._serving.lend(result))

    @formerly(output="run.schema(name)")
    def schema(self, name: str) -> pa.Schema:
        """The columns of the output or state called `name`, as results have them."""
        return shown_schema(self._named(name, "describe").schemas[0])

    # -- results that go on by themselves

    @formerly(output="run.for_each_epoch(name, function)")
    def for_each_epoch(
        self,
        name: str,
        function: Callable[[Followed, int], object],
        *,
        start: int | str = "all",
    ) -> Sink:
        """Call ``function(changes, epoch)`` for every epoch of the output or state called `name`, in order, in a thread
        of its own.

        The function is called for complete epochs first: epoch by epoch, where ``history`` goes back to epoch 0;
        otherwise once, with all rows and ``changes.from_epoch == 0``. With ``start="now"`` it is called for epochs to
        come only; with a number, from that epoch on. After a crash the function may be called again for an epoch,
        with the same number.
        """
        self._named(name, "follow")
        return self._follow(name, Function(function, self.plan.name, name), start)

    @formerly(output="run.write_parquet(name, path)")
    def write_parquet(self, name: str, path: str | Path) -> Sink:
        """Keep the changes of the output or state called `name` at `path`, a directory or a URL: a Parquet file for
        each epoch that has any.

        Files have the columns of the rows, `diff` and `epoch`. The sum of the diffs up to an epoch is the result as
        of that epoch. A resumed run goes on where the files end, and writes the missing changes.
        """
        schema = shown_schema(self._named(name, "write").schemas[0])
        return self._follow(
            name, ParquetDirectory(path, self.plan.name, name, schema, self._identity)
        )

    @formerly(output="run.write_delta(name, path)")
    def write_delta(
        self,
        name: str,
        path: str | Path,
        *,
        mode: str = "changes",
        key: str | Sequence[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Sink:
        """Keep the output or state called `name` in the Delta table at `path`, each epoch that changes something in one
        commit.

        `storage_options` are those of the package ``deltalake``, for tables in an object store.

        ``mode="changes"`` appends the changes, with `diff` and `epoch`. ``mode="mirror"`` keeps the table equal to the
        result: with a ``key``, columns that tell the rows apart, by merging the changes; without, by writing it anew.
        """
        schema = shown_schema(self._named(name, "write").schemas[0])
        table = DeltaTable(
            path, self.plan.name, name, schema, mode, key, storage_options, self._identity
        )
        return self._follow(name, table)

    def _follow(self, output: str, place: Destination, start: int | str = "all") -> Sink:
        sink: Sink | None = None

        def forsake() -> (
            None
        ):  # interrupted: the caller does not get the sink, so it is closed here
            if sink is not None:
                sink.close(timeout=0.0)

        try:
            try:
                with deferred():
                    try:
                        sink = self._begin_sink(output, place, start)
                        check()
                    except BaseException:
                        forsake()
                        raise
                    return sink
            except BaseException:  # a signal that came after the check
                with deferred():
                    forsake()
                raise
        except BaseException:  # a second signal, that came before the sink was closed
            with deferred():
                forsake()
            raise

    @_in_turn
    def _begin_sink(self, output: str, place: Destination, start: int | str) -> Sink:
        self._check_open(f"follow {output!r}")
        if isinstance(place, Kept):
            self._check_alone(output, place)
            self._kept.add(place.shown)
        self._cluster.hold_epochs()
        with self._cluster.still():
            return self._attach(output, place, start)

    def _check_alone(self, output: str, place: Kept) -> None:
        """Refuse a place that a sink of this run writes to already, or that is inside such a place or around it."""
        mine = _place(place.shown)
        for other in self._followers.status(self.completed):
            written = other["name"].removeprefix(f"{other['output']} to ")
            if other["error"] is not None:
                continue
            theirs = _place(written)
            if written in self._kept and theirs != mine and _are_nested(theirs, mine):
                raise PlanError(
                    "sink.nested",
                    f"cannot write {output!r} to {place.shown}: a sink of this run writes {other['output']!r} to "
                    f"{written}, and one of these directories is inside the other, so who reads the outer one would "
                    "take the files of both for its own",
                    hint='give each sink a directory beside the others: "results/first", "results/second"',
                )
            if theirs == mine:
                raise PlanError(
                    "sink.taken",
                    f"cannot write {output!r} to {place.shown}: a sink of this run writes {other['output']!r} there",
                    hint="give each sink a directory or table of its own, or close the other one first",
                )

    def _attach(self, output: str, place: Destination, start: int | str) -> Sink:
        self._pacing.hand_out()
        completed = self.completed
        first = place.first(start, completed)
        try:
            past = [
                Followed(output, self.changes(output, epoch).to_arrow(), epoch)
                for epoch in range(first, completed)
            ]
        except TimeViolation:
            if isinstance(start, int):
                raise
            whole = content(self.read(output, epoch=completed - 1))
            past = [Followed(output, whole, completed - 1, first, whole=True)]
        sink = Sink(
            output,
            place.shown,
            place.write,
            epoch=place.epoch,
            first=first,
            alive=lambda: not self._cluster.closed,
            forget=self._followers.forget,
            stop=getattr(place, "stop", None),
        )
        for changes in past:
            sink.give(changes)
        self._pacing.follow(sink, completed)
        return sink

    @_in_turn
    def frontier(self, probe: str) -> Antichain:
        """The times that can still come to a `probe`, by its name: epochs, and inside a loop rounds."""
        self._check_open("ask a probe")
        probes = list(self.plan.probes)
        if probe not in probes:
            raise PlanError(
                "plan.probe_unknown",
                f"cannot ask the probe {probe!r}: there are: {listed(probes) or 'none'}",
                hint="put one into the plan: collection.probe(name)",
                probe=probe,
            )
        return self._cluster.frontier(probe)

    def _epoch(self, asked: int | None, what: str) -> int:
        last = self.epoch
        if last is None:
            raise TimeViolation(
                "time.not_complete",
                f"cannot {what}: no epoch is complete yet",
                hint="insert rows and commit() first",
            )
        if asked is None:
            return last
        if asked.__class__ is not int or asked < 0:
            raise TimeViolation(
                "time.epoch",
                f"cannot {what} as of epoch {show(asked)}: an epoch is a whole number from 0 on",
                hint=f"the last complete one is {last}; leave it out for that one",
                epoch=asked,
            )
        if asked > last:
            raise TimeViolation(
                "time.not_complete",
                f"cannot {what} as of epoch {asked!r}: the last complete one is {last}",
                hint="commit() returns when its epoch is complete",
                epoch=asked,
            )
        if asked <= last - self._history:
            raise TimeViolation(
                "time.compacted",
                f"cannot {what} as of epoch {asked}: only the last {self._history} of {last + 1} are kept",
                hint=f"run with a longer history: flow.run(history={last - asked + 1})",
                epoch=asked,
            )
        return asked

    # -- the run itself

    def status(self) -> dict[str, Any]:
        """Where the run stands: epochs, workers, checkpoints, and how large each output and each state is.

        ``epoch`` is the last complete one, as `epoch` of the run is, and ``next`` the number that the next commit gets;
        ``epoch`` of ``checkpoint`` is the last epoch that the checkpoint holds, and ``writing`` that of the checkpoint
        which is being written. None stands for no epoch.

        ``outputs`` has the `rows` and `bytes` of each output: how many changes are kept, at least as many as there are
        rows. ``states`` has the same of each state: of shared states, by their names, and of those that the run keeps
        for itself. Outputs that are kept in one place have the same figures. Sizes are left out while a worker
        recovers, or while another thread has its turn and waits.
        """
        self._mark.check("tell the status", self._owner)
        with deferred():
            return self._status()

    def _status(self) -> dict[str, Any]:
        states: dict[str, dict[str, Any]] = {}
        cluster = self._cluster
        common = {name for node in self.plan.nodes for name in node.operator.common_figures}
        if try_acquire(self._lock, TURN):
            try:
                for held in () if cluster.closed or not cluster.recovered else cluster.stats():
                    for name, sizes in held.items():
                        total = states.setdefault(name, {"rows": 0, "bytes": 0})
                        for what, size in sizes.items():
                            total[what] = size if what in common else total.get(what, 0) + size
            finally:
                self._lock.release()
        for node in self.plan.nodes:
            column = node.operator.time_column
            if column is not None and node.name in states:
                kind, figures = node.schemas[0].field(column).type, states[node.name]
                known = {what: figures[what] for what in common & figures.keys()}
                figures |= {what: t if t is None else as_time(t, kind) for what, t in known.items()}
        status = {**cluster.status(), "states": states}
        status["epoch"] = status["completed"] - 1 if status["completed"] else None
        ends = {name: status["checkpoint"][name] for name in ("epoch", "writing")}
        status["checkpoint"] |= {
            name: end - 1 if end and end > 0 else None for name, end in ends.items()
        }
        kept_in = {name: self.plan.arranged(node).name for name, node in self.plan.outputs.items()}
        status["outputs"] = {
            name: {figure: states[kept][figure] for figure in ("rows", "bytes")}
            for name, kept in kept_in.items()
            if kept in states
        }
        status["waiting_rows"] = {name: inlet.rows for name, inlet in self._inlets.items()}
        status["commit"] = None if self._last is None else self._last.status(self._cluster)
        status["sinks"] = self._followers.status(self.completed)
        status["closed"] = self._cluster.closed
        return status

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What has happened to the run, oldest first: workers lost, recovered, slow; checkpoints; changed numbers of
        workers. Each event has a `kind`, and `at`, its time."""
        self._mark.check("tell events", self._owner)
        if kind is not None and kind not in KINDS:
            close = get_close_matches(str(kind), KINDS, n=1)
            raise PlanError(
                "run.event_kind",
                f"cannot tell the events of kind {show(kind)}: the kinds are: {', '.join(KINDS)}",
                hint=f"did you mean {close[0]!r}?" if close else "leave it out for all of them",
            )
        return self._cluster.events.list(kind)

    def rounds(self, name: str, *, live: bool | None = None) -> Rounds:
        """What each round of the loop called `name` did in the last epochs: rows touched, messages, and time.

        The name is that of ``iterate(..., name="reach")`` or of `Dataflow.loop`; a loop without one is called
        ``loop-1`` and so on, as `explain` shows, and a loop inside another one ``outer/inner``. Kept are the last 100
        epochs in which the loop did anything, and of these no more than 20,000 rounds; a run that is resumed begins
        with none.

        With `live` = True, a terminal shows from now on what the loop does, in a line for each epoch; with False it no
        longer does.
        """
        self._mark.check(f"tell the rounds of {show(name)}", self._owner)
        around = self._loops_around(name)
        if live is not None:
            check_flag(live, "live")
            self._pacing.line.follow(name, on=live)
        return Rounds(name, around, self._cluster.rounds.of(name))

    @_in_turn
    def checkpoint(self) -> int:
        """Make a checkpoint now; return its number once the checkpoint is written."""
        self._check_outside("make a checkpoint")
        return self._cluster.checkpoint()

    @_in_turn
    def scale(self, workers: int) -> None:
        """Go on with another number of `workers`; return when they have taken over.

        Epochs go on until new workers are there. Then, between two epochs, keys move to them; a key whose owner stays
        the same does not move.
        """
        check_count(
            "workers",
            workers,
            attempt="scale to",
            hint="give the number of workers to go on with: scale(4)",
        )
        self._check_outside("scale")
        self._pacing.finish_released()
        self._cluster.scale(workers)

    def explain(self, *, rows: bool = False) -> str:
        """The plan, as text. With `rows`, also how many changes each state keeps, which is what the optimizer's choices
        save or cost."""
        check_flag(rows, "rows")
        if not rows:
            return explain(self.plan)
        states = self.status()["states"]
        return explain(self.plan, {name: figures["rows"] for name, figures in states.items()})

    def _repr_html_(self) -> str:
        status = self.status()
        summary = f"{html.escape(repr(self))}, {status['workers']} workers"
        return f"<p>{summary}</p>{to_svg(self.plan)}"

    def close(self) -> None:
        """End the run, after its sinks have written the complete epochs: sinks have half a minute for that. Epochs that
        were committed and not waited for may not be complete; with a checkpoint path they are in the log, and are done
        when the run is resumed."""
        try:
            if self._mark.is_ours:
                self._check_outside("close the run")
                with deferred():
                    self._close()
        except BaseException as error:
            if not self._ended and not isinstance(error, RiverrunError):
                self.close()  # interrupted before signals were put off
            raise

    def _close(self) -> None:
        """Take every step of closing, even where an earlier one fails (the clean-close law)."""
        with ExitStack() as ending:
            ending.callback(setattr, self, "_ended", True)
            ending.callback(self._cluster.close)
            ending.callback(self._finish_followers)
            ending.callback(self._serving.close)
            if self._cluster.frames is not None:
                self._cluster.frames.stop_streams()
            self._hand_out_last()

    def _hand_out_last(self) -> None:
        """Give sinks the complete epochs."""
        # Another thread may have its turn, and wait for an epoch that never comes: closing ends that wait too.
        self._hurried = True
        if try_acquire(self._lock, CLOSING if self._followers else 0):
            try:
                if self._followers and not self._cluster.closed:
                    with suppress(RiverrunError):
                        self._pacing.hand_out()
                if self._cluster.frames is not None and not self._cluster.closed:
                    self.rollback()
            finally:
                self._lock.release()
        self._hurried = False

    def _finish_followers(self) -> None:
        """Not in turn: a sink's function may use the run. After an interrupt, no sink is waited for any more."""
        self._followers.finish(0.0 if self._hurried else FINISH)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"closed: {self._cluster.closed}" if self._cluster.closed else f"epoch {self.epoch}"
        return f"<Run of {self.plan.name!r}: {state}>"

    def _inlet(self, name: Any, what: str) -> Inlet:
        attempt = f"{what} {show(name)}"
        self._mark.check(attempt, self._owner)
        self._check_open(attempt)
        if not isinstance(name, str) or name not in self._inlets:
            raise PlanError(
                "plan.input_unknown",
                f"cannot {what} {show(name)}: the inputs are: {listed(self._inlets) or 'none'}",
                hint="check the spelling, or declare it: flow.input(...). What is declared after flow.run() is in "
                "the next run",
                input=name,
            )
        return self._inlets[name]

    def _named(self, name: Any, what: str) -> Node:
        """The node whose rows are called `name`: an output, or a shared state."""
        self._mark.check(f"{what} {show(name)}", self._owner)
        if isinstance(name, str) and name in self._readable:
            return self._readable[name]
        hint = "check the spelling, or declare it: flow.output(name, collection). What is declared after flow.run() "
        hint += "is in the next run"
        if isinstance(name, str) and name in self._inlets:
            hint = "it is an input, whose rows are not kept: declare an output, flow.output(name, collection)"
        elif isinstance(name, str) and name in self._states_in_loops:
            hint = "it is a state in a loop: declare an output of what leaves the loop, flow.output(name, "
            hint += "loop.leave(state.entries()))"
        states = f"; the states are: {listed(self.plan.states)}" if self.plan.states else ""
        raise PlanError(
            "plan.output_unknown",
            f"cannot {what} {show(name)}: the outputs are: {listed(self.plan.outputs) or 'none'}{states}",
            hint=hint,
            output=name,
        )

    def _loops_around(self, name: Any) -> tuple[str, ...]:
        """The names of the loops around a loop."""
        if isinstance(name, str) and name in self._loops:
            return self._loops[name]
        raise PlanError(
            "plan.loop_unknown",
            f"cannot tell the rounds of {show(name)}: the loops are: {listed(self._loops) or 'none'}",
            hint='a loop has the name that it was given, iterate(..., name="reach"), or a number, which explain() '
            "shows",
            loop=name,
        )

    @property
    def _states_in_loops(self) -> set[str]:
        states = (node.operator for node in self.plan.nodes if node.operator.role is Role.STATE)
        return {state.public_name for state in states}

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, "run", name, _ELSEWHERE)

    def _check_outside(self, attempt: str) -> None:
        """Refuse a call from one of the run's own functions, which would change the run in the middle of an epoch.

        A thread that does a step has the lock. So if this thread gets the lock while a step is under way, then this
        thread is doing the step.
        """
        if not self._cluster.is_stepping or not self._lock.acquire(blocking=False):
            return
        try:
            inside = self._cluster.is_stepping
        finally:
            self._lock.release()
        if inside:
            raise RiverrunError(
                "run.reentrant",
                f"cannot {attempt} from a function of the run of {self.plan.name!r}: the function is part of an epoch "
                "that is not complete",
                hint="call it where the rows come from; or follow an output with run.for_each_epoch(...), whose "
                "function is called after the epoch",
            )

    def _check_open(self, what: str) -> None:
        if self._cluster.closed:
            raise RiverrunError(
                "run.closed",
                f"cannot {what}: the run of {self.plan.name!r} is closed: {self._cluster.closed}",
                hint="start another one with flow.run()",
            )


@dataclass(slots=True)
class _Committing:
    """A call of `commit` or `Commit.wait`."""

    before: int
    """How many epochs were complete when the call began."""
    epoch: int | None = None
    """The epoch that is waited for; None as long as no epoch was made."""
    rows: int = 0

    def others(self, cluster: Cluster) -> list[int]:
        """The other epochs that were under way when the call was interrupted, and were refused with its own epoch."""
        return [] if self.epoch is None else cluster.refused_by_interrupt(self.before, self.epoch)

    def status(self, cluster: Cluster) -> dict[str, Any]:
        outcome = "gathered" if self.epoch is None else cluster.standing(self.epoch).value
        others = self.others(cluster)
        return {"epoch": self.epoch, "rows": self.rows, "outcome": outcome, "others": others}


def _count(rows: int) -> str:
    return "1 row is" if rows == 1 else f"{rows:,} rows are"


def _place(shown: str) -> str:
    return shown if "://" in shown else str(Path(shown).resolve())


def _are_nested(one: str, other: str) -> bool:
    """Whether one of two places is inside the other."""
    one, other = (f"{each.rstrip('/')}/" for each in (one, other))
    return one.startswith(other) or other.startswith(one)


def _owned(rows: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, copied where its memory belongs to the caller, who may change the frame or array afterwards."""
    if isinstance(rows, list | tuple | pl.DataFrame | pl.LazyFrame) or not batch.num_rows:
        return batch
    if batch.num_columns <= NARROW:  # costs half as much
        return pa.concat_batches([batch, batch.slice(0, 0)])
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
