"""Operators to be checked, each with what its rows are like and, where that is short, its oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

import riverrun as rr
from riverrun.testing import LAWS, Draw

Rows = list[dict[str, Any]]
PAIRS = {"k": pl.Int64, "v": pl.Int64}
NULLS = Draw(PAIRS, nulls=0.2)


@dataclass(frozen=True)
class Case:
    name: str
    program: Callable[..., Any]
    inputs: Mapping[str, Any] = field(default_factory=lambda: {"a": NULLS})
    oracle: Callable[..., Any] | None = None
    rounds: int = 2
    laws: tuple[str, ...] = tuple(LAWS)


# -- oracles


def grouped(rows: Rows, key: str = "k") -> dict[Any, Rows]:
    groups: dict[Any, Rows] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def aggregates(a: Rows) -> list[tuple[Any, ...]]:
    expected = []
    for key, rows in grouped(a).items():
        values = [row["v"] for row in rows if row["v"] is not None]
        expected.append(
            (
                key,
                len(rows),
                sum(values),
                sum(values) / len(values) if values else None,
                min(values, default=None),
                max(values, default=None),
                len(set(values)),
            )
        )
    return expected


def joined(a: Rows, b: Rows) -> list[tuple[Any, ...]]:
    return [
        (x["k"], x["v"], y["w"]) for x in a for y in b if x["k"] is not None and x["k"] == y["k"]
    ]


def left_joined(a: Rows, b: Rows) -> list[tuple[Any, ...]]:
    keys = {y["k"] for y in b}
    return joined(a, b) + [
        (x["k"], x["v"], None) for x in a if x["k"] is None or x["k"] not in keys
    ]


def full_joined(a: Rows, b: Rows) -> list[tuple[Any, ...]]:
    keys = {x["k"] for x in a}
    return left_joined(a, b) + [
        (y["k"], None, y["w"]) for y in b if y["k"] is None or y["k"] not in keys
    ]


def top_two(a: Rows) -> list[tuple[Any, ...]]:
    return [
        (row["k"], row["v"])
        for rows in grouped(a).values()
        for row in sorted(rows, key=lambda row: -row["v"])[:2]
    ]


def component_labels(edges: Rows) -> list[tuple[int, int]]:
    label = {node: node for edge in edges for node in (edge["src"], edge["dst"])}
    for _ in label:
        for edge in edges:
            least = min(label[edge["src"]], label[edge["dst"]])
            label[edge["src"]] = label[edge["dst"]] = least
    return list(label.items())


def reachable(edges: Rows) -> set[tuple[int, int]]:
    pairs = {(edge["src"], edge["dst"]) for edge in edges}
    while True:
        more = {(a, d) for a, b in pairs for c, d in pairs if b == c} - pairs
        if not more:
            return pairs
        pairs |= more


# -- programs


def components(edges: rr.Collection) -> rr.Collection:
    both = edges.concat(edges.select(src="dst", dst="src"))
    nodes = both.select(node="src", label="src").distinct()
    return nodes.iterate(
        lambda labels: (
            labels.join(both, left_on="node", right_on="src")
            .select(node="dst", label="label")
            .concat(nodes)
            .group_by("node")
            .agg(label=rr.min("label"))
        )
    )


def by_rounds(edges: rr.Collection) -> rr.Collection:
    """Components, with nothing kept from round to round."""
    both = edges.concat(edges.select(src="dst", dst="src"))
    nodes = both.select(node="src", label="src").distinct()

    def least(labels: rr.Collection) -> rr.Collection:
        heard = labels.join(both, left_on="node", right_on="src").select(node="dst", label="label")
        return heard.concat(nodes).group_by("node").agg(label=rr.min("label"))

    return nodes.iterate(least, mode="rounds")


def until(numbers: rr.Collection) -> rr.Collection:
    """Numbers are halved until none is above 8, each with those of the same half."""

    def halved(now: rr.Collection) -> tuple[rr.Collection, rr.Collection]:
        half = now.select(n=pl.col("n") // 2)
        pairs = half.join(now, on="n").concat(half.join(numbers, on="n"))
        return half.concat(pairs).distinct(), half.filter(pl.col("n") > 8)

    return numbers.iterate(halved)


def closure(edges: rr.Collection) -> rr.Collection:
    def longer(paths: rr.Collection) -> rr.Collection:
        steps = paths.join(edges, left_on="dst", right_on="src").select("src", dst="dst_right")
        return steps.concat(edges).distinct()

    return edges.distinct().iterate(longer)


def nested(numbers: rr.Collection) -> rr.Collection:
    def inner(some: rr.Collection) -> rr.Collection:
        return some.concat(some.select(n=pl.col("n") * 2).filter(pl.col("n") < 30)).distinct()

    def outer(some: rr.Collection) -> rr.Collection:
        return (
            some.iterate(inner)
            .concat(some.select(n=pl.col("n") + 7).filter(pl.col("n") < 30))
            .distinct()
        )

    return numbers.iterate(outer)


class RunningCount(rr.Vertex):
    """How many rows each key has had, less those taken back: state in a table."""

    deterministic = True

    def start(self) -> None:
        self.waiting: dict[Any, Counter[int]] = {}

    def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
        if time not in self.waiting:
            self.waiting[time] = Counter()
            self.notify_at(time)
        for key, diff in zip(rows["k"], rows["diff"], strict=True):
            self.waiting[time][key] += diff

    def on_notify(self, time: Any) -> None:
        table = self.table("counts")
        changed = {key: diff for key, diff in self.waiting.pop(time).items() if diff}
        old = dict(table.read([(key,) for key in changed]).iter_rows())
        new = {key: old.get(key, 0) + diff for key, diff in changed.items()}
        table.write([(key, n) for key, n in new.items() if n])
        table.delete([(key,) for key, n in new.items() if not n])
        out = [(key, n, -1) for key, n in old.items()]
        out += [(key, n, 1) for key, n in new.items() if n]
        if out:
            self.send(pl.DataFrame(out, ["k", "n", "diff"], orient="row"))


def running_count(a: rr.Collection, flow: rr.Dataflow) -> rr.Collection:
    counted: rr.Collection = flow.vertex(
        RunningCount,
        {"rows": a},
        {"k": pl.Int64, "n": pl.Int64},
        routes={"rows": "k"},
        tables={"counts": ({"k": pl.Int64}, {"n": pl.Int64})},
    )
    return counted


class Once(rr.Vertex):
    """The numbers that are odd; the others, halved, are for `Rest`."""

    deterministic = True
    odd = True

    def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
        is_odd = (pl.col("n") % 2 == 1) | (pl.col("n") <= 0)
        if self.odd:
            self.send(rows.filter(is_odd))
        else:
            self.send(rows.filter(~is_odd).with_columns(pl.col("n") // 2))


class Rest(Once):
    odd = False


def odd_parts(numbers: rr.Collection, flow: rr.Dataflow) -> rr.Collection:
    """A loop of vertices: each number halved until it is odd."""
    loop = flow.loop()
    schema = {"n": pl.Int64}
    back = loop.feedback(schema)
    current = loop.enter(numbers).concat(back)
    back.connect(flow.vertex(Rest, {"n": current}, schema))
    return loop.leave(flow.vertex(Once, {"n": current}, schema))


def odd_part(n: int) -> int:
    while n > 0 and n % 2 == 0:
        n //= 2
    return n


EDGES = {"edges": Draw({"src": int, "dst": int}, values={"src": range(5), "dst": range(5)})}
TWO = {"a": NULLS, "b": Draw({"k": int, "w": int}, nulls=0.2)}
FULL = {"a": PAIRS}
APPENDED = {"a": Draw(PAIRS, deletes=False)}
UNJUDGED = tuple(law for law in LAWS if law != "oracle")

UPDATES = Draw({"k": int, "t": int, "v": int}, values={"k": [0, 1, 2], "t": range(20)})
REQUESTS = Draw({"k": int, "at": int, "n": int}, values={"k": [0, 1, 2], "at": range(20)})
LISTS = Draw(
    {"at": int, "ks": pl.List(pl.Int64)}, values={"at": range(20), "ks": [[], [0], [2, 1, 2]]}
)
SAID = Draw({"s": str, "at": int}, values={"s": ["p", "q"], "at": range(25)})


def asking(**draw: Any) -> Draw:
    """Requests that are not deleted: their answers depend on when they were given."""
    return Draw(REQUESTS.schema, values=REQUESTS.values, deletes=False, **draw)


def fetching(
    update: Mapping[str, Any] | None = None,
    reads: Mapping[str, Any] | None = None,
    committed: bool = True,
    **options: Any,
) -> Callable[..., Any]:
    """A state of numbers by key, an input that updates it, one that fetches, and a third that reports."""

    def program(
        ups: rr.Collection, asks: rr.Collection, said: rr.Collection, flow: rr.Dataflow
    ) -> rr.Collection:
        state = flow.state("s", {"k": int}, {"v": int}, time={"t": int}, **options)
        ups.update(state, **{"late": 4, **(update or {})})
        said.progress(state, "update", at="at", late=0, by="s", idle=2)
        how = {"key": "k", "at": "at", **(reads or {})}
        return asks.fetch(state, **how) if committed else asks.fetch_uncommitted(state, **how)

    return program


def hops(links: rr.Collection, asks: rr.Collection, flow: rr.Dataflow) -> rr.Collection:
    state = flow.state("s", {"k": int}, {"v": int}, time={"t": int})
    links.update(state, rule=rr.rules.append, late=2)
    loop = flow.loop(name="hops")
    first = loop.enter(asks.select("k", "at", here="k"))
    back = loop.feedback(first.schema, rounds=3)
    hop = first.concat(back).fetch(
        state, key={"k": "here"}, at="at", rule=rr.rules.within, how="inner"
    )
    back.connect(hop.select("k", "at", here="v"))
    return loop.leave(hop)


def taught(ups: rr.Collection, asks: rr.Collection, flow: rr.Dataflow) -> rr.Collection:
    """A state in a loop: a request at 5 leaves a value at 6, which that at 7 may find."""
    loop = flow.loop(name="taught")
    state = loop.state("s", {"k": int}, {"v": int}, time={"t": int})
    loop.enter(ups).update(state, rule=rr.rules.append, progress=False)
    loop.enter(ups).progress(state, "update", at="t", late=0)
    answered = loop.enter(asks).fetch(state, key="k", at="at", closed="left")
    answered.select("k", t=pl.col("at") + 1, v=pl.col("n")).update(state, progress=False)
    return loop.leave(answered)


STATES = {"ups": UPDATES, "asks": REQUESTS, "said": SAID}
ASKING = {**STATES, "asks": asking()}
SINCE = pl.col("at") - 3
CASES = [
    Case("select", lambda a: a.select("k", w=pl.col("v") * 2)),
    Case("with_columns", lambda a: a.with_columns(v=pl.col("v") + pl.col("k"))),
    Case("rename_drop", lambda a: a.rename({"v": "w"}).drop("k")),
    Case(
        "filter",
        lambda a: a.filter(pl.col("v") > 1),
        oracle=lambda a: [row for row in a if row["v"] is not None and row["v"] > 1],
    ),
    Case(
        "map_batches",
        lambda a: a.map_batches(lambda f: f.select(s=pl.col("k") + pl.col("v")), {"s": pl.Int64}),
        FULL,
        lambda a: [(row["k"] + row["v"],) for row in a],
    ),
    Case(
        "flat_map",
        lambda a: a.flat_map(lambda row: [(n,) for n in range(row["v"])], {"n": pl.Int64}),
        FULL,
        lambda a: [(n,) for row in a for n in range(row["v"])],
    ),
    Case(
        "explode",
        lambda a: a.explode("words"),
        {"a": {"words": pl.List(pl.String), "n": pl.Int64}},
        lambda a: [(word, row["n"]) for row in a for word in row["words"]],
    ),
    Case("concat", lambda a, b: a.concat(b.rename({"w": "v"})), TWO),
    Case("negate", lambda a: a.concat(a, a.filter(pl.col("v") > 1).negate())),
    Case("consolidate", lambda a: a.consolidate(), oracle=lambda a: a),
    Case("inspect", lambda a: a.inspect(lambda rows: None), oracle=lambda a: a),
    Case("windows", lambda a: a.windows("v", size=4, step=2), FULL),
    Case("distinct", lambda a: a.distinct(), oracle=lambda a: {(r["k"], r["v"]) for r in a}),
    Case("count", lambda a: a.count(), oracle=lambda a: [(len(a),)] if a else []),
    Case("count_distinct", lambda a: a.count_distinct("k")),
    Case(
        "agg",
        lambda a: a.group_by("k").agg(
            n=rr.count(),
            total=rr.sum("v"),
            middle=rr.mean("v"),
            low=rr.min("v"),
            high=rr.max("v"),
            different=rr.count_distinct("v"),
        ),
        oracle=aggregates,
    ),
    Case("first_last", lambda a: a.group_by("k").agg(f=rr.first("v", "v"), l=rr.last("v", "v"))),
    Case("polars_agg", lambda a: a.group_by("k").agg(m=pl.col("v").median())),
    Case("top", lambda a: a.group_by("k").top(2, "v"), FULL, top_two),
    Case(
        "apply",
        lambda a: a.group_by("k").apply(lambda f: int((f["v"] ** 2).sum()), {"s": pl.Int64}),
        FULL,
        lambda a: [(key, sum(r["v"] ** 2 for r in rows)) for key, rows in grouped(a).items()],
    ),
    Case("join", lambda a, b: a.join(b, on="k"), TWO, joined),
    Case("left_join", lambda a, b: a.join(b, on="k", how="left"), TWO, left_joined),
    Case("full_join", lambda a, b: a.join(b, on="k", how="full"), TWO, full_joined),
    Case(
        "semi_join",
        lambda a, b: a.semi_join(b, on="k"),
        TWO,
        lambda a, b: [x for x in a if x["k"] is not None and x["k"] in {y["k"] for y in b}],
    ),
    Case("anti_join", lambda a, b: a.anti_join(b, on="k"), TWO),
    Case(
        "cross_join",
        lambda a, b: a.join(b.select("w"), how="cross"),
        TWO,
        lambda a, b: [(x["k"], x["v"], y["w"]) for x in a for y in b],
    ),
    Case("self_join", lambda a: a.join(a, left_on="k", right_on="v")),
    Case(
        "upsert",
        lambda a: a.group_by("v").count(),
        {"a": Draw(PAIRS, key="k")},
        lambda a: Counter(row["v"] for row in a).items(),
    ),
    Case(
        "strings",
        lambda a: a.group_by("s").agg(low=rr.min("f"), total=rr.sum("f")),
        {"a": {"s": str, "f": float}},
    ),
    # What expires depends on when it came, so that a run from scratch is no judge.
    Case("expire", lambda a: a.expire("v", after=2), FULL, laws=UNJUDGED),
    Case("expire_epochs", lambda a: a.expire(epochs=2), APPENDED, laws=UNJUDGED),
    Case("components", components, EDGES, component_labels),
    Case("closure", closure, EDGES, reachable, rounds=1),
    Case("nested", nested, {"numbers": {"n": int}}, rounds=1),
    Case(
        "limit",
        lambda n: n.iterate(lambda some: some.select(n=pl.col("n") + 1), rounds=3),
        {"n": {"n": int}},
        lambda n: [(row["n"] + 3,) for row in n],
    ),
    Case("by_rounds", by_rounds, EDGES, component_labels),
    Case("until", until, {"numbers": {"n": int}}),
    Case("vertex", running_count, FULL, lambda a: Counter(r["k"] for r in a).items()),
    Case(
        "vertex_loop",
        odd_parts,
        {"numbers": {"n": int}},
        lambda numbers: [(odd_part(row["n"]),) for row in numbers],
    ),
    # What comes late depends on what came before.
    Case("fetch", fetching(), STATES, laws=UNJUDGED),
    Case(
        "fetch_latest_kept",
        fetching(compact=rr.rules.keep_latest, compaction="active", accelerate=False),
        STATES,
        laws=UNJUDGED,
    ),
    Case(
        "fetch_range",
        fetching(
            {"rule": rr.rules.append},
            {"since": SINCE, "rule": rr.rules.within, "late": 4},
            compact=rr.rules.drop_before(3),
            sweep=1,
        ),
        STATES,
        laws=UNJUDGED,
    ),
    Case(
        "fetch_total",
        fetching(
            {"rule": rr.rules.add},
            {"rule": rr.rules.total},
            compact=rr.rules.fold,
            replies_first=False,
        ),
        STATES,
        laws=UNJUDGED,
    ),
    Case(
        "fetch_many",
        fetching(reads={"key": "ks"}),
        {**STATES, "asks": LISTS},
        laws=UNJUDGED,
    ),
    Case(
        "fetch_uncommitted",
        fetching(reads={"wait": SINCE}, committed=False),
        ASKING,
        laws=tuple(law for law in UNJUDGED if law not in ("split", "order", "rescale")),
    ),
    Case(
        "lookup",
        lambda a, asks: asks.lookup(a.group_by("k").count(), "k"),
        {"a": FULL["a"], "asks": asking()},
        laws=UNJUDGED,
    ),
    Case("fetch_in_loop", hops, {"links": UPDATES, "asks": REQUESTS}, laws=UNJUDGED),
    Case("state_in_loop", taught, {"ups": UPDATES, "asks": REQUESTS}, laws=UNJUDGED),
]
