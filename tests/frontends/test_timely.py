"""The timely interface: rows as they arrive, notifications, loops by hand, declared state."""

from __future__ import annotations

import polars as pl
import pytest

import riverrun as rr
from riverrun.errors import OperatorFailed, PlanError, SchemaError

WORKERS = pytest.mark.parametrize(("workers", "seed"), [(1, None), (2, None), (3, 5), (4, 9)])


class Gather(rr.Vertex):
    """All rows of a time, once it is complete: how many, and on which worker."""

    deterministic = True

    def start(self):
        self.counts = {}

    def on_recv(self, port, rows, time):
        if time not in self.counts:
            self.counts[time] = 0
            self.notify_at(time)
        self.counts[time] += rows["diff"].sum()

    def on_notify(self, time):
        self.send([{"epoch": time[0], "rows": self.counts.pop(time)}])


def gathered(flow, rows, route):
    return flow.vertex(
        Gather, {"rows": rows}, {"epoch": pl.Int64, "rows": pl.Int64}, routes={"rows": route}
    )


@WORKERS
def test_a_notification_waits_for_all_workers(workers, seed):
    flow = rr.Dataflow("gather")
    numbers = flow.input("numbers", {"n": pl.Int64})
    flow.output("one", gathered(flow, numbers, rr.TO_ONE))
    flow.output("all", gathered(flow, numbers, rr.TO_ALL))
    flow.output("by_key", gathered(flow, numbers, "n"))
    flow.output("any", gathered(flow, numbers, rr.TO_ANY))
    with flow.run(workers=workers, seed=seed) as run:
        for epoch, count in enumerate([7, 1, 40]):
            run.insert("numbers", [(n,) for n in range(count)])
            run.commit()
            assert run.changes("one").rows() == [(epoch, count, 1)]
            everywhere = run.changes("all").to_dicts()
            assert sum(row["diff"] for row in everywhere) == workers
            assert {row["rows"] for row in everywhere} == {count}
            for name in ("by_key", "any"):
                notified = run.changes(name).to_dicts()
                assert sum(row["rows"] * row["diff"] for row in notified) == count
                assert {row["epoch"] for row in notified} == {epoch}


class Halve(rr.Vertex):
    deterministic = True

    def on_recv(self, port, rows, time):
        self.send(rows.filter(pl.col("n") > 1).with_columns(n=pl.col("n") // 2))


class Count(rr.Vertex):
    """Rounds of the innermost loop at which rows came, told when each is complete."""

    deterministic = True

    def start(self):
        self.seen = {}

    def on_recv(self, port, rows, time):
        if time not in self.seen:
            self.notify_at(time)
        self.seen[time] = self.seen.get(time, 0) + rows["diff"].sum()

    def on_notify(self, time):
        assert not [
            t for t in self.seen if t < time and all(a <= b for a, b in zip(t, time, strict=True))
        ]
        self.send([{"time": ",".join(map(str, time)), "rows": self.seen.pop(time)}])


@WORKERS
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_loops_of_any_depth(workers, seed, depth):
    flow = rr.Dataflow("loops")
    numbers = flow.input("numbers", {"n": pl.Int64})
    inside, loops = numbers, []
    for _ in range(depth):
        loop = flow.loop(inside)
        inside = loop.enter(inside)
        loops.append(loop)
    back = loops[-1].feedback({"n": pl.Int64})
    halves = flow.vertex(Halve, {"n": inside.concat(back)}, {"n": pl.Int64}, routes={"n": "n"})
    back.connect(halves)
    rounds = flow.vertex(
        Count, {"n": halves}, {"time": pl.String, "rows": pl.Int64}, routes={"n": rr.TO_ONE}
    )
    halves_left, rounds_left = halves, rounds
    for loop in reversed(loops):
        halves_left, rounds_left = loop.leave(halves_left), loop.leave(rounds_left)
    flow.output("halves", halves_left)
    flow.output("rounds", rounds_left)
    zeros = "0," * (depth - 1)
    with flow.run(workers=workers, seed=seed) as run:
        run.insert("numbers", [(20,), (6,)])
        run.commit()
        assert run.read("halves").rows() == [(1,), (1,), (2,), (3,), (5,), (10,)]
        expected = [f"0,{zeros}{n}" for n in range(4)]
        assert [row[0] for row in run.read("rounds").rows()] == expected
        run.delete("numbers", [(20,)])
        run.commit()
        assert run.read("halves").rows() == [(1,), (3,)]


class Totals(rr.Vertex):
    """Running totals by key, in a table."""

    deterministic = True

    def start(self):
        self.waiting = {}

    def on_recv(self, port, rows, time):
        if time not in self.waiting:
            self.waiting[time] = []
            self.notify_at(time)
        self.waiting[time].append(rows)

    def on_notify(self, time):
        fresh = (
            pl.concat(self.waiting.pop(time))
            .group_by("key")
            .agg(more=(pl.col("n") * pl.col("diff")).sum())
        )
        old = self.table("totals").read(fresh.select("key"))
        new = fresh.join(old, on="key", how="left").select(
            "key", total=pl.col("total").fill_null(0) + pl.col("more")
        )
        self.send(old.with_columns(diff=pl.lit(-1, pl.Int64)))
        self.send(new)
        self.table("totals").write(new.filter(pl.col("total") != 0))
        self.table("totals").delete(new.filter(pl.col("total") == 0).select("key"))


def totals():
    flow = rr.Dataflow("totals")
    rows = flow.input("rows", {"key": pl.String, "n": pl.Int64})
    summed = flow.vertex(
        Totals,
        {"rows": rows},
        {"key": pl.String, "total": pl.Int64},
        routes={"rows": "key"},
        tables={"totals": ({"key": pl.String}, {"total": pl.Int64})},
        name="totals",
    )
    flow.output("totals", summed)
    return flow


EPOCHS = [
    [("a", 1), ("b", 2), ("c", 3)],
    [("a", 10), ("d", 4)],
    [("b", -2), ("e", 1), ("a", 1)],
    [("b", 7), ("c", 1)],
]


def expected_after(count):
    sums = {}
    for rows in EPOCHS[:count]:
        for key, n in rows:
            sums[key] = sums.get(key, 0) + n
    return sums


def check(run, count):
    live = {key: total for key, total in run.read("totals").rows() if total}
    assert live == {key: total for key, total in expected_after(count).items() if total}


@WORKERS
def test_a_table_is_kept_across_epochs(workers, seed):
    with totals().run(workers=workers, seed=seed) as run:
        for count, rows in enumerate(EPOCHS, 1):
            run.insert("rows", rows)
            run.commit()
            check(run, count)


def test_a_table_survives_rescaling_and_the_process(tmp_path):
    with totals().run(workers=1, checkpoint=tmp_path) as run:
        run.insert("rows", EPOCHS[0])
        run.commit()
        run.scale(3)
        run.insert("rows", EPOCHS[1])
        run.commit()
        check(run, 2)
    with totals().run(workers=2, checkpoint=tmp_path) as run:
        run.insert("rows", EPOCHS[2])
        run.commit()
        run.insert("rows", EPOCHS[3])
        run.commit()
        check(run, 4)


class Back(rr.Vertex):
    def on_recv(self, port, rows, time):
        if time[0] == 0:
            self.send(rows)
        else:
            self.send(rows, time=(time[0] - 1,))


@pytest.mark.parametrize("workers", [1, 2])
def test_time_does_not_go_back_and_the_run_goes_on(workers):
    flow = rr.Dataflow("back")
    numbers = flow.input("numbers", {"n": pl.Int64})
    flow.output("n", flow.vertex(Back, {"n": numbers}, {"n": pl.Int64}, name="culprit"))
    with flow.run(workers=workers) as run:
        run.insert("numbers", [(1,), (2,)])
        run.commit()
        run.insert("numbers", [(3,), (4,)])
        with pytest.raises(OperatorFailed) as caught:
            run.commit()
        assert caught.value.code == "time.went_back"
        assert caught.value.fields["node"] == "culprit"
        assert "test_timely.py" in str(caught.value)
        assert run.read("n").rows() == [(1,), (2,)]


def test_a_notification_for_the_past_is_refused():
    class Past(rr.Vertex):
        def on_recv(self, port, rows, time):
            self.notify_at((time[0] - 1,) if time[0] else time)

    flow = rr.Dataflow("past")
    numbers = flow.input("numbers", {"n": pl.Int64})
    flow.output("n", flow.vertex(Past, {"n": numbers}, {"n": pl.Int64}))
    with flow.run() as run:
        run.insert("numbers", [(1,)])
        run.commit()
        run.insert("numbers", [(1,)])
        with pytest.raises(OperatorFailed) as caught:
            run.commit()
        assert caught.value.code == "time.went_back"


def test_rows_sent_have_the_declared_columns():
    class Wrong(rr.Vertex):
        def on_recv(self, port, rows, time):
            self.send([{"m": 1}])

    flow = rr.Dataflow("wrong")
    numbers = flow.input("numbers", {"n": pl.Int64})
    flow.output("n", flow.vertex(Wrong, {"n": numbers}, {"n": pl.Int64}, name="wrong"))
    with flow.run() as run:
        run.insert("numbers", [(1,)])
        with pytest.raises(OperatorFailed) as caught:
            run.commit()
        assert caught.value.code.startswith("schema.")
        assert caught.value.fields["node"] == "wrong"


def test_several_inputs_and_outputs():
    class Split(rr.Vertex):
        deterministic = True

        def on_recv(self, port, rows, time):
            self.send(rows, output=port)

    flow = rr.Dataflow("split")
    a, b = flow.input("a", {"n": int}), flow.input("b", {"s": str})
    sides = flow.vertex(Split, {"left": a, "right": b}, {"left": {"n": int}, "right": {"s": str}})
    flow.output("n", sides["left"])
    flow.output("s", sides["right"])
    with flow.run(workers=2) as run:
        run.insert("a", [(1,)])
        run.insert("b", [("x",)])
        run.commit()
        assert (run.read("n").rows(), run.read("s").rows()) == ([(1,)], [("x",)])


def test_bad_vertices_are_refused_while_building():
    flow = rr.Dataflow("bad")
    numbers = flow.input("numbers", {"n": int})
    with pytest.raises(PlanError) as caught:
        flow.vertex(Halve, {}, {"n": int})
    assert caught.value.code == "plan.vertex"
    with pytest.raises(PlanError) as caught:
        flow.vertex(Halve, {"n": numbers}, {"n": int}, routes={"m": "n"})
    assert caught.value.code == "plan.port"
    with pytest.raises(PlanError) as caught:
        flow.vertex(Halve, {"n": numbers}, {"n": int}, routes={"n": 5})
    assert caught.value.code == "plan.route"
    with pytest.raises(PlanError) as caught:
        flow.vertex(Halve, {"n": numbers}, {"n": int}, routes={"n": "m"})
    assert caught.value.code == "plan.column_unknown"


@pytest.mark.parametrize("workers", [1, 2])
def test_what_an_epoch_causes_belongs_to_it(workers):
    class Later(rr.Vertex):
        def on_recv(self, port, rows, time):
            self.notify_at((time[0] + 1,))

    flow = rr.Dataflow("later")
    numbers = flow.input("numbers", {"n": pl.Int64})
    flow.output("n", flow.vertex(Later, {"n": numbers}, {"n": pl.Int64}, name="later"))
    with flow.run(workers=workers) as run:
        run.insert("numbers", [(1,)])
        with pytest.raises(OperatorFailed) as caught:
            run.commit()
        assert caught.value.code == "time.later_epoch"
        assert "flow.clock()" in str(caught.value)


@WORKERS
def test_rows_wait_in_a_table_for_a_later_epoch(workers, seed):
    class Delayed(rr.Vertex):
        """Gives rows on one epoch after they came."""

        deterministic = True

        def on_recv(self, port, rows, time):
            if port == "ticks":
                due = self.table("waiting").scan().filter(pl.col("epoch") < time[0])
                self.send(due.select("n"))
                self.table("waiting").delete(due.select("n"))
            else:
                self.table("waiting").write(rows.select("n", epoch=pl.lit(time[0], pl.Int64)))

    flow = rr.Dataflow("delayed")
    numbers = flow.input("numbers", {"n": pl.Int64})
    delayed = flow.vertex(
        Delayed,
        {"numbers": numbers, "ticks": flow.clock()},
        {"n": pl.Int64},
        routes={"numbers": "n", "ticks": rr.TO_ALL},
        tables={"waiting": ({"n": pl.Int64}, {"epoch": pl.Int64})},
    )
    flow.output("n", delayed)
    with flow.run(workers=workers, seed=seed) as run:
        run.insert("numbers", [(1,), (2,)])
        run.commit()
        assert run.read("n").rows() == []
        run.insert("numbers", [(3,)])
        run.commit()
        assert run.read("n").rows() == [(1,), (2,)]
        run.commit()
        assert run.read("n").rows() == [(1,), (2,), (3,)]


@WORKERS
def test_two_outputs_are_sent_to_when_notified(workers, seed):
    class Parity(rr.Vertex):
        deterministic = True

        def start(self):
            self.rows = {}

        def on_recv(self, port, rows, time):
            if time not in self.rows:
                self.notify_at(time)
            self.rows.setdefault(time, []).append(rows)

        def on_notify(self, time):
            rows = pl.concat(self.rows.pop(time))
            self.send(rows.filter(pl.col("n") % 2 == 0), output="even")
            self.send(rows.filter(pl.col("n") % 2 == 1), output="odd")

    flow = rr.Dataflow("parity")
    numbers = flow.input("numbers", {"n": pl.Int64})
    sides = flow.vertex(
        Parity, {"n": numbers}, {"even": {"n": int}, "odd": {"n": int}}, routes={"n": "n"}
    )
    flow.output("even", sides["even"].select(n=pl.col("n") // 2).group_by("n").count())
    flow.output("odd", sides["odd"])
    with flow.run(workers=workers, seed=seed) as run:
        run.insert("numbers", [(n,) for n in range(6)])
        run.commit()
        assert run.read("even").rows() == [(0, 1), (1, 1), (2, 1)]
        assert run.read("odd").rows() == [(1,), (3,), (5,)]


def test_nothing_is_sent_while_starting():
    class Hasty(rr.Vertex):
        def start(self):
            self.send([{"n": 1}])

        def on_recv(self, port, rows, time):
            self.send(rows)

    flow = rr.Dataflow("hasty")
    numbers = flow.input("numbers", {"n": pl.Int64})
    flow.output("n", flow.vertex(Hasty, {"n": numbers}, {"n": pl.Int64}, name="hasty"))
    with pytest.raises(OperatorFailed) as caught:
        flow.run()
    assert caught.value.code == "time.not_held"


def test_outputs_as_text_by_name_are_said_to_be_one_output():
    flow = rr.Dataflow("two")
    numbers = flow.input("numbers", {"n": pl.Int64})
    for outputs in ({"x": "a long"}, {"x": "a long, b string", "y": "c int"}):
        with pytest.raises(SchemaError, match="is one output, with these columns") as refusal:
            flow.vertex(Gather, {"rows": numbers}, outputs)
        assert "{'x': {'n': 'long'}}" in str(refusal.value.hint)
    assert list(flow.vertex(Gather, {"rows": numbers}, {"x": {"n": "long"}})) == ["x"]
    assert flow.vertex(Gather, {"rows": numbers}, "n long, word string").columns == ["n", "word"]
