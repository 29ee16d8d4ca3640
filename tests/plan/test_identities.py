"""What operators are called in checkpoints: a program goes on from one by these words, letter by letter.

`identities.txt` has the fingerprint of each node of two programs that use every operator there is, and, where no
function of a user's is in the program, the word of its lineage. A line changes only with what the operator gives.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import riverrun as rr
import riverrun.operators
from riverrun.operators.rounds.joins import JoinRound
from riverrun.operators.shared.gather import Requesting
from riverrun.plan.lineage import lineage_of
from riverrun.plan.operator import Exchanging, Linear, Operator, Role
from riverrun.plan.plan import Plan
from riverrun.state.entries import CALLS

GOLDEN = Path(__file__).with_name("identities.txt")
SALES = {"k": pl.Int64, "v": pl.Int64, "at": pl.Int64}

SWITCHES: list[dict[str, Any]] = [{}, {"accelerate": False, "compact": rr.rules.keep_latest}]


class Echo(rr.Vertex):
    def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
        self.send(rows)


def plain() -> Plan:
    """Every operator that has no function of a user's in it."""
    flow = rr.Dataflow("plain")
    sales = flow.input("sales", SALES)
    names = flow.input("names", {"k": pl.Int64, "name": pl.String}, key="k")
    small = flow.input("small", {"k": pl.Int32, "v": pl.Int64, "at": pl.Int64})
    lists = flow.input("lists", {"k": pl.List(pl.Int64), "at": pl.Int64})
    flow.output("checked", flow.input("checked", {"k": pl.Int64}, checked=True))
    shown = sales.probe("seen").filter(pl.col("v") > 1)
    sums = {"total": rr.sum("v"), "n": rr.count(), "most": rr.max("v")}
    flow.output("sums", shown.concat(small).group_by("k").agg(**sums))
    flow.output("outer", sales.join(names, on="k", how="left"))
    flow.output("exploded", lists.explode("k"))
    flow.output("windows", sales.windows("at", size=5, step=2).group_by("window").count())
    flow.output("recent", sales.expire("at", after=3, late=1))
    flow.output("ticks", sales.expire(epochs=2))
    beyond = sales.select("k", beyond=pl.col("v") > 9)
    flow.output("fits", beyond._fitting({"beyond": "v is beyond"}, "take less", ["k"]))
    flow.output("gone", sales.negate().concat(sales).consolidate())
    steps = sales.select(a="k", b="v")

    def step(rows: rr.Collection, _: rr.Collection | None = None) -> rr.Collection:
        on = rows.join(steps, left_on="v", right_on="a").select("k", v="b")
        return on.concat(rows).distinct()

    flow.output("reach", sales.select("k", "v").iterate(step, rounds=7))
    flow.output("near", sales.select("k", "v").iterate(step, at=pl.col("k")))
    for at, options in enumerate(SWITCHES):
        columns = {"key": {"k": pl.Int64}, "value": {"v": pl.Int64}, "time": {"at": pl.Int64}}
        state = flow.state(f"state-{at}", **columns, **options)
        sales.update(state)
        lists.select("k", "at", v=pl.lit([1])).update(state)
        asked = sales.select("k", "at").fetch(state, key="k", at="at", name=f"one-{at}")
        flow.output(f"fetched-{at}", asked)
        flow.output(f"many-{at}", lists.fetch(state, key="k", at="at", name=f"many-{at}"))
    flow.output("twice", sales.concat(sales))
    start = sales.select("k", "v")

    def send(best: rr.Collection) -> rr.Collection:
        return best.join(steps, left_on="k", right_on="a").select(k="b", v=pl.col("v") + 1)

    least = {"key": "k", "send": send, "better": rr.loops.least("v")}
    flow.output("spread", start.iterate_delta(send(start), **least, missing="add"))
    flow.output("only", start.iterate_delta(start, key="k", send=send, rounds=2))
    one = sales.group_by("k").agg(v=rr.min("v"))
    flow.output("pull", one.iterate(lambda v: send(v).group_by("k").agg(v=rr.sum("v")), rounds=3))

    def by_rounds(now: rr.Collection) -> tuple[rr.Collection, rr.Collection]:
        itself = now.join(now, on="k", suffix="_2").select("k", v="v_2")
        following = now.join(steps, left_on="v", right_on="a").select("k", v="b").concat(itself)
        return following.concat(start).distinct(), following.consolidate()

    flow.output("rounds", start.iterate(by_rounds, rounds=4))
    close = rr.loops.tolerance("v", 1)
    least_sent = lambda v: send(v).group_by("k").agg(v=rr.min("v"))  # noqa: E731
    flow.output("close", one.iterate(least_sent, until=close, mode="rounds"))
    by_steps = {"mode": "superstep", "maintain": "restart"}
    flow.output("steps", start.iterate_delta(send(start), **least, **by_steps))
    flow.output("shared", start.iterate_delta(send(start), **least, spread_over="all"))
    flow.output("micro", start.iterate_delta(start, key="k", send=send, mode="microstep"))
    return flow.plan


def with_functions() -> Plan:
    """The operators that call a function of a user's."""
    flow = rr.Dataflow("functions")
    sales = flow.input("sales", SALES)
    flow.output("mapped", sales.inspect(print).map_batches(lambda rows: rows, SALES))
    flow.output("flat", sales.flat_map(lambda row: [row], SALES))
    flow.output("by", sales.group_by("k").apply(lambda rows: rows.height, {"n": pl.Int64}))
    met = sales.co_group(
        sales, "k", lambda key, a, b: a.drop("k"), {"v": pl.Int64, "at": pl.Int64}, keeps="v"
    )
    flow.output("met", met)
    flow.output("echo", flow.vertex(Echo, {"rows": sales}, SALES, name="echo"))
    state = flow.state("state", {"k": pl.Int64}, {"v": pl.Int64}, time={"at": pl.Int64})
    sales.update(state)

    def asks(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"k": row["k"], "at": row["at"]}]

    flow.output("asked", sales.fetch(state, requests=asks, at="at", name="asked-rows"))
    return flow.plan


def told(plan: Plan, *, words: bool) -> Iterator[str]:
    for name, said in plan.fingerprint.items():
        word = lineage_of(plan)[name] if words else "-" * 16
        yield f"{plan.name} {word} {name}: " + re.sub(r"\b[0-9a-f]{12}\b", "(code)", said)


def identities() -> list[str]:
    return [*told(plain(), words=True), *told(with_functions(), words=False)]


def test_identities_are_what_they_were() -> None:
    assert "\n".join(identities()) == GOLDEN.read_text().rstrip("\n")


def catalogue(kind: type[Operator] = Operator) -> Iterator[type[Operator]]:
    for module in pkgutil.walk_packages(riverrun.operators.__path__, "riverrun.operators."):
        importlib.import_module(module.name)
    for each in kind.__subclasses__():
        if each.__module__.startswith("riverrun."):
            yield each
            yield from catalogue(each)


def test_operators_name_kernels_that_are_listed() -> None:
    for operator in catalogue():
        assert {*operator.kernels} <= CALLS.keys(), operator


def test_every_operator_is_there() -> None:
    used = {type(node.operator) for plan in (plain(), with_functions()) for node in plan.nodes}
    assert {*catalogue()} - used == {Linear, Exchanging, Requesting, JoinRound}


@pytest.mark.parametrize("role", [Role.PROBE, Role.INSPECT, Role.EXCHANGE])
def test_the_word_of_a_role_begins_the_identities_with_it_and_no_others(role: Role) -> None:
    """The law "words"."""
    met = 0
    for plan in (plain(), with_functions()):
        for node in (plan.written or plan).nodes:
            assert role.begins(plan.fingerprint[node.name]) == (node.operator.role is role), node
            met += node.operator.role is role
    assert met
