"""Telling: what people know rows by.

While a program is written its lines are at hand, and a message says which one it is about. While it runs, all there
is of a stream is what it is called (in events, and in messages of an epoch that is refused). Laws:

1. The rows of an input, and of a step that was given a name, go by that name; what we make of a name of our own
   accord (`asked:gather`, `items:rows`) goes by the name it is made of.
2. A step without a name goes by what it does, to what of all that has a name, and the line that it is in. Its number
   among the steps, and steps that no line of the program has, are nobody's business.

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("shop")
>>> sales = flow.input("sales", {"item": pl.String, "price": pl.Float64})
>>> known_as(flow._builder.nodes, sales._port)
"'sales'"
>>> dear = sales.filter(pl.col("price") > 5)
>>> known_as(flow._builder.nodes, dear._port).partition(" (")[0]
"filter of 'sales'"
"""

from __future__ import annotations

from collections.abc import Sequence

from riverrun.plan.plan import Node, Port


def step_of(nodes: Sequence[Node], port: Port, *, through_loops: bool = False) -> Node:
    """The node that rows go by: those of an input by the input; or, `through_loops`, what entered or left one."""
    node = nodes[port.node]
    while node.operator.known_by_input or (through_loops and node.operator.steps_out):
        node = nodes[node.inputs[0].node]
    return node


def known_as(nodes: Sequence[Node], port: Port) -> str:
    """What people know rows by when no line of the program is at hand."""
    node = step_of(nodes, port, through_loops=True)
    if node.named:
        return _given(node)
    seen, waiting = {node.number}, [node]
    names: dict[str, None] = {}
    while waiting:
        for source in (nodes[port.node] for port in waiting.pop(0).inputs):
            if source.named:
                names[_given(source)] = None
            elif source.number not in seen:
                seen.add(source.number)
                waiting.append(source)
    whose = f" of {' and '.join(names)}" if names else ""
    return f"{node.operator.kind}{whose} ({node.line.partition(': ')[0]})"


def _given(node: Node) -> str:
    """The name that a node was given: what is derived from a name has a colon behind it."""
    return repr(node.name.partition(":")[0])
