"""The judge of collections: the same methods, computed from scratch on lists of rows.

A :class:`Bag` has the methods of ``riverrun.Collection``, so a program that is a function of collections can be called
with bags too. Tests compare its results with the outputs of the engine. Rows are tuples with a count; a count below
zero means that rows are missing. Polars computes expressions, and plain Python does everything else: slow, short, and
without cleverness.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from fractions import Fraction
from typing import Any

import polars as pl

import riverrun as rr
from riverrun.frontends.collections.aggregates import Expression, Value
from riverrun.frontends.collections.stopping import LittleMoved
from tests.oracle import NAN, backwards, rank

Row = tuple[Any, ...]
Schema = dict[str, Any]
PATIENCE = 1_000
EPOCH = {datetime: datetime(1970, 1, 1), date: date(1970, 1, 1)}


def frozen(value: Any) -> Any:
    """The value in a form that can be hashed and is equal to itself."""
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, dict):
        return tuple((name, frozen(inner)) for name, inner in value.items())
    if isinstance(value, float):
        return NAN if math.isnan(value) else value + 0.0  # zero has no sign
    return value


def counted(rows: Iterable[Sequence[Any]]) -> Counter[Row]:
    """Rows and how often they are there."""
    return Counter(tuple(map(frozen, row)) for row in rows)


class Restless(AssertionError):
    """A loop of the reference has not come to rest."""


class Bag:
    """Rows, and how often each is there."""

    def __init__(self, schema: Mapping[str, Any], rows: Mapping[Row, int]) -> None:
        self.schema = dict(schema)
        self.rows = Counter({row: count for row, count in rows.items() if count})

    @classmethod
    def of(cls, schema: Mapping[str, Any], pairs: Iterable[tuple[Sequence[Any], int]]) -> Bag:
        rows: Counter[Row] = Counter()
        for row, count in pairs:
            rows[tuple(map(frozen, row))] += count
        return cls(schema, rows)

    @property
    def columns(self) -> list[str]:
        return list(self.schema)

    def frame(self, rows: Iterable[Row] | None = None) -> pl.DataFrame:
        listed = list(self.rows if rows is None else rows)
        data = {
            name: pl.Series(name, [_thawed(row[at]) for row in listed], dtype=kind)
            for at, (name, kind) in enumerate(self.schema.items())
        }
        return pl.DataFrame(data)

    def _cells(self, expression: Any) -> list[Any]:
        """The value of an expression for each different row."""
        if isinstance(expression, str):
            at = self.columns.index(expression)
            return [row[at] for row in self.rows]
        if not isinstance(expression, pl.Expr):
            return [expression for _ in self.rows]
        return self.frame().with_columns(__cells=expression)["__cells"].to_list()

    # -- each row by itself

    def select(self, *columns: Any, **named: Any) -> Bag:
        wanted = {_output_name(column): column for column in _flat(columns)} | named
        frame, cells, schema = self.frame(), [], {}
        for name, expression in wanted.items():
            if isinstance(expression, str):
                schema[name] = self.schema[expression]
                cells.append(self._cells(expression))
            else:
                one = pl.lit(expression) if isinstance(expression, list | dict) else expression
                series = frame.with_columns(__cells=one)["__cells"]
                schema[name] = pl.Int64 if type(expression) is int else series.dtype
                cells.append(series.to_list())
        rows = zip(*cells, strict=True) if cells else [() for _ in self.rows]
        return Bag.of(schema, zip(rows, self.rows.values(), strict=True))

    def with_columns(self, *columns: Any, **named: Any) -> Bag:
        present: dict[str, Any] = {name: name for name in self.columns}
        return self.select(**present | {_output_name(c): c for c in _flat(columns)} | named)

    def rename(self, names: Mapping[str, str]) -> Bag:
        return self.select(**{names.get(name, name): name for name in self.columns})

    def drop(self, *columns: str) -> Bag:
        return self.select(*(name for name in self.columns if name not in _flat(columns)))

    def filter(self, predicate: pl.Expr) -> Bag:
        pairs = zip(self.rows.items(), self._cells(predicate), strict=True)
        return Bag(self.schema, {row: count for (row, count), holds in pairs if holds})

    def map_batches(
        self, function: Callable[[pl.DataFrame], Any], schema: Schema, *, keeps: Any = ()
    ) -> Bag:
        pairs = []
        for row, count in self.rows.items():  # one row at a time: how rows are cut must not matter
            pairs += [(computed, count) for computed in function(self.frame([row])).rows()]
        return Bag.of(schema, pairs)

    def flat_map(
        self, function: Callable[[dict[str, Any]], Any], schema: Schema, *, keeps: Any = ()
    ) -> Bag:
        pairs = []
        for row, count in self.rows.items():
            for output_row in function(dict(zip(self.columns, map(_thawed, row), strict=True))):
                pairs.append((_tuple(output_row, schema), count))
        return Bag.of(schema, pairs)

    def explode(self, column: str) -> Bag:
        at = self.columns.index(column)
        pairs = [
            ((*row[:at], item, *row[at + 1 :]), count)
            for row, count in self.rows.items()
            for item in row[at] or ()
        ]
        return Bag.of(self.schema | {column: self.schema[column].inner}, pairs)

    def concat(self, *others: Any) -> Bag:
        rows = Counter(self.rows)
        for other in _flat(others):
            for row, count in other.select(*self.columns).rows.items():
                rows[row] += count
        return Bag(self.schema, rows)

    def negate(self) -> Bag:
        return Bag(self.schema, {row: -count for row, count in self.rows.items()})

    def consolidate(self) -> Bag:
        return self

    def inspect(self, function: Any = None) -> Bag:
        return self

    def windows(self, column: str, size: Any, step: Any = None, *, into: str = "window") -> Bag:
        at, step, pairs = self.columns.index(column), step or size, []
        for row, count in self.rows.items():
            if row[at] is None:
                continue
            zero = EPOCH.get(type(row[at]), timedelta(0) if isinstance(row[at], timedelta) else 0)
            since = row[at] - zero
            number = since // step
            while number * step + size > since:
                pairs.append(((*row, zero + number * step), count))
                number -= 1
        return Bag.of(self.schema | {into: self.schema[column]}, pairs)

    # -- whole collections and groups

    def distinct(self, *columns: Any, name: str | None = None) -> Bag:
        if not columns:
            return Bag(self.schema, {row: 1 for row, count in self.rows.items() if count > 0})
        key = [self.columns.index(each) for argument in columns for each in _listed(argument)]
        least: dict[Row, Row] = {}
        for row in self.rows:
            value = tuple(row[at] for at in key)
            least[value] = min(row, least.get(value, row), key=lambda r: [rank(cell) for cell in r])
        return Bag(self.schema, dict.fromkeys(least.values(), 1))

    def group_by(self, *columns: Any, **named: Any) -> Groups:
        key = {_output_name(column): column for column in _flat(columns)} | named
        computed = {name: e for name, e in key.items() if not (isinstance(e, str) and e == name)}
        apart = {name: name in computed and name in self.columns for name in key}
        places = {name: f"key of {name}" if apart[name] else name for name in key}
        bag = self.with_columns(**{places[name]: e for name, e in computed.items()})
        return Groups(bag if computed else self, list(places.values()), list(places))

    def count(self, name: str = "count") -> Bag:
        return self.group_by().count(name)

    def count_distinct(self, *columns: str) -> Bag:
        return (self.select(*columns) if columns else self).distinct().count()

    def join(
        self, other: Bag, on: Any = None, *, left_on: Any = None, right_on: Any = None,
        how: str = "inner", suffix: str = "_right",
    ) -> Bag:  # fmt: skip
        mine = [] if how == "cross" else _listed(on if left_on is None else left_on)
        its = [] if how == "cross" else _listed(on if right_on is None else right_on)
        left = [self.columns.index(name) for name in mine]
        right = [other.columns.index(name) for name in its]

        def match(a: Row, b: Row) -> bool:
            pairs = [(a[x], b[y]) for x, y in zip(left, right, strict=True)]
            return all(x is not None and (x is y or x == y) for x, y in pairs)

        partners = {
            a: [b for b, n in other.rows.items() if n > 0 and match(a, b)] for a in self.rows
        }
        if how in ("semi", "anti"):
            wanted = how == "semi"
            return Bag(
                self.schema, {a: n for a, n in self.rows.items() if bool(partners[a]) == wanted}
            )
        rest = [at for at in range(len(other.columns)) if at not in right]
        shown = [at for at in range(len(self.columns)) if how != "right" or at not in left]
        taken = rest if how != "right" else range(len(other.columns))
        schema = {self.columns[at]: self.schema[self.columns[at]] for at in shown}
        for at in taken:
            name = other.columns[at]
            schema[name + suffix if name in schema else name] = other.schema[name]
        pairs = []
        for a, n in self.rows.items():
            for b, m in other.rows.items():
                if match(a, b):
                    pairs.append(([a[at] for at in shown] + [b[at] for at in taken], n * m))
            if how in ("left", "full") and not partners[a]:
                pairs.append(([a[at] for at in shown] + [None for _ in taken], n))
        for b, m in other.rows.items():
            if how in ("right", "full") and not any(
                n > 0 and match(a, b) for a, n in self.rows.items()
            ):
                alone: list[Any] = [None] * len(self.columns)
                for x, y in zip(left, right, strict=True):
                    alone[x] = b[y]
                pairs.append(([alone[at] for at in shown] + [b[at] for at in taken], m))
        return Bag.of(schema, pairs)

    def semi_join(self, other: Bag, on: Any = None, **keys: Any) -> Bag:
        return self.join(other, on, how="semi", **keys)

    def anti_join(self, other: Bag, on: Any = None, **keys: Any) -> Bag:
        return self.join(other, on, how="anti", **keys)

    def co_group(
        self, other: Bag, on: Any = None, function: Any = None, schema: Any = None, *, left_on: Any = None,
        right_on: Any = None, inner: bool = False, keeps: Any = (), name: str | None = None,
    ) -> Bag:  # fmt: skip
        mine = Groups(self, _listed(on if left_on is None else left_on))
        its = Groups(other, _listed(on if right_on is None else right_on))
        pairs, left, right = [], mine.groups(), its.groups()
        for key in {*left} & {*right} if inner else {*left} | {*right}:
            frames = mine.frame_of(left.get(key)), its.frame_of(right.get(key))
            for row in function(tuple(map(_thawed, key)), *frames):
                pairs.append(((*key, *_tuple(row, schema)), 1))
        return Bag.of(mine._keys() | dict(schema), pairs)

    # -- loops

    def iterate(
        self, body: Callable[..., Any], *, rounds: int | None = None, at: Any = None,
        name: str | None = None, patience: int | None = None, until: Any = None, key: Any = None,
        mode: str = "auto", maintain: str = "auto", expect: int | None = None,
    ) -> Bag:  # fmt: skip
        """How a loop is run makes no difference here. With ``until``, see `iterate_together`."""

        def one(now: dict[str, Bag]) -> Any:
            given = body(now["rows"])
            return ({"rows": given[0]}, given[1]) if isinstance(given, tuple) else {"rows": given}

        if at is None:
            ends = until
            if callable(until):
                ends = lambda before, after: until(before["rows"], after["rows"])  # noqa: E731
            together = iterate_together(
                {"rows": self}, one, rounds=rounds, until=ends, key=key, patience=patience
            )
            return together["rows"]
        if rounds == 0:
            return self
        last = (patience or PATIENCE) if rounds is None else rounds - 1
        enters = [0] * len(self.rows) if at is None else self._cells(at)
        joins = dict(zip(self.rows, (min(r, last) for r in enters), strict=True))
        result, before = Bag(self.schema, {}), None
        for number in range(last + 1):
            fresh = Bag(self.schema, {r: n for r, n in self.rows.items() if joins[r] == number})
            entered = Bag(self.schema, {r: n for r, n in self.rows.items() if joins[r] <= number})
            current = fresh.concat(result) if at is None else result
            if before == (current.rows, entered.rows) and number > max(joins.values(), default=0):
                return result
            before = current.rows, entered.rows
            result = body(current) if at is None else body(current, entered)
            result = result.select(*self.columns)
        if rounds is None:
            raise Restless("the reference does not come to rest")
        return result

    def iterate_delta(
        self, workset: Bag, *, key: Any, body: Any = None, send: Any = None, better: Any = None,
        missing: str = "drop", rounds: int | None = None, name: str | None = None,
        patience: int | None = None,
    ) -> Bag:  # fmt: skip
        """`body` is a `Body`: its two halves are called one by one, the second with the rows that were accepted."""
        if rounds == 0:
            return self
        keys = _listed(key)
        by, descending = ([], []) if better is None else better.order(self.columns, keys)

        def best(rows: Bag) -> Bag:
            if by:
                return rows.group_by(*keys).top(1, by=by, descending=descending)
            only = rows.distinct()
            if any(len(group) > 1 for group in only.group_by(*keys).groups().values()):
                raise TwoRows
            return only

        solution = best(self)
        known = solution.select(*keys)
        before = None
        for _ in range((patience or PATIENCE) if rounds is None else rounds):
            if before == (solution.rows, workset.rows):
                return solution
            before = solution.rows, workset.rows
            delta = workset if body is None else body.step(solution, workset)
            delta = delta.select(*self.columns)
            if missing == "drop":
                delta = delta.semi_join(known, on=keys)
            delta = best(delta)
            if by:
                merged = best(solution.concat(delta))
            else:
                merged = delta.concat(solution.without_keys(delta, keys))
            gone = solution.rows
            accepted = Bag(self.schema, {row: 1 for row in merged.rows if row not in gone})
            solution = Bag(self.schema, dict.fromkeys(merged.rows, 1))
            workset = (send(accepted) if body is None else body.go_on(accepted)).select(
                *workset.columns
            )
        if rounds is None:
            raise Restless("the reference does not come to rest")
        return solution

    def without_keys(self, other: Bag, keys: Sequence[str]) -> Bag:
        """The rows whose key `other` does not have; a null equals a null."""
        mine, theirs = self.select(*keys).columns, set(other.select(*keys).rows)
        places = [self.columns.index(name) for name in mine]
        return Bag(
            self.schema,
            {r: n for r, n in self.rows.items() if tuple(r[at] for at in places) not in theirs},
        )


class TwoRows(AssertionError):
    """Two different rows for one key, where nothing says which one is better."""


class Body:
    """A body of a delta iteration in two halves: `step` gives the delta, `go_on` makes the next workset of it."""

    def __init__(self, step: Callable[..., Any], go_on: Callable[..., Any]) -> None:
        self.step = step
        self.go_on = go_on

    def __call__(self, solution: Any, workset: Any) -> Any:
        delta = self.step(solution, workset)
        return delta, self.go_on(delta)


def iterate_together(
    start: Mapping[str, Bag], body: Callable[[dict[str, Bag]], Any], *, rounds: int | None = None,
    until: Any = None, key: Any = None, patience: int | None = None, mode: str = "auto",
    maintain: str = "auto", name: str | None = None,
) -> dict[str, Bag]:  # fmt: skip
    """Several bags that make each other. The loop ends at the first round where it may, and at `rounds`."""
    now = dict(start)
    for _ in range((patience or PATIENCE) if rounds is None else rounds):
        given = body(now)
        proceed = None
        if isinstance(given, tuple):
            given, proceed = given
        after = {each: given[each].select(*now[each].columns) for each in now}
        if callable(until):
            proceed = until(now, after)
        if proceed is not None:
            ends = not proceed.rows
        elif isinstance(until, LittleMoved):
            ends = _are_close(now["rows"], after["rows"], _listed(key), until)
        else:
            ends = all(now[each].rows == after[each].rows for each in now)
        now = after
        if ends:
            return now
    if rounds is None:
        raise Restless("the reference does not come to rest")
    return now


def _are_close(before: Bag, after: Bag, key: Sequence[str], until: LittleMoved) -> bool:
    was, now = (each.select(*key, until.column).rows for each in (before, after))
    if len(was) != len(now) or {row[:-1] for row in was} != {row[:-1] for row in now}:
        return False
    values = {row[:-1]: row[-1] for row in now}
    return all(
        row[-1] == values[row[:-1]]
        or (
            None not in (row[-1], values[row[:-1]])
            and abs(_thawed(row[-1]) - _thawed(values[row[:-1]])) <= until.most
        )
        for row in was
    )


class Groups:
    """A bag, the columns by which its rows are grouped, and what results call these columns."""

    def __init__(self, bag: Bag, key: list[str], called: list[str] | None = None) -> None:
        self.bag = bag
        self.key = key
        self.called = called or key

    def groups(self) -> dict[Row, Counter[Row]]:
        places = [self.bag.columns.index(name) for name in self.key]
        groups: dict[Row, Counter[Row]] = {}
        for row, count in self.bag.rows.items():
            groups.setdefault(tuple(row[at] for at in places), Counter())[row] += count
        return {key: rows for key, rows in groups.items() if sum(rows.values()) > 0}

    def frame_of(self, rows: Counter[Row] | None) -> pl.DataFrame:
        """The rows of a group as functions see them; None: no rows."""
        rest = [each for each in self.bag.columns if each not in self.key]
        group = Bag(self.bag.schema, rows or {}).select(*self.key, *rest)
        listed = sorted(group.rows.elements(), key=lambda row: [rank(cell) for cell in row])
        return group.frame(listed)

    def _keys(self) -> Schema:
        return {
            name: self.bag.schema[place] for name, place in zip(self.called, self.key, strict=True)
        }

    def agg(self, *aggregates: Any, name: str | None = None, **named: Any) -> Bag:
        wanted = {_aggregate_name(each): each for each in _flat(aggregates)} | named
        schema, pairs = self._keys(), []
        for column, aggregate in wanted.items():
            schema[column] = _aggregate_type(self.bag, aggregate)
        for key, rows in self.groups().items():
            group = Bag(self.bag.schema, rows)
            pairs.append(((*key, *(_aggregate(group, each) for each in wanted.values())), 1))
        return Bag.of(schema, pairs)

    def count(self, name: str = "count") -> Bag:
        return self.agg(**{name: rr.count()})

    def top(self, k: int, by: Any, *, descending: Any = True, name: str | None = None) -> Bag:
        columns, by = self.bag.columns, _listed(by)
        computed = {f"by {at}": each for at, each in enumerate(by) if isinstance(each, pl.Expr)}
        if computed:
            ordered = Groups(self.bag.with_columns(**computed), self.key)
            names = [f"by {at}" if f"by {at}" in computed else each for at, each in enumerate(by)]
            return ordered.top(k, names, descending=descending).select(*columns)
        down = [descending] * len(by) if isinstance(descending, bool) else descending
        ways = {columns.index(b): d for b, d in zip(by, down, strict=True) if b not in self.key}
        inside = list(ways)

        def place(row: Row) -> Any:
            first = [_in_order(row[at], ways[at]) for at in inside]
            rest = [
                at for at, each in enumerate(columns) if at not in inside and each not in self.key
            ]
            return [*first, *(rank(row[at]) for at in rest)]

        pairs = []
        for rows in self.groups().values():
            listed = sorted(Counter(rows).elements(), key=place)
            pairs += [(row, 1) for row in listed[:k]]
        return Bag.of(self.bag.schema, pairs)

    def apply(
        self, function: Callable[[pl.DataFrame], Any], schema: Schema, *, many: bool = False,
        keeps: Any = (), name: str | None = None,
    ) -> Bag:  # fmt: skip
        pairs = []
        for key, rows in self.groups().items():
            output = function(self.frame_of(rows))
            for row in output if many else [output]:
                pairs.append(((*key, *_tuple(row, schema)), 1))
        return Bag.of(self._keys() | dict(schema), pairs)


def _aggregate(group: Bag, aggregate: Any) -> Any:
    if not isinstance(aggregate, Value):
        listed = sorted(group.rows.elements(), key=lambda row: [rank(cell) for cell in row])
        return _by_polars(group.frame(listed), aggregate).to_list()[0]
    if isinstance(aggregate, Expression):
        return _computed(group, aggregate)
    kind, counts = aggregate.kind, list(group.rows.values())
    if kind == "count" and aggregate.column is None:
        return sum(counts)
    if kind == "count_distinct":
        columns = [map(frozen, group._cells(column)) for column in aggregate.columns]
        return len({row for row in zip(*columns, strict=True) if None not in row})
    pairs = zip(map(frozen, group._cells(aggregate.column)), counts, strict=True)
    cells = [cell for cell, count in pairs for _ in range(count) if cell is not None]
    if kind == "sum":
        return exact_sum(cells)
    if kind == "mean":
        return exact_sum(cells) / len(cells) if cells else None
    if kind == "min":
        return min(cells, key=rank, default=None)
    if kind == "max":
        return max(cells, key=rank, default=None)
    if kind == "count":
        return len(cells)
    orders = zip(*(map(frozen, group._cells(each)) for each in aggregate.order), strict=True)
    values = map(frozen, group._cells(aggregate.column))

    def place(pair: Any) -> Any:
        return [_in_order(cell, kind == "last") for cell in pair[0]], rank(pair[1])

    return min(zip(orders, values, strict=True), key=place)[1]


def _computed(group: Bag, expression: Expression) -> Any:
    """Polars' arithmetic, on a frame of two equal rows, since Polars divides a single row in another way."""
    frame, names = {}, {}
    for at, each in enumerate(expression.aggregates()):
        names[id(each)] = str(at)
        cell = _thawed(_aggregate(group, each))
        frame[str(at)] = pl.Series([cell, cell], dtype=_aggregate_type(group, each))
    frame_of_one = pl.DataFrame(frame).select(value=expression.of(lambda each: names[id(each)]))
    return frame_of_one["value"].to_list()[0]


def _by_polars(frame: pl.DataFrame, aggregate: pl.Expr) -> pl.Series:
    whole = frame.with_columns(__group=0).group_by("__group")
    return whole.agg(aggregate.alias("__cells"))["__cells"]


def exact_sum(cells: Sequence[Any]) -> Any:
    """The exact sum, rounded once where it is a float."""
    if not any(isinstance(cell, float) for cell in cells):
        return sum(cells)
    if any(math.isnan(cell) for cell in cells) or {math.inf, -math.inf} <= set(cells):
        return NAN
    infinite = [cell for cell in cells if math.isinf(cell)]
    if infinite:
        return infinite[0]
    exact = sum(map(Fraction, cells))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _aggregate_type(bag: Bag, aggregate: Any) -> Any:
    if not isinstance(aggregate, Value):
        return _by_polars(bag.frame([]), aggregate).dtype
    if isinstance(aggregate, Expression):
        inner = {str(at): each for at, each in enumerate(aggregate.aggregates())}
        names = {id(each): name for name, each in inner.items()}
        kinds = {name: _aggregate_type(bag, each) for name, each in inner.items()}
        return (
            pl.DataFrame(schema=kinds)
            .select(value=aggregate.of(lambda each: names[id(each)]))["value"]
            .dtype
        )
    if aggregate.kind in ("count", "count_distinct"):
        return pl.Int64
    if aggregate.kind == "mean":
        return pl.Float64
    kind = bag.frame([]).with_columns(
        __cells=pl.col(aggregate.column) if isinstance(aggregate.column, str) else aggregate.column
    )["__cells"]
    if aggregate.kind != "sum":
        return kind.dtype
    if kind.dtype.is_float():
        return pl.Float64
    return pl.UInt64 if kind.dtype.is_unsigned_integer() else pl.Int64


def _in_order(cell: Any, descending: bool) -> Any:
    """Nulls come last either way."""
    return (cell is None, backwards(rank(cell)) if descending else rank(cell))


def _aggregate_name(aggregate: Any) -> str:
    if not isinstance(aggregate, Value):
        return aggregate.meta.output_name()
    if aggregate.called is not None:
        return aggregate.called
    return aggregate.kind if aggregate.column is None else _output_name(aggregate.column)


def _output_name(column: Any) -> str:
    return column if isinstance(column, str) else column.meta.output_name()


def _listed(columns: Any) -> list[str]:
    return list(columns) if isinstance(columns, list | tuple) else [columns]


def _flat(arguments: Iterable[Any]) -> list[Any]:
    return [one for each in arguments for one in (each if isinstance(each, list) else [each])]


def _tuple(row: Any, schema: Schema) -> Row:
    if isinstance(row, dict):
        return tuple(row[name] for name in schema)
    return tuple(row) if isinstance(row, tuple | list) else (row,)


def _thawed(value: Any) -> Any:
    return list(map(_thawed, value)) if isinstance(value, tuple) else value
