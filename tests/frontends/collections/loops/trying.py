"""Plays the spellings on small random graphs that change, and compares every answer with the oracle's.

Every choice comes from a seed. A script is four epochs. Rows come and go at random: copies of rows that are there, self
loops, weights of zero, ties, nodes that leave with all their rows, epochs without a change, a graph that is emptied. A
copy of a row that is deleted once leaves the other copy.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import riverrun as rr
from tests.frontends.collections.loops.natural import Spelling, Table

EPOCHS = 4

WORDS = ["a", "b", "aa", "B", "", "ä", "10", "9", "a longer name than fits", "名"]
VALUES: dict[str, list[Any]] = {
    "whole": [0, 0, 1, 1, 2, 3, 5, 8],
    "real": [0.0, 0.0, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 1e-9, 1e6],
    "speed": [0.5, 1.0, 3.0, 30.0],
    "chance": [0.0, 0.1, 0.5, 0.5, 0.9, 0.99, 1.0, 1.0],
    "flag": [True, True, True, False],
    "word": ["email", "phone", "name"],
    "tenant": ["acme", "acme", "beta"],
}
NODES = {"node", "name", "small", "count"}


class Draws:
    """Random rows for the inputs of a spelling; one pool of nodes for all of them."""

    def __init__(self, spelling: Spelling, seed: int) -> None:
        self.random = random.Random(seed)
        roles = {role for table in spelling.tables.values() for role in table.roles}
        size = self.random.choice([2, 3, 4, 6, 9])
        pools = [list(range(size)), list(range(size))]
        if "small" not in roles:
            pools.append([2**53 + 1 + n for n in range(size)])
            pools.append([(-1) ** n * 10**n for n in range(size)])
        if "count" not in roles:
            pools.append(list(range(-2, size - 2)))
        self.numbers = self.random.choice(pools)
        self.names = self.random.sample(WORDS, min(size, len(WORDS)))
        self.shape = self.random.choice(["scattered", "scattered", "way", "circle"])

    def node(self, role: str) -> Any:
        return self.random.choice(self.names if role == "name" else self.numbers)

    def row(self, table: Table) -> tuple[Any, ...]:
        loop = self.random.random() < 0.12
        first: dict[str, Any] = {}
        cells = []
        for role in table.roles:
            if role not in NODES:
                cells.append(self.random.choice(VALUES[role]))
            elif loop and role in first:
                cells.append(first[role])
            else:
                cells.append(self.node(role))
                first.setdefault(role, cells[-1])
        return tuple(cells)

    def way(self, table: Table, ends: list[int]) -> list[tuple[Any, ...]]:
        """Rows that lead from node to node, through all nodes and perhaps back."""
        nodes = list(self.names if table.roles[ends[0]] == "name" else self.numbers)
        self.random.shuffle(nodes)
        if self.shape == "circle":
            nodes.append(nodes[0])
        rows = []
        for a, b in pairwise(nodes):
            row = list(self.row(table))
            row[ends[0]], row[ends[1]] = a, b
            rows.append(tuple(row))
        return rows

    def changes(self, table: Table, rows: list[tuple[Any, ...]], epoch: int) -> tuple[list, list]:
        """The rows to insert and to delete in an epoch; `rows` are there."""
        r = self.random
        most = 3 if table.sparse else 14 if epoch == 0 else 5
        inserted = [self.row(table) for _ in range(r.randint(0 if epoch else 1, most))]
        ends = [at for at, role in enumerate(table.roles) if role in NODES][-2:]
        if epoch == 0 and len(ends) == 2 and self.shape != "scattered":
            inserted = inserted[: r.randint(0, 3)] + self.way(table, ends)
        if rows and r.random() < 0.5:
            inserted.append(r.choice(rows))  # another copy
        elif inserted and r.random() < 0.3:
            inserted.append(r.choice(inserted))
        deleted: list[tuple[Any, ...]] = []
        if epoch:
            what = r.random()
            if what < 0.08:
                inserted, deleted = [], list(rows)
            elif what < 0.3 and any(role in NODES for role in table.roles):
                gone = self.node("name"), self.node("node")
                deleted = [
                    row
                    for row in rows
                    if any(
                        role in NODES and cell in gone
                        for role, cell in zip(table.roles, row, strict=True)
                    )
                ]
            elif what < 0.9:
                deleted = r.sample(rows, min(len(rows), r.randint(0, 4)))
            else:
                inserted = []  # nothing happens here
        return inserted, deleted


def script(spelling: Spelling, seed: int) -> list[dict[str, tuple[list, list, list]]]:
    """For each epoch and input: the rows that come, those that go, and those that are there then."""
    draws = Draws(spelling, seed)
    there: dict[str, list[tuple[Any, ...]]] = {name: [] for name in spelling.tables}
    epochs = []
    for epoch in range(EPOCHS):
        changes = {}
        for name, table in spelling.tables.items():
            inserted, deleted = draws.changes(table, there[name], epoch)
            if table.key is not None:
                keys = [table.key] if isinstance(table.key, str) else list(table.key)
                places = [list(table.schema).index(key) for key in keys]
                by_key = {tuple(row[at] for at in places): row for row in there[name]}
                # The last row of a key counts, and a key is not both deleted and inserted in an epoch.
                fresh = {tuple(row[at] for at in places): row for row in inserted}
                lost = {tuple(row[at] for at in places): row for row in deleted}
                deleted = [row for key, row in lost.items() if key not in fresh]
                inserted = inserted and list(inserted)
                for row in deleted:
                    by_key.pop(tuple(row[at] for at in places))
                by_key.update(fresh)
                now = list(by_key.values())
            else:
                left = Counter(there[name]) - Counter(deleted) + Counter(inserted)
                now = list(left.elements())
            there[name] = now
            changes[name] = (inserted, deleted, list(now))
        epochs.append(changes)
    return epochs


class Differs(AssertionError):
    """An answer that is wrong."""


def difference(spelling: Spelling, got: list, expected: list) -> str:
    """How the rows differ from those that are expected; empty if they do not."""
    if spelling.close is None:
        ours, theirs = Counter(got), Counter(expected)
        if ours == theirs:
            return ""
        return f"too many {list((ours - theirs).elements())}, missing {list((theirs - ours).elements())}"
    ours, theirs = sorted(got), sorted(expected)
    if [row[: spelling.keys] for row in ours] != [row[: spelling.keys] for row in theirs]:
        return f"keys differ: {ours} instead of {theirs}"
    for row, other in zip(ours, theirs, strict=True):
        for a, b in zip(row, other, strict=True):
            if not (a == b or math.isclose(a, b, rel_tol=spelling.close, abs_tol=spelling.close)):
                return f"{row} instead of {other}"
    return ""


def start(spelling: Spelling, workers: int) -> Any:
    flow = rr.Dataflow(spelling.name)
    flow.output("answer", spelling.build(flow))
    return flow.run(workers=workers)


def check(spelling: Spelling, seed: int, workers: int) -> None:
    """Play the script of a seed; raise for an answer that is wrong."""
    epochs = script(spelling, seed)
    before: Counter = Counter()
    rows: list[tuple[Any, ...]] = []
    with start(spelling, workers) as run:
        for number, changes in enumerate(epochs):
            for name, (inserted, deleted, _) in changes.items():
                if deleted:
                    run.delete(name, deleted)
                if inserted:
                    run.insert(name, inserted)
            run.commit()
            there = {name: now for name, (_, _, now) in changes.items()}
            rows = run.read("answer").rows()
            expected = list(spelling.oracle(*there.values()))
            wrong = difference(spelling, rows, expected)
            if wrong:
                raise Differs(f"epoch {number}: {wrong}; rows there: {there}")
            after = Counter(rows)
            changed: Counter = Counter()
            for *row, diff in run.changes("answer").rows():
                changed[tuple(row)] += diff
            net = Counter(after)
            net.subtract(before)
            if {k: v for k, v in net.items() if v} != {k: v for k, v in changed.items() if v}:
                raise Differs(f"epoch {number}: changes say {changed}, answers differ by {net}")
            before = after
    with start(spelling, workers) as run:
        for name, (_, _, now) in epochs[-1].items():
            if now:
                run.insert(name, now)
        run.commit()
        scratch = run.read("answer").rows()
    if Counter(scratch) != Counter(rows):
        raise Differs(f"from scratch {scratch}, kept up to date {rows}")
