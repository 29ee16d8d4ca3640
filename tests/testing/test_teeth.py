"""Broken operators are caught, each by the law it breaks, with a small script that shows it."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.plan.operator import Actor, Context, Operator, by_time
from riverrun.progress import Antichain, Timestamp
from riverrun.state.changes import Changes
from riverrun.testing import COMMIT, LawBroken, check_dataflow, check_operator, insert, play
from riverrun.testing.script import Change, Mark

NUMBERS = {"n": pl.Int64}
BAGS = {"numbers": NUMBERS}


def vertex(make: type[rr.Vertex], route: Any = rr.TO_ONE, **options: Any) -> Callable[..., Any]:
    def program(numbers: rr.Collection, flow: rr.Dataflow) -> Any:
        return flow.vertex(
            make, {"numbers": numbers}, NUMBERS, routes={"numbers": route}, **options
        )

    return program


class Determined(rr.Vertex):
    deterministic = True


class FirstOfBatch(Determined):
    """Depends on how rows are cut: the first of each batch is dropped."""

    def on_recv(self, port: str, rows: pl.DataFrame, time: Timestamp) -> None:
        self.send(rows.sort("n")[1:])


class LastWins(Determined):
    """Depends on order: the row that came last is the one that counts, whatever the batches."""

    def start(self) -> None:
        self.last: dict[Timestamp, pl.DataFrame] = {}

    def on_recv(self, port: str, rows: pl.DataFrame, time: Timestamp) -> None:
        if time not in self.last:
            self.notify_at(time)
        self.last[time] = rows[-1:].with_columns(diff=pl.lit(1, pl.Int64))

    def on_notify(self, time: Timestamp) -> None:
        self.send(self.last.pop(time))


class Forgetful(Determined):
    """Forgets deletions."""

    def on_recv(self, port: str, rows: pl.DataFrame, time: Timestamp) -> None:
        self.send(rows.filter(pl.col("diff") > 0))


class Undeclared(Determined):
    """Keeps what it has seen in an attribute: each number leaves once."""

    def start(self) -> None:
        self.counts: Counter[int] = Counter()
        self.new: dict[Timestamp, Counter[int]] = {}

    def on_recv(self, port: str, rows: pl.DataFrame, time: Timestamp) -> None:
        if time not in self.new:
            self.new[time] = Counter()
            self.notify_at(time)
        for n, diff in zip(rows["n"], rows["diff"], strict=True):
            self.new[time][n] += diff

    def on_notify(self, time: Timestamp) -> None:
        for n, diff in self.new.pop(time).items():
            before, self.counts[n] = self.counts[n] > 0, self.counts[n] + diff
            after = self.counts[n] > 0
            if before != after:
                self.send(pl.DataFrame({"n": [n], "diff": [after - before]}))


class Early(Determined):
    """Sends at the epoch before."""

    def on_recv(self, port: str, rows: pl.DataFrame, time: Timestamp) -> None:
        self.send(rows, (time[0] - 1,) if time[0] else time)


class Restless(Determined):
    """Asks again and again for the time that it is told is complete."""

    def on_recv(self, port: str, rows: pl.DataFrame, time: Timestamp) -> None:
        self.send(rows)
        self.notify_at(time)

    def on_notify(self, time: Timestamp) -> None:
        self.notify_at(time)


class Placed(Determined):
    """Its result depends on the worker it is on."""

    def on_recv(self, port: str, rows: pl.DataFrame, time: Timestamp) -> None:
        self.send(rows.with_columns(pl.col("n") + self.worker))


class Unrouted(Determined):
    """Adds up what happens to come to its worker."""

    def start(self) -> None:
        self.sums: Counter[Timestamp] = Counter()

    def on_recv(self, port: str, rows: pl.DataFrame, time: Timestamp) -> None:
        if time not in self.sums:
            self.notify_at(time)
        self.sums[time] += int((rows["n"] * rows["diff"]).sum())

    def on_notify(self, time: Timestamp) -> None:
        self.send([(self.sums.pop(time),)])


@dataclass(frozen=True)
class Hasty(Operator):
    """An operator of the engine's own kind that sends a time too early: nothing in the engine stops it."""

    kind: ClassVar[str] = "hasty"

    def start(self, context: Context) -> HastyActor:
        return HastyActor(context)


class HastyActor(Actor):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._held: dict[Timestamp, list[Changes]] = {}

    def receive(self, port: int, changes: Changes) -> None:
        for time, piece in by_time(changes):
            if time not in self._held:
                self._held[time] = []
                self.context.request(time)
            self._held[time].append(piece)

    def run(self, time: Timestamp, upper: Antichain) -> None:
        for piece in self._held.pop(time):
            self.context.push(piece.map_times(lambda time: (max(time[0] - 1, 0),)), 0)


def hasty(numbers: rr.Collection) -> rr.Collection:
    return numbers._add(Hasty(), [numbers], pa.schema({"n": pa.int64()}))


def diverging(numbers: rr.Collection) -> rr.Collection:
    def more(some: rr.Collection) -> rr.Collection:
        return some.select(n=(pl.col("n") + 1) % 7)

    return numbers.iterate(more)


BROKEN = [
    ("oracle", vertex(Forgetful), None),
    ("oracle", vertex(Forgetful), lambda numbers: numbers),
    ("oracle", lambda numbers: numbers.filter(pl.col("n") > 1), lambda numbers: numbers),
    ("resume", vertex(Undeclared), None),
    ("silence", vertex(Early), None),
    ("silence", hasty, None),
    ("progress", vertex(Restless), None),
    ("progress", diverging, None),
    ("rescale", vertex(Placed, "n"), None),
]


@pytest.mark.parametrize(("law", "program", "oracle"), BROKEN)
def test_a_broken_operator_is_caught_by_its_law(law: str, program: Any, oracle: Any) -> None:
    with pytest.raises(LawBroken, match=f"the law of {law} is broken") as caught:
        check_operator(program, BAGS, oracle=oracle, rounds=5)
    broken = caught.value
    assert broken.law == law
    rows = sum(len(item.rows) for item in broken.script if isinstance(item, Change))
    assert rows <= 3
    assert broken.script.count(COMMIT) <= 3
    assert f"seed={broken.seed}" in str(broken)
    assert "play(flow, [" in str(broken)


@pytest.mark.parametrize(
    ("law", "make", "route"),
    [
        ("split", FirstOfBatch, rr.TO_ONE),
        ("order", LastWins, rr.TO_ONE),
        ("rescale", Unrouted, None),
    ],
)
def test_a_law_by_itself(law: str, make: type[rr.Vertex], route: Any) -> None:
    """These break others too, which come first: rows that are never taken back, for instance."""
    with pytest.raises(LawBroken, match=f"the law of {law} is broken"):
        check_operator(vertex(make, route), BAGS, laws=[law])


def test_states_that_show_their_compaction_are_caught() -> None:
    class Versions(Determined):
        """Sends how many rows its table holds on, which compaction does not change, and batches, which it does."""

        def on_recv(self, port: str, rows: pl.DataFrame, time: Timestamp) -> None:
            table = self.table("seen")
            self.send([(len(table._spine.view().batches),)])
            table.write(rows.select("n").unique())

    program = vertex(Versions, tables={"seen": (NUMBERS, {})})
    script = [item for n in range(6) for item in (insert("numbers", [(n,)]), COMMIT)]
    with pytest.raises(LawBroken, match="the law of compaction is broken"):
        check_operator(program, BAGS, script=script, laws=["compaction"])


def test_the_smallest_script_fails_again() -> None:
    program = vertex(Undeclared)
    with pytest.raises(LawBroken) as caught:
        check_operator(program, BAGS, seed=3)
    broken = caught.value
    flow = rr.Dataflow("again")
    flow.output("result", program(flow.input("numbers", NUMBERS), flow))
    marked = play(flow, broken.script, seed=broken.way.seed)
    unmarked = play(
        flow, [item for item in broken.script if not isinstance(item, Mark) or item == COMMIT]
    )
    assert [r["result"].rows() for r in marked] != [r["result"].rows() for r in unmarked]
    assert "- " in broken.difference or "+ " in broken.difference
    again = pickle.loads(pickle.dumps(broken))
    assert (again.law, again.seed, again.script) == (broken.law, broken.seed, broken.script)
    assert str(again) == str(broken)


def test_what_depends_on_arrival_is_exempt_and_says_so() -> None:
    class Free(rr.Vertex):
        def on_recv(self, port: str, rows: pl.DataFrame, time: Timestamp) -> None:
            self.send(rows.sort("n")[1:])

    checked = check_operator(vertex(Free), BAGS, rounds=1)
    assert checked.laws == ("progress", "silence", "compaction", "resume")
    assert checked.exempt == ("oracle", "split", "order", "rescale")
    assert "depends on arrival" in str(checked)
    with pytest.raises(LawBroken, match="the law of oracle is broken"):
        check_operator(vertex(Free), BAGS, oracle=lambda numbers: numbers)


def test_an_error_of_the_program_is_no_law() -> None:
    def fail(row: dict[str, Any]) -> Any:
        raise ValueError(f"no {row['n']}")

    with pytest.raises(rr.OperatorFailed, match="no ") as caught:
        check_operator(lambda numbers: numbers.flat_map(fail, NUMBERS), BAGS)
    assert "in play(flow, [" in "".join(caught.value.__notes__)


def test_a_broken_program_is_caught() -> None:
    flow = rr.Dataflow("sums")
    numbers = flow.input("numbers", NUMBERS)
    flow.output("kept", numbers.distinct())
    flow.output("sums", vertex(Unrouted, None)(numbers, flow))
    with pytest.raises(LawBroken, match="'sums' \\(n\\) after epoch"):
        check_dataflow(flow)


@pytest.mark.parametrize("oracle", [lambda numbers: [1], lambda numbers: [{"m": 1}]])
def test_a_malformed_oracle_is_refused(oracle: Any) -> None:
    with pytest.raises(rr.PlanError, match="cannot compare with the oracle"):
        check_operator(lambda numbers: numbers, BAGS, oracle=oracle)
