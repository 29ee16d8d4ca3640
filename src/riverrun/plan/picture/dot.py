"""Dot: a plan as a graph in the dot language, for Graphviz."""

from __future__ import annotations

from collections.abc import Sequence

from riverrun.plan.picture.figure import (
    Box,
    Figure,
    description_of,
    one_line,
)
from riverrun.plan.plan import Plan, Scope


def to_dot(plan: Plan) -> str:
    r"""The plan as a graph for graphviz: ``dot -Tpdf``. Loops are clusters, states cylinders, exchanges dashed.

    >>> import pyarrow as pa
    >>> from riverrun.operators.sources import Input
    >>> from riverrun.plan.plan import PlanBuilder
    >>> builder = PlanBuilder("stock")
    >>> _ = builder.add(Input('the "best" \\'), [], [pa.schema({})], name="items")
    >>> print(to_dot(builder.build()).splitlines()[4])
      b0 [label="input 'the \"best\" \\\\'", tooltip="items ...
    """
    figure = Figure(plan)
    lines = [
        f"digraph {_quoted(plan.name)} {{",
        "  compound=true; rankdir=TB; bgcolor=white;",
        '  node [style="filled,rounded", fontname="Helvetica", fontsize=11];',
        '  edge [fontname="Helvetica", fontsize=9, color="#5b6675"];',
    ]
    lines += _cluster(figure, plan.scopes[0])
    for arrow in figure.arrows:
        options: list[str] = []
        if arrow.exchanges:
            label = ", ".join(
                description_of(node).removeprefix("exchange ") for node in arrow.exchanges
            )
            options += ["style=dashed", f"label={_quoted(label)}"]
        if arrow.reads:
            options.append('color="#2f6fde"')
        if arrow.returns:
            options += ["constraint=false", 'color="#c77700"', 'xlabel="next round"']
        shown = f" [{', '.join(options)}]" if options else ""
        lines.append(f"  b{arrow.source} -> b{arrow.target}{shown};")
    return "\n".join([*lines, "}", ""])


def _cluster(figure: Figure, scope: Scope) -> list[str]:
    """The boxes of a loop, and the loops in it."""
    pad = "  " * scope.depth
    lines = [pad + _vertex(figure, box) for box in figure.boxes if box.scope is scope]
    for inner in figure.plan.scopes:
        if inner.parent is scope:
            label = f"loop {inner.name}, {figure.rounds(inner)}"
            lines += [
                f"{pad}subgraph cluster_{inner.number} {{",
                f'{pad}  label={_quoted(label)}; labeljust=l; style=rounded; color="#c77700";',
                *_cluster(figure, inner),
                f"{pad}}}",
            ]
    return lines


def _vertex(figure: Figure, box: Box) -> str:
    label = "" if box.role in ("enter", "leave") else "\n".join(box.steps)
    names = "\n".join(
        f"{node.name} ({node.line})" if node.line else node.name for node in box.nodes
    )
    shape = _SHAPES.get(box.role, _PLAIN)
    if any(node.number in figure.plan.arrival_dependent for node in box.nodes):
        shape += ', peripheries=2, style="filled,rounded,dashed"'
    return f"b{box.number} [label={_quoted(label)}, tooltip={_quoted(names)}, {shape}];"


def _quoted(text: str) -> str:
    """A string of the dot language: nothing in it ends it or is read as an escape."""
    lines: Sequence[str] = [one_line(line) for line in text.split("\n")]
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(escaped) + '"'


_SHAPES = {
    "input": 'shape=invhouse, fillcolor="#e7f5ec", color="#2f9e5b"',
    "output": 'shape=house, fillcolor="#f3edfb", color="#7c4dbd"',
    "state": 'shape=cylinder, fillcolor="#e8f0fd", color="#2f6fde"',
    "round": 'shape=box, fillcolor="#fff4e0", color="#c77700"',
    "enter": "shape=point, width=0.08",
    "leave": "shape=point, width=0.08",
}


_PLAIN = 'shape=box, fillcolor="#ffffff", color="#8a94a3"'
