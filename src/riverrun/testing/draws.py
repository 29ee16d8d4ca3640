"""Random scripts: changes drawn from small domains, so that rows repeat, cancel and come back.

`check_operator` and `check_dataflow` draw their scripts here. A :class:`Draw` describes the rows of an input: by
columns and their types, for which small domains are known; by values of the user's own for some columns; or by example
rows, which are then drawn whole.

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

- **Same seed, same script.** The same draws and seed give the same script, on every machine.
- **Deletes of rows that are there.** A script deletes only rows that the input has; from an input with a key, a script
  may also delete keys that the input has not.

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
    """A description of the rows of an input."""

    schema: Any = None
    """The columns, as ``flow.input`` takes them; may be left out where there are example rows."""
    key: str | Sequence[str] | None = None
    """The key of an input whose rows are upserted."""
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """The values to draw from, for some columns or all."""
    rows: Any = None
    """Example rows, which are drawn whole: a list of dicts, or a frame."""
    nulls: float = 0.0
    """The share of drawn values that are replaced by null, from 0 to 1."""
    deletes: bool = True
    """Whether rows are deleted too; False for an input to which rows are only appended."""


@dataclass(frozen=True)
class Drawn:
    """A draw with its columns and domains worked out."""

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


def as_draw(name: str, description: Any, schema: pa.Schema | None = None, key: Any = None) -> Drawn:
    """A user's description of the rows of an input, a draw, a schema, or example rows, made ready to draw from."""
    if not isinstance(description, Draw):
        is_rows = isinstance(description, list) or (
            not isinstance(description, Mapping | type | pa.Schema)
            and hasattr(description, "__len__")
        )
        description = Draw(rows=description) if is_rows else Draw(description)
    attempt = f"draw rows of {name!r}"
    if schema is not None:
        columns = schema
    elif description.schema is not None:
        columns = as_schema(description.schema, attempt)
    else:
        columns = schema_of(description.rows, name)
    examples = (
        () if description.rows is None else as_table(description.rows, columns, attempt).to_pylist()
    )
    if description.rows is not None and not examples:
        raise PlanError(
            "testing.draw",
            f"cannot {attempt}: there are no example rows",
            hint="give some, or a schema: small values of each type are drawn then",
        )
    count = _SIZES.get(len(columns), 3)
    domains = {
        column.name: list(description.values.get(column.name) or small(column.type, name)[:count])
        for column in columns
    }
    chosen = key if key is not None else description.key
    listed = () if chosen is None else (chosen,) if isinstance(chosen, str) else tuple(chosen)
    return Drawn(name, columns, listed, domains, examples, description.nulls, description.deletes)


def draw_script(
    draws: Mapping[str, Draw | Drawn | Any], seed: int, epochs: int = 5, rows: int = 5
) -> list[Item]:
    """A script of so many epochs, each with at most `rows` changes to each input. Now and then an epoch has no changes
    to an input, or deletes all of its rows."""
    ready = [
        draw if isinstance(draw, Drawn) else as_draw(name, draw) for name, draw in draws.items()
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
