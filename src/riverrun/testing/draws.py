"""Random scripts: changes drawn from small domains, so that rows repeat, cancel and come back.

A :class:`Draw` says what the rows of an input are like: columns and their types, for which small domains
are known; or values of one's own for some columns; or example rows, which are then drawn whole.

>>> from riverrun.testing import Draw
>>> people = Draw({"name": str, "age": int}, values={"age": [7, 8]})
>>> script = draw_script({"people": people}, seed=1, epochs=2, rows=2)
>>> print(shown(script))
[
    insert("people", [{'name': 'c', 'age': 8}, {'name': 'b', 'age': 7}]),
    COMMIT,
    insert("people", [{'name': 'a', 'age': 8}, {'name': 'a', 'age': 7}]),
    COMMIT,
]

Laws:

1. The same draws and seed give the same script, on every machine.
2. A script deletes only rows that are there (in an input with a key, also keys that are not).

Cost: some microseconds a row.
"""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.rows.convert import as_table
from riverrun.rows.schemas import as_schema
from riverrun.rows.types import family
from riverrun.testing.harness import schema_of
from riverrun.testing.script import COMMIT, Change, Item, Row, grouped, shown

__all__ = ["Draw", "as_draw", "draw_script", "shown"]

_SIZES = {1: 8, 2: 6, 3: 4}  # values of each column, by how many columns there are


@dataclass(frozen=True)
class Draw:
    """What the rows of an input are like."""

    schema: Any = None
    """As ``flow.input`` takes it; may be left out where there are example rows."""
    key: str | Sequence[str] | None = None
    """The key of an input whose rows are upserted."""
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """What to draw from, for some columns or all."""
    rows: Any = None
    """Example rows, which are drawn whole: a list of dicts, or a frame."""
    nulls: float = 0.0
    """How many of the drawn values are null instead, of 1."""
    deletes: bool = True
    """Whether rows are deleted too; say False for what is only ever appended."""


@dataclass(frozen=True)
class Drawn:
    """A draw, made ready."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    domains: Mapping[str, Sequence[Any]]
    rows: Sequence[Row]
    nulls: float
    deletes: bool

    def row(self, source: random.Random) -> Row:
        """A row at random."""
        if self.rows:
            return dict(source.choice(self.rows))
        return {
            column: None if source.random() < self.nulls else source.choice(domain)
            for column, domain in self.domains.items()
        }


def as_draw(name: str, given: Any, schema: pa.Schema | None = None, key: Any = None) -> Drawn:
    """What a user said of the rows of an input: a draw, a schema, or example rows."""
    if not isinstance(given, Draw):
        is_rows = isinstance(given, list) or (
            not isinstance(given, Mapping | type | pa.Schema) and hasattr(given, "__len__")
        )
        given = Draw(rows=given) if is_rows else Draw(given)
    attempt = f"draw rows of {name!r}"
    if schema is not None:
        columns = schema
    elif given.schema is not None:
        columns = as_schema(given.schema, attempt)
    else:
        columns = schema_of(given.rows, name)
    examples = () if given.rows is None else as_table(given.rows, columns, attempt).to_pylist()
    if given.rows is not None and not examples:
        raise PlanError(
            "testing.draw",
            f"cannot {attempt}: there are no example rows",
            hint="give some, or a schema: small values of each type are drawn then",
        )
    count = _SIZES.get(len(columns), 3)
    domains = {
        column.name: list(given.values.get(column.name) or small(column.type, name)[:count])
        for column in columns
    }
    chosen = key if key is not None else given.key
    listed = () if chosen is None else (chosen,) if isinstance(chosen, str) else tuple(chosen)
    return Drawn(name, columns, listed, domains, examples, given.nulls, given.deletes)


def draw_script(
    draws: Mapping[str, Draw | Drawn | Any], seed: int, epochs: int = 5, rows: int = 5
) -> list[Item]:
    """Some epochs of at most so many changes to each input; every now and then none, or all rows go."""
    ready = [
        given if isinstance(given, Drawn) else as_draw(name, given) for name, given in draws.items()
    ]
    source = random.Random(seed)
    there: dict[str, list[Row]] = {each.name: [] for each in ready}
    gone: dict[str, list[Row]] = {each.name: [] for each in ready}
    items: list[Item] = []
    for epoch in range(epochs):
        for each in ready:
            items += _changes(
                each, source, there[each.name], gone[each.name], rows, first=epoch == 0
            )
        items.append(COMMIT)
    return grouped(items)


def _changes(
    drawn: Drawn,
    source: random.Random,
    there: list[Row],
    gone: list[Row],
    most: int,
    *,
    first: bool,
) -> list[Item]:
    luck = source.random()
    if luck < 0.1 and not first:
        return []
    if luck < 0.2 and there and drawn.deletes:
        left = [Change("delete", drawn.name, [row]) for row in there]
        gone += there
        there.clear()
        return list(left)
    items: list[Item] = []
    for _ in range(most if first else source.randint(1, most)):
        luck = source.random()
        if there and luck < 0.4 and drawn.deletes:
            row = there.pop(source.randrange(len(there)))
            gone.append(row)
            items.append(Change("delete", drawn.name, [row]))
            continue
        row = dict(source.choice(gone)) if gone and luck < 0.5 else drawn.row(source)
        if drawn.key:
            there[:] = [old for old in there if any(old[k] != row[k] for k in drawn.key)]
        there.append(row)
        items.append(Change("upsert" if drawn.key else "insert", drawn.name, [row]))
    return items


def small(kind: pa.DataType, name: str) -> list[Any]:
    """A few values of a type."""
    if pa.types.is_dictionary(kind):
        return small(kind.value_type, name)
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_fixed_size_list(kind):
        raise _no_values(kind, name)  # not every value fits: the user knows which do
    match family(kind):
        case "enum":
            return list(kind.categories[:6]) or [None]
        case "boolean":
            return [False, True]
        case "integer":
            return list(range(8))
        case "float":
            return [0.0, 0.5, 1.0, -1.5, 2.25, 4.0]  # their sums are exact
        case "decimal":
            return [decimal.Decimal(n).scaleb(-kind.scale) for n in range(6)]
        case "text":
            return ["a", "b", "c", "d", "", "é"]
        case "binary":
            return [b"a", b"b", b"", b"\x00"]
        case "date":
            return [datetime.date(2024, 2, 28) + datetime.timedelta(days=n) for n in range(4)]
        case "timestamp":
            zone = datetime.UTC if kind.tz else None
            start = datetime.datetime(2024, 2, 29, 23, tzinfo=zone)
            return [start + datetime.timedelta(minutes=40 * n) for n in range(4)]
        case "duration":
            return [datetime.timedelta(seconds=n) for n in range(4)]
        case "time":
            return [datetime.time(n) for n in range(4)]
        case "null":
            return [None]
        case "list":
            inner = small(kind.value_type, name)
            return [[], inner[:1], inner[:2], inner[1:2] * 2]
        case "struct":
            columns = {f.name: small(f.type, name) for f in kind}
            return [{c: values[n % len(values)] for c, values in columns.items()} for n in range(4)]


def _no_values(kind: pa.DataType, name: str) -> PlanError:
    return PlanError(
        "testing.draw",
        f"cannot draw rows of {name!r}: no values of type {kind} are known",
        hint="give some: Draw(schema, values={column: [...]}), or example rows",
    )
