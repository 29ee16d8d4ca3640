"""Plans: what is refused while building, what is shared, what is marked."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.errors import PlanError
from riverrun.operators.arrange import Arrange
from riverrun.operators.linear import Negate
from riverrun.operators.loops import Feedback
from riverrun.operators.sources import Input
from riverrun.plan.plan import PlanBuilder, Port

NUMBERS = pa.schema({"n": pa.int64()})


def edges_of(flow):
    return flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})


def test_names_are_the_same_whenever_the_same_program_is_built():
    def build():
        flow = rr.Dataflow("twice")
        edges = edges_of(flow)
        flow.output("degrees", edges.group_by("src").count())
        flow.output("pairs", edges.join(edges, left_on="dst", right_on="src"))
        return flow.plan

    first, second = build(), build()
    assert [node.name for node in first.nodes] == [node.name for node in second.nodes]
    assert first.fingerprint == second.fingerprint
    assert len(set(first.by_name)) == len(first.nodes)


def test_a_fingerprint_tells_what_changed():
    def build(column):
        flow = rr.Dataflow("changed")
        flow.output("counts", edges_of(flow).group_by(column).count())
        return flow.plan.fingerprint

    assert build("src") != build("dst")


def test_two_joins_on_one_key_use_one_arrangement():
    flow = rr.Dataflow("shared")
    edges = edges_of(flow)
    names = flow.input("names", {"node": pl.Int64, "name": pl.String})
    flow.output("a", edges.join(names, left_on="src", right_on="node"))
    flow.output("b", edges.join(names, left_on="dst", right_on="node"))
    arranged = [
        node
        for node in flow.plan.nodes
        if isinstance(node.operator, Arrange) and node.operator.key == ("node",)
    ]
    assert len(arranged) == 1
    assert len(flow.plan.consumers[Port(arranged[0].number)]) == 2


def test_a_keyed_input_is_its_own_arrangement():
    flow = rr.Dataflow("keyed")
    names = flow.input("names", {"node": pl.Int64, "name": pl.String}, key="node")
    edges = edges_of(flow)
    flow.output("a", edges.join(names, left_on="src", right_on="node"))
    keys = [n.operator.key for n in flow.plan.nodes if isinstance(n.operator, Arrange)]
    assert ("node",) not in keys


def test_what_lies_behind_an_arrival_dependent_node_is_marked():
    class Echo(rr.Vertex):
        def on_recv(self, port, rows, time):
            self.send(rows)

    flow = rr.Dataflow("marked")
    numbers = flow.input("numbers", {"n": pl.Int64})
    echoed = flow.vertex(Echo, {"n": numbers}, {"n": pl.Int64}, name="echo")
    flow.output("echoed", echoed.distinct())
    flow.output("counted", numbers.count())
    plan = flow.plan
    marked = {plan.nodes[number].name for number in plan.arrival_dependent}
    assert "echo" in marked
    assert "echoed:output" in marked
    assert "counted:output" not in marked
    assert "numbers" not in marked


def test_a_loop_without_feedback_is_refused():
    builder = PlanBuilder("open")
    loop = builder.loop(builder.root)
    builder.add(Feedback(), [], [NUMBERS], scope=loop)
    with pytest.raises(PlanError) as caught:
        builder.build()
    assert caught.value.code == "plan.loop_open"
    assert "test_plan.py" in str(caught.value)


def test_an_edge_stays_in_its_scope():
    builder = PlanBuilder("scopes")
    numbers = builder.add(Input("numbers"), [], [NUMBERS], name="numbers")
    loop = builder.loop(builder.root)
    with pytest.raises(PlanError) as caught:
        builder.add(Negate(), [numbers], [NUMBERS], scope=loop)
    assert caught.value.code == "plan.scope"


def test_a_name_is_one_node():
    flow = rr.Dataflow("names")
    edges_of(flow)
    with pytest.raises(PlanError) as caught:
        edges_of(flow)
    assert caught.value.code == "plan.name_taken"


@pytest.mark.parametrize("name", ["", " x", "a/b", "..", "x" * 101, 7, None, "a\nb"])
def test_names_are_checked(name):
    with pytest.raises(PlanError) as caught:
        rr.Dataflow(name)
    assert caught.value.code == "plan.name"


def test_collections_of_two_dataflows_do_not_mix():
    one, two = rr.Dataflow("one"), rr.Dataflow("two")
    a, b = one.input("a", {"n": int}), two.input("b", {"n": int})
    for attempt in (lambda: a.concat(b), lambda: a.join(b, on="n"), lambda: one.output("b", b)):
        with pytest.raises(PlanError) as caught:
            attempt()
        assert caught.value.code == "plan.two_flows"


def test_what_belongs_to_a_loop_stays_in_it():
    flow = rr.Dataflow("leaky")
    numbers = flow.input("numbers", {"n": int})
    kept = []

    def body(current):
        kept.append(current)
        return current.distinct()

    numbers.iterate(body)
    with pytest.raises(PlanError) as caught:
        flow.output("leak", kept[0])
    assert caught.value.code == "plan.scope"
    with pytest.raises(PlanError) as caught:
        numbers.iterate(lambda current: current.concat(kept[0]).distinct())
    assert caught.value.code == "plan.scope"
    assert "test_plan.py" in str(caught.value)


def test_a_body_must_give_the_same_columns():
    flow = rr.Dataflow("body")
    numbers = flow.input("numbers", {"n": int})
    for body, code in [
        (lambda current: None, "plan.loop_open"),
        (lambda current: current.select(m="n"), "plan.columns_differ"),
        (lambda current: current.select(n=pl.col("n").cast(pl.Float64)), "plan.columns_differ"),
    ]:
        with pytest.raises(PlanError) as caught:
            numbers.iterate(body)
        assert caught.value.code == code


def test_a_dataflow_without_output_does_not_run():
    flow = rr.Dataflow("mute")
    flow.input("numbers", {"n": int})
    with pytest.raises(PlanError) as caught:
        flow.run()
    assert caught.value.code == "plan.no_output"
