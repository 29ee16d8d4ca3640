"""Plans for people: as text (`explain`), as a graph in the dot language (`to_dot`), as a picture (`to_svg`).

Laws: the same program gives the same text; `explain` has one line for each node, inputs before
those who take from them; what comes from the user (names, expressions, lines of source) is
escaped or made harmless wherever it is shown.

>>> import pyarrow as pa
>>> from riverrun.engine.operators.arrange import Arrange, Output
>>> from riverrun.engine.operators.exchange import Exchange
>>> from riverrun.engine.operators.linear import Input
>>> from riverrun.engine.plan import PlanBuilder
>>> builder, columns = PlanBuilder("stock"), pa.schema({"item": pa.string()})
>>> items = builder.add(Input("items"), [], [columns], name="items")
>>> moved = builder.add(Exchange("key", (0,), ("item",)), [items], [columns])
>>> kept = builder.add(Arrange(("item",)), [moved], [columns])
>>> _ = builder.add(Output("items"), [kept], [columns], name="items (output)")
>>> print(explain(builder.build()))  # doctest: +NORMALIZE_WHITESPACE
stock: 4 nodes, 1 input, 1 output
  state     1 node keeps state: 2
  exchange  rows move between workers at 1 node: 1
<BLANKLINE>
  #     node            from  line          does
  0     items                 <doctest ...  input 'items'
  1  ⇄  exchange-1      0     <doctest ...  exchange by item
  2  ■  arrange-1       1     <doctest ...  arrange by item
  3     items (output)  2     <doctest ...  output 'items'
...

Cost: text is linear in nodes and edges; see `layout` for the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from riverrun.engine.figure import (
    Box,
    Figure,
    fused,
    in_order,
    one_line,
    place_of,
    short_name,
    source_of,
    told,
)
from riverrun.engine.operators.arrange import Output
from riverrun.engine.operators.exchange import Exchange
from riverrun.engine.operators.linear import Input
from riverrun.engine.plan import Node, Plan, Port, Scope
from riverrun.engine.svg import to_svg

__all__ = ["explain", "to_dot", "to_svg"]

LONGEST = 160  # of what a node does, in characters


# -- text


def explain(plan: Plan) -> str:
    """The plan as text.

    A summary; then each node: its number in this text, a mark, its name, the numbers of its inputs,
    the user's line, what it does, and what is to be known of it; then what the marks mean, and the
    user's lines. Loops are indented, under a line that says how long they go on.
    """
    return _Explained(plan).text()


class _Explained:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.figure = Figure(plan)
        self.order = in_order(plan)
        self.at = {node.number: at for at, node in enumerate(self.order)}
        self.chains = fused(plan)
        self.brackets: dict[int, str] = {}
        for chain in self.chains:
            for node in chain:
                self.brackets[node.number] = "│"
            self.brackets[chain[0].number] = "┌"
            self.brackets[chain[-1].number] = "└"

    def text(self) -> str:
        parts = [self._summary(), self._table(), self._legend(), self._lines()]
        return "\n\n".join("\n".join(part) for part in parts if part)

    def _summary(self) -> list[str]:
        nodes = self.plan.nodes
        inputs = sum(isinstance(node.operator, Input) for node in nodes)
        outputs = sum(isinstance(node.operator, Output) for node in nodes)
        counts = [_many(len(nodes), "node"), _many(inputs, "input"), _many(outputs, "output")]
        if len(self.plan.scopes) > 1:
            counts.append(_many(len(self.plan.scopes) - 1, "loop"))
        facts: dict[str, str] = {}
        keeping = [node for node in self.order if node.operator.keeps_state]
        if keeping:
            keep = "keeps" if len(keeping) == 1 else "keep"
            facts["state"] = f"{_many(len(keeping), 'node')} {keep} state: {self._numbers(keeping)}"
        shared = [node for node in self.order if len(self.figure.readers.get(node.number, ())) > 1]
        if shared:
            facts["shared"] = "; ".join(
                f"the arrangement of {self._numbers([node])} is read by {self._numbers(self._readers(node))}"
                for node in shared
            )
        moving = [node for node in self.order if isinstance(node.operator, Exchange)]
        if moving:
            facts["exchange"] = (
                f"rows move between workers at {_many(len(moving), 'node')}: {self._numbers(moving)}"
            )
        if self.chains:
            many = sum(map(len, self.chains))
            facts["fused"] = (
                f"{many} linear nodes in {_many(len(self.chains), 'pass', 'passes')} over the rows"
            )
        if self.plan.arrival_dependent:
            marked = [node for node in self.order if not node.operator.deterministic]
            facts["arrival"] = (
                f"{self._numbers(marked)} and what lies behind depend on how rows arrive; "
                "their results leave once the epoch is durable"
            )
        wide = max(map(len, facts), default=0)
        return [
            f"{one_line(self.plan.name)}: {', '.join(counts)}",
            *(f"  {name:<{wide}}  {fact}" for name, fact in facts.items()),
        ]

    def _table(self) -> list[str]:
        rows: list[tuple[str, ...]] = [("#", "", "node", "from", "line", "does")]
        open_scopes: list[Scope] = [self.plan.scopes[0]]
        seen: set[int] = set()
        for node in self.order:
            while not node.scope.is_inside(open_scopes[-1]):
                open_scopes.pop()
            for scope in _down_to(node.scope, open_scopes[-1]):
                rounds = "continued" if scope.number in seen else self.figure.rounds(scope)
                rows.append((f"{_indent(scope.depth - 1)}loop {one_line(scope.name)}, {rounds}",))
                seen.add(scope.number)
                open_scopes.append(scope)
            rows.append(
                (
                    str(self.at[node.number]),
                    self._mark(node),
                    _indent(node.depth) + short_name(node),
                    ", ".join(self._port(port) for port in node.inputs),
                    place_of(node),
                    "; ".join([one_line(told(node), LONGEST), *self._notes(node)]),
                )
            )
        wide = [max(len(row[at]) for row in rows if len(row) > 1) for at in range(5)]
        lines: list[str] = []
        for row in rows:
            if len(row) == 1:  # a loop
                lines.append(f"  {'':{wide[0]}}  {'':{wide[1]}}  {row[0]}")
                continue
            cells = [f"{cell:<{width}}" for cell, width in zip(row[1:5], wide[1:], strict=True)]
            lines.append("  ".join(["", f"{row[0]:>{wide[0]}}", *cells, row[5]]).rstrip())
        return lines

    def _mark(self, node: Node) -> str:
        if node.operator.keeps_state:
            return "■"
        if isinstance(node.operator, Exchange):
            return "⇄"
        if node.operator.is_feedback:
            return "↺"
        return self.brackets.get(node.number, "")

    def _port(self, port: Port) -> str:
        number = str(self.at[port.node])
        return number if port.output == 0 else f"{number}.{port.output}"

    def _notes(self, node: Node) -> Iterable[str]:
        readers = self._readers(node)
        if len(readers) > 1:
            yield f"shared by {self._numbers(readers)}"
        if node.number in self.plan.arrival_dependent:
            if not node.operator.deterministic:
                yield "depends on arrival"
            elif isinstance(node.operator, Output):
                yield "depends on arrival, so it leaves once the epoch is durable"
            else:
                yield "behind what depends on arrival"

    def _readers(self, node: Node) -> list[Node]:
        found = self.figure.readers.get(node.number, ())
        return sorted(found, key=lambda reader: self.at[reader.number])

    def _legend(self) -> list[str]:
        marks = {self._mark(node) for node in self.order}
        known = {
            "■": "keeps state",
            "⇄": "rows move between workers",
            "┌": "fused: one pass over the rows",
            "↺": "back to the start of the loop, for the next round",
        }
        shown = [
            f"{'┌│└' if m == '┌' else m} {meaning}" for m, meaning in known.items() if m in marks
        ]
        return ["  " + "    ".join(shown)] if shown else []

    def _lines(self) -> list[str]:
        lines = {place_of(node): source_of(node) for node in self.order if source_of(node)}
        wide = max(map(len, lines), default=0)
        return [
            f"  {place:<{wide}}  {one_line(lines[place], LONGEST)}"
            for place in sorted(lines, key=_by_line)
        ]

    def _numbers(self, nodes: Iterable[Node]) -> str:
        return ", ".join(str(self.at[node.number]) for node in nodes)


def _down_to(scope: Scope, outer: Scope) -> list[Scope]:
    """The loops inside `outer` around a scope, and itself, from outside in."""
    found: list[Scope] = []
    while scope is not outer:
        found.append(scope)
        assert scope.parent is not None
        scope = scope.parent
    return found[::-1]


def _by_line(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return file, int(line) if line.isdecimal() else 0


def _indent(depth: int) -> str:
    return "  " * (depth - 1)


def _many(count: int, one: str, more: str | None = None) -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"


# -- dot


_SHAPES = {
    "input": 'shape=invhouse, fillcolor="#e7f5ec", color="#2f9e5b"',
    "output": 'shape=house, fillcolor="#f3edfb", color="#7c4dbd"',
    "state": 'shape=cylinder, fillcolor="#e8f0fd", color="#2f6fde"',
    "round": 'shape=box, fillcolor="#fff4e0", color="#c77700"',
    "enter": "shape=point, width=0.08",
    "leave": "shape=point, width=0.08",
}
_PLAIN = 'shape=box, fillcolor="#ffffff", color="#8a94a3"'


def to_dot(plan: Plan) -> str:
    r"""The plan as a graph for graphviz: ``dot -Tpdf``. Loops are clusters, states cylinders, exchanges dashed.

    >>> import pyarrow as pa
    >>> from riverrun.engine.operators.linear import Input
    >>> from riverrun.engine.plan import PlanBuilder
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
            label = ", ".join(told(node).removeprefix("exchange ") for node in arrow.exchanges)
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
