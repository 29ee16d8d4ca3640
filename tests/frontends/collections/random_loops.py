"""Random loops whose bodies take rows back: sums of terms of the loop's variable, some of them negated.

A body is the variable, plus or minus terms of the variable (`TERMS`): top rows of groups, filters, pairs, the variable
of the outer loop. A row that one term adds and another term takes out may lie on two workers, since each term is
computed where its keys are. Such a loop may come to rest or not; the judge (`tests.frontends.collections.reference`)
decides that (`rests`).

``str(program)`` is the body of a drawn program, so that a failure can be written down.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

import riverrun as rr
from tests.frontends.collections.reference import Bag, Restless

SCHEMA = {"src": pl.Int64, "dst": pl.Int64}
src, dst = pl.col("src"), pl.col("dst")
PATIENCE = 8  # rounds that the judge gives a loop; the engine gets four more. Uncancelled rows may double in each
MOST = 64  # rows, counted with their multiplicity, that a restful loop may hold
Term = Callable[[Any, Any], Any]


def step(rows: Any, edges: Any) -> Any:
    """The rows one edge further."""
    return rows.join(edges, left_on="dst", right_on="src", suffix="_2").select("src", dst="dst_2")


def paired(key: Any, left: pl.DataFrame, right: pl.DataFrame) -> list[tuple[int]]:
    """The least of one side, and the greatest of the other."""
    ends = [left[:, 1].min(), right[:, 1].max()]
    return [(end,) for end in {*ends} if isinstance(end, int)]


TERMS: dict[str, Term] = {
    "x": lambda x, other: x,
    "other": lambda x, other: other,
    "x.filter(src <= 1)": lambda x, other: x.filter(src <= 1),
    "x.filter(src > 1)": lambda x, other: x.filter(src > 1),
    "x.filter(dst > 1)": lambda x, other: x.filter(dst > 1),
    "x.swapped": lambda x, other: x.select(src="dst", dst="src"),
    "x.lowered": lambda x, other: x.select(src="src", dst=pl.max_horizontal(dst - 1, pl.lit(0))),
    "x.distinct": lambda x, other: x.distinct(),
    "x.consolidate": lambda x, other: x.consolidate(),
    "x.top by src": lambda x, other: x.group_by("src").top(1, by="dst"),
    "x.top by dst": lambda x, other: x.group_by("dst").top(1, by="src").select("src", "dst"),
    "x.least by src": lambda x, other: x.group_by("src").agg(dst=rr.min("dst")),
    "x.greatest by dst": lambda x, other: x.group_by("dst").agg(src=rr.max("src")),
    "x.top by both": lambda x, other: x.group_by("src", "dst").top(1, by="dst"),
    "x.semi_join(other)": lambda x, other: x.semi_join(other, on="src"),
    "x.anti_join(other)": lambda x, other: x.anti_join(other, on="dst"),
    "step(x, other).distinct": lambda x, other: step(x, other).distinct(),
    "other.top by dst": lambda x, other: other.group_by("dst").top(1, by="src"),
    "x.co_group(other)": lambda x, other: x.co_group(other, "src", paired, {"dst": pl.Int64}),
    "x.inner co_group(x)": lambda x, other: x.co_group(
        x.filter(dst > 0), None, paired, {"to": pl.Int64}, left_on="src", right_on="dst", inner=True
    ).select("src", dst="to"),
    "x.flat_map that keeps": lambda x, other: x.flat_map(
        lambda row: [(row["src"], max(row["dst"] - 1, 0))], SCHEMA, keeps="src"
    ),
    "x.inspect": lambda x, other: x.inspect(lambda rows: None),
    "x.flat_map": lambda x, other: x.flat_map(lambda row: [(row["src"], row["dst"])], SCHEMA),
}


@dataclass(frozen=True)
class Sum:
    """The variable, plus and minus terms; it may contain an inner loop of the same kind."""

    terms: tuple[tuple[int, str], ...]
    inner: Sum | None
    rounds: int | None
    patience: int = PATIENCE

    def __str__(self) -> str:
        text = "x" + "".join(f" {'+' if sign > 0 else '-'} {term}" for sign, term in self.terms)
        within = f" + (loop: {self.inner}) - x" if self.inner else ""
        return text + within + (f", at most {self.rounds} rounds" if self.rounds else "")

    def around(self, start: Any, other: Any, patience: int) -> Any:
        """The loop that starts with some rows."""

        def body(x: Any) -> Any:
            check_small(x)
            parts = [x]
            for sign, term in self.terms:
                each = TERMS[term](x, other).select("src", "dst")
                parts.append(each if sign > 0 else each.negate())
            if self.inner is not None:
                parts += [self.inner.around(x, other, patience), x.negate()]
            return parts[0].concat(*parts[1:])

        return start.iterate(body, rounds=self.rounds, patience=patience)

    def __call__(self, edges: Any) -> Any:
        patience = self.patience if isinstance(edges, Bag) else self.patience + 4
        return self.around(edges, edges, patience)


def check_small(rows: Any) -> None:
    """Refuse, for the judge, a loop that grows, and rows with a count below zero, which no program gives."""
    if isinstance(rows, Bag):
        counts = rows.rows.values()
        if sum(map(abs, counts)) > MOST or min(counts, default=0) < 0:
            raise Restless("the reference grows, or takes rows out that are not there")


def draw_sum(source: random.Random, depth: int = 1) -> Sum:
    """A random body: a few terms, each with a sign. A term is likely to meet one with the other sign."""
    names = list(TERMS)
    terms = []
    for _ in range(source.randint(1, 2)):
        terms += [(1, source.choice(names)), (-1, source.choice(names))]
    if source.random() < 0.3:
        terms.pop()
    source.shuffle(terms)
    inner = draw_sum(source, depth - 1) if depth > 1 else None
    rounds = source.choice([None, None, None, 3])
    return Sum(tuple(terms), inner, rounds)


def rests(program: Sum, epochs: Iterable[Sequence[Any]]) -> bool:
    """Whether the loop comes to rest with few rows, from the rows of each of some epochs."""
    for rows in epochs:
        try:
            check_small(program(Bag.of(SCHEMA, ((row, 1) for row in rows))))
        except Restless:
            return False
    return True
