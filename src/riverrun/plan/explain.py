"""Explain: a plan as text, for people. `picture` has the same as a drawing and as a graph in the dot language.

Laws:

- **Same program, same text.** The text depends on the plan alone, and on the rows of states where these are given.
- **A line for each node.** Each node has one line; its inputs stand above it.
- **Reasons.** What the optimizer has changed stands in the summary, with what was not chosen (`Plan.reasons`).
- **Harmless text.** The user's texts (names, expressions, lines of source) are shown on one line each, without control
  characters.

>>> import pyarrow as pa
>>> from riverrun.operators.arrange import Arrange, Output
>>> from riverrun.operators.exchange import Exchange
>>> from riverrun.operators.sources import Input
>>> from riverrun.plan.plan import PlanBuilder
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

Cost: linear in nodes and edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from riverrun.plan.operator import Role
from riverrun.plan.picture.figure import (
    Figure,
    description_of,
    fused,
    in_order,
    one_line,
    place_of,
    short_name,
    source_of,
)
from riverrun.plan.placement import staying
from riverrun.plan.plan import Node, Plan, Port, Scope

LONGEST = 160  # of what a node does, in characters


# -- text


def explain(plan: Plan, rows: Mapping[str, int] | None = None) -> str:
    """The plan as text; with the `rows` of each state, by name, where these are known.

    First comes a summary. Then each node has a line: the node's number in this text, a mark, its name, the numbers of
    its inputs, the user's line, the work of its operator, and remarks. At the end are the meanings of the marks and the
    user's lines of source. Loops are indented, under a line that says how long they go on.
    """
    return _Explained(plan, rows or {}).text()


class _Explained:
    def __init__(self, plan: Plan, rows: Mapping[str, int]) -> None:
        self.plan = plan
        self.rows = rows
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
        inputs = sum(node.operator.role.is_source for node in nodes)
        outputs = sum(node.operator.role is Role.OUTPUT for node in nodes)
        counts = [_many(len(nodes), "node"), _many(inputs, "input"), _many(outputs, "output")]
        loops = {node.scope.number for node in nodes if node.scope.parent is not None}
        if loops:
            counts.append(_many(len(loops), "loop"))
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
        moving = [node for node in self.order if node.operator.role is Role.EXCHANGE]
        if moving:
            facts["exchange"] = self._exchanges(moving)
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
        if self.plan.saved_loops:
            named = ", ".join(repr(one_line(scope.called)) for scope in self.plan.saved_loops)
            facts["saved"] = (
                f"after a loss, in an epoch that outlasts every=, {named} can go on between two rounds; "
                "what else is in the epoch begins anew"
            )
        for kind, said in self._reasons().items():
            facts[kind] = "; ".join(said)
        wide = max(map(len, facts), default=0)
        return [
            f"{one_line(self.plan.name)}: {', '.join(counts)}",
            *(f"  {name:<{wide}}  {fact}" for name, fact in facts.items()),
        ]

    def _exchanges(self, exchanges: Sequence[Node]) -> str:
        """Where rows move, and where they lie already."""
        stay = staying(self.plan)
        moving = [node for node in exchanges if node.number not in stay]
        staying_there = [node for node in exchanges if node.number in stay]
        said = "rows move between workers at no node"
        if moving:
            many = _many(len(moving), "node")
            said = f"rows move between workers at {many}: {self._numbers(moving)}"
        if staying_there:
            said += f"; at {self._numbers(staying_there)} they lie there already"
        return said

    def _reasons(self) -> dict[str, list[str]]:
        """What the optimizer has changed, by kind of rewrite: the nodes, the reason, and what was not chosen."""
        told: dict[str, list[str]] = {}
        for reason in self.plan.reasons:
            known = [
                self.plan.by_name[name]
                for name in dict.fromkeys(reason.nodes)
                if name in self.plan.by_name
            ]
            if known:
                known.sort(key=lambda node: self.at[node.number])
                sizes = [self.rows[node.name] for node in known if node.name in self.rows]
                measured = f"; {_rows(sum(sizes))} there" if sizes else ""
                said = (
                    f"{self._numbers(known)}: {reason.text} (instead: {reason.instead}{measured})"
                )
                told.setdefault(reason.kind, []).append(one_line(said))
        return told

    def _table(self) -> list[str]:
        rows: list[tuple[str, ...]] = [("#", "", "node", "from", "line", "does")]
        open_scopes: list[Scope] = [self.plan.scopes[0]]
        seen: set[int] = set()
        for node in self.order:
            while not node.scope.is_inside(open_scopes[-1]):
                open_scopes.pop()
            for scope in _down_to(node.scope, open_scopes[-1]):
                rounds = "continued" if scope.number in seen else self.figure.rounds(scope)
                why = self.plan.differential.get(scope.number)
                if why is not None and scope.number not in seen:
                    rounds += f"; differential, {one_line(why)}"
                by_rounds = self.plan.by_rounds.get(scope.number)
                if by_rounds is not None and scope.number not in seen:
                    rounds = one_line(by_rounds)
                rows.append((f"{_indent(scope.depth - 1)}loop {one_line(scope.called)}, {rounds}",))
                seen.add(scope.number)
                open_scopes.append(scope)
            rows.append(
                (
                    str(self.at[node.number]),
                    self._mark(node),
                    _indent(node.depth) + short_name(node),
                    ", ".join(self._port(port) for port in node.inputs),
                    place_of(node),
                    "; ".join([one_line(description_of(node), LONGEST), *self._notes(node)]),
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
        if node.operator.role is Role.EXCHANGE:
            return "⇄"
        if node.operator.is_feedback:
            return "↺"
        return self.brackets.get(node.number, "")

    def _port(self, port: Port) -> str:
        number = str(self.at[port.node])
        return number if port.output == 0 else f"{number}.{port.output}"

    def _notes(self, node: Node) -> Iterable[str]:
        if node.name in self.rows:
            yield _rows(self.rows[node.name])
        readers = self._readers(node)
        if len(readers) > 1:
            yield f"shared by {self._numbers(readers)}"
        if node.number in self.plan.arrival_dependent:
            if not node.operator.deterministic:
                yield "depends on arrival"
            elif node.operator.role is Role.OUTPUT:
                yield "depends on arrival, so it leaves once the epoch is durable"
            else:
                yield "behind what depends on arrival"

    def _readers(self, node: Node) -> list[Node]:
        readers = self.figure.readers.get(node.number, ())
        return sorted(readers, key=lambda reader: self.at[reader.number])

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
    """The loops between `outer` and a scope, from outside in, with the scope itself at the end."""
    loops: list[Scope] = []
    while scope is not outer:
        loops.append(scope)
        assert scope.parent is not None
        scope = scope.parent
    return loops[::-1]


def _by_line(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return file, int(line) if line.isdecimal() else 0


def _rows(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"


def _indent(depth: int) -> str:
    return "  " * (depth - 1)


def _many(count: int, one: str, more: str | None = None) -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"
