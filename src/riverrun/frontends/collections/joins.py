"""Joins: all built from one primitive, the pairs of rows of two arrangements with equal keys.

`Collection.join` calls `join`. An arrangement is the rows of a collection, indexed by a key. The primitive is the inner
join; the other joins are built from it:

- semi: the left sides of the pairs of the left rows and the distinct keys of the right side;
- anti: all rows of the left side, less those of the semi-join;
- left, right: the inner join, and the rows of the one side that have no partner, padded with nulls;
- full: the inner join, and the rows of either side that have no partner, padded with nulls;
- cross: the inner join on a key of no columns.

Laws:

- **Null matches nothing.** A row with a null in its key has no partner, as in SQL.
- **Common key type.** Keys of two types are compared in the type that holds the values of both (`widening`), and the
  key of the result has that type. Keys without such a type are refused while the program is built. The rows of a semi-
  or anti-join keep their own types.

Cost: the rows of both sides are arranged by the key. A change costs time in proportion to the number of rows with its
key on the other side. All joins but inner and cross also keep the distinct keys of a side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.frontends.arguments import is_one_of, not_a_collection
from riverrun.frontends.collections.derivation import Paired, Subset, noted
from riverrun.frontends.collections.rows import Rows, deepest
from riverrun.frontends.collections.widening import common_kind, widened
from riverrun.operators.join import Join
from riverrun.operators.reshape import Pad
from riverrun.rows.column_names import check_suffix, checked_columns
from riverrun.rows.values import show
from riverrun.state.schema import free_prefix
from riverrun.state.types import canonical, share_layout

if TYPE_CHECKING:
    from riverrun.frontends.collection import Collection

_HOW_ELSEWHERE = dict.fromkeys(
    ("outer", "full_outer", "fullouter", "full outer"), 'an outer join of both sides is how="full"'
) | {
    "left_outer": 'how="left"',
    "leftouter": 'how="left"',
    "right_outer": 'how="right"',
    "rightouter": 'how="right"',
    "left_semi": 'how="semi"',
    "leftsemi": 'how="semi"',
    "left_anti": 'how="anti"',
    "leftanti": 'how="anti"',
}
HOW = ("inner", "left", "right", "full", "semi", "anti", "cross")


def join(
    left: Collection,
    right: Collection,
    on: str | Sequence[str] | None,
    left_on: str | Sequence[str] | None,
    right_on: str | Sequence[str] | None,
    how: str,
    suffix: str,
) -> Collection:
    """See `Collection.join`."""
    if not isinstance(right, Rows):
        raise not_a_collection("plan.join", f"join {left._name}", right)
    if not is_one_of(how, HOW):
        raise PlanError(
            "plan.join",
            f"cannot join how={show(how)}: the ways are {', '.join(HOW)}",
            hint=_HOW_ELSEWHERE.get(str(how), "the default is inner"),
        )
    check_suffix(suffix, f"join {left._name}")
    if how == "cross":
        if on is not None or left_on is not None or right_on is not None:
            raise PlanError(
                "plan.join", "cannot cross join on a key: it pairs all rows", hint="leave out on="
            )
        left_key: tuple[str, ...] = ()
        right_key: tuple[str, ...] = ()
    else:
        attempt = f"join {left._name} and {right._name}"
        left_key, right_key = key_columns(left, right, on, left_on, right_on, attempt)
    scope = deepest(left, right)
    left, right = left._into(scope), right._into(scope)
    kinds = common_kinds(left, left_key, right, right_key)
    right = widened(right, dict(zip(right_key, kinds, strict=True)))
    if how in ("semi", "anti"):
        matched = _semi(left, left_key, right, right_key, kinds)
        return matched if how == "semi" else noted(left.concat(matched.negate()), Subset(left))
    left = widened(left, dict(zip(left_key, kinds, strict=True)))
    if how == "right":
        flipped = join(right, left, None, right_key, left_key, "left", suffix)
        return _in_order_of(left, left_key, right, right_key, flipped, suffix)
    names = _result_names(left, right, right_key, suffix)
    pairs = _pairs(left, left_key, right, right_key, names)
    if how in ("inner", "cross"):
        return pairs
    missing = _semi(left, left_key, right, right_key, kinds).negate()
    alone = noted(left.concat(missing), Subset(left))
    width = len(left.columns)
    rest = [canonical(field.type) for field in pairs.schema][width:]
    padded = alone._add(Pad((*range(width), *rest)), [alone], pairs.schema)
    if how == "left":
        return pairs.concat(padded)
    missing = _semi(right, right_key, left, left_key, kinds).negate()
    others = noted(right.concat(missing), Subset(right))
    places: list[Any] = []
    for field in left.schema:
        if field.name in left_key:
            places.append(right.columns.index(right_key[left_key.index(field.name)]))
        else:
            places.append(canonical(field.type))
    places += [right.columns.index(name) for name in right.columns if name not in right_key]
    unmatched = others._add(Pad(tuple(places)), [others], pairs.schema)
    return pairs.concat(padded, unmatched)


def _pairs(
    left: Collection,
    left_key: tuple[str, ...],
    right: Collection,
    right_key: tuple[str, ...],
    names: dict[str, tuple[int, str]],
) -> Collection:
    """The inner join. `names` maps the name of each column of a pair to its side (0 left, 1 right) and its name
    there."""
    sides = (
        left._arranged(left_key),
        right._arranged(right_key),
    )
    schema = pa.schema(
        [
            sides[side].schema.field(column).with_name(name).with_nullable(True)
            for name, (side, column) in names.items()
        ]
    )
    on = tuple(zip(left_key, right_key, strict=True))
    joined = left._add(Join(tuple(names.values()), on), sides, schema)
    return noted(joined, Paired(left, left_key, right, right_key, names))


def _semi(
    left: Collection,
    left_key: tuple[str, ...],
    right: Collection,
    right_key: tuple[str, ...],
    kinds: list[pa.DataType],
) -> Collection:
    """The rows of `left` with a partner, in their own types, also where the key is compared in a wider type."""
    partners = right.select(*right_key).distinct()
    names = {name: (0, name) for name in left.columns}
    free = free_prefix(left.columns)
    wider = {
        name: kind
        for name, kind in zip(left_key, kinds, strict=True)
        if not share_layout(left.schema.field(name).type, kind)
    }
    if wider:
        left = left.with_columns(**{free + name: pl.col(name) for name in wider})
        left = widened(left, {free + name: kind for name, kind in wider.items()})
    key = tuple(free + name if name in wider else name for name in left_key)
    return _pairs(left, key, partners, right_key, names)


def _in_order_of(
    left: Collection,
    left_key: tuple[str, ...],
    right: Collection,
    right_key: tuple[str, ...],
    flipped: Collection,
    suffix: str,
) -> Collection:
    """A right join out of the `flipped` left join: with the columns in Polars' order and under their names."""
    names: dict[str, Any] = {}
    for name in left.columns:
        if name not in left_key:
            names[name] = name if name not in right.columns else f"{name}{suffix}"
    for name in right.columns:
        shown = f"{name}{suffix}" if name in names else name
        names[shown] = name
    # In `flipped` the columns of `right` have their own names, and those of `left` the suffix.
    return flipped.select(**names)


def _result_names(
    left: Collection, right: Collection, right_key: tuple[str, ...], suffix: str
) -> dict[str, tuple[int, str]]:
    names: dict[str, tuple[int, str]] = {name: (0, name) for name in left.columns}
    for name in right.columns:
        if name in right_key:
            continue
        shown = f"{name}{suffix}" if name in names else name
        if shown in names:
            raise PlanError(
                "plan.column_twice",
                f"cannot join {left._name} and {right._name}: two columns would be called {shown!r}",
                hint="rename one, or give another suffix=",
                column=shown,
            )
        names[shown] = (1, name)
    return names


def key_columns(
    left: Rows, right: Rows, on: Any, left_on: Any, right_on: Any, attempt: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key columns of the left and of the right side, from the arguments `on`, `left_on` and `right_on`."""
    are_there = [on is not None, left_on is not None, right_on is not None]
    if are_there not in ([True, False, False], [False, True, True]):
        raise PlanError(
            "plan.join",
            f"cannot {attempt}: "
            + (
                "too many keys are given: on= is for both sides, left_on= and right_on= are for one each"
                if are_there[0] and any(are_there[1:])
                else "say on which columns"
            ),
            hint='on="id", or left_on="node" and right_on="src"',
        )
    verb = "look up rows of" if attempt.startswith("look up") else attempt.partition(" ")[0]
    left_key = checked_columns(
        on if left_on is None else left_on, left.columns, f"{verb} {left._name}"
    )
    right_key = checked_columns(
        on if right_on is None else right_on, right.columns, f"{verb} {right._name}"
    )
    if len(left_key) != len(right_key):
        raise PlanError(
            "plan.join",
            f"cannot {verb} on {', '.join(left_key) or 'nothing'} and {', '.join(right_key) or 'nothing'}: "
            "both sides need as many key columns, each once",
            hint="name the columns in the order in which they correspond",
        )
    return left_key, right_key


def common_kinds(
    left: Rows,
    left_key: tuple[str, ...],
    right: Rows,
    right_key: tuple[str, ...],
    method: str = "join",
) -> list[pa.DataType]:
    """For each pair of key columns, the type that holds the values of both; `method` is named in errors."""
    kinds = []
    for mine, its in zip(left_key, right_key, strict=True):
        attempt = f"cannot {method} {left._name} on {mine!r} and {right._name} on {its!r}"
        words = f"{attempt}: they are ", " and ", ""
        kinds.append(common_kind(left.schema.field(mine), right.schema.field(its), words))
    return kinds
