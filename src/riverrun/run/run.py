"""A run: a dataflow that is alive. Rows go in, epochs are committed, results are read.

Users get a `Run` from ``flow.run()``. Threads may share a run; their calls take turns (`turn`). A `Run` has the verbs
of users, and a part for each thing that they are about: `inputs` gather rows, `commits` makes epochs of them, `pacing`
says which epoch is next, `history` reads, `sinks` write, `serve` answers other processes, and `status` describes. All
of them call the cluster through one seam (`runtime.carried`). Laws:

- **Whole epochs.** Rows are gathered until ``commit``, which makes one epoch of them, whole or not at all. When
  something in the epoch fails, the epoch is refused, the run is as before the commit, and goes on.
- **As from scratch.** ``read`` gives a result as of a complete epoch: the rows that the program, run from scratch over
  all rows committed up to that epoch, would give.
- **Logged first.** With ``checkpoint=path``, an epoch is in the log at the path before ``commit`` returns. A run that
  is started on the same path later goes on after the last logged epoch.
- **Interrupts between steps.** Ctrl-C, and whatever else the handler of a signal raises, arrives where nothing is half
  done (`interrupts`), and the run goes on. In a forked process every call is refused (`forks`).
- **Settled interrupt.** When an interrupt leaves ``commit`` or ``Commit.wait``, a note of the exception says what
  became of the rows, and so does ``status()["commit"]`` (`commits`).
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
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from riverrun.attributes import formerly, missing_attribute
from riverrun.engine.events import KINDS
from riverrun.errors import PlanError, RiverrunError, SchemaError
from riverrun.interrupts import deferred
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
from riverrun.run.commits import Commit, Commits
from riverrun.run.history import History
from riverrun.run.inputs import RunInput
from riverrun.run.options import (
    RunOptions,
    check_flag,
    check_timeout,
    check_workers,
    cluster_request,
    identity_of,
)
from riverrun.run.pacing import Pacing
from riverrun.run.result import Result
from riverrun.run.rounds import Rounds
from riverrun.run.serve import Serving
from riverrun.run.sinks.delta import DeltaTable
from riverrun.run.sinks.function import Function
from riverrun.run.sinks.making import SinkMaker
from riverrun.run.sinks.parquet import ParquetDirectory
from riverrun.run.sinks.queue import FINISH, EpochChanges, Sink, SinkQueues
from riverrun.run.status import described
from riverrun.run.turn import Turn, in_turn, whole
from riverrun.runtime.carried import CarriedRun
from riverrun.runtime.carriers import carrier_of
from riverrun.runtime.frames import StreamRequest
from riverrun.runtime.machine import freeze
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
LAST_TURN = (
    5.0  # seconds that closing waits for its turn, where sinks are to be given the last epochs
)
TURN = 1.0  # seconds that `status` waits for its turn


class Run:
    """A dataflow that is alive. Make one with ``flow.run()``."""

    def __init__(self, plan: Plan, options: RunOptions) -> None:
        freeze()  # before there is anything of this run
        carrier = self._carrier = carrier_of(options.on)
        if options.checkpoint is None:
            plan = narrowed(plan)
        request = cluster_request(plan, options, carrier)
        make_ready(kernels_of(plan))
        self.plan = plan
        self._turn = Turn(f"the run of {plan.name!r}")
        self._ended = False
        self._hurried = False  # whether closing was interrupted
        self._inputs = {name: RunInput(node, plan) for name, node in plan.inputs.items()}
        self._readable = plan.readable
        self._loops = loops_of(plan)
        self._sinks = SinkQueues()
        self._identity = identity_of(request.durability.get("checkpoint"))
        self._cluster: CarriedRun
        started = False
        try:
            with deferred():
                self._cluster = cluster = carrier.start(request)
                self._pacing = Pacing(plan.name, cluster, self._sinks, self.changes, self._wait)
                self._commits = Commits(
                    cluster, self._inputs, self._sinks, self._pacing, self._turn,
                    self._check_open, self._check_outside,
                )  # fmt: skip
                self._sink_maker = SinkMaker(
                    cluster, self._sinks, self._pacing, self._turn,
                    self.read, self.changes, self._check_open,
                )  # fmt: skip
                self._serving = Serving(self, self._sink_maker.make)
                self._history = History(cluster, options.history, self._serving.lend)
                started = True
                cluster.serve(self._serving)
        except BaseException:
            # The caller gets the error and not the run, so nobody else can close the run.
            if started:
                self.close()
            raise

    # -- rows in

    def insert(self, name: str, rows: Any) -> None:
        """Add `rows` to the input called `name`: a DataFrame of Spark, Arrow, pandas, Polars, dicts or tuples."""
        self._put(name, rows, "insert into")

    def delete(self, name: str, rows: Any) -> None:
        """Take `rows` out of the input called `name`, once each; from an input with a key, the rows with these keys."""
        self._put(name, rows, "delete from")

    def upsert(self, name: str, rows: Any) -> None:
        """Put `rows` in place of those with the same key, in the input called `name`."""
        self._check_keyed(name)
        self._put(name, rows, "upsert into")

    def _put(self, name: str, rows: Any, what: str) -> None:
        """Add rows to an input. Rows of a DataFrame of Spark are handed in by Spark's own tasks where the run is on
        Spark, and come through this process elsewhere."""
        run_input, frames = self._input(name, what), self._cluster.frames
        if not is_spark_frame(rows):
            run_input.add(rows, what)
        elif frames is None:
            run_input.add(rows.toArrow(), what)
        else:
            with deferred():
                run_input.upload(frames, rows, what, self._turn)

    def _check_keyed(self, name: str) -> None:
        if not self._input(name, "upsert into").key:
            raise SchemaError(
                "schema.no_key",
                f"cannot upsert into {name!r}: it was declared without a key",
                hint=f'declare it with one: flow.input({name!r}, ..., key="id")',
                input=name,
            )

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
        run_input = self._input(name, f"{mode} into")
        frames = self._cluster.frames
        if frames is None:
            raise PlanError(
                "spark.stream",
                f"cannot stream into {name!r}: streams are Spark's, and the run is not on Spark",
                hint="run on Spark: flow.run(on=spark); elsewhere insert the rows, and commit",
            )
        if mode == "upsert":
            self._check_keyed(name)
        target = run_input.target(f"{mode} {'from' if mode == 'delete' else 'into'}")
        request = StreamRequest(name, stream or name, mode, target, checkpoint, trigger)
        with deferred():
            return frames.stream(frame, request, self._wait)

    @property
    def spark(self) -> Any:
        """The Spark session that the run is on; None where it is not on Spark."""
        return None if self._cluster.frames is None else self._cluster.frames.session

    @whole
    def await_termination(self, timeout: float | None = None) -> bool:
        """Return True when the run is over, or False after `timeout` seconds; raise the error that the run died of."""
        if timeout is not None:
            check_timeout(
                timeout,
                "await the end of the run with",
                hint="leave it out to wait for as long as it takes",
            )
        return self._cluster.await_end(timeout)

    @whole
    def commit(self, wait: bool = True) -> Commit:
        """Make an epoch of the rows gathered since the last commit; return when the results are complete.

        With ``wait=False``, return as soon as the rows are accepted (and logged, where there is a
        checkpoint path). Where a sink is far behind, the call first waits for the sink.
        """
        check_flag(wait, "wait")
        return self._commits.commit(wait)

    def _wait(self, epoch: int) -> None:
        self._commits.complete(epoch)

    @in_turn
    def rollback(self) -> None:
        """Forget the rows gathered since the last commit."""
        dropped = [parcel for run_input in self._inputs.values() for parcel in run_input.clear()]
        if self._cluster.frames is not None and dropped:
            self._cluster.frames.let_go(dropped)

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
    @in_turn
    def read(self, name: str, epoch: int | None = None) -> Result:
        """The output or state called `name` as of an `epoch` within ``history``, by default the last complete epoch.

        The rows of a state are those of its ``entries()``.
        """
        self._named(name, "read")
        self._check_open("read")
        return self._history.read(name, epoch)

    @in_turn
    def changes(self, name: str, epoch: int | None = None) -> Result:
        """The changes of an `epoch`, by default the last complete one, to the output or state called `name`: its rows
        that came or went, with a column `diff`."""
        self._named(name, "tell the changes of")
        self._check_open("tell changes")
        return self._history.changes(name, epoch)

    @formerly(output="run.schema(name)")
    def schema(self, name: str) -> pa.Schema:
        """The columns of the output or state called `name`, as results have them."""
        return shown_schema(self._named(name, "describe").schemas[0])

    # -- results that go on by themselves

    @formerly(output="run.for_each_epoch(name, function)")
    def for_each_epoch(
        self,
        name: str,
        function: Callable[[EpochChanges, int], object],
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
        return self._sink_maker.make(name, Function(function, self.plan.name, name), start)

    @formerly(output="run.write_parquet(name, path)")
    def write_parquet(self, name: str, path: str | Path) -> Sink:
        """Keep the changes of the output or state called `name` at `path`, a directory or a URL: a Parquet file for
        each epoch that has any.

        Files have the columns of the rows, `diff` and `epoch`. The sum of the diffs up to an epoch is the result as
        of that epoch. A resumed run goes on where the files end, and writes the missing changes.
        """
        schema = shown_schema(self._named(name, "write").schemas[0])
        place = ParquetDirectory(path, self.plan.name, name, schema, self._identity)
        return self._sink_maker.make(name, place)

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
        return self._sink_maker.make(name, table)

    @formerly(probe="run.frontier(name)")
    @in_turn
    def frontier(self, name: str) -> Antichain:
        """The times that can still come to the probe called `name`: epochs, and inside a loop rounds."""
        self._check_open("ask a probe")
        probes = list(self.plan.probes)
        if name not in probes:
            raise PlanError(
                "plan.probe_unknown",
                f"cannot ask the probe {name!r}: there are: {listed(probes) or 'none'}",
                hint="put one into the plan: collection.probe(name)",
                probe=name,
            )
        return self._cluster.frontier(name)

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
        self._turn.check("tell the status")
        with deferred():
            return self._status()

    def _status(self) -> dict[str, Any]:
        cluster, stats = self._cluster, list[Mapping[str, Any]]()
        with self._turn.within(TURN) as is_mine:
            if is_mine and not cluster.closed and cluster.recovered:
                stats += cluster.stats()
        return {
            **described(self.plan, cluster.status(), stats),
            "waiting_rows": {name: run_input.rows for name, run_input in self._inputs.items()},
            "commit": self._commits.status(),
            "sinks": self._sinks.status(self.completed),
            "closed": cluster.closed,
        }

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What has happened to the run, oldest first: workers lost, recovered, slow; checkpoints; changed numbers of
        workers. Each event has a `kind`, and `at`, its time."""
        self._turn.check("tell events")
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
        self._turn.check(f"tell the rounds of {show(name)}")
        around = self._loops_around(name)
        if live is not None:
            check_flag(live, "live")
            self._pacing.line.follow(name, on=live)
        return Rounds(name, around, self._cluster.rounds.of(name))

    @in_turn
    def checkpoint(self) -> int:
        """Make a checkpoint now; return its number once the checkpoint is written."""
        self._check_outside("make a checkpoint")
        return self._cluster.checkpoint()

    @in_turn
    def scale(self, workers: int) -> None:
        """Go on with another number of `workers`; return when they have taken over.

        Epochs go on until new workers are there. Then, between two epochs, keys move to them; a key whose owner stays
        the same does not move.
        """
        hint = "give the number of workers to go on with: scale(4)"
        check_workers(workers, self._carrier, "scale to", hint)
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
            if self._turn.is_ours:
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
            ending.callback(self._finish_sinks)
            ending.callback(self._serving.close)
            if self._cluster.frames is not None:
                self._cluster.frames.stop_streams()
            self._hand_out_last()

    def _hand_out_last(self) -> None:
        """Give sinks the complete epochs."""
        # Another thread may have its turn, and wait for an epoch that never comes: closing ends that wait too.
        self._hurried = True
        with self._turn.within(LAST_TURN if self._sinks else 0) as is_mine:
            if is_mine and self._sinks and not self._cluster.closed:
                with suppress(RiverrunError):
                    self._pacing.hand_out()
            if is_mine and self._cluster.frames is not None and not self._cluster.closed:
                self.rollback()
        self._hurried = False

    def _finish_sinks(self) -> None:
        """Not in turn: a sink's function may use the run. After an interrupt, no sink is waited for any more."""
        self._sinks.finish(0.0 if self._hurried else FINISH)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"closed: {self._cluster.closed}" if self._cluster.closed else f"epoch {self.epoch}"
        return f"<Run of {self.plan.name!r}: {state}>"

    def _input(self, name: Any, what: str) -> RunInput:
        attempt = f"{what} {show(name)}"
        self._turn.check(attempt)
        self._check_open(attempt)
        if not isinstance(name, str) or name not in self._inputs:
            raise PlanError(
                "plan.input_unknown",
                f"cannot {what} {show(name)}: the inputs are: {listed(self._inputs) or 'none'}",
                hint="check the spelling, or declare it: flow.input(...). What is declared after flow.run() is in "
                "the next run",
                input=name,
            )
        return self._inputs[name]

    def _named(self, name: Any, what: str) -> Node:
        """The node whose rows are called `name`: an output, or a shared state."""
        self._turn.check(f"{what} {show(name)}")
        if isinstance(name, str) and name in self._readable:
            return self._readable[name]
        hint = "check the spelling, or declare it: flow.output(name, collection). What is declared after flow.run() "
        hint += "is in the next run"
        if isinstance(name, str) and name in self._inputs:
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

        A thread that does a step has the turn. So if this thread gets the turn while a step is under way, then this
        thread is doing the step.
        """
        if not self._cluster.is_stepping:
            return
        with self._turn.within(0) as is_mine:
            inside = is_mine and self._cluster.is_stepping
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
