"""Windows over a time column, and rows that leave by themselves."""

from __future__ import annotations

import datetime
import random
from collections import Counter

import polars as pl
import pytest

import riverrun as rr
from tests.frontends.collections.checking import Rows, build, check, feed
from tests.frontends.collections.reference import counted
from tests.soaking import seeds

DAY = datetime.timedelta(days=1)
HOUR = datetime.timedelta(hours=1)
START = datetime.datetime(1970, 1, 3)


def check_windows(kind, values, size, step, seed):
    schema = {"rows": {"at": kind, "v": pl.Int64}}
    make = {"rows": lambda source: (source.choice(values), source.randrange(2))}

    def program(rows):
        windowed = rows.windows("at", size, step)
        return {
            "all": windowed,
            "counts": windowed.group_by("window").agg(n=rr.count(), s=rr.sum("v")),
            "named": rows.windows("at", size, step, into="start").select("start").distinct(),
        }

    check(program, schema, seed=seed, make=make)


@pytest.mark.parametrize(
    ("size", "step"), [(5, None), (5, 5), (6, 2), (5, 2), (2, 5), (1, 1), (7, 3)]
)
def test_windows_over_integers(size, step):
    values = [*range(-12, 13, 3), -1, 0, 1, 4, 5, None]
    for seed in range(3):
        check_windows(pl.Int64, values, size, step, seed)


@pytest.mark.parametrize("kind", [pl.Int8, pl.Int32])
def test_windows_over_narrow_integers(kind):
    check_windows(kind, [-100, -7, 0, 99, None], 10, 5, seed=1)


@pytest.mark.parametrize(("size", "step"), [(HOUR, None), (DAY, 6 * HOUR), (HOUR * 3, HOUR * 2)])
@pytest.mark.parametrize("unit", ["ms", "us"])
def test_windows_over_timestamps(size, step, unit):
    values = [START + HOUR * n / 2 for n in range(-60, 60, 7)] + [None]
    check_windows(pl.Datetime(unit), values, size, step, seed=1)


@pytest.mark.parametrize(("size", "step"), [(DAY, None), (7 * DAY, None), (3 * DAY, DAY)])
def test_windows_over_dates(size, step):
    values = [START.date() + DAY * n for n in range(-9, 9, 2)] + [None]
    check_windows(pl.Date, values, size, step, seed=2)


def test_windows_over_durations():
    check_windows(pl.Duration("us"), [HOUR * n for n in range(-5, 5)], 2 * HOUR, HOUR, seed=1)


# -- rows that leave


def check_expire(kind, values, span, late, seed, *, scale=False, workers=None):
    """Rows until the watermark passes them: the greatest time inserted so far, less what may be late."""
    source = random.Random(seed)
    workers = workers or source.choice([1, 2, 3])
    schema = {"rows": {"at": kind, "v": pl.Int64}}
    flow = build(
        lambda rows: {
            "young": rows.expire("at", after=span, late=late),
            "counts": rows.expire("at", after=span, late=late).group_by("v").agg(n=rr.count()),
        },
        schema,
    )
    moving = Rows(lambda source: (source.choice(values), source.randrange(2)))
    there, mark, uncounted = Counter(), None, Counter()
    with flow.run(workers=workers, seed=source.choice([None, seed])) as run:
        for epoch in range(7):
            changes = moving.epoch(source, 6)
            feed(run, "rows", changes)
            run.commit()
            fresh = Counter()
            for row, diff in changes:
                there[row] += diff
                fresh[row] += diff
            for row in +fresh:  # what is inserted and deleted in one epoch was never there
                if row[0] is not None:
                    mark = row[0] - late if mark is None else max(mark, row[0] - late)
            expected = Counter(
                {r: n for r, n in there.items() if n and r[0] is not None and r[0] + span > mark}
            )
            for row, diff in (+fresh).items():
                if row[0] is None or row[0] + span <= mark:
                    uncounted["no time" if row[0] is None else "late"] += diff
            said = f"seed {seed}, workers {workers}, epoch {epoch}, mark {mark}"
            event_rows = Counter()
            for event in run.events():
                if event.get("what") == "expire":
                    event_rows[event["kind"]] += event["rows"]
            assert event_rows == Counter({kind: 2 * n for kind, n in uncounted.items()}), (
                f"{said}: twice"
            )
            assert counted(run.read("young").rows()) == expected, said
            counts = Counter()
            for (_, v), n in expected.items():
                counts[v] += n
            assert dict(run.read("counts").rows()) == counts, said
            if scale:
                run.scale(source.randint(1, 4))


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(8, soak=32))
@pytest.mark.parametrize("late", [0, 3])
def test_expire_by_integers(late, seed):
    values = [*range(-20, 20, 2), None] if seed % 2 else [*range(8)]
    check_expire(pl.Int64, values, 5, late, seed)


def test_expire_at_the_end_of_all_times():
    """A due beyond the greatest number is that number, not a small one."""
    last = (1 << 63) - 1
    flow = build(lambda rows: rows.expire("at", after=last), {"rows": {"at": pl.Int64}})
    with flow.run() as run:
        run.insert("rows", [(5,), (last - 1,), (None,), (-last,)])
        run.commit()
        assert run.read("result").rows() == [(5,), (last - 1,)]
        assert [(event["kind"], event["rows"]) for event in run.events() if "what" in event] == [
            ("no time", 1),
            ("late", 1),
        ]


def test_expire_by_times():
    values = [START + HOUR * n for n in range(-30, 30, 3)]
    check_expire(pl.Datetime("us"), values, 9 * HOUR, 2 * HOUR, seed=3)
    check_expire(pl.Datetime("ms"), values, 9 * HOUR, datetime.timedelta(0), seed=4)
    check_expire(pl.Date, [START.date() + DAY * n for n in range(-9, 9)], 3 * DAY, DAY, seed=5)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(3, soak=12))
def test_expire_goes_on_when_rescaled(seed):
    check_expire(pl.Int64, [*range(-20, 20, 2), None], 5, 2, seed, scale=True, workers=2)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("again", [False, True])
def test_expire_by_epochs(workers, again, tmp_path):
    """What came in an epoch is undone three epochs later, across a resume as well."""
    flow = build(
        lambda rows: {"recent": rows.expire(epochs=3), "kinds": rows.expire(epochs=3).distinct()},
        {"rows": {"v": pl.Int64}},
    )
    source, history = random.Random(workers), []
    run = flow.run(workers=workers, checkpoint=tmp_path if again else None)
    for epoch in range(9):
        rows = [(source.randrange(3),) for _ in range(source.randrange(4))]
        taken = [row for row in rows if source.random() < 0.4]  # in the epoch in which they came
        run.insert("rows", rows)
        run.delete("rows", taken)
        history.append(Counter(rows) - Counter(taken))
        run.commit()
        if again and epoch in (2, 5):
            run.close()
            run = flow.run(workers=workers % 3 + 1, checkpoint=tmp_path)
        expected = sum(history[-3:], Counter())
        assert counted(run.read("recent").rows()) == expected, epoch
        assert set(run.read("kinds").rows()) == set(expected), epoch
    run.close()


def test_a_deletion_is_undone_too():
    flow = build(lambda rows: rows.expire(epochs=2).distinct(), {"rows": {"v": pl.Int64}})
    with flow.run() as run:
        run.insert("rows", [(1,), (1,)])
        run.commit()
        run.delete("rows", [(1,)])
        run.commit()
        assert run.read("result").rows() == [(1,)]
        run.commit()  # the insertions are gone, the deletion is not
        assert run.read("result").rows() == []
        run.insert("rows", [(1,)])
        run.commit()
        assert run.read("result").rows() == [(1,)]


def test_expiry_goes_on_after_a_resume(tmp_path):
    flow = build(lambda rows: rows.expire("at", after=5), {"rows": {"at": pl.Int64}})
    with flow.run(workers=2, checkpoint=tmp_path) as run:
        run.insert("rows", [(1,), (4,), (7,)])
        run.commit()
        assert run.read("result").rows() == [(4,), (7,)]
        run.checkpoint()
    with flow.run(workers=3, checkpoint=tmp_path) as run:
        run.insert("rows", [(2,), (3,)])  # one is too late: the watermark is remembered
        run.delete("rows", [(1,)])  # has left already
        run.commit()
        assert run.read("result").rows() == [(3,), (4,), (7,)]
    with flow.run(workers=1, checkpoint=tmp_path) as run:
        run.insert("rows", [(9,)])
        run.commit()
        assert run.read("result").rows() == [(7,), (9,)]
        assert run.changes("result").rows() == [(3, -1), (4, -1), (9, 1)]


@pytest.mark.parametrize("workers", [1, 2])
def test_only_insertions_move_the_watermark(workers):
    flow = build(lambda rows: rows.expire("at", after=5), {"rows": {"at": pl.Int64}})
    with flow.run(workers=workers) as run:
        run.insert("rows", [(1,), (2,)])
        run.delete("rows", [(100,)])
        run.commit()
        run.insert("rows", [(100,)])
        run.delete("rows", [(1,)])
        run.commit()
        assert run.changes("result").rows() == [(1, -1), (2, -1), (100, 1)]
        assert run.read("result").rows() == []
        run.delete("rows", [(100,), (2,)])  # 2 has left: that changes nothing
        run.insert("rows", [(100,), (100,), (96,), (95,)])
        run.commit()
        assert run.read("result").rows() == [(96,), (100,)]


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_that_are_there_only_for_a_moment_do_not_move_the_watermark(workers):
    """A join may make a pair and take it back in one epoch; as of that epoch it was never there."""
    schemas = {"left": {"k": pl.Int64, "at": pl.Int64}, "right": {"k": pl.Int64}}

    def program(left, right):
        looped = left.join(right, on="k").iterate(lambda rows: rows.concat(left).distinct())
        return {
            "there": left.join(right, on="k").expire("at", after=5),
            "back": right.join(left, on="k").filter(pl.col("at") > 0).expire("at", after=5),
            "outer": right.join(left, on="k", how="left").expire("at", after=5),
            "looped": looped.semi_join(right, on="k").expire("at", after=5),
        }

    for seed in range(4):
        flow = build(program, schemas)
        with flow.run(workers=workers, seed=seed) as run:
            run.insert("left", [(1, 100), (2, 7)])
            run.insert("right", [(2,)])
            run.commit()
            run.delete("left", [(1, 100)])
            run.insert("right", [(1,)])
            run.commit()
            for name in ("there", "back", "outer", "looped"):
                assert [sorted(row) for row in run.read(name).rows()] == [[2, 7]], name


@pytest.mark.parametrize(
    ("size", "step", "offset"), [(5, None, 2), (6, 2, -1), (5, 2, 7), (2, 5, 3)]
)
def test_windows_with_an_offset(size, step, offset):
    """They are the windows of times that are so much earlier, moved back."""
    at = pl.col("at")

    def program(rows):
        moved = rows.with_columns(at=at - offset).windows("at", size, step)
        return {
            "offset": rows.windows("at", size, step, offset=offset),
            "moved": moved.with_columns(at=at + offset, window=pl.col("window") + offset),
        }

    with build(program, {"rows": {"at": pl.Int64}}).run() as run:
        run.insert("rows", [(n,) for n in range(-12, 13)])
        run.commit()
        assert run.read("offset").rows() == run.read("moved").rows() != []


def test_days_of_a_zone_are_groups_and_windows_are_in_utc():
    zone = "Europe/Dublin"
    summer = datetime.datetime(2024, 7, 1, 23, 30, tzinfo=datetime.UTC)  # in Dublin the next day

    def program(rows):
        return {
            "windows": rows.windows("at", DAY).select(day=pl.col("window").dt.day()),
            "calendar": rows.group_by(day=pl.col("at").dt.truncate("1d"))
            .count()
            .select(day=pl.col("day").dt.day()),
        }

    with build(program, {"rows": {"at": pl.Datetime("us", zone)}}).run() as run:
        run.insert("rows", [(summer,)])
        run.commit()
        assert run.read("windows").rows() == [(1,)]
        assert run.read("calendar").rows() == [(2,)]


def test_weeks_start_on_monday_with_an_offset():
    def program(rows):
        return {
            "weeks": rows.windows("at", 7 * DAY, offset=4 * DAY).select("window").distinct(),
            "plain": rows.windows("at", 7 * DAY).select("window").distinct(),
            "calendar": rows.group_by(week=pl.col("at").dt.truncate("1w")).count().select("week"),
        }

    with build(program, {"rows": {"at": pl.Date}}).run() as run:
        run.insert("rows", [(datetime.date(2024, 5, day),) for day in range(1, 31)])
        run.commit()
        assert {day.isoweekday() for (day,) in run.read("weeks").rows()} == {1}
        assert {day.isoweekday() for (day,) in run.read("plain").rows()} == {4}
        assert run.read("weeks").rows() == run.read("calendar").rows()
