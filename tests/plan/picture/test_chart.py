"""Charts: everything is inside its panel, axes have round numbers, and no text does harm."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from riverrun.plan.picture import chart as charts
from riverrun.plan.picture.chart import HEIGHT, WIDTH, Line, Panel, chart
from riverrun.plan.picture.svg import EDGE

SVG = "{http://www.w3.org/2000/svg}"
values = st.one_of(
    st.just(0.0), st.floats(1e-4, 1e12, allow_nan=False), st.integers(0, 1 << 60).map(float)
)
points = st.lists(values, min_size=1, max_size=30).map(lambda each: tuple(enumerate(each)))
several = st.lists(points, min_size=1, max_size=4)


def drawn(*lines, title="loop", names=None):
    made = [Line(names[at] if names else f"line {at}", each) for at, each in enumerate(lines)]
    return ElementTree.fromstring(chart(title, "about it", "round", [Panel("rows", tuple(made))]))


def texts(picture):
    return [each.text for each in picture.iter(f"{SVG}text")]


@given(several)
def test_all_points_are_inside_their_panel(lines):
    picture = drawn(*lines)
    left, bottom = EDGE + charts.LEFT, EDGE + charts.TOP + charts.ABOVE + HEIGHT
    for dot in picture.iter(f"{SVG}circle"):
        assert left - 0.1 <= float(dot.get("cx")) <= left + WIDTH + 0.1
        assert bottom - HEIGHT - 0.1 <= float(dot.get("cy")) <= bottom + 0.1
    for bar in list(picture.iter(f"{SVG}rect"))[1:]:
        x, wide = float(bar.get("x")), float(bar.get("width"))
        y, tall = float(bar.get("y")), float(bar.get("height"))
        assert left - 0.1 <= x <= x + wide <= left + WIDTH + 0.1
        assert bottom - HEIGHT - 0.1 <= y <= y + tall <= bottom + 0.2
    dots = len(list(picture.iter(f"{SVG}circle"))) + len(list(picture.iter(f"{SVG}rect"))) - 1
    assert dots == sum(map(len, lines))


@given(several)
def test_greater_values_are_not_drawn_lower(lines):
    if len(lines) == 1:
        lines = [*lines, lines[0]]
    picture = drawn(*lines)
    heights = [float(dot.get("cy")) for dot in picture.iter(f"{SVG}circle")]
    pairs = sorted(zip([value for line in lines for _, value in line], heights, strict=True))
    lowest = [y for _, y in pairs]
    assert all(a >= b - 0.11 for a, b in pairwise(lowest))


def test_axes_are_logarithmic_where_values_are_far_apart():
    near = texts(drawn(((0, 10.0), (1, 40.0))))
    assert [each for each in near if re.fullmatch(r"[\d,.M]+", each)] == [
        "0",
        "10",
        "20",
        "30",
        "40",
        "0",
        "1",
    ]
    far = texts(drawn(((0, 3.0), (1, 40_000.0))))
    assert far[3:8] == ["1", "10", "100", "1,000", "10,000"]
    assert "0" not in far[3:9]
    assert texts(drawn(((0, 3.0), (1, 40_000.0), (2, 0.0))))[3] == "0"
    assert texts(drawn(((0, 3e6), (1, 4.0))))[-4].endswith("M")


def test_lines_have_a_legend_and_one_line_has_bars():
    one = drawn(((0, 1.0), (1, 2.0)))
    assert "line 0" not in texts(one)
    assert len(list(one.iter(f"{SVG}rect"))) == 3
    two = drawn(((0, 1.0), (1, 2.0)), ((0, 1.0), (1, 2.0)))
    assert [each for each in texts(two) if each.startswith("line")] == ["line 0", "line 1"]
    assert len(list(two.iter(f"{SVG}rect"))) == 1
    assert float(two.get("width")) > float(one.get("width"))
    # Lines that are the same are both seen: the lower one is wider.
    wide = [
        float(each.get("stroke-width"))
        for each in two.iter(f"{SVG}path")
        if each.get("stroke-linejoin")
    ]
    assert wide[0] > wide[1]


def test_many_values_are_thinned_to_the_greatest_of_neighbours():
    many = tuple((at, 5.0 if at == 7777 else 1.0) for at in range(10_000))
    picture = drawn(many, many[:3])
    long = next(each for each in picture.iter(f"{SVG}path") if each.get("stroke-linejoin"))
    steps = re.findall(r"[ML][\d.]+ ([\d.]+)", long.get("d"))
    assert len(steps) == charts.POINTS
    assert len(set(steps)) == 2
    assert len(chart("", "", "", [Panel("", (Line("", many),))])) < 150_000


def test_texts_do_no_harm_and_nothing_may_be_missing():
    hostile = "</text><script>\x00&\"'"
    picture = chart(hostile, hostile, hostile, [Panel(hostile, (Line(hostile, ()), Line("b", ())))])
    assert "<script>" not in picture
    assert "\x00" not in picture
    assert ElementTree.fromstring(picture).tag == f"{SVG}svg"
    assert ElementTree.fromstring(chart("", "", "", [])).tag == f"{SVG}svg"
