"""Kept columns: what a user's function promises of the rows that it makes, checked, and used for placement.

`flat_map`, `map_batches`, `apply` and `co_group` take ``keeps=``: columns that the function leaves as they are. Their
operators call the functions here. A plan cannot look into a function, so without a promise nothing is known of where
the rows lie that the function makes. Laws:

- **Kept.** In its kept columns, taken together, each row that is given equals a row that was taken. Of a flat map,
  that is the row of which it was made; of a function of batches, the row at the same place; of a function of groups,
  some row of the group. Rows are equal as in states: null equals null, NaN equals NaN, and zero has no sign.
- **Checked.** A row that breaks the promise leaves no operator: the epoch is refused (``operator.keeps``).
- **Placed.** Rows that are placed by kept columns stay placed by them. Why: the row that is given was made on the
  worker of the row that was taken, and in these columns it has the same hash.
- **No other results.** A promise changes no result, so it is no part of an operator's identity.

Cost: comparing two columns where the promise is kept row by row; sorting the rows taken and given for groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from riverrun.errors import OperatorFailed
from riverrun.plan.operator import PlacedInput, Placement, moved_keys
from riverrun.rows.records import Columns, as_record_batch, python_rows
from riverrun.rows.values import show
from riverrun.state.changes import Changes
from riverrun.state.columns import Ints, as_array, as_column, take_columns

_HINT = "give these columns as they came, or leave them out of keeps="
_ONE_TIME = ((0,),)


def describe_kept(keeps: Sequence[str]) -> str:
    """The promise as a part of what an operator does, for people.

    >>> "flat map by f" + describe_kept(["src", "dst"])
    'flat map by f, keeps src, dst'
    """
    return f", keeps {', '.join(keeps)}" if keeps else ""


def kept_placement(taken: PlacedInput, names: Mapping[str, str], schema: pa.Schema) -> Placement:
    """By which keys the rows of an output are placed that keep some columns of the rows of an input. `names` maps the
    names of these columns in the input to those in the output, which has the `schema`."""
    if taken.keys is None:
        return None
    places = {taken.position(old): schema.get_field_index(new) for old, new in names.items()}
    return moved_keys(taken.keys, places)


def row_placement(taken: PlacedInput, keeps: Sequence[str], schema: pa.Schema) -> Placement:
    """The placement of rows of which each keeps some columns of a row that was taken."""
    if not keeps:
        return set()
    return kept_placement(taken, {name: name for name in keeps}, schema)


def check_each_row(
    function: str,
    keeps: Sequence[str],
    taken: tuple[pa.Schema, Columns],
    given: tuple[pa.Schema, Columns],
    origins: Ints | None = None,
) -> None:
    """Refuse rows that do not keep the columns of the row that each was made of.

    `origins` has for each row given the number of that row; None: the row at the same place. Columns are canonical.
    """
    for name in keeps:
        field = taken[0].field(name)
        before = taken[1][taken[0].get_field_index(name)]
        after = given[1][given[0].get_field_index(name)]
        if origins is not None:
            (before,) = take_columns([before], origins)
        if before.equals(after):  # never of columns with a NaN
            continue
        numbers = as_column(np.arange(len(after)))
        found = strangers([numbers, before], [numbers, after])
        if found is None:
            continue
        at = int(as_array(found[0])[0])
        (old,), (new,) = _values([field], [before], at), _values([field], [after], at)
        raise OperatorFailed(
            "operator.keeps",
            f"the function {function} promises to keep {name!r}, and made a row where it is {show(new)} of a row "
            f"where it is {show(old)}",
            hint=_HINT,
            function=function,
            column=name,
            was=old,
            given=new,
        )


def check_groups(
    function: str,
    keeps: Sequence[str],
    fields: Sequence[pa.Field],
    key: Sequence[pa.Field],
    taken: Columns,
    given: Columns,
) -> None:
    """Refuse rows whose kept columns, taken together, are those of no row of their group.

    `taken` and `given` have canonical columns: those of the `key` of the group, and then the kept ones, `fields`.
    """
    found = strangers(taken, given)
    if found is None:
        return
    width = len(key)
    chosen = list(range(len(keeps)))
    for at in chosen:
        columns = [*range(width), width + at]
        alone = strangers([taken[each] for each in columns], [given[each] for each in columns])
        if alone is not None:
            found, chosen = alone, [at]
            break
    group = tuple(_values(key, found[:width], 0))
    values = _values([fields[at] for at in chosen], found[width:], 0)
    names = [keeps[at] for at in chosen]
    listed = " and ".join(f"{name} = {show(v)}" for name, v in zip(names, values, strict=True))
    raise OperatorFailed(
        "operator.keeps",
        f"the function {function} promises to keep {' and '.join(map(repr, names))}, and made a row with {listed} for "
        f"the group {group}, where no row has {'them together' if len(names) > 1 else 'that'}",
        hint=_HINT,
        function=function,
        column=", ".join(names),
        group=group,
        given=values[0] if len(values) == 1 else tuple(values),
    )


def strangers(taken: Columns, given: Columns) -> Columns | None:
    """The rows of `given` that are no rows of `taken`, sorted; None if there are none. Columns are canonical."""
    if not len(given[0]):
        return None
    more = len(given[0]) + 1  # one row taken outweighs all rows given
    pieces = [Changes(tuple(given), len(given[0]), _ONE_TIME, None, -1, None)]
    if len(taken[0]):
        pieces.append(Changes(tuple(taken), len(taken[0]), _ONE_TIME, None, more, None))
    added = Changes.concat(pieces).consolidate()
    outside = np.flatnonzero(added.diff_array() < 0)
    return added.take(outside).columns if len(outside) else None


def _values(fields: Sequence[pa.Field], columns: Columns, at: int) -> list[Any]:
    """The values of one row, in Python."""
    sliced = [column.slice(at, 1) for column in columns]
    (row,) = python_rows(as_record_batch(pa.schema(list(fields)), sliced, 1))
    return list(row.values())
