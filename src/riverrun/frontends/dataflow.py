"""The dataflow: a program that a user writes, with inputs, collections computed from them, and outputs.

A `Dataflow` gathers the steps of a program as the nodes of a plan (`plan.plan`), and computes nothing. `Dataflow.run`
checks the plan and starts a `Run`, which takes rows in, computes, and gives results.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import pyarrow as pa

from riverrun.attributes import missing_attribute
from riverrun.engine.coordinator.membership import Policy
from riverrun.errors import PlanError, users_line
from riverrun.frontends.arguments import is_count, not_a_collection
from riverrun.frontends.collection import Collection, clock
from riverrun.frontends.collections.derivation import Unique, noted
from riverrun.frontends.elsewhere import DATAFLOW
from riverrun.frontends.shared.state import INT64, SWEEP, State, add_state
from riverrun.frontends.timely import Loop, Vertex, add_vertex
from riverrun.operators.arrange import Output
from riverrun.operators.checked import CheckRows
from riverrun.operators.sources import CLOCK, Input
from riverrun.operators.upsert import Upsert
from riverrun.plan.explain import explain
from riverrun.plan.optimizer import optimized
from riverrun.plan.picture.dot import to_dot
from riverrun.plan.picture.svg import to_svg
from riverrun.plan.plan import Plan, PlanBuilder, check_name
from riverrun.rows.column_names import checked_columns
from riverrun.rows.commands import RESERVED, commands_schema
from riverrun.rows.schemas import as_schema
from riverrun.rows.values import listed, show, without_optional
from riverrun.run import Run
from riverrun.run.options import (
    Checkpoint,
    Recovery,
    Security,
    ShortOptions,
    check_flag,
    run_options,
)
from riverrun.storage.store import Storage


class Dataflow:
    """A program over changing data, while it is being written; `name` tells it from others in a session of Spark."""

    def __init__(self, name: str = "dataflow") -> None:
        check_name(name)
        self.name = name
        self._builder = PlanBuilder(name)
        self._inputs: dict[str, Collection] = {}
        self._outputs: dict[str, Collection] = {}
        self._states: dict[str, State] = {}
        self._lines: dict[tuple[str, str], str] = {}
        """For each input, output and state, by its kind and name: the user's line that declares it."""
        self._plan: tuple[int, Plan] | None = None

    def input(
        self,
        name: str,
        schema: Any,
        key: str | Sequence[str] | None = None,
        *,
        checked: bool = False,
        expect: int | None = None,
    ) -> Collection:
        """Declare rows that come from outside. A run takes them under this `name`: ``run.insert(name, rows)``.

        `schema` is a mapping of names to types, text such as "src long, dst long", an Arrow, Polars or Spark
        schema, a class with annotations, or a frame that looks like the rows. With a `key`, one column or several, a
        row replaces the row with the same key (`Run.upsert`), and a row is deleted by its key alone. With
        ``checked=True``, an epoch that deletes a row that is not there is refused. To check that, the input keeps a
        copy of its rows. `expect` is about how many rows there will be, if you know it: the plan may be another one for
        many rows (`explain`), with the same results.
        """
        columns = as_schema(schema, f"declare input {show(name)}")
        if not columns.names:
            raise PlanError(
                "plan.input",
                f"cannot declare input {show(name)} without columns: its rows could not be told apart, nor counted",
                hint='declare at least one column: {"id": pl.Int64}',
            )
        check_flag(checked, "checked")
        if expect is not None and not is_count(expect):
            raise PlanError(
                "plan.expect",
                f"cannot expect {show(expect)} rows of input {show(name)}: that is a whole number from 1 on",
                hint="leave it out where you do not know it",
            )
        check_name(name)
        if name == CLOCK:
            raise PlanError(
                "plan.name", f"cannot name an input {CLOCK!r}", hint="that name is ours"
            )
        self._check_free(name, "input")
        if key is None:
            collection = Collection(
                self._builder, self._builder.add(Input(name), [], [columns], name=name)
            )
            if checked:
                all_columns = tuple(columns.names)
                moved = collection._exchanged(all_columns)
                collection = moved._add(
                    CheckRows(name), [moved], columns, f"{name}:rows", all_columns
                )
            self._declare(name, "input", self._inputs, collection)
            self._expect(collection, expect)
            return collection
        if checked:
            raise PlanError(
                "plan.input",
                f"cannot check input {show(name)}, which has a key: deleting a key that is not there changes nothing",
                hint="leave out checked=True, or the key",
            )
        key_columns = checked_columns(key, columns.names, f"key input {show(name)}")
        columns = pa.schema(
            [
                field.with_nullable(field.nullable and field.name not in key_columns)
                for field in columns
            ]
        )
        for column in RESERVED:
            if column in columns.names:
                raise PlanError(
                    "plan.name",
                    f"cannot key input {show(name)}: a column is called {show(column)}, which is ours in keyed inputs",
                    hint="rename the column",
                    column=column,
                )
        commands = commands_schema(columns)
        port = self._builder.add(Input(name, key_columns), [], [commands], name=name)
        moved = Collection(self._builder, port)._exchanged(key_columns)
        last_rows = moved._add(Upsert(key_columns), [moved], columns, f"{name}:rows", key_columns)
        self._declare(name, "input", self._inputs, last_rows)
        self._expect(last_rows, expect)
        return noted(last_rows, Unique(key_columns))

    def _expect(self, collection: Collection, rows: int | None) -> None:
        if rows is not None:
            self._builder.expected[collection._port.node] = rows

    def output(self, name: str, collection: Collection) -> None:
        """Declare a result: a run can read the `collection` under this `name`.

        A name is one thing to read. So an output is called as no state is; and as an input only if it has the rows of
        that input: ``flow.output("shops", shops)``.
        """
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
        self._check_free(name, "output", beside_input=self._is_input(name, collection))
        arranged = collection
        if collection._keyed is None:
            arranged = collection._arranged(tuple(collection.columns), name=f"{name}:result")
        columns = without_optional(collection.schema)
        arranged._add(Output(name), [arranged], columns, f"{name}:output")
        self._declare(name, "output", self._outputs, collection)

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
        """Add a step whose operator is a `Vertex` of your own; `name` is the name of the step.

        `make` is a class of vertices: each worker makes one vertex of it. `inputs` maps the names of the input ports to
        collections. `outputs` is the schema of the one output, which the call returns as a collection; or it maps names
        to schemas, and the call returns a mapping of these names to collections. `routes` says, by input port, how rows
        travel to the vertex: by a column or several (rows with equal values meet on one worker), ``rr.TO_ALL``,
        ``rr.TO_ANY`` or ``rr.TO_ONE``; rows of an input without a route stay on the worker where they are. `tables`
        declares state: it maps the name of each table to its key columns and its other columns.
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
        """Declare a state: values by key and time, which streams update and fetch from.

        `name` is what the state is called: under this name a run can read the state's entries. `key` and `value` are
        the columns of its keys and of its values. `time` is the type of its times, in a column called "time"; or a
        mapping of one name to a type. `start` promises that no update comes before that time, so fetches up to it need
        not wait.

        `compact` is the rule of what compaction leaves of old values, those that no fetch will ask for any more:
        ``rr.rules.keep_latest``, ``rr.rules.fold`` (increments are added up), ``rr.rules.drop_before(span)`` or
        ``rr.rules.compact(function)``. With `compaction` "lazy", the keys that an epoch touches are compacted, and now
        and then some others, at most `sweep` rows at a time. With ``compaction="active"``, all keys are compacted
        whenever there is progress.

        Two options make answers come sooner, unless they are switched off. With `accelerate`, reports of progress
        travel beside the updates; without, they wait for the replies of the state to those updates. With
        `replies_first`, a fetch whose time has already passed is answered when it arrives, before the records behind
        it; without, it is answered with its epoch.
        """
        check_name(name)
        self._check_free(name, "state")
        state = add_state(
            Collection, self._builder, self._builder.root, name, key, value, time, start, compact, compaction,
            sweep, accelerate, replies_first,
        )  # fmt: skip
        self._declare(name, "state", self._states, state)
        return state

    def _is_input(self, name: str, collection: Collection) -> bool:
        """Whether a collection has the rows of the input called `name`: it is that input, or the input shown to
        people."""
        if name not in self._inputs:
            return False
        nodes, port = self._builder.nodes, collection._port
        while nodes[port.node].operator.passes_all:
            (port,) = nodes[port.node].inputs
        return port == self._inputs[name]._port

    def _check_free(self, name: str, kind: str, *, beside_input: bool = False) -> None:
        """Refuse a name under which something was declared; an input does not count with `beside_input`."""
        for other in ("state", "output") if beside_input else ("input", "state", "output"):
            where = self._lines.get((other, name))
            if where is None:
                continue
            line, hint = users_line(), "give one of them another name"
            if (other, kind) == ("state", "output"):
                hint += f"; the entries of the state need no output: run.read({name!r})"
            elif (other, kind) == ("input", "output"):
                hint += "; an output is called as an input only if it is that input: "
                hint += f"flow.output({name!r}, flow.inputs[{name!r}])"
            raise PlanError(
                "plan.name_taken",
                f"cannot declare the {kind} {name!r} at {line}: there is the {other} {name!r} already, at {where}, and "
                "a name means one thing",
                hint=hint,
                name=name,
                line=line,
            )

    def _declare(self, name: str, kind: str, those: dict[str, Any], declared: Any) -> None:
        those[name] = declared
        self._lines[kind, name] = users_line()

    def clock(self) -> Collection:
        """A collection that has one row for each epoch, with the number of the epoch in the column `epoch`.

        So in every epoch a row arrives, even when no input has one.
        """
        return clock(self._builder)

    def loop(self, around: Collection | None = None, *, name: str | None = None) -> Loop:
        """A loop made by hand, called `name`.

        The loop stands inside the loop that the collection `around` belongs to; without `around`, outside of all loops.
        """
        if around is not None and not isinstance(around, Collection):
            raise not_a_collection("plan.loop", "make a loop inside that of another", around)
        parent = self._builder.root if around is None else around.scope
        return Loop(self._builder, parent, name)

    @property
    def plan(self) -> Plan:
        """The plan of what was written so far, checked."""
        size = len(self._builder.nodes)
        if self._plan is None or self._plan[0] != size:
            self._plan = size, optimized(self._builder.build())
        return self._plan[1]

    def schema(self, name: str) -> pa.Schema:
        """The columns of the input, output or state called `name`."""
        declared: dict[Any, Collection | State] = {**self._inputs, **self._outputs, **self._states}
        if type(name) is not str or name not in declared:
            raise PlanError(
                "plan.name_unknown",
                f"cannot tell the columns of {show(name)}: the inputs, outputs and states are: "
                f"{listed(declared) or 'none'}",
                hint="check the spelling, or declare it: flow.input(...), flow.output(...), flow.state(...)",
                name=name,
            )
        return declared[name].schema

    @property
    def inputs(self) -> dict[str, Collection]:
        """The inputs, by name."""
        return dict(self._inputs)

    @property
    def outputs(self) -> dict[str, Collection]:
        """The outputs, by name."""
        return dict(self._outputs)

    @property
    def states(self) -> dict[str, State]:
        """The shared states outside of all loops, by name."""
        return dict(self._states)

    def explain(self) -> str:
        """The plan as text: for each node its operator, the line of the program, and the state that it keeps."""
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
        on: Any = None,
        checkpoint: str | Path | Storage | Checkpoint | None = None,
        recovery: Policy | Recovery = "replace",
        security: Security | None = None,
        history: int = 1,
        memory: int | str | None = None,
        timeout: float = 60.0,
        seed: int | None = None,
        **short: Unpack[ShortOptions],
    ) -> Run:
        """Start the program: in this process, in several processes of this machine, or on Spark.

        *Where.* Without `on`, everything happens in one thread of this process. With "processes", each worker is a
        process of this machine. With a SparkSession, each worker is a task of Spark that lasts as long as the run;
        "spark" starts a local session. Workers have `timeout` seconds to come up. `memory` bounds the state that each
        worker keeps in memory ("2g"); the rest lies in files.

        *Workers.* The `workers` share the state by key. "auto" is as many as there is room for: one in this process; in
        processes, one for each core that this process may use; on Spark, one for each slot of the session. A `seed` has
        workers take turns at random, for tests.

        *Checkpoints.* With a `checkpoint` path or URL, what is committed survives the process, and a later run with the
        same path goes on from there. A checkpoint is made `every` so many epochs, or every timedelta; `retain` is how
        many checkpoints are kept. `history` is how many epochs back outputs and states can be read. With `synced`, a
        commit to a local disk returns when its epoch would survive a power cut; on an object store every commit does
        so. While the storage is full or cannot be reached, commits wait, and everything else goes on; with
        `storage_timeout`, in seconds or as a timedelta, a longer wait ends the run.

        *Resuming.* A path that another run uses is refused; `take_over` takes the path from that run, which then ends.
        `from_checkpoint` is the number of an older checkpoint to start from, when the newest is damaged: the epochs
        since then are done again. When a logged epoch fails while it is done again, the epoch is refused if nobody was
        told that it was complete. Otherwise the run does not start, and nothing is lost; `skip_failing` drops such an
        epoch for good.

        *A changed program* takes from the checkpoint those states that it would have made itself. If it needs others,
        the run is refused, and the message says what differs; with `rebuild`, the other states are built anew from
        those that are kept. With `keep_inputs`, the log keeps all rows, so that any state can be built anew; later runs
        at the path keep them too, until one says False.

        *Failures.* A worker in a process of its own that gives no sign of life for `silence` seconds counts as lost.
        With `recovery` "replace", a new worker takes the place of a lost one. With "spread", the other workers share
        the lost shards at once, and a new worker gets shards when it has come up. A worker that the others wait for is
        reported (`run.events()`). With `balance` "move", shares of the keys also move away from that worker; with
        "grow", workers are added, up to `max_workers`.

        *Security.* On Spark, `tls` encrypts all that travels between processes: True makes a certificate for the run, a
        pair of files is a certificate and its key.

        Options that belong together are dataclasses: ``checkpoint=rr.options.Checkpoint("path", every=100)``,
        ``recovery=rr.options.Recovery("spread", silence=10)``, ``security=rr.options.Security(tls=True)``. Their fields
        can also be given here by themselves, as `short` forms: ``checkpoint="path", every=100, recovery="spread"``.
        """
        if not self._outputs and not self._states:
            raise PlanError(
                "plan.no_output",
                f"cannot run {self.name!r}: it has no output and no state, so nothing could be read",
                hint='flow.output("name", collection)',
            )
        options = run_options(
            short,
            workers=workers,
            on=on,
            checkpoint=checkpoint,
            recovery=recovery,
            security=security,
            history=history,
            memory=memory,
            timeout=timeout,
            seed=seed,
        )
        return Run(self.plan, options)

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            elsewhere = DATAFLOW
            if name not in DATAFLOW and hasattr(Run, name):
                elsewhere = {name: f"that is of a run: run = flow.run(), and run.{name}"}
            elif name not in DATAFLOW and hasattr(Collection, name):
                elsewhere = {name: f"that is of a collection: flow.input(name, schema).{name}"}
            raise missing_attribute(self, "dataflow", name, elsewhere)

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(self._inputs), ", ".join(self._outputs)
        states = f"; states {', '.join(self._states)}" if self._states else ""
        return f"<Dataflow {self.name!r}: inputs {inputs or 'none'}; outputs {outputs or 'none'}{states}>"
