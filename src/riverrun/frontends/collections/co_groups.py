"""Co-groups: a user's function of the rows that two collections have under one key.

`Collection.co_group` calls `co_group`. Both sides are arranged by the key, as for a join, and share these arrangements
with all other steps that need them; a `CoGroup` (`operators.co_group`) reads the two. Laws:

- **Common key type.** As in joins (`collections.joins`): keys of two types are compared in the type that holds the
  values of both, and the key of the result has that type.
- **Null is a key.** Unlike in joins: rows with a null in their key are a group like any other.

Cost: as `operators.co_group` has it; the states are the two arrangements and the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.frontends.arguments import check_callable, function_name, not_a_collection
from riverrun.frontends.collections.joins import common_kinds, key_columns
from riverrun.frontends.collections.kept import check_kept_type
from riverrun.frontends.collections.rows import Rows, deepest
from riverrun.frontends.collections.widening import widened
from riverrun.operators.co_group import CoGroup, Side
from riverrun.rows.column_names import checked_columns
from riverrun.rows.schemas import as_schema
from riverrun.rows.values import listed
from riverrun.run.options import check_flag

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection


def co_group(
    left: Collection,
    right: Collection,
    on: Any,
    function: Any,
    schema: Any,
    left_on: Any,
    right_on: Any,
    inner: bool,
    keeps: Any,
    name: str | None,
) -> Collection:
    """See `Collection.co_group`."""
    if not isinstance(right, Rows):
        raise not_a_collection("plan.co_group", f"co_group {left._name}", right)
    attempt = f"co_group {left._name} and {right._name}"
    left_key, right_key = key_columns(left, right, on, left_on, right_on, attempt)
    check_callable(function, "co_group", f"{attempt}", "key, left, right")
    check_flag(inner, "inner")
    result_schema = as_schema(schema, "declare what a function of two groups gives")
    for column in result_schema.names:
        if column in left_key:
            raise PlanError(
                "plan.column_twice",
                f"cannot {attempt} into {column!r}: that is a column of the key, which the result has already",
                hint="leave it out of schema= and of the rows, or give it another name",
                column=column,
            )
    scope = deepest(left, right)
    left, right = left._into(scope), right._into(scope)
    kinds = common_kinds(left, left_key, right, right_key, "co_group")
    left = widened(left, dict(zip(left_key, kinds, strict=True)))
    right = widened(right, dict(zip(right_key, kinds, strict=True)))
    sides = _side(left, left_key), _side(right, right_key)
    key_schema = [left.schema.field(column).with_nullable(True) for column in left_key]
    operator = CoGroup(
        left_key, sides, result_schema, function, function_name(function), inner,
        _kept(keeps, left, right, sides, result_schema),
    )  # fmt: skip
    arranged = [left._arranged(left_key), right._arranged(right_key)]
    whole = pa.schema([*key_schema, *result_schema])
    return left._add(operator, arranged, whole, name, left_key)


def _side(rows: Rows, key: tuple[str, ...]) -> Side:
    """A side as the function sees it: the columns of the key first."""
    rest = [field for field in rows.schema if field.name not in key]
    return Side(key, pa.schema([*(rows.schema.field(column) for column in key), *rest]))


def _kept(
    keeps: Any, left: Rows, right: Rows, sides: tuple[Side, Side], schema: pa.Schema
) -> tuple[str, ...]:
    """The columns of ``keeps=`` besides the key. One side at least has them all, and with the types of `schema`."""
    attempt = f"keep columns of {left._name} and {right._name} in co_group"
    key = sides[0].key
    there = [*key, *schema.names]
    named: tuple[str, ...] = checked_columns(keeps, there, attempt, least=0)
    kept = tuple([name for name in named if name not in key])
    sources = [side for side in sides if side.kept(kept)]
    if not sources:
        raise PlanError(
            "plan.column_unknown",
            f"cannot {attempt}: neither side has all of {', '.join(kept)} besides its key; there are: "
            f"{listed(left.columns)}; and {listed(right.columns)}",
            hint="a kept row is a row of one side: keep columns of one side, under the names that they have there",
            columns=list(kept),
        )
    for side in sources:
        for name in kept:
            check_kept_type(side.schema.field(name), schema.field(name), attempt)
    return kept
