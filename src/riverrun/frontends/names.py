"""Names of streams of rows, for events and messages.

While a program is written, a message can show the line that it is about. While the program runs, an event (``late``) or
the message of a refused epoch can only say what the stream is called. `describe_stream` finds the words for that in the
nodes that lead to the stream; `step_of` finds the node whose name a message uses while the program is written. Laws:

- **Named streams.** The rows of an input, or of a step with a name, are called by that name. Where the name of a node
  is derived from a user's name (`asked:gather`, `items:rows`), only the user's part is shown.
- **Described streams.** The rows of a step without a name are called by three things: what the step does, the nearest
  streams with names that lead to the step, and the line of the program that the step stands in. Numbers of nodes, and
  nodes in between, are never shown.

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("shop")
>>> sales = flow.input("sales", {"item": pl.String, "price": pl.Float64})
>>> describe_stream(flow._builder.nodes, sales._port)
"'sales'"
>>> dear = sales.filter(pl.col("price") > 5)
>>> describe_stream(flow._builder.nodes, dear._port).partition(" (")[0]
"filter of 'sales'"
"""

from __future__ import annotations

from collections.abc import Sequence

from riverrun.plan.operator import Role
from riverrun.plan.plan import Node, Port


def step_of(nodes: Sequence[Node], port: Port, *, through_loops: bool = False) -> Node:
    """The node whose name rows have.

    Nodes that hand on the rows of an input (checks, upserts, wider types) are skipped for the input itself, as are
    functions that only look at rows, unless the user gave such a node a name; with `through_loops`, so are nodes that
    only lead rows into a loop or out of one.
    """
    node = nodes[port.node]
    while (
        node.operator.known_by_input and not (node.named and node.operator.role is Role.INSPECT)
    ) or (through_loops and node.operator.steps_out):
        node = nodes[node.inputs[0].node]
    return node


def describe_stream(nodes: Sequence[Node], port: Port) -> str:
    """The name or description of rows while the program runs."""
    node = step_of(nodes, port, through_loops=True)
    if node.named:
        return _users_name(node)
    seen, waiting = {node.number}, [node]
    names: dict[str, None] = {}
    while waiting:
        for source in (nodes[port.node] for port in waiting.pop(0).inputs):
            if source.named:
                names[_users_name(source)] = None
            elif source.number not in seen:
                seen.add(source.number)
                waiting.append(source)
    whose = f" of {' and '.join(names)}" if names else ""
    return f"{node.operator.kind}{whose} ({node.line.partition(': ')[0]})"


def _users_name(node: Node) -> str:
    """The name that the user gave, quoted: in a name that was derived from it, the part before the colon."""
    return repr(node.name.partition(":")[0])
