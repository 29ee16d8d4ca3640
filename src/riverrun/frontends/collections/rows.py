"""Rows of a plan: what each collection is, without the methods that users call.

`Rows` knows a port of the plan, the columns of the rows that leave the port, and the key by which the rows are arranged
(if they are). Its methods add the steps that groups, joins, loops and shared state are built of: exchanges,
arrangements, reduces, the way into a loop. Programs hold its subclass `Collection` (`frontends.collection`), which has
the methods for users and imports all that these are built of. The modules in between take and make collections through
`Rows`. Laws:

- **Shared steps.** The rows of a port are arranged once by each key and order, and enter each loop once, however many
  steps ask for that.
- **One class.** A step of a collection gives a collection: rows of the class of the rows it is added to (`Rows._at`).

Cost: a step costs nothing before the run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import polars as pl
import pyarrow as pa

from riverrun.errors import PlanError, users_line
from riverrun.frontends.collections.derivation import Entered, Projected, noted
from riverrun.frontends.collections.expressions import compile_columns
from riverrun.frontends.names import describe_stream, step_of
from riverrun.operators.arrange import Arrange, Consolidate
from riverrun.operators.exchange import Exchange
from riverrun.operators.linear import Project
from riverrun.operators.loops import Enter
from riverrun.operators.reduce import Reduce
from riverrun.operators.sources import CLOCK, Input
from riverrun.plan.operator import Operator
from riverrun.plan.plan import PlanBuilder, Port, Scope
from riverrun.state import Order
from riverrun.state.types import empty_batch


class Rows:
    """The rows of a port of a plan that is being written."""

    def __init__(
        self, builder: PlanBuilder, port: Port, keyed: tuple[str, ...] | None = None
    ) -> None:
        self._builder = builder
        self._port = port
        self._keyed = keyed
        """The key by which the node keeps its result as an arrangement; None where it keeps none."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, as an Arrow schema."""
        return self._builder.nodes[self._port.node].schemas[self._port.output]

    @property
    def polars_schema(self) -> pl.Schema:
        """The columns, in the types of Polars."""
        return pl.DataFrame(empty_batch(self.schema)).schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    def scope(self) -> Scope:
        """The scope that the collection belongs to: a loop, or the root outside of all loops."""
        return self._builder.nodes[self._port.node].scope

    def _at(self, port: Port, keyed: tuple[str, ...] | None = None) -> Self:
        """The collection of another port of the same plan."""
        return type(self)(self._builder, port, keyed)

    @property
    def _name(self) -> str:
        """The name of the collection in messages while the program is written, in quotes."""
        return repr(step_of(self._builder.nodes, self._port).name)

    @property
    def _stream_name(self) -> str:
        """The name of the collection in events and messages while the program runs."""
        return describe_stream(self._builder.nodes, self._port)

    def _add(
        self,
        operator: Operator,
        inputs: Sequence[Rows],
        schema: pa.Schema,
        name: str | None = None,
        keyed: tuple[str, ...] | None = None,
    ) -> Self:
        port = self._builder.add(operator, [c._port for c in inputs], [schema], name=name)
        return self._at(port, keyed)

    def _project(self, wanted: Mapping[str, Any], what: str) -> Self:
        projection = compile_columns(self.schema, wanted, what)
        if projection.sources == tuple(range(len(self.schema))) and list(wanted) == self.columns:
            return self
        text = ", ".join(
            name if isinstance(value, str) and value == name else f"{name}={one_line(value)}"
            for name, value in wanted.items()
        )
        projected = self._add(Project(projection, text), [self], projection.schema)
        return noted(projected, Projected(self, dict(wanted)))

    def _into(self, scope: Scope, at: Any = None, limit: int | None = None) -> Self:
        """The same rows inside a loop, or inside a loop of that loop."""
        if self.scope is scope:
            return self
        if not scope.is_inside(self.scope):
            line = users_line()
            raise PlanError(
                "plan.scope",
                f"cannot use {self._name} at {line}: it belongs to the loop "
                f"{self.scope.path.rstrip('/')!r}, which is not around this place",
                hint="what a loop makes leaves it as the result of iterate; use that",
                line=line,
            )
        assert scope.parent is not None
        outer = self._into(scope.parent)
        shared = self._builder.shared
        key = ("enter", outer._port, scope.number)
        if at is None and key in shared:
            existing: Self = shared[key]
            return existing
        port = self._builder.add(Enter(at, limit), [outer._port], [self.schema], scope=scope)
        entered = self._at(port)
        if at is None:
            shared[key] = noted(entered, Entered(outer))
        return entered

    def _exchanged(self, key: tuple[str, ...], combine: bool = False) -> Self:
        places = {name: at for at, name in enumerate(self.columns)}
        positions = tuple([places[name] for name in key])
        return self._add(Exchange("key", positions, key, combine), [self], self.schema)

    def _added_up_by_row(self) -> Self:
        """These rows, where equal rows are added up wherever they lie, so that rows which cancel are dropped.

        Rows travel only where equal ones may lie on different workers (`plan.placement`).
        """
        everything = tuple(range(len(self.schema)))
        exchange = Exchange("row", everything, tuple(self.columns), combine=True)
        moved = self._add(exchange, [self], self.schema)
        return moved._add(Consolidate(), [moved], self.schema)

    def _arranged(
        self,
        key: tuple[str, ...],
        order: tuple[Order, ...] = (),
        combine: bool = False,
        name: str | None = None,
    ) -> Self:
        """These rows, arranged by a key; calls with the same key and order share one arrangement."""
        if self._keyed == key and not order:
            return self
        shared = self._builder.shared
        arrangement_key = ("arrange", self._port, key, order)
        if arrangement_key not in shared:
            moved = self._exchanged(key, combine)
            shared[arrangement_key] = moved._add(
                Arrange(key, order), [moved], self.schema, name, key
            )
        arranged: Self = shared[arrangement_key]
        return arranged

    def _reduced(
        self,
        operator: Reduce,
        arranged: Sequence[Rows],
        schema: pa.Schema,
        name: str | None = None,
    ) -> Self:
        ports = [one._port for one in arranged]
        port = self._builder.add(operator, ports, [schema], name=name)
        return self._at(port, operator.key)

    def _is_added_up(self) -> bool:
        """Whether the changes of an epoch are the same in whatever order rows arrived.

        Some nodes may add rows and take them out again within an epoch, depending on the order: a join, a loop, a
        negation, gathering replies, and a fetch, which may or may not answer rows that come and go. Behind such a node
        the changes are not the same; nor are they, as far as is known, behind a loop that is not closed yet.
        """
        nodes, waiting = self._builder.nodes, [self._port.node]
        seen = set(waiting)
        while waiting:
            node = nodes[waiting.pop()]
            if node.operator.may_cancel:
                return False
            if node.operator.is_feedback and not node.inputs:
                return False
            if not node.operator.adds_up:
                fresh = {port.node for port in node.inputs} - seen
                seen |= fresh
                waiting += fresh
        return True

    def _added_up(self) -> Self:
        """These rows, where equal rows of an epoch are added up. Equal rows have to lie on one worker already."""
        if self._is_added_up():
            return self
        return self._add(Consolidate(), [self], self.schema)


def clock_port(builder: PlanBuilder) -> Port:
    """The port of a dataflow's clock, which has one row for each epoch. A dataflow has one clock at most."""
    shared = builder.shared
    if CLOCK not in shared:
        schema = pa.schema({"epoch": pa.int64()})
        shared[CLOCK] = builder.add(Input(CLOCK), [], [schema], name="clock:ticks")
    port: Port = shared[CLOCK]
    return port


def deepest(*collections: Rows) -> Scope:
    """The innermost scope of some collections. Collections of two dataflows are refused."""
    scope = max((c.scope for c in collections), key=lambda scope: scope.depth)
    for collection in collections:
        if collection._builder is not collections[0]._builder:
            raise PlanError(
                "plan.two_flows",
                f"cannot combine {collections[0]._name} and {collection._name}: they belong to two dataflows",
                hint="build both on one Dataflow",
            )
    return scope


def one_line(expression: Any) -> str:
    """An expression on one line, for plans: as Polars writes it, with column names bare.

    >>> one_line((pl.col("price") > 5) & pl.col("item").is_not_null())
    '[([price > 5]) & (item.is_not_null())]'
    """
    text = " ".join(str(expression).split())
    text = (
        re.sub(r'col\("([^"]*)"\)', r"\1", text).replace("dyn int: ", "").replace("dyn float: ", "")
    )
    return re.sub(r"(?<=[\[ ])\(([\w.]+)\)(?=[ \]])", r"\1", text)
