"""A dataflow: inputs, what is made of them, and outputs; then it runs.

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("social")
>>> edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
>>> flow.output("degrees", edges.group_by(node="src").count())
>>> flow
<Dataflow 'social': inputs edges; outputs degrees>
>>> with flow.run() as run:
...     run.insert("edges", [(1, 2), (1, 3), (2, 3)])
...     run.commit()
...     run.read("degrees").rows()
<Commit of epoch 0: done>
[(1, 2), (2, 1)]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from riverrun.engine.coordinator.membership import SILENCE, Policy
from riverrun.errors import PlanError
from riverrun.frontends.arguments import not_a_collection
from riverrun.frontends.collections.collection import Collection, clock
from riverrun.frontends.shared.state import INT64, SWEEP, State, add_state
from riverrun.frontends.timely import Loop, Vertex, add_vertex
from riverrun.operators.arrange import Output
from riverrun.operators.checked import CheckRows
from riverrun.operators.sources import CLOCK, Input
from riverrun.operators.upsert import Upsert
from riverrun.plan.explain import explain
from riverrun.plan.picture.dot import to_dot
from riverrun.plan.picture.svg import to_svg
from riverrun.plan.plan import Plan, PlanBuilder, check_name
from riverrun.rows.column_names import checked_columns
from riverrun.rows.commands import RESERVED, commands_schema
from riverrun.rows.schemas import as_schema
from riverrun.run import Run
from riverrun.run.options import check_flag
from riverrun.runtime.cluster import EVERY
from riverrun.runtime.health.signs import Balance


class Dataflow:
    """A program over changing data, while it is being written; `name` tells it from others in a session of Spark."""

    def __init__(self, name: str = "dataflow") -> None:
        check_name(name)
        self.name = name
        self._builder = PlanBuilder(name)
        self._inputs: dict[str, Collection] = {}
        self._outputs: dict[str, Collection] = {}
        self._plan: tuple[int, Plan] | None = None

    def input(
        self,
        name: str,
        schema: Any,
        key: str | Sequence[str] | None = None,
        *,
        checked: bool = False,
    ) -> Collection:
        """Declare rows that come from outside, under the `name` by which a run is given them.

        `schema` is a mapping of names to types, text such as "src long, dst long", an Arrow, Polars or Spark
        schema, a class with annotations, or a frame that looks like the rows. With a `key`, rows replace those with the
        same key (`Run.upsert`) and are deleted by it. With ``checked=True``, an epoch that deletes a row
        that is not there is refused; the rows are kept once more for that.
        """
        columns = as_schema(schema, f"declare input {name!r}")
        if not columns.names:
            raise PlanError(
                "plan.input",
                f"cannot declare input {name!r} without columns: its rows could not be told apart, nor counted",
                hint='declare at least one column: {"id": pl.Int64}',
            )
        check_flag(checked, "checked")
        check_name(name)
        if name == CLOCK:
            raise PlanError(
                "plan.name", f"cannot name an input {CLOCK!r}", hint="that name is ours"
            )
        if key is None:
            given = Collection(
                self._builder, self._builder.add(Input(name), [], [columns], name=name)
            )
            if checked:
                whole = tuple(columns.names)
                moved = given._exchanged(whole)
                given = moved._add(CheckRows(name), [moved], columns, f"{name}:rows", whole)
            self._inputs[name] = given
            return given
        if checked:
            raise PlanError(
                "plan.input",
                f"cannot check input {name!r}, which has a key: deleting a key that is not there changes nothing",
                hint="leave out checked=True, or the key",
            )
        listed = checked_columns(key, columns.names, f"key input {name!r}")
        columns = pa.schema(
            [field.with_nullable(field.nullable and field.name not in listed) for field in columns]
        )
        for column in RESERVED:
            if column in columns.names:
                raise PlanError(
                    "plan.name",
                    f"cannot key input {name!r}: a column is called {column!r}, which is ours in keyed inputs",
                    hint="rename the column",
                    column=column,
                )
        commands = commands_schema(columns)
        port = self._builder.add(Input(name, listed), [], [commands], name=name)
        moved = Collection(self._builder, port)._exchanged(listed)
        kept = moved._add(Upsert(listed), [moved], columns, f"{name}:rows", listed)
        self._inputs[name] = kept
        return kept

    def output(self, name: str, collection: Collection) -> None:
        """Declare a result: a `collection` that can be read by its `name` while the dataflow runs."""
        if not isinstance(collection, Collection):
            raise not_a_collection("plan.output", f"output {name!r}", collection)
        if collection._builder is not self._builder:
            raise PlanError(
                "plan.two_flows",
                f"cannot output {name!r}: {collection!r} belongs to another dataflow",
                hint="build it on this one",
            )
        if collection.scope is not self._builder.root:
            raise PlanError(
                "plan.scope",
                f"cannot output {name!r}: it belongs to the loop {collection.scope.path.rstrip('/')!r}",
                hint="output what iterate gives",
            )
        check_name(name)
        if name in self._outputs:
            raise PlanError(
                "plan.name_taken",
                f"cannot output {name!r} twice: a name is one output",
                hint="give another name",
                name=name,
            )
        arranged = collection
        if collection._keyed is None:
            arranged = collection._arranged(tuple(collection.columns), name=f"{name}:result")
        arranged._add(Output(name), [arranged], collection.schema, f"{name}:output")
        self._outputs[name] = collection

    def vertex(
        self,
        make: Callable[[], Vertex],
        inputs: Mapping[str, Collection],
        outputs: Any,
        *,
        routes: Mapping[str, Any] | None = None,
        tables: Mapping[str, tuple[Any, Any]] | None = None,
        name: str | None = None,
    ) -> Any:
        """Add an operator of one's own, a class of `Vertex`, as a step called `name`.

        `make` is a class of vertices, one of which is made on each worker. `inputs` are collections by the names of
        its ports. `outputs` is the schema of
        its output, or several by name. `routes` says how the rows of an input travel: a column or
        columns (equal values meet on one worker), ``rr.TO_ALL``, ``rr.TO_ANY``, ``rr.TO_ONE``; without
        one they stay where they are. `tables` declares state: by name, the key and the other columns.
        """
        return add_vertex(self._builder, make, inputs, outputs, routes, tables, name)

    def state(
        self,
        name: str,
        key: Any,
        value: Any,
        *,
        time: Any = INT64,
        start: Any = None,
        compact: Any = None,
        compaction: str = "lazy",
        sweep: int = SWEEP,
        accelerate: bool = True,
        replies_first: bool = True,
    ) -> State:
        """Declare a state that streams update and fetch from by key and time.

        `name` is what it is called. `key` and `value` are its columns, `time` the type of its times, or a name and a
        type. No update will come before `start`, if that is given: fetches up to it need not wait. `compact` is what
        may be left of values that no fetch will be at any more: ``rr.rules.keep_latest``, ``rr.rules.fold``
        (increments are added up), ``rr.rules.drop_before(span)`` or ``rr.rules.compact(function)``. That is done in
        passing, to what is touched and now and then to some of the rest, `sweep` rows at the most; with
        ``compaction="active"`` to everything at once whenever there is progress. With ``accelerate=False``, progress
        waits for the replies to the updates before it; with ``replies_first=False`` a fetch whose time has passed is
        answered with its epoch, not before the next records.
        """
        return add_state(
            self._builder, self._builder.root, name, key, value, time, start, compact, compaction,
            sweep, accelerate, replies_first,
        )  # fmt: skip

    def clock(self) -> Collection:
        """One row for each epoch, with its number in the column `epoch`: something happens in every one."""
        return clock(self._builder)

    def loop(self, around: Collection | None = None, *, name: str | None = None) -> Loop:
        """A loop made by hand, called `name`: inside the loop of the collection `around`, or outside of all loops."""
        if around is not None and not isinstance(around, Collection):
            raise not_a_collection("plan.loop", "make a loop inside that of another", around)
        parent = self._builder.root if around is None else around.scope
        return Loop(self._builder, parent, name)

    @property
    def plan(self) -> Plan:
        """What was built so far, checked."""
        size = len(self._builder.nodes)
        if self._plan is None or self._plan[0] != size:
            self._plan = size, self._builder.build()
        return self._plan[1]

    def schema(self, name: str) -> pa.Schema:
        """The columns of the input or output called `name`."""
        known: dict[Any, Collection] = {**self._inputs, **self._outputs}
        if type(name) is not str or name not in known:
            raise PlanError(
                "plan.name_unknown",
                f"cannot tell the columns of {name!r}: the inputs and outputs are: {', '.join(known) or 'none'}",
                hint="check the spelling, or declare it: flow.input(...), flow.output(...)",
                name=name,
            )
        return known[name].schema

    @property
    def inputs(self) -> dict[str, Collection]:
        """The inputs, by name."""
        return dict(self._inputs)

    @property
    def outputs(self) -> dict[str, Collection]:
        """The outputs, by name."""
        return dict(self._outputs)

    def explain(self) -> str:
        """The plan as text: every node, what it does, where it was written, what it keeps."""
        return explain(self.plan)

    def to_dot(self) -> str:
        """The plan as a graph in the dot language."""
        return to_dot(self.plan)

    def to_svg(self) -> str:
        """The plan as a picture."""
        return to_svg(self.plan)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def run(
        self,
        *,
        workers: int | Literal["auto"] = 1,
        checkpoint: str | Path | None = None,
        every: int | timedelta | None = EVERY,
        history: int = 1,
        skip_failing: bool = False,
        rebuild: bool = False,
        keep_inputs: bool | None = None,
        seed: int | None = None,
        on: Any = None,
        memory: int | str | None = None,
        timeout: float = 60.0,
        tls: bool | tuple[str | Path, str | Path] = False,
        recovery: Policy = "replace",
        silence: float = SILENCE,
        balance: Balance = "report",
        max_workers: int | None = None,
        retain: int = 2,
        patience: float | timedelta | None = None,
        take_over: bool = False,
        from_checkpoint: int | None = None,
        synced: bool = False,
    ) -> Run:
        """Start it: in this process, in several processes of this machine, or on Spark.

        Without `on` everything is in this process, in one thread. With "processes" each worker is a process of this
        machine. With a SparkSession, or "spark" for a local one that is made for it, each worker is a task that
        lasts as long as the run. Workers have `timeout` seconds to come up. On Spark, with `tls`, all that travels
        between them is encrypted (True makes a certificate for the run; or give the files of one and its key).
        `memory` is how much state each worker keeps in memory ("2g"); the rest is in files.

        `workers` share the state among them by key. "auto" is as many as there is room for: one in this process,
        one for each core that this process may use, or as many as the session has slots for. With a `checkpoint`
        path or URL, what is committed survives the process, and a later run with the same path goes on from there;
        `every` is how often a checkpoint is made, in epochs or time. `history` is how many epochs back results can
        be read. When a logged epoch fails on resuming, it is refused if nobody was told that it was complete;
        otherwise the run does not start, and nothing is lost; with `skip_failing` such an epoch is dropped for
        good. A `seed` has workers take turns at random, for tests.

        When a worker is lost, another takes its place (`recovery` "replace"), or the others share what it had at
        once, and give to another one when that is there ("spread"). A worker in a process of its own that gave no
        sign of life for `silence` seconds is thought dead. A worker that the others wait for is reported
        (`run.events()`); with `balance` "move" shares of the keys move away from it, with "grow" workers are added,
        up to `max_workers`.

        `retain` is how many checkpoints are kept. While the storage is full or away, commits wait and the rest goes on;
        with `patience`, in seconds or as a timedelta, the run ends when that takes longer. A path that another run uses
        is refused; `take_over` takes it away from that one, which then ends. `from_checkpoint` goes back to an older
        checkpoint, when the newest is damaged, and does the epochs since then again. With `synced`, a commit on a local
        disk returns when its epoch would survive a power cut; on an object store it always does.

        A program that has changed since takes those states from the checkpoint that are what it would have made
        itself. If that is not all it needs, it is refused, and told what differs; with `rebuild` the rest is built
        anew, from the states that are kept. With `keep_inputs` the log keeps all rows, so that whatever changes can be
        built anew; later runs at the path go on to keep them, until one says False.
        """
        if not self._outputs:
            raise PlanError(
                "plan.no_output",
                f"cannot run {self.name!r}: it has no output, so nothing could be read",
                hint='flow.output("name", collection)',
            )
        return Run(
            self.plan,
            workers=workers,
            checkpoint=checkpoint,
            every=every,
            history=history,
            skip_failing=skip_failing,
            rebuild=rebuild,
            keep_inputs=keep_inputs,
            seed=seed,
            on=on,
            memory=memory,
            timeout=timeout,
            tls=tls,
            recovery=recovery,
            silence=silence,
            balance=balance,
            max_workers=max_workers,
            retain=retain,
            patience=patience,
            take_over=take_over,
            from_checkpoint=from_checkpoint,
            synced=synced,
        )

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(self._inputs), ", ".join(self._outputs)
        return f"<Dataflow {self.name!r}: inputs {inputs or 'none'}; outputs {outputs or 'none'}>"
