"""Plans as text and pictures: golden texts, the laws of the layout, hostile names, odd plans."""

from __future__ import annotations

import linecache
import re
from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import riverrun as rr
from riverrun.operators.arrange import Arrange, Output
from riverrun.operators.exchange import Exchange
from riverrun.operators.join import Join
from riverrun.operators.linear import Concat, Negate
from riverrun.operators.loops import Enter, Feedback, Leave
from riverrun.operators.sources import Input
from riverrun.plan.explain import explain
from riverrun.plan.picture.dot import to_dot
from riverrun.plan.picture.figure import Figure, fused, in_order
from riverrun.plan.picture.layout import Curve, Placement, Rectangle, place
from riverrun.plan.picture.svg import to_svg
from riverrun.plan.plan import Plan, PlanBuilder

SVG = "{http://www.w3.org/2000/svg}"

SHARED = """
flow = rr.Dataflow("orders")
people = flow.input("people", {"id": pl.Int64, "name": pl.String})
orders = flow.input("orders", {"id": pl.Int64, "total": pl.Float64})
calls = flow.input("calls", {"id": pl.Int64})
flow.output("paid", orders.join(people, on="id").select("name", "total"))
flow.output("called", calls.join(people, on="id"))
"""

REACH = """
flow = rr.Dataflow("reach")
edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
def step(reached):
    met = reached.join(edges, left_on="node", right_on="src")
    return reached.concat(met.select(node="dst")).distinct()
roots = edges.select(node="src").distinct()
flow.output("reached", roots.iterate(step, rounds=5, name="walk"))
"""

NESTED = """
flow = rr.Dataflow("nested")
edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
def inner(rows):
    return rows.semi_join(edges.select(src="dst"), on="src")
def outer(rows):
    return rows.iterate(inner, name="inner").concat(edges).distinct()
flow.output("rows", edges.iterate(outer, name="outer"))
"""

PRIORITY = """
flow = rr.Dataflow("priority")
edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
def step(rows, entered):
    return rows.concat(entered).distinct()
flow.output("rows", edges.iterate(step, at=pl.col("src")))
"""

PROGRAMS = {"shared": SHARED, "reach": REACH, "nested": NESTED, "priority": PRIORITY}

# A plan by hand, which does not change with what front ends make of a program.
WALK = """
builder = PlanBuilder("walk")
edges = builder.add(Input("edges"), [], [EDGES], name="edges")
marks = builder.add(Negate(), [builder.add(Negate(), [edges], [EDGES])], [EDGES])
walk = builder.loop(builder.root, "walk")
inside = builder.add(Enter(), [marks], [EDGES], scope=walk)
back = builder.add(Feedback(9), [], [EDGES], scope=walk)
moved = builder.add(Exchange("key", (0,), ("src",)), [builder.add(Concat(), [inside, back], [EDGES])], [EDGES])
kept = builder.add(Arrange(("src",)), [moved], [EDGES])
joined = builder.add(Join(((0, "src"), (1, "dst"))), [kept, kept], [EDGES])
other = builder.add(Join(((0, "src"), (1, "dst"))), [kept, kept], [EDGES])
builder.close(back, builder.add(Concat(), [joined, other], [EDGES]))
left = builder.add(Leave(), [joined], [EDGES], scope=builder.root)
spread = builder.add(Exchange("any"), [left], [EDGES])
rows = builder.add(Arrange(("src", "dst")), [spread], [EDGES], name="pairs-rows")
builder.add(Output("pairs"), [rows], [EDGES], name="pairs")
plan = builder.build()
"""


def build(source: str) -> Plan:
    """The plan of a program that is a text; its lines are known as those of program.py."""
    source = source.lstrip()
    linecache.cache["program.py"] = (
        len(source), None, source.splitlines(keepends=True), "program.py"
    )  # fmt: skip
    names: dict[str, Any] = {
        **globals(),
        "Join": Join,  # named in texts only
        "EDGES": pa.schema({"src": pa.int64(), "dst": pa.int64()}),
    }
    exec(compile(source, "program.py", "exec"), names)
    plan = names["flow"].plan if "flow" in names else names["plan"]
    assert isinstance(plan, Plan)
    return plan


@pytest.fixture(params=PROGRAMS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return build(PROGRAMS[request.param])


# -- text


GOLDEN = """\
walk: 15 nodes, 1 input, 1 output, 1 loop
  state     2 nodes keep state: 7, 13
  shared    the arrangement of 7 is read by 8, 9
  exchange  rows move between workers at 2 nodes: 6, 12
  fused     2 linear nodes in 1 pass over the rows
  arrival   12 and what lies behind depend on how rows arrive; their results leave once the epoch is durable

   #     node          from  line           does
   0     edges               program.py:2   input 'edges'
   1  ┌  negate-1      0     program.py:3   negate
   2  └  negate-2      1     program.py:3   negate
         loop walk, at most 9 rounds
   3       enter-1     2     program.py:5   enter
   4  ↺    feedback-1  10    program.py:6   feedback, at most 9 rounds
   5       concat-1    3, 4  program.py:7   concat
   6  ⇄    exchange-1  5     program.py:7   exchange by src
   7  ■    arrange-1   6     program.py:8   arrange by src; shared by 8, 9
   8       join-1      7, 7  program.py:9   join all pairs
   9       join-2      7, 7  program.py:10  join all pairs
  10       concat-2    8, 9  program.py:11  concat
  11     leave-1       8     program.py:12  leave
  12  ⇄  exchange-1    11    program.py:13  exchange to any; depends on arrival
  13  ■  pairs-rows    12    program.py:14  arrange by src, dst; behind what depends on arrival
  14     pairs         13    program.py:15  output 'pairs'; depends on arrival, so it leaves once the epoch is durable

  ■ keeps state    ⇄ rows move between workers    ┌│└ fused: one pass over the rows    ↺ back to the start of the loop, for the next round

  program.py:2   edges = builder.add(Input("edges"), [], [EDGES], name="edges")
  program.py:3   marks = builder.add(Negate(), [builder.add(Negate(), [edges], [EDGES])], [EDGES])
  program.py:5   inside = builder.add(Enter(), [marks], [EDGES], scope=walk)
  program.py:6   back = builder.add(Feedback(9), [], [EDGES], scope=walk)
  program.py:7   moved = builder.add(Exchange("key", (0,), ("src",)), [builder.add(Concat(), [inside, back], [EDGES]) ...
  program.py:8   kept = builder.add(Arrange(("src",)), [moved], [EDGES])
  program.py:9   joined = builder.add(Join(((0, "src"), (1, "dst"))), [kept, kept], [EDGES])
  program.py:10  other = builder.add(Join(((0, "src"), (1, "dst"))), [kept, kept], [EDGES])
  program.py:11  builder.close(back, builder.add(Concat(), [joined, other], [EDGES]))
  program.py:12  left = builder.add(Leave(), [joined], [EDGES], scope=builder.root)
  program.py:13  spread = builder.add(Exchange("any"), [left], [EDGES])
  program.py:14  rows = builder.add(Arrange(("src", "dst")), [spread], [EDGES], name="pairs-rows")
  program.py:15  builder.add(Output("pairs"), [rows], [EDGES], name="pairs")"""  # noqa: E501


def test_explain_of_a_small_program() -> None:
    assert explain(build(WALK)) == GOLDEN


def test_the_same_program_gives_the_same_text(plan: Plan) -> None:
    again = build(next(s for s in PROGRAMS.values() if f'"{plan.name}"' in s))
    for draw in (explain, to_dot, to_svg):
        assert draw(plan) == draw(again)


def test_explain_names_the_readers_of_a_shared_arrangement() -> None:
    text = explain(build(SHARED))
    (row,) = re.findall(r"^ *(\d+)  ■  arrange.*; shared by (\d+), (\d+)$", text, re.MULTILINE)
    shared, *readers = row
    assert f"the arrangement of {shared} is read by {readers[0]}, {readers[1]}" in text
    for reader in readers:
        (line,) = re.findall(rf"^ *{reader} .*$", text, re.MULTILINE)
        assert " join-" in line
        assert shared in line


def test_every_node_has_one_line_after_its_inputs(plan: Plan) -> None:
    order = in_order(plan)
    assert sorted(node.number for node in order) == list(range(len(plan.nodes)))
    at = {node.number: place for place, node in enumerate(order)}
    for node in order:
        if not node.operator.is_feedback:
            assert all(at[port.node] < at[node.number] for port in node.inputs)
    for chain in fused(plan):
        places = [at[node.number] for node in chain]
        assert places == list(range(places[0], places[0] + len(chain)))
    rows = [line for line in explain(plan).splitlines() if re.match(r" *\d+  ", line)]
    assert len(rows) == len(plan.nodes)


def test_a_loop_is_in_one_piece(plan: Plan) -> None:
    text = explain(plan)
    for scope in plan.scopes[1:]:
        assert len(re.findall(rf"loop {scope.name}\b", text)) == 1


def test_what_depends_on_arrival_is_said_to_leave_late() -> None:
    builder, columns = PlanBuilder("any"), pa.schema({"n": pa.int64()})
    rows = builder.add(Input("rows"), [], [columns], name="rows")
    moved = builder.add(Exchange("any"), [rows], [columns])
    kept = builder.add(Arrange(("n",)), [moved], [columns])
    builder.add(Output("out"), [kept], [columns], name="out (output)")
    text = explain(builder.build())
    assert "exchange to any; depends on arrival\n" in text
    assert "arrange by n; behind what depends on arrival\n" in text
    assert "output 'out'; depends on arrival, so it leaves once the epoch is durable\n" in text
    assert "results leave once the epoch is durable" in text.split("\n\n")[0]
    assert "leaves once durable" in to_svg(builder.build())
    assert "arrival" not in explain(build(REACH))


def test_a_fetch_that_is_not_committed_depends_on_arrival() -> None:
    flow = rr.Dataflow("reads")
    rows = flow.input("rows", {"key": pl.Int64, "time": pl.Int64, "value": pl.Int64})
    state = flow.state("state", key={"key": pl.Int64}, value={"value": pl.Int64})
    rows.update(state)
    asked = flow.input("asked", {"key": pl.Int64, "at": pl.Int64})
    flow.output("sure", asked.fetch(state, at="at"))
    assert "arrival" not in flow.explain()
    flow.output("soon", asked.fetch_uncommitted(state))
    lines = flow.explain().splitlines()
    assert any(
        "fetch uncommitted latest from 'state'; depends on arrival" in line for line in lines
    )
    (sure,) = (line for line in lines if "output 'sure'" in line)
    (soon,) = (line for line in lines if "output 'soon'" in line)
    assert "depends on arrival" in soon
    assert "depends on arrival" not in sure


def test_a_loop_that_outside_work_divides_goes_on() -> None:
    """Out of a loop and into it again: not what `iterate` builds, but a plan all the same."""
    builder, columns = PlanBuilder("twice"), pa.schema({"n": pa.int64()})
    rows = builder.add(Input("rows"), [], [columns], name="rows")
    loop = builder.loop(builder.root, "turn")
    first = builder.add(Enter(), [rows], [columns], scope=loop)
    left = builder.add(Leave(), [first], [columns], scope=builder.root)
    second = builder.add(Enter(), [left], [columns], scope=loop)
    back = builder.add(Feedback(3), [], [columns], scope=loop)
    builder.close(back, builder.add(Concat(), [second, back], [columns]))
    plan = builder.build()
    assert [node.name for node in in_order(plan)][-1] == "turn/concat-1"
    assert re.search(r"loop turn, at most 3 rounds\n(.*\n)*? +loop turn, continued", explain(plan))
    ElementTree.fromstring(to_svg(plan))


# -- what is drawn as what


def test_figure_accounts_for_every_node(plan: Plan) -> None:
    figure = Figure(plan)
    drawn = [node.number for box in figure.boxes for node in box.nodes]
    passed = {node.number for arrow in figure.arrows for node in arrow.exchanges}
    assert len(drawn) == len(set(drawn))
    assert not passed & set(drawn)
    assert passed | set(drawn) == set(range(len(plan.nodes)))
    feedbacks = sum(node.operator.is_feedback for node in plan.nodes)
    assert sum(arrow.returns for arrow in figure.arrows) == feedbacks == len(plan.scopes) - 1


def test_an_exchange_that_leads_nowhere_is_a_box() -> None:
    builder, columns = PlanBuilder("half"), pa.schema({"n": pa.int64()})
    rows = builder.add(Input("rows"), [], [columns], name="rows")
    builder.add(Exchange("one"), [rows], [columns])
    assert len(Figure(builder.build()).boxes) == 2
    ElementTree.fromstring(to_svg(builder.build()))


def test_a_loop_of_nothing() -> None:
    flow = rr.Dataflow("still")
    rows = flow.input("rows", {"n": pl.Int64})
    flow.output("out", rows.iterate(lambda same: same))
    assert sum(arrow.returns for arrow in Figure(flow.plan).arrows) == 1
    ElementTree.fromstring(flow.to_svg())


def test_an_empty_plan() -> None:
    plan = rr.Dataflow("nothing").plan
    assert explain(plan).startswith("nothing: 0 nodes")
    ElementTree.fromstring(to_svg(plan))
    assert to_dot(plan).startswith('digraph "nothing" {')


# -- dot


def test_dot_has_clusters_cylinders_and_dashes(plan: Plan) -> None:
    text, figure = to_dot(plan), Figure(plan)
    assert text.count("subgraph cluster_") == len(plan.scopes) - 1
    assert text.count("shape=cylinder") == sum(n.operator.keeps_state for n in plan.nodes)
    exchanging = sum(bool(arrow.exchanges) for arrow in figure.arrows)
    assert len(re.findall(r"-> b\d+ \[style=dashed, label=\"by ", text)) == exchanging > 0
    assert text.count("{") == text.count("}")


# -- hostile names

HOSTILE = '</title></svg><script>alert("1")</script>\x00\x1b[31m\n" ]; evil [label="\\" & \ud800 '


def hostile() -> Plan:
    builder, columns = PlanBuilder(HOSTILE), pa.schema({"n": pa.int64()})
    rows = builder.add(Input(HOSTILE), [], [columns], name="rows")
    loop = builder.loop(builder.root, HOSTILE)
    inside = builder.add(Enter(), [rows], [columns], scope=loop)
    moved = builder.add(Exchange("key", (0,), (HOSTILE,)), [inside], [columns])
    builder.add(Arrange((HOSTILE,)), [moved], [columns])
    return builder.build()


def test_names_do_no_harm_in_svg() -> None:
    root = ElementTree.fromstring(to_svg(hostile()))
    known = {"svg", "g", "title", "rect", "path", "text", "circle", "ellipse"}
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= known
    assert any("alert" in (element.text or "") for element in root.iter(f"{SVG}title"))


def test_names_do_no_harm_in_text() -> None:
    text = explain(hostile())
    assert "\x1b" not in text
    assert "\x00" not in text
    assert len([line for line in text.splitlines() if re.match(r" *\d+  ", line)]) == 4


def test_names_do_no_harm_in_dot() -> None:
    text = to_dot(hostile())
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    assert '"' not in outside
    assert "evil" not in outside
    assert "\x00" not in text


# -- svg


def test_texts_fit_their_boxes(plan: Plan) -> None:
    root = ElementTree.fromstring(to_svg(plan))
    seen = 0
    for group in root.iter(f"{SVG}g"):
        box = group.find(f"{SVG}rect")
        assert box is not None
        left, width = float(box.attrib["x"]), float(box.attrib["width"])
        for text in group.findall(f"{SVG}text"):
            size = len(text.text or "") * float(text.attrib["font-size"]) * 0.6
            start = float(text.attrib["x"])
            if text.attrib.get("text-anchor") == "middle":
                start -= size / 2
            assert left <= start
            assert start + size <= left + width
            seen += 1
    assert seen > len(plan.nodes) / 2


def test_everything_is_on_the_paper(plan: Plan) -> None:
    root = ElementTree.fromstring(to_svg(plan))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in list(root.iter(f"{SVG}rect"))[1:]:
        at = {name: float(box.attrib[name]) for name in ("x", "y", "width", "height")}
        assert at["x"] >= 0
        assert at["y"] >= 0
        assert at["x"] + at["width"] <= width
        assert at["y"] + at["height"] <= height


def test_long_texts_are_shortened_and_whole_in_the_tooltip() -> None:
    flow = rr.Dataflow("long")
    rows = flow.input("rows", {f"column_{at}": pl.Int64 for at in range(40)})
    flow.output("out", rows.select(*[f"column_{39 - at}" for at in range(39)]))
    root = ElementTree.fromstring(flow.to_svg())
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    titles = [element.text or "" for element in root.iter(f"{SVG}title")]
    assert any("…" in text for text in texts)
    assert max(map(len, texts)) < 80
    assert any("column_39" in title and "column_1" in title for title in titles)


def test_a_long_chain_is_one_box() -> None:
    builder, columns = PlanBuilder("chain"), pa.schema({"n": pa.int64()})
    port = builder.add(Input("rows"), [], [columns], name="rows")
    for _ in range(300):
        port = builder.add(Negate(), [port], [columns])
    assert len(Figure(builder.build()).boxes) == 2
    assert "… and 294 more" in to_svg(builder.build())


# -- layout


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Rectangle], list[Curve]]:
    sizes = st.integers(10, 120).map(float)
    count = draw(st.integers(1, 12))
    blocks = [Rectangle(draw(sizes), draw(sizes)) for _ in range(count)]
    blocks += [Rectangle(12.0, 0.0, "first") for _ in range(draw(st.integers(0, 2)))]
    firsts = range(count, len(blocks))
    blocks += [Rectangle(12.0, 0.0, "last") for _ in range(draw(st.integers(0, 2)))]
    lasts = range(count + len(firsts), len(blocks))
    ends = st.integers(0, count - 1)
    links = [Curve(a, b) for a, b in draw(st.lists(st.tuples(ends, ends), max_size=20))]
    links += [Curve(at, draw(ends)) for at in firsts]
    links += [Curve(draw(ends), at) for at in lasts]
    links += [Curve(draw(ends), draw(ends), back=True) for _ in range(draw(st.integers(0, 2)))]
    return blocks, links


def rectangles(
    blocks: list[Rectangle], placed: Placement
) -> list[tuple[float, float, float, float]]:
    return [
        (x, y, x + block.width, y + block.height)
        for (x, y), block in zip(placed.corners, blocks, strict=True)
    ]


@given(graphs())
def test_layout_keeps_its_laws(graph: tuple[list[Rectangle], list[Curve]]) -> None:
    blocks, links = graph
    placed = place(blocks, links)
    assert placed == place(blocks, links)
    boxes = rectangles(blocks, placed)
    for one, other in combinations(boxes, 2):
        apart = one[2] <= other[0] + 0.11 or other[2] <= one[0] + 0.11
        assert apart or one[3] <= other[1] or other[3] <= one[1]
    for link, route, back in zip(links, placed.routes, placed.back, strict=True):
        source, target = boxes[link.source], boxes[link.target]
        assert source[0] <= route[0][0] <= source[2]
        assert route[0][1] == source[3]
        assert target[0] <= route[-1][0] <= target[2]
        assert route[-1][1] == target[1]
        if back:
            assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(route))
        else:
            assert all(a[1] < b[1] for a, b in pairwise(route))
        # A bend stays in the rectangle of its two points, so it meets no block that this does not meet.
        for (x, y), (to_x, to_y) in pairwise(route):
            low, high = sorted((x, to_x))
            top, bottom = sorted((y, to_y))
            for box in boxes:
                beside = high <= box[0] + 0.11 or low >= box[2] - 0.11
                assert beside or bottom <= box[1] or top >= box[3], (route, box)
    points = [point for route in placed.routes for point in route]
    for x, y in [
        *points,
        *((box[0], box[1]) for box in boxes),
        *((box[2], box[3]) for box in boxes),
    ]:
        assert -0.11 <= x <= placed.width + 0.11
        assert -0.11 <= y <= placed.height + 0.11


def test_layout_has_no_crossing_where_none_is_needed() -> None:
    """Two ladders that were written crosswise."""
    blocks = [Rectangle(40, 20) for _ in range(6)]
    placed = place(blocks, [Curve(0, 3), Curve(1, 2), Curve(3, 4), Curve(2, 5)])
    order = [[placed.corners[at][0] for at in layer] for layer in ((0, 1), (3, 2), (4, 5))]
    assert len({row[0] < row[1] for row in order}) == 1
    assert all(abs(route[0][0] - route[-1][0]) < 0.01 for route in placed.routes)


def test_layout_takes_loops_of_links() -> None:
    blocks = [Rectangle(40, 20) for _ in range(3)]
    placed = place(blocks, [Curve(0, 1), Curve(1, 2), Curve(2, 0), Curve(1, 1)])
    assert placed.back == (False, False, True, True)
