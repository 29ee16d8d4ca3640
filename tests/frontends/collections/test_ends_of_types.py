"""Arithmetic at the ends of types: the right answer, or an error of ours; never another number.

Oracles compute with Python's integers, which have no end. Values are drawn near both ends of each type and near zero.
"""

from __future__ import annotations

import random
from decimal import Context, Decimal
from typing import Any

import polars as pl
import pytest

import riverrun as rr

LEAST, MOST = -(1 << 63), (1 << 63) - 1
NINES = 10**38 - 1
WORKERS = [1, 3]


def decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal(unscaled).scaleb(-scale, Context(prec=60))


def drawn(random_: random.Random, least: int, most: int) -> int:
    """A number near an end, near the half of it, near zero or anywhere."""
    near = random_.choice((least, most, least // 2, most // 2, 0, random_.randint(least, most)))
    return min(max(near + random_.randint(-3, 3), least), most)


ADDED: dict[str, tuple[Any, tuple[int, int], tuple[int, int]]] = {
    **{
        f"int{bits}": (
            getattr(pl, f"Int{bits}"),
            (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            (LEAST, MOST),
        )
        for bits in (8, 16, 32, 64)
    },
    **{
        f"uint{bits}": (getattr(pl, f"UInt{bits}"), (0, (1 << bits) - 1), (0, (1 << 64) - 1))
        for bits in (8, 32, 64)
    },
    **{unit: (pl.Duration(unit), (LEAST, MOST), (LEAST, MOST)) for unit in ("ms", "us", "ns")},
    "decimal(38, 0)": (pl.Decimal(38, 0), (-NINES, NINES), (-NINES, NINES)),
    "decimal(38, 10)": (pl.Decimal(38, 10), (-NINES, NINES), (-NINES, NINES)),
    "decimal(12, 2)": (pl.Decimal(12, 2), (-(10**12) + 1, 10**12 - 1), (-NINES, NINES)),
}


def column(values: list[int | None], kind: Any) -> pl.Series:
    if isinstance(kind, pl.Decimal):
        cells = [None if v is None else decimal(v, kind.scale) for v in values]
        return pl.Series(cells, dtype=kind)
    if isinstance(kind, pl.Duration):
        return pl.Series(values, dtype=pl.Int64).cast(kind)
    return pl.Series(values, dtype=kind)


def unscaled(value: Any, kind: Any) -> Any:
    if isinstance(kind, pl.Decimal) and value is not None:
        return int(value.scaleb(kind.scale, Context(prec=60)))
    return value


def read_sums(run: Any, kind: Any) -> dict[int, int]:
    frame = run.read("sums").to_polars()
    if isinstance(kind, pl.Duration):
        frame = frame.with_columns(pl.col("s").to_physical())
    return {g: unscaled(s, kind) for g, s in frame.select("g", "s").iter_rows()}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", ADDED)
def test_a_sum_is_exact_or_refused(name: str, workers: int) -> None:
    kind, (least, most), (low, high) = ADDED[name]
    draw = random.Random(f"{name} {workers}")
    flow = rr.Dataflow("ends")
    rows = flow.input("rows", {"g": pl.Int64, "v": kind})
    flow.output("sums", rows.group_by("g").agg(s=rr.sum("v"), m=rr.mean("v")))
    there: list[tuple[int, int | None]] = []
    with flow.run(workers=workers) as run:
        for _ in range(12):
            put = [
                (draw.randrange(3), draw.choice((drawn(draw, least, most), None)))
                for _ in range(draw.randint(1, 3))
            ]
            gone = draw.sample(there, min(len(there), draw.randint(0, 3)))
            left = list(there)
            for row in gone:
                left.remove(row)
            left += put
            expected = {g: sum(v for k, v in left if k == g and v is not None) for g, _ in left}
            for batch, send in ((put, run.insert), (gone, run.delete)):
                if batch:
                    send(
                        "rows",
                        pl.DataFrame(
                            {"g": [g for g, _ in batch], "v": column([v for _, v in batch], kind)}
                        ),
                    )
            if all(low <= s <= high for s in expected.values()):
                run.commit()
                there = left
                assert read_sums(run, kind) == expected
            else:
                with pytest.raises(rr.RiverrunError) as refused:
                    run.commit()
                assert refused.value.code == "operator.overflow"
                assert any(
                    str(abs(s))[:15] in refused.value.message.replace(".", "")
                    for s in expected.values()
                )
                break


def one(schema: dict[str, Any], rows: Any, program: Any) -> Any:
    flow = rr.Dataflow("one")
    flow.output("out", program(flow.input("rows", schema)))
    with flow.run() as run:
        run.insert("rows", rows)
        run.commit()
        return run.read("out").to_polars()


def test_a_mean_is_of_the_exact_sum() -> None:
    numbers = [NINES, NINES, NINES - 3]
    rows = pl.DataFrame({"v": column(list(numbers), pl.Decimal(38, 2))})
    mean_frame = one({"v": pl.Decimal(38, 2)}, rows, lambda c: c.group_by().agg(m=rr.mean("v")))
    assert mean_frame["m"].item() == sum(numbers) / 300
    for numbers, mean in (([MOST, MOST, MOST - 5], MOST - 2), ([-1, -2], -1), ([LEAST], LEAST)):
        rows = pl.DataFrame({"v": column(list(numbers), pl.Duration("us"))})
        mean_frame = one({"v": pl.Duration("us")}, rows, lambda c: c.group_by().agg(m=rr.mean("v")))
        assert mean_frame.schema["m"] == pl.Duration("us")
        assert mean_frame["m"].to_physical().item() == mean


def test_a_sum_of_a_row_that_is_there_more_than_two_thousand_million_times() -> None:
    """A digit of the number times how often the row is there leaves 64 bits."""
    for kind, value, times in (
        (pl.Int64, -1, 1 << 33),
        (pl.UInt64, (1 << 29) + 1, 1 << 34),
        (pl.Decimal(38, 0), 10**24 + 1, 1 << 40),
    ):

        def doubled(c: Any, times: int = times) -> Any:
            for _ in range(times.bit_length() - 1):
                c = c.concat(c).consolidate()
            return c.group_by().agg(n=rr.count(), s=rr.sum("v"))

        summed = one({"v": kind}, pl.DataFrame({"v": column([value], kind)}), doubled)
        assert summed.rows() == [(times, value * times)]


# -- windows and expiry

SIGNED = {
    pl.Int8: (-(1 << 7), (1 << 7) - 1),
    pl.Int16: (-(1 << 15), (1 << 15) - 1),
    pl.Int32: (-(1 << 31), (1 << 31) - 1),
    pl.Int64: (LEAST, MOST),
}


@pytest.mark.parametrize("kind", SIGNED)
def test_windows_at_the_ends_of_integers(kind: Any) -> None:
    least, most = SIGNED[kind]
    draw = random.Random(str(kind))
    refused = 0
    for _ in range(60):
        size, step = draw.choice(((10, 5), (7, 7), (3, 5), (100, 50), (1, 1), (12, 7)))
        offset = draw.choice((0, 1, 3, -4))
        t = drawn(draw, least, most)
        latest = (t - offset) // step * step + offset
        starts = [latest - back * step for back in range(size // step + 1)]
        starts = sorted(start for start in starts if start <= t < start + size)

        def windowed(c: Any, size: int = size, step: int = step, offset: int = offset) -> Any:
            return c.windows("t", size, step, offset=offset)

        if all(start >= least for start in starts):
            rows = one({"t": kind}, [(t,)], windowed)["window"].to_list()
            assert sorted(rows) == starts, (t, size, step, offset)
        else:
            refused += 1
            with pytest.raises(rr.RiverrunError) as error:
                one({"t": kind}, [(t,)], windowed)
            assert error.value.code == "operator.overflow"
            assert str(starts[0]) in error.value.message
    assert refused


def test_a_window_of_a_time_of_day_does_not_start_on_the_day_before() -> None:
    from datetime import time, timedelta

    def windowed(c: Any) -> Any:
        return c.windows("t", timedelta(hours=2), timedelta(hours=1))

    late = one({"t": pl.Time}, [(time(23, 30),)], windowed)
    assert sorted(late["window"].to_list()) == [time(22), time(23)]
    with pytest.raises(rr.RiverrunError) as error:
        one({"t": pl.Time}, [(time(0, 30),)], windowed)
    assert error.value.code == "operator.overflow"


@pytest.mark.parametrize("workers", WORKERS)
def test_expiry_at_the_ends_of_integers(workers: int) -> None:
    for seed in range(6):
        draw = random.Random(f"expire {seed}")
        after, late = draw.choice((1, 2, 10, MOST)), draw.choice((0, 0, 1, 10))
        flow = rr.Dataflow("ends")
        rows = flow.input("rows", {"t": pl.Int64, "n": pl.Int64})
        flow.output("kept", rows.expire("t", after=after, late=late))
        sent: list[tuple[int, int]] = []
        mark, dropped, counted = None, 0, 0
        remaining: set[tuple[int, int]] = set()
        with flow.run(workers=workers) as run:
            for epoch in range(8):
                top = MOST if epoch > 4 else drawn(draw, LEAST, MOST)
                put = [(drawn(draw, max(LEAST, top - 20), top), len(sent) + at) for at in range(3)]
                run.insert("rows", put)
                run.commit()
                sent += put
                mark = max(t for t, _ in sent) - late
                alive = {(t, n) for t, n in put if t + after > mark}
                dropped += len(put) - len(alive)
                remaining = {(t, n) for t, n in remaining | alive if t + after > mark}
                assert set(run.read("kept").rows()) == remaining, (seed, after, late)
            counted = sum(e["rows"] for e in run.events("late"))
        assert counted == dropped


def test_a_mark_before_all_times() -> None:
    expired = one({"t": pl.Int64}, [(LEAST + 3,)], lambda c: c.expire("t", after=5, late=100))
    assert expired.rows() == [(LEAST + 3,)]


# -- the shortest paths


def test_distances_beyond_64_bits() -> None:
    from riverrun.algorithms.graphs.paths import shortest_paths

    def flow_of() -> Any:
        flow = rr.Dataflow("paths")
        edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64, "weight": pl.Int64})
        sources = flow.input("sources", {"node": pl.Int64})
        flow.output("distances", shortest_paths(edges, sources))
        return flow

    with flow_of().run() as run:
        run.insert("sources", [(1,)])
        run.insert("edges", [(1, 2, MOST), (2, 3, 0)])
        run.commit()
        assert run.read("distances").rows() == [(1, 0), (2, MOST), (3, MOST)]
        # A path that is too long does no harm where another is shorter, be it of more edges.
        run.insert("edges", [(2, 4, 7), (1, 5, 1), (5, 6, 1), (6, 4, 1), (4, 7, 1)])
        run.commit()
        assert run.read("distances").rows() == [
            (1, 0),
            (2, MOST),
            (3, MOST),
            (4, 3),
            (5, 1),
            (6, 2),
            (7, 4),
        ]
        run.delete("edges", [(6, 4, 1)])
        with pytest.raises(rr.RiverrunError) as error:
            run.commit()
        assert error.value.code == "operator.overflow"
        assert "4" in error.value.message


# -- computing with aggregates

INTEGERS = {name: ADDED[name] for name in ADDED if "int" in name}


def fits(value: int | None, kind: Any) -> bool:
    low, high = (0, (1 << 64) - 1) if kind == pl.UInt64 else (LEAST, MOST)
    return value is None or low <= value <= high


@pytest.mark.parametrize("name", INTEGERS)
def test_arithmetic_of_aggregates_is_exact_or_refused(name: str) -> None:
    kind, (least, most), _ = INTEGERS[name]
    unsigned = name.startswith("u")
    draw = random.Random(f"arithmetic {name}")
    low, high = rr.min("v"), rr.max("v")
    computed: list[tuple[str, Any, Any]] = [
        ("max - min", high - low, lambda a, b: b - a),
        ("min - max", low - high, lambda a, b: a - b),
        ("max + min", high + low, lambda a, b: b + a),
        ("max * min", high * low, lambda a, b: b * a),
        ("max * 4", high * 4, lambda a, b: b * 4),
        ("3 + max", 3 + high, lambda a, b: 3 + b),
        ("7 - min", 7 - low, lambda a, b: 7 - a),
        ("(max - min) * 2 - max", (high - low) * 2 - high, lambda a, b: (b - a) * 2 - b),
        ("max ** 2", high**2, lambda a, b: b**2),
        ("max // 3", high // 3, lambda a, b: b // 3),
        ("max % 7", high % 7, lambda a, b: b % 7),
        ("max + 2**64", high + 2**64, lambda a, b: b + 2**64),
        ("max - 2**64", high - 2**64, lambda a, b: b - 2**64),
        ("2**64 - max", 2**64 - high, lambda a, b: 2**64 - b),
        ("max * 2**64", high * 2**64, lambda a, b: b * 2**64),
        ("min * -(2**63) - 1", low * (-(2**63) - 1), lambda a, b: a * (-(2**63) - 1)),
        ("max * 10**37", high * 10**37, lambda a, b: b * 10**37),
        ("max // 2**64", high // 2**64, lambda a, b: b // 2**64),
        ("2**70 // max", 2**70 // rr.max("v").fill_null(1), lambda a, b: 2**70 // b if b else None),
        ("max % 2**64", high % 2**64, lambda a, b: b % 2**64),
        ("min % 10**30", low % 10**30, lambda a, b: a % 10**30),
        ("max ** 2**64", high**2**64, lambda a, b: b * b if abs(b) < 2 else 2**99),
    ]
    computed.append(("-min", -low, lambda a, b: -a))
    if not unsigned:
        computed += [
            ("abs(min)", abs(low), lambda a, b: abs(a)),
            ("min // -1", low // -1, lambda a, b: a // -1),
            ("max - -5", high - -5, lambda a, b: b + 5),
        ]
    refused = right = 0
    for text, expression, oracle in computed:
        for _ in range(6):
            a, b = sorted(drawn(draw, least, most) for _ in range(2))

            def aggregated(c: Any, expression: Any = expression) -> Any:
                return c.group_by().agg(x=expression)

            turned = text in ("-min", "min * -(2**63) - 1")
            wide = pl.UInt64 if kind == pl.UInt64 and not turned else pl.Int64
            expected = oracle(a, b)
            if expected is None:
                continue
            steps = [expected, b - a, (b - a) * 2] if text.startswith("(max") else [expected]
            if all(fits(step, wide) for step in steps):
                right += 1
                frame = one({"v": kind}, [(a,), (b,)], aggregated)
                assert frame["x"].to_list() == [expected], (text, a, b)
                assert frame.schema["x"] == wide
            else:
                refused += 1
                with pytest.raises(rr.RiverrunError) as error:
                    one({"v": kind}, [(a,), (b,)], aggregated)
                assert error.value.code == "operator.overflow", (text, a, b)
    assert right
    assert refused or "64" not in name


def test_literals_beyond_64_bits() -> None:
    """Beside integers they are exact; beside floats and decimals they are Polars' matter; beyond 128 bits, refused."""
    for expression, expected in (
        (rr.max("v") / 2**64, [5 / 2**64]),
        (rr.max("v") < 2**64, [True]),
        (rr.mean("v") + 2**64, [2.0**64 + 5]),
        (rr.max("v").cast(pl.Decimal(38, 0)) + 10**30, [Decimal(10**30 + 5)]),
    ):
        frame = one({"v": pl.Int64}, [(5,)], lambda c, value=expression: c.group_by().agg(x=value))
        assert frame["x"].to_list() == expected, str(expression)
    for beyond in (2**127, -(2**127) - 1, 10**400):
        for make in (
            lambda beyond=beyond: rr.max("v") + beyond,
            lambda beyond=beyond: beyond * rr.max("v"),
            lambda beyond=beyond: rr.max("v") / beyond,
            lambda beyond=beyond: rr.max("v") == beyond,
            lambda beyond=beyond: rr.max("v").fill_null(beyond),
        ):
            with pytest.raises(rr.PlanError, match="more than 128 bits") as refused:
                one({"v": pl.Int64}, [(5,)], lambda c, make=make: c.group_by().agg(x=make()))
            assert refused.value.code == "plan.aggregate"
            assert refused.value.hint


def test_arithmetic_of_durations_and_times_is_exact_or_refused() -> None:
    draw = random.Random("durations")
    low, high = rr.min("v"), rr.max("v")
    computed: list[tuple[Any, Any]] = [
        (high - low, lambda a, b: b - a),
        (high + low, lambda a, b: b + a),
        (high * 3, lambda a, b: b * 3),
    ]
    for unit in ("ms", "us", "ns"):
        for at, (expression, oracle) in enumerate(computed):
            for kind in (pl.Duration(unit), pl.Datetime(unit)):
                if at and isinstance(kind, pl.Datetime):
                    continue
                for _ in range(6):
                    a, b = sorted(drawn(draw, LEAST, MOST) for _ in range(2))
                    rows = pl.DataFrame({"v": pl.Series([a, b]).cast(kind)})

                    def aggregated(c: Any, expression: Any = expression) -> Any:
                        return c.group_by().agg(x=expression)

                    if fits(oracle(a, b), pl.Int64):
                        x = one({"v": kind}, rows, aggregated)["x"]
                        assert x.dtype == pl.Duration(unit)
                        assert x.to_physical().to_list() == [oracle(a, b)]
                    else:
                        with pytest.raises(rr.RiverrunError) as error:
                            one({"v": kind}, rows, aggregated)
                        assert error.value.code == "operator.overflow"


def test_arithmetic_of_aggregates_keeps_nulls_and_the_other_types() -> None:
    def aggregated(c: Any) -> Any:
        return c.group_by().agg(
            none=rr.max("n") + 1,
            zero=rr.max("v") // (rr.max("v") - rr.max("v")),
            ratio=rr.sum("v") / rr.count(),
            float=rr.max("f") * 2,
            both=rr.max("v") + rr.max("f"),
            text=rr.max("s") + pl.lit("!"),
            size=rr.count() * 2,
        )

    schema = {"v": pl.Int8, "n": pl.Int8, "f": pl.Float64, "s": pl.String}
    rows = one(schema, [(3, None, 0.5, "a")], aggregated)
    assert rows.rows() == [(None, None, 3.0, 1.0, 3.5, "a!", 2)]


# -- orders


@pytest.mark.parametrize("kind", [ADDED[name][0] for name in ADDED])
def test_orders_at_the_ends(kind: Any) -> None:
    """The least value is the last one downwards, where nobody may negate it."""
    least, most = next(ends for each, ends, _ in ADDED.values() if each == kind)
    values = [least, least + 1, 0, most - 1, most]
    rows = pl.DataFrame({"v": column(list(values), kind)})
    ordered = rows["v"].to_list() if not isinstance(kind, pl.Duration) else values
    for down in (True, False):
        expected = sorted(set(values), reverse=down)[:2]

        def at_the_ends(c: Any, down: bool = down) -> Any:
            return c.distinct().group_by().top(2, by="v", descending=down)

        series = one({"v": kind}, rows, at_the_ends)["v"]
        series = series.to_physical() if isinstance(kind, pl.Duration) else series
        assert {unscaled(each, kind) for each in series.to_list()} == set(expected)
    both = one({"v": kind}, rows, lambda c: c.group_by().agg(a=rr.min("v"), b=rr.max("v")))
    if isinstance(kind, pl.Duration):
        both = both.select(pl.all().to_physical())
    assert both.row(0) == (min(ordered), max(ordered))


# -- shared states and cycles


@pytest.mark.parametrize("compact", [None, rr.rules.fold])
def test_totals_are_exact_or_refused(compact: Any) -> None:
    for seed in range(8):
        draw = random.Random(f"totals {seed}")
        flow = rr.Dataflow("totals")
        put = flow.input("put", {"k": pl.Int64, "t": pl.Int64, "v": pl.Int64})
        ask = flow.input("ask", {"k": pl.Int64, "t": pl.Int64})
        options = {} if compact is None else {"compact": compact}
        state = flow.state("s", {"k": pl.Int64}, {"v": pl.Int64}, time={"t": pl.Int64}, **options)
        put.update(state, rule=rr.rules.add)
        flow.output("sums", ask.fetch(state, key="k", at="t", rule=rr.rules.total))
        total = 0
        with flow.run() as run:
            for t in range(10):
                value = drawn(draw, LEAST, MOST) if t % 2 else -total // 2
                value = min(max(value, LEAST), MOST)
                run.insert("put", [(1, 2 * t, value)])
                run.insert("ask", [(1, 2 * t - 1)])
                # What is asked for is before this epoch's increment.
                if t and not LEAST <= total <= MOST:
                    with pytest.raises(rr.RiverrunError) as error:
                        run.commit()
                    assert error.value.code == "operator.overflow"
                    assert str(total) in error.value.message
                    break
                run.commit()
                if t:
                    assert (1, 2 * t - 1, total) in run.read("sums").rows()
                total += value


@pytest.mark.parametrize("kind", SIGNED)
def test_cycles_at_the_first_times(kind: Any) -> None:
    from riverrun.algorithms.graphs.cycles import cycles

    least, most = SIGNED[kind]
    for base, span in ((least, 10), (least + 5, 10), (most - 5, 10), (0, 2), (0, 1), (least, most)):
        flow = rr.Dataflow("rings")
        edges = flow.input("edges", {"src": pl.String, "dst": pl.String, "time": kind})
        flow.output("rings", cycles(flow, edges, span, lengths=(3,)))
        with flow.run() as run:
            run.insert("edges", [("a", "b", base), ("b", "c", base + 1), ("c", "a", base + 2)])
            run.commit()
            expected = [(base + 2, "c", "a", 3, ["a", "b", "c"])] if span >= 2 else []
            assert run.read("rings").rows() == expected, (base, span)
