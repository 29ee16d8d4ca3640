"""A run: a dataflow that is alive. Rows go in, epochs are committed, results are read.

Threads may share a run; their calls take turns.

Laws:

1. Rows are gathered until ``commit``; they become one epoch, whole or not at all. When something in it
   fails, the epoch is refused, the run is as it was before, and goes on.
2. ``read`` gives a result as of an epoch that is complete: what the program, run from scratch over all
   rows committed up to that epoch, would give.
3. With ``checkpoint=path``, an epoch is in the log there before ``commit`` returns, and a run that is
   started on the same path later goes on after the last of these.

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

import gc
import html
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cache, wraps
from pathlib import Path
from threading import RLock
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.engine.drawing import explain, to_svg
from riverrun.engine.instance import Instance
from riverrun.engine.operators.arrange import Output
from riverrun.engine.operators.linear import CLOCK, Input
from riverrun.engine.operators.upsert import DELETED, SEQUENCE
from riverrun.engine.plan import Node, Plan, Port
from riverrun.engine.transport import EVERY, LocalCluster
from riverrun.errors import PlanError, RiverrunError, SchemaError, TimeViolation
from riverrun.progress import Antichain
from riverrun.run.progress import Progress
from riverrun.run.result import Result
from riverrun.run.rows import as_table

P = ParamSpec("P")
T = TypeVar("T")


def _in_turn(method: Callable[Concatenate[Run, P], T]) -> Callable[Concatenate[Run, P], T]:
    """Threads that share a run take turns."""

    @wraps(method)
    def locked(self: Run, /, *arguments: P.args, **named: P.kwargs) -> T:
        with self._lock:
            return method(self, *arguments, **named)

    return locked


class Commit:
    """An epoch that was committed."""

    __slots__ = ("_run", "epoch")

    def __init__(self, run: Run, epoch: int) -> None:
        self._run = run
        self.epoch = epoch

    @property
    def done(self) -> bool:
        """Whether its results are complete."""
        return self._run.completed > self.epoch

    def wait(self) -> Self:
        """Return when its results are complete; raise what it failed with, if it did."""
        self._run._wait(self.epoch)
        return self

    def __repr__(self) -> str:
        return f"<Commit of epoch {self.epoch}: {'done' if self.done else 'under way'}>"


class _Inlet:
    """An input, and the rows that were given to it since the last commit."""

    def __init__(self, node: Node, plan: Plan) -> None:
        operator = node.operator
        assert isinstance(operator, Input)
        self.name = operator.name
        self.key = operator.key
        self.schema = node.schemas[0]
        if self.key:  # commands may have nulls where rows may not
            ((moved, _),) = plan.consumers[Port(node.number)]
            ((kept, _),) = plan.consumers[Port(moved.number)]
            self.schema = kept.schemas[0]
        self._pieces: list[tuple[pa.RecordBatch, int]] = []
        self._sequence = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch, diff: int) -> None:
        if batch.num_rows:
            self._pieces.append((batch, diff))
            self.rows += batch.num_rows

    def take(self) -> pa.RecordBatch | None:
        """All rows since the last commit, with `diff` as their last column."""
        if not self._pieces:
            return None
        pieces, self._pieces, self.rows = self._pieces, [], 0
        batches = []
        for batch, diff in pieces:
            columns, names = list(batch.columns), list(batch.schema.names)
            if self.key:
                count = batch.num_rows
                columns.append(pa.array(np.arange(self._sequence, self._sequence + count)))
                columns.append(pa.repeat(diff < 0, count))
                names += [SEQUENCE, DELETED]
                self._sequence += count
                diff = 1
            columns.append(pa.array(np.full(batch.num_rows, diff)))
            batches.append(pa.record_batch(columns, names=[*names, "diff"]))
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    def drop(self) -> None:
        self._pieces, self.rows = [], 0


class Run:
    """A dataflow that is alive in this process. Make one with ``flow.run()``."""

    def __init__(
        self,
        plan: Plan,
        *,
        workers: int = 1,
        checkpoint: str | Path | None = None,
        every: int | timedelta | None = EVERY,
        history: int = 1,
        skip_failing: bool = False,
        seed: int | None = None,
    ) -> None:
        _check_count("workers", workers)
        _check_count("history", history)
        _check_every(every)
        self.plan = plan
        self._lock = RLock()
        self._history = history
        self._inlets = {
            node.operator.name: _Inlet(node, plan)
            for node in plan.nodes
            if isinstance(node.operator, Input)
        }
        self._inlets.pop(CLOCK, None)
        self._outputs = {
            node.operator.name: node for node in plan.nodes if isinstance(node.operator, Output)
        }
        self._progress = Progress(plan.name, self._touched)
        self._made: dict[int, Instance] = {}
        self._cluster = LocalCluster(
            self._make,
            workers,
            checkpoint=checkpoint,
            every=every,
            fingerprint=plan.fingerprint,
            skip_failing=skip_failing,
            seed=seed,
        )
        _freeze()

    def _make(
        self, index: int, bounds: tuple[int, ...], epoch: int, states: Mapping[str, Any] | None
    ) -> Instance:
        made = Instance(self.plan, index, bounds, epoch, states, history=self._history)
        self._made[index] = made
        for gone in [other for other in self._made if other >= len(bounds) - 1]:
            del self._made[gone]
        return made

    def _touched(self) -> int:
        """How many changes the present execution has made; asked for from another thread."""
        return sum(instance.touched for instance in list(self._made.values()))

    # -- rows in

    @_in_turn
    def insert(self, name: str, rows: Any) -> None:
        """Add rows to an input: Arrow, pandas, Polars, dicts or tuples."""
        inlet = self._inlet(name, "insert into")
        inlet.add(_taken(rows, inlet.schema, f"insert into {name!r}"), 1)

    @_in_turn
    def delete(self, name: str, rows: Any) -> None:
        """Take rows out again, once each; of an input with a key, the rows with these keys."""
        inlet = self._inlet(name, "delete from")
        attempt = f"delete from {name!r}"
        if isinstance(rows, Iterator):
            rows = list(rows)
        if not inlet.key:
            inlet.add(_taken(rows, inlet.schema, attempt), -1)
            return
        keys = pa.schema([inlet.schema.field(column) for column in inlet.key])
        try:
            given = _taken(_as_keys(rows, inlet.key), keys, attempt)
        except SchemaError as error:
            try:
                given = _taken(rows, inlet.schema, attempt)  # whole rows will do
            except SchemaError:
                raise error from None
        columns = [
            given.column(field.name)
            if field.name in inlet.key
            else pa.nulls(given.num_rows, _wide(field.type))
            for field in inlet.schema
        ]
        inlet.add(pa.record_batch(columns, names=inlet.schema.names), -1)

    @_in_turn
    def upsert(self, name: str, rows: Any) -> None:
        """Put rows in place of those with the same key."""
        inlet = self._inlet(name, "upsert into")
        if not inlet.key:
            raise SchemaError(
                "schema.no_key",
                f"cannot upsert into {name!r}: it was declared without a key",
                hint=f'declare it with one: flow.input({name!r}, ..., key="id")',
                input=name,
            )
        inlet.add(_taken(rows, inlet.schema, f"upsert into {name!r}"), 1)

    @_in_turn
    def commit(self, wait: bool = True) -> Commit:
        """Make an epoch of the rows given since the last one; return when its results are complete.

        With ``wait=False``, return as soon as the rows are accepted (and logged, where there is a
        checkpoint path).
        """
        self._check_open("commit")
        inputs = {}
        for name, inlet in self._inlets.items():
            batch = inlet.take()
            if batch is not None:
                inputs[name] = batch
        commit = Commit(self, self._cluster.submit(inputs))
        if wait:
            rows = sum(batch.num_rows for batch in inputs.values())
            self._wait(commit.epoch, rows)
        return commit

    @_in_turn
    def rollback(self) -> None:
        """Forget the rows given since the last commit."""
        for inlet in self._inlets.values():
            inlet.drop()

    @_in_turn
    def _wait(self, epoch: int, rows: int = 0) -> None:
        with self._progress.watching(epoch, rows):
            self._cluster.wait(epoch)

    # -- results out

    @property
    def epoch(self) -> int | None:
        """The last epoch that is complete; None before the first."""
        return self._cluster.completed - 1 if self._cluster.completed else None

    @property
    def completed(self) -> int:
        """How many epochs are complete."""
        return self._cluster.completed

    @_in_turn
    def read(self, name: str, as_of: int | None = None) -> Result:
        """A result as of the last complete epoch, or of an earlier one within ``history``."""
        node = self._output(name, "read")
        self._check_open("read")
        epoch = self._epoch(as_of, f"read {name!r}")
        views = [instance.outputs[name].view() for instance in self._instances()]
        return Result.of_views(name, node.schemas[0], views, epoch)

    @_in_turn
    def changes(self, name: str, epoch: int | None = None) -> Result:
        """What an epoch changed in a result, by default the last one: rows with a column `diff`."""
        node = self._output(name, "tell the changes of")
        self._check_open("tell changes")
        at = self._epoch(epoch, f"tell the changes of {name!r}")
        batches = [
            batch for instance in self._instances() for batch in instance.outputs[name].changes(at)
        ]
        return Result.of_changes(name, node.schemas[0], batches, at)

    @_in_turn
    def frontier(self, probe: str) -> Antichain:
        """The times that can still come to a probe: epochs, and inside a loop rounds."""
        self._check_open("ask a probe")
        found = Antichain()
        for instance in self._instances():
            if probe not in instance.probes:
                raise PlanError(
                    "plan.probe_unknown",
                    f"cannot ask the probe {probe!r}: there are: {', '.join(instance.probes) or 'none'}",
                    hint="put one into the plan: collection.probe(name)",
                    probe=probe,
                )
            found = found.meet(instance.frontier(probe))
        return found

    def _instances(self) -> list[Instance]:
        return [each for each in self._cluster.instances if isinstance(each, Instance)]

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
        if asked.__class__ is not int or not 0 <= asked <= last:
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

    @_in_turn
    def status(self) -> dict[str, Any]:
        """Where the run stands: epochs, workers, checkpoints, and how large each state is."""
        status = dict(self._cluster.status())
        states: dict[str, dict[str, int]] = {}
        for instance in self._instances():
            for name, sizes in instance.stats().items():
                total = states.setdefault(name, {"rows": 0, "bytes": 0})
                for what, size in sizes.items():
                    total[what] += size
        status["states"] = states
        status["waiting_rows"] = {name: inlet.rows for name, inlet in self._inlets.items()}
        status["closed"] = self._cluster.closed
        return status

    @_in_turn
    def checkpoint(self) -> int:
        """Make a checkpoint now; return its number when it is whole."""
        return self._cluster.checkpoint()

    @_in_turn
    def scale(self, workers: int) -> None:
        """Go on with another number of workers."""
        _check_count("workers", workers)
        self._cluster.scale(workers)

    def explain(self) -> str:
        """The plan, as text."""
        return explain(self.plan)

    def _repr_html_(self) -> str:
        status = self.status()
        told = f"{html.escape(repr(self))}, {status['workers']} workers"
        return f"<p>{told}</p>{to_svg(self.plan)}"

    @_in_turn
    def close(self) -> None:
        """End the run. Epochs that were committed and not waited for may not be complete; with a checkpoint path
        they are in the log, and done when it is resumed."""
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"closed: {self._cluster.closed}" if self._cluster.closed else f"epoch {self.epoch}"
        return f"<Run of {self.plan.name!r}: {state}>"

    def _inlet(self, name: str, what: str) -> _Inlet:
        self._check_open(f"{what} {name!r}")
        if name not in self._inlets:
            raise PlanError(
                "plan.input_unknown",
                f"cannot {what} {name!r}: the inputs are: {', '.join(self._inlets) or 'none'}",
                hint="check the spelling, or declare it: flow.input(...)",
                input=name,
            )
        return self._inlets[name]

    def _output(self, name: str, what: str) -> Node:
        if name not in self._outputs:
            raise PlanError(
                "plan.output_unknown",
                f"cannot {what} {name!r}: the outputs are: {', '.join(self._outputs) or 'none'}",
                hint="check the spelling, or declare it: flow.output(name, collection)",
                output=name,
            )
        return self._outputs[name]

    def _check_open(self, what: str) -> None:
        if self._cluster.closed:
            raise RiverrunError(
                "run.closed",
                f"cannot {what}: the run of {self.plan.name!r} is closed: {self._cluster.closed}",
                hint="start another one with flow.run()",
            )


def _taken(rows: Any, schema: pa.Schema, attempt: str) -> pa.RecordBatch:
    """Rows that are ours: whoever gave them may go on to change the frame or array they lay in."""
    batch = as_table(rows, schema, attempt)
    if isinstance(rows, list | tuple | pl.DataFrame | pl.LazyFrame) or not batch.num_rows:
        return batch
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        return reader.read_next_batch()


def _as_keys(rows: Any, key: tuple[str, ...]) -> Any:
    """Bare values are keys, where the key is one column."""
    if len(key) == 1 and isinstance(rows, list) and rows and not isinstance(rows[0], dict | tuple):
        return [(value,) if not hasattr(value, "__dict__") else value for value in rows]
    return rows


@cache
def _freeze() -> None:
    """Have the garbage collector leave alone what is loaded by now: walking all of it takes 40 ms, at any moment."""
    gc.collect()
    gc.freeze()


def _wide(kind: pa.DataType) -> pa.DataType:
    from riverrun.state import Schema

    return Schema.of({}, {"": kind}).canonical[0]


def _check_every(given: object) -> None:
    fits = given is None
    if isinstance(given, int) and not isinstance(given, bool):
        fits = given >= 1
    elif isinstance(given, timedelta):
        fits = given > timedelta(0)
    if not fits:
        raise PlanError(
            "plan.run",
            f"cannot run with every={given!r}: that is a number of epochs from 1 on, or a timedelta",
            hint="for instance every=100 or every=timedelta(seconds=30); None for checkpoints on demand only",
        )


def _check_count(what: str, given: object) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise PlanError(
            "plan.run",
            f"cannot run with {what}={given!r}: that is a whole number from 1 on",
            hint=f"leave it out, or give {what}=1",
        )
