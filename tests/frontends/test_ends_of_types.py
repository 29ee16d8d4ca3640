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
        made = [None if v is None else decimal(v, kind.scale) for v in values]
        return pl.Series(made, dtype=kind)
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
            for given, send in ((put, run.insert), (gone, run.delete)):
                if given:
                    send(
                        "rows",
                        pl.DataFrame(
                            {"g": [g for g, _ in given], "v": column([v for _, v in given], kind)}
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


def one(schema: dict[str, Any], rows: Any, made: Any) -> Any:
    flow = rr.Dataflow("one")
    flow.output("out", made(flow.input("rows", schema)))
    with flow.run() as run:
        run.insert("rows", rows)
        run.commit()
        return run.read("out").to_polars()


def test_a_mean_is_of_the_exact_sum() -> None:
    numbers = [NINES, NINES, NINES - 3]
    rows = pl.DataFrame({"v": column(list(numbers), pl.Decimal(38, 2))})
    made = one({"v": pl.Decimal(38, 2)}, rows, lambda c: c.group_by().agg(m=rr.mean("v")))
    assert made["m"].item() == sum(numbers) / 300
    for numbers, mean in (([MOST, MOST, MOST - 5], MOST - 2), ([-1, -2], -1), ([LEAST], LEAST)):
        rows = pl.DataFrame({"v": column(list(numbers), pl.Duration("us"))})
        made = one({"v": pl.Duration("us")}, rows, lambda c: c.group_by().agg(m=rr.mean("v")))
        assert made.schema["m"] == pl.Duration("us")
        assert made["m"].to_physical().item() == mean


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

        made = one({"v": kind}, pl.DataFrame({"v": column([value], kind)}), doubled)
        assert made.rows() == [(times, value * times)]
