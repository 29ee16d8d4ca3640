"""Co-group: a user's function of the groups that two collections have under one key.

`Collection.co_group` uses it. The inputs are the arrangements of both sides by their keys. For each key with a row on
either side (*inner*: on both sides) the function is called with the key and the rows of each side; the rows that it
gives are the result of the key, beside the columns of the key. Laws:

- **Oracle.** As of every time, the changes sent add up to the function of the changes received on both sides. *Why:*
  the `Grouper` of `operators.reduce` keeps the results, and the argument there asks for no more of a result than that
  it is a function of the key's rows in all inputs.
- **Touched keys only.** The function is called for a key when rows of the key have come or gone on either side.
- **Null is a key.** Rows with a null in their key are a group like any other, as in groups of one collection. (In a
  join they meet nothing.)
- **Order of values.** The rows of a side come in the order of their values (`operators.groups`), each as often as it
  is there.

Cost: the rows of the touched keys on both sides, and a call of the function for each key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.interrupts import exposed
from riverrun.operators.aggregates import Evaluated, Ints
from riverrun.operators.arrange import state_schema
from riverrun.operators.groups import (
    Answers,
    Groups,
    as_answer,
    check_answers,
    failed_group,
    read_groups,
)
from riverrun.operators.kept import describe_kept, kept_placement
from riverrun.operators.reduce import Grouper, Reduce
from riverrun.operators.rounds.groups import GroupRound
from riverrun.plan.identity import code_of
from riverrun.plan.operator import Columns, Context, Operator, PlacedInput, Placement
from riverrun.progress import Timestamp
from riverrun.state import Schema
from riverrun.state.keys import Keys
from riverrun.state.view import View

_HINT_FOR_DICTS = "give a list of rows: [row] for one, [] for none"


@dataclass(frozen=True)
class Side:
    """One of the two collections: its key, and its columns as the function sees them, those of the key first."""

    key: tuple[str, ...]
    schema: pa.Schema = field(repr=False)

    def kept(self, keeps: Sequence[str]) -> bool:
        """Whether this side has all of some columns besides its key, so that their values may come from here."""
        return not {*keeps} - ({*self.schema.names} - {*self.key})


@dataclass(frozen=True)
class CoGroup(Operator):
    """The rows that a function gives for each key of two arrangements. `key` has the names of the key in the result."""

    key: tuple[str, ...]
    sides: tuple[Side, Side]
    schema: pa.Schema = field(repr=False)
    """The columns that the function gives."""
    function: Callable[[tuple[Any, ...], pl.DataFrame, pl.DataFrame], Any]
    text: str = ""
    inner: bool = False
    keeps: tuple[str, ...] = ()
    """The columns that the function promises to keep besides the key (`operators.kept`): each row that it gives has, in
    these columns together, the values of a row of one side that has them all."""
    kind: ClassVar[str] = "co-group"
    kernels: ClassVar[tuple[str, ...]] = Reduce.kernels
    keeps_state: ClassVar[bool] = True
    reads_arrangements: ClassVar[bool] = True
    gives_content: ClassVar[bool] = True

    def _said(self) -> str:
        left, right = self.sides
        on = ", ".join(
            a if a == b else f"{a} = {b}" for a, b in zip(left.key, right.key, strict=True)
        )
        return f"{'inner ' if self.inner else ''}co-group on {on} by {self.text}"

    def describe(self) -> str:
        return self._said() + describe_kept(self.keeps)

    def identity(self) -> str:
        return f"{self._said()} {code_of(self.function)}"

    @property
    def needs_all_inputs(self) -> bool:  # type: ignore[override]
        return self.inner

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        """By the key, where both sides are; and by the keys in it and in kept columns of the sides that have these."""
        came = [each.keys is not None for each in inputs]
        sources = [side.kept(self.keeps) for side in self.sides]
        if not any(there and source for there, source in zip(came, sources, strict=True)):
            return None  # no rows come whose columns could be kept, so none are given
        if self.inner and not all(came):
            return None
        keys: set[Columns] | None = None
        for each, side, source in zip(inputs, self.sides, sources, strict=True):
            if each.keys is None:
                continue
            if tuple([each.position(name) for name in side.key]) not in each.keys:
                return set()
            if source:
                kept = kept_placement(each, self._names(side), schema)
                assert kept is not None
                keys = kept if keys is None else keys & kept
        return keys

    def _names(self, side: Side) -> dict[str, str]:
        """The columns of a side that stay as they are, each with its name in the result."""
        return dict(zip(side.key, self.key, strict=True)) | {name: name for name in self.keeps}

    @property
    def arity(self) -> int:
        """How many arrangements the groups are read from."""
        return len(self.sides)

    def state(self, columns: pa.Schema) -> Schema:
        """The schema of the arrangement of results with these columns."""
        return state_schema(columns, self.key)

    def evaluate(
        self, views: Sequence[View], keys: Keys, time: Timestamp, schema: pa.Schema
    ) -> Evaluated:
        """What the function gives for the keys as of a time, from a view of each side."""
        left, right = (
            read_groups(view, keys, time, side.schema.names, side.schema)
            for view, side in zip(views, self.sides, strict=True)
        )
        meet = np.intersect1d if self.inner else np.union1d
        numbers: Ints = meet(left.numbers, right.numbers)
        answers = Answers(self.schema, self.text, _HINT_FOR_DICTS)
        width = len(self.key)
        for number, mine, its in zip(
            numbers.tolist(), left.of_each(numbers), right.of_each(numbers), strict=True
        ):
            key = (mine if len(mine) else its).row(0)[:width]
            try:
                answer = exposed(self._call, key, mine, its)
            except Exception as error:
                raise failed_group(error, self.text, key) from error
            answers.add_many(number, answer, partial(tuple, key))
        result = answers.evaluated(many=True)
        if self.keeps:
            self._check((left, right), keys, result, schema)
        return result

    def _call(self, key: tuple[Any, ...], left: pl.DataFrame, right: pl.DataFrame) -> Any:
        return as_answer(self.function(key, left, right))

    def _check(
        self, groups: tuple[Groups, Groups], keys: Keys, result: Evaluated, schema: pa.Schema
    ) -> None:
        """Hold the function to its promise: the rows of the sides that have all kept columns may be kept."""
        taken = []
        for side, each in zip(self.sides, groups, strict=True):
            if side.kept(self.keeps):
                names = side.schema.names
                places = [*range(len(side.key)), *map(names.index, self.keeps)]
                taken.append([each.columns[at] for at in places])
        together = [pa.concat_arrays(pieces) for pieces in zip(*taken, strict=True)]
        key = [schema.field(name) for name in self.key]
        check_answers(self.text, self.keeps, keys, result, self.schema, key, together)

    def in_round(self, varying: Sequence[bool]) -> Operator:
        return GroupRound(self)

    def start(self, context: Context) -> CoGrouper:
        return CoGrouper(context, self)


class CoGrouper(Grouper):
    """A co-group on a worker."""

    def __init__(self, context: Context, operator: CoGroup) -> None:
        super().__init__(context, operator.key)
        self._operator = operator

    def evaluate(self, views: Sequence[View], keys: Keys, time: Timestamp) -> Evaluated:
        return self._operator.evaluate(views, keys, time, self.node.schemas[0])
