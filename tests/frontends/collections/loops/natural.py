"""Loops over graphs as people write them: thirty programs, and fifteen more for loops that are not there yet.

A *spelling* is a program that somebody wrote for a job, with the names, the habits and the detours of that person, next
to an *oracle*: the same answer in plain Python, from lists of rows, by another method if there is one (union-find,
Dijkstra, a dict a round). Nobody who wrote these programs knew how loops are recognised.

- ten of connected components (`cc_`), ten of paths (`path_`), ten of ranks (`rank_`), with ``start.iterate(body)``;
- twelve with ``solution.iterate_delta(...)`` (needs "delta") and three with ``iterate(until=...)`` (needs "until").
  `can_run` says whether the engine at hand has what a spelling needs.

Laws, which `trying.check` checks after every epoch:

- **Equal.** The rows are those of the oracle over the rows that are there, as often as they are there. A spelling with
  `close` compares floats up to that difference; all others are compared by ``==``.
- **Changes.** ``run.changes`` is the difference between two answers.
- **Scratch.** A fresh run that gets all rows in one epoch gives the same rows, floats to the last bit.

>>> import riverrun as rr
>>> flow = rr.Dataflow("g")
>>> spelling = SPELLINGS["cc_labels_first"]
>>> flow.output("answer", spelling.build(flow))
>>> with flow.run() as run:
...     run.insert("edges", [(1, 2), (2, 3), (5, 5)])
...     _ = run.commit()
...     run.read("answer").rows() == sorted(spelling.oracle([(1, 2), (2, 3), (5, 5)]))
True
"""

from __future__ import annotations

import heapq
import inspect
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

import riverrun as rr

Rows = list[tuple[Any, ...]]

# --------------------------------------------------------------------------------------------------------------------
# What a spelling is


@dataclass(frozen=True)
class Table:
    """An input: its columns, what each column holds (`roles` are the harness's kinds of values), and its key."""

    schema: dict[str, Any]
    roles: tuple[str, ...]
    key: Any = None
    sparse: bool = False
    """Whether there are few rows: sources, seeds."""


@dataclass(frozen=True)
class Spelling:
    """A program with its inputs and its oracle, which takes lists of rows in the order of the inputs."""

    name: str
    program: Callable[..., rr.Collection]
    oracle: Callable[..., Iterable[tuple[Any, ...]]]
    tables: dict[str, Table]
    needs: str | None
    close: float | None
    keys: int
    """How many of the first columns of the answer tell its rows apart."""

    def build(self, flow: rr.Dataflow) -> rr.Collection:
        """Declare the inputs in `flow`, and the program."""
        return self.program(
            **{
                name: flow.input(name, table.schema, key=table.key)
                for name, table in self.tables.items()
            }
        )

    @property
    def can_run(self) -> bool:
        """Whether this engine has what the spelling needs."""
        return self.needs is None or HAS[self.needs]()


HAS: dict[str, Callable[[], bool]] = {
    "delta": lambda: hasattr(rr.Collection, "iterate_delta"),
    "until": lambda: "until" in inspect.signature(rr.Collection.iterate).parameters,
}
"""Whether the engine has loops by delta, and loops until a test says so."""

SPELLINGS: dict[str, Spelling] = {}


def spelling(
    oracle: Callable[..., Any],
    needs: str | None = None,
    close: float | None = None,
    keys: int = 1,
    **tables: Table,
) -> Callable[[Callable[..., rr.Collection]], Callable[..., rr.Collection]]:
    """Register a program under its own name."""

    def register(program: Callable[..., rr.Collection]) -> Callable[..., rr.Collection]:
        name = program.__name__
        SPELLINGS[name] = Spelling(name, program, oracle, tables, needs, close, keys)
        return program

    return register


INT, TEXT, FLOAT = pl.Int64, pl.String, pl.Float64
EDGES = Table({"src": INT, "dst": INT}, ("node", "node"))
SOURCES = Table({"node": INT}, ("node",), sparse=True)
LENGTHS = Table({"src": INT, "dst": INT, "weight": INT}, ("node", "node", "whole"))

# --------------------------------------------------------------------------------------------------------------------
# Oracles of components


def groups_of(pairs: Iterable[tuple[Any, Any]]) -> list[list[Any]]:
    """The components of a graph, each a list of nodes: union-find."""
    parent: dict[Any, Any] = {}

    def root(node: Any) -> Any:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for a, b in pairs:
        parent[root(a)] = root(b)
    groups = defaultdict(list)
    for node in list(parent):
        groups[root(node)].append(node)
    return list(groups.values())


def least_of_component(edges: Rows) -> Rows:
    return [(node, min(group)) for group in groups_of(edges) for node in group]


def greatest_of_component(edges: Rows) -> Rows:
    return [(node, max(group)) for group in groups_of(edges) for node in group]


# --------------------------------------------------------------------------------------------------------------------
# Ten of connected components


@spelling(least_of_component, edges=EDGES)
def cc_labels_first(edges):
    both = edges.concat(edges.select(src="dst", dst="src"))
    nodes = both.select(node="src", label="src").distinct()

    def step(labels):
        heard = labels.join(both, left_on="node", right_on="src").select(node="dst", label="label")
        return nodes.concat(heard).group_by("node").agg(label=rr.min("label"))

    return nodes.iterate(step)


@spelling(least_of_component, edges=EDGES)
def cc_edges_first(edges):
    links = rr.graphs.undirected(edges)
    start = rr.graphs.nodes_of(edges).with_columns(label=pl.col("node"))

    def hear(labels):
        messages = (
            links.join(labels, left_on="src", right_on="node").drop("src").rename({"dst": "node"})
        )
        return messages.concat(start).group_by("node").agg(pl.col("label").min())

    return start.iterate(hear, name="components")


@spelling(
    lambda pairs: least_of_component([(a, b) for a, b, _ in pairs]),
    pairs=Table({"id": INT, "other": INT, "label": TEXT}, ("node", "node", "word")),
)
def cc_clashing_names(pairs):
    """Pairs of duplicate records from a matcher: `label` is why two records match, and also what we call a cluster."""
    back = pairs.rename({"id": "other", "other": "id"})
    matches = pairs.concat(back)
    members = matches.select("id", label="id").distinct()

    def merge(clusters):
        nearby = matches.join(clusters, on="id")  # id, other, label, label_right
        proposals = nearby.select(id="other", label="label_right")
        return proposals.concat(clusters).group_by("id").agg(label=rr.min("label"))

    return members.iterate(merge)


@spelling(least_of_component, follows=Table({"a": TEXT, "b": TEXT}, ("name", "name")))
def cc_text_keys(follows):
    everyone = follows.select(who="a").concat(follows.select(who="b")).distinct()
    myself = everyone.select(a=pl.col("who"), b=pl.col("who"))  # so that everyone hears themselves
    graph = follows.concat(follows.select(a="b", b="a"), myself).distinct()

    def spread(community):
        return (
            graph.join(community, left_on="a", right_on="who")
            .group_by(who="b")
            .agg(rr.min("community").alias("community"))
        )

    return everyone.with_columns(community="who").iterate(spread)


def components_by_tenant(links: Rows) -> Rows:
    groups = groups_of([((tenant, a), (tenant, b)) for tenant, a, b in links])
    return [(*node, min(group)[1]) for group in groups for node in group]


@spelling(
    components_by_tenant,
    keys=2,
    links=Table({"tenant": TEXT, "account": INT, "linked": INT}, ("tenant", "node", "node")),
)
def cc_two_column_key(links):
    reverse = links.select("tenant", account="linked", linked="account")
    links = links.concat(reverse)
    accounts = links.select("tenant", "account", pl.col("account").alias("cluster")).distinct()

    def step(clusters):
        reached = clusters.join(links, on=["tenant", "account"])
        return (
            reached.select("tenant", account=pl.col("linked"), cluster=pl.col("cluster"))
            .concat(accounts)
            .group_by(["tenant", "account"])
            .agg(cluster=rr.min("cluster"))
        )

    return accounts.iterate(step)


@spelling(greatest_of_component, edges=EDGES)
def cc_greatest_both_ways_in_the_body(edges):
    ends = edges.select(v="src").concat(edges.select(v="dst")).distinct()
    seed = ends.select("v", c="v")

    def propagate(c):
        forward = c.join(edges, left_on="v", right_on="src").select(v="dst", c="c")
        backward = c.join(edges, left_on="v", right_on="dst").select(v="src", c="c")
        return seed.concat(forward, backward).group_by("v").agg(c=rr.max("c"))

    return seed.iterate(propagate)


@spelling(least_of_component, edges=EDGES)
def cc_only_what_changed(edges):
    """From a Spark job: new labels are those that beat the old ones, and all others stay as they are."""
    sym = edges.concat(edges.select(src=pl.col("dst"), dst=pl.col("src"))).distinct()
    initial = sym.select(id="src", comp="src").distinct()

    def one_pass(state):
        candidates = (
            state.join(sym, left_on="id", right_on="src")
            .select(id="dst", new="comp")
            .group_by("id")
            .agg(new=rr.min("new"))
        )
        improved = (
            candidates.join(state, on="id")
            .filter(pl.col("new") < pl.col("comp"))
            .select("id", comp="new")
        )
        unchanged = state.anti_join(improved, on="id")
        return improved.concat(unchanged)

    return initial.iterate(one_pass, patience=1000)


@spelling(least_of_component, edges=EDGES)
def cc_all_pairs_then_least(edges):
    """Who reaches whom, and the least of them: the short way to write it."""
    hops = edges.concat(edges.select(src="dst", dst="src")).distinct()
    nobody_moved = hops.select(node="src", reach="src").distinct()

    def further(pairs):
        more = pairs.join(hops, left_on="reach", right_on="src").select("node", reach="dst")
        return pairs.concat(more).distinct()

    pairs = nobody_moved.iterate(further)
    return pairs.group_by("node").agg(component=rr.min("reach"))


@spelling(least_of_component, edges=EDGES)
def cc_left_join_and_least_of_two(edges):
    undirected = edges.select("src", "dst").concat(edges.select(src="dst", dst="src"))
    vertices = undirected.select(id="src").distinct().with_columns(component=pl.col("id"))

    def update(vertices):
        smallest_neighbour = (
            undirected.join(vertices, left_on="dst", right_on="id")
            .group_by("src")
            .agg(pl.min("component").alias("neighbour"))
        )
        return vertices.join(smallest_neighbour, left_on="id", right_on="src", how="left").select(
            "id", component=pl.min_horizontal("component", "neighbour")
        )

    return vertices.iterate(update)


def ranks_that_reach(people: Rows, contacts: Rows) -> Rows:
    ranked = dict(people)
    answer = []
    pairs = [(a, b) for a, b, active in contacts if active]
    for group in groups_of(pairs + [(node, node) for node in ranked]):
        known = [ranked[node] for node in group if node in ranked]
        answer += [(node, min(known)) for node in group if known]
    return answer


def neighbours_hear(contacts, start, labels):
    """One round, with what stays the same given beforehand."""
    active = contacts.filter(pl.col("active"))
    there = labels.join(active, left_on="node", right_on="a").select(
        pl.col("b").alias("node"), "rank"
    )
    back = labels.join(active, left_on="node", right_on="b").select(
        pl.col("a").alias("node"), "rank"
    )
    return start.concat([there, back]).distinct("node")


@spelling(
    ranks_that_reach,
    people=Table({"node": INT, "rank": INT}, ("node", "whole"), key="node"),
    contacts=Table(
        {"a": pl.Int32, "b": pl.Int32, "active": pl.Boolean}, ("small", "small", "flag")
    ),
)
def cc_partial_with_ranks(people, contacts):
    """Labels are ranks of people, with ties; not everyone in a contact is a person we know."""
    return people.iterate(partial(neighbours_hear, contacts, people), name="households")


# --------------------------------------------------------------------------------------------------------------------
# Oracles of paths


def nearest(steps: Iterable[tuple[Any, Any, Any]], start: dict[Any, Any]) -> dict[Any, Any]:
    """Least costs from `start`, costs by node: Dijkstra."""
    out = defaultdict(list)
    for a, b, cost in steps:
        out[a].append((b, cost))
    done: dict[Any, Any] = {}
    waiting = [(cost, node) for node, cost in start.items()]
    heapq.heapify(waiting)
    while waiting:
        cost, node = heapq.heappop(waiting)
        if node in done:
            continue
        done[node] = cost
        for other, more in out[node]:
            if other not in done:
                heapq.heappush(waiting, (cost + more, other))
    return done


def best_in_rounds(
    steps: Rows,
    start: dict[Any, Any],
    along: Callable[[Any, Any], Any],
    best: Callable[[Any, Any], Any],
    rounds: int | None = None,
) -> dict[Any, Any]:
    """The best value of each node after some rounds, or when nothing changes: Bellman and Ford."""
    values, done = dict(start), 0
    while rounds is None or done < rounds:
        after = dict(start)
        for a, b, label in steps:
            if a in values:
                value = along(values[a], label)
                after[b] = best(after[b], value) if b in after else value
        if after == values:
            break
        values, done = after, done + 1
    return values


def items(values: dict[Any, Any]) -> Rows:
    return list(values.items())


# --------------------------------------------------------------------------------------------------------------------
# Ten of paths


@spelling(
    lambda edges, sources: items(nearest(edges, {node: 0 for (node,) in sources})),
    edges=LENGTHS,
    sources=SOURCES,
)
def path_textbook(edges, sources):
    origin = sources.select("node", distance=pl.lit(0)).distinct()

    def relax(distances):
        longer = distances.join(edges, left_on="node", right_on="src").select(
            node="dst", distance=pl.col("distance") + pl.col("weight")
        )
        return longer.concat(origin).group_by("node").agg(distance=rr.min("distance"))

    return origin.iterate(relax)


@spelling(
    lambda edges: items(
        nearest([(a, b, 1) for a, b in edges], {0: 0} if any(0 in edge for edge in edges) else {})
    ),
    edges=EDGES,
)
def path_levels_from_zero(edges):
    root = rr.graphs.nodes_of(edges).filter(node=0).with_columns(level=pl.lit(0, pl.Int64))

    def next_level(seen):
        return (
            edges.join(seen, left_on="src", right_on="node")
            .with_columns(level=pl.col("level") + 1)
            .drop("src")
            .rename({"dst": "node"})
            .concat(root)
            .group_by("node")
            .agg(pl.col("level").min())
        )

    return root.iterate(next_level)


@spelling(
    lambda flights, home: items(
        best_in_rounds(flights, {node: 0.0 for (node,) in home}, lambda a, b: a + b, min, rounds=3)
    ),
    flights=Table({"from": TEXT, "to": TEXT, "price": FLOAT}, ("name", "name", "real")),
    home=Table({"airport": TEXT}, ("name",), sparse=True),
)
def path_three_flights_at_most(flights, home):
    here = home.distinct().with_columns(cost=pl.lit(0.0))

    def one_more_flight(fares):
        return (
            fares.join(flights, left_on="airport", right_on="from")
            .select(pl.col("to").alias("airport"), (pl.col("cost") + pl.col("price")).alias("cost"))
            .concat(here)
            .group_by("airport")
            .agg(cost=rr.min("cost"))
        )

    return here.iterate(one_more_flight, rounds=3)


def minutes_by_road(roads: Rows, depots: Rows) -> Rows:
    steps = [(a, b, km / speed) for a, b, km, speed in roads]
    steps += [(b, a, cost) for a, b, cost in steps]
    return items(nearest(steps, {node: 0.0 for (node,) in depots}))


@spelling(
    minutes_by_road,
    roads=Table(
        {"a": INT, "b": INT, "km": FLOAT, "speed": FLOAT},
        ("node", "node", "real", "speed"),
        key=["a", "b"],
    ),
    depots=Table({"node": INT}, ("node",), key="node", sparse=True),
)
def path_roads_with_speed(roads, depots):
    """Roads are upserted: a road gets another speed. The time along a road is worked out where it is driven."""
    lanes = roads.concat(roads.rename({"a": "b", "b": "a"}))
    start = depots.select("node", hours=pl.lit(0.0))

    def drive(reached):
        return (
            reached.join(lanes, left_on="node", right_on="a")
            .with_columns(hours=pl.col("hours") + pl.col("km") / pl.col("speed"))
            .select("hours", node="b")
            .concat(start)
            .group_by("node")
            .agg(hours=rr.min("hours"))
        )

    return start.iterate(drive, name="hours")


def from_landmarks(edges: Rows, landmarks: Rows) -> Rows:
    return [
        (mark, node, cost)
        for (mark,) in set(landmarks)
        for node, cost in nearest(edges, {mark: 0}).items()
    ]


@spelling(
    from_landmarks,
    keys=2,
    edges=LENGTHS,
    landmarks=Table({"landmark": INT}, ("node",), sparse=True),
)
def path_from_every_landmark(edges, landmarks):
    zero = landmarks.distinct().select("landmark", node="landmark", distance=pl.lit(0))

    def onward(known):
        candidates = (
            edges.rename({"src": "node"})
            .join(known, on="node")
            .select("landmark", node="dst", distance=pl.sum_horizontal("distance", "weight"))
        )
        return zero.concat(candidates).group_by("landmark", "node").agg(rr.min("distance"))

    return zero.iterate(onward)


@spelling(
    lambda pipes, wells: items(
        best_in_rounds(pipes, {node: 1_000_000 for (node,) in wells}, min, max)
    ),
    pipes=Table({"src": INT, "dst": INT, "capacity": pl.Int32}, ("node", "node", "whole")),
    wells=SOURCES,
)
def path_widest(pipes, wells):
    unlimited = wells.select("node", flow=pl.lit(1_000_000, pl.Int64)).distinct()

    def through(flows):
        arriving = flows.join(pipes, left_on="node", right_on="src").select(
            pl.col("dst").alias("node"),
            flow=pl.when(pl.col("flow") < pl.col("capacity"))
            .then(pl.col("flow"))
            .otherwise(pl.col("capacity")),
        )
        return arriving.concat(unlimited).group_by("node").agg(flow=rr.max("flow"))

    return unlimited.iterate(through)


@spelling(
    lambda links, servers: items(
        best_in_rounds(links, {node: 1.0 for (node,) in servers}, lambda p, q: p * q, max)
    ),
    links=Table({"src": TEXT, "dst": TEXT, "up": FLOAT}, ("name", "name", "chance")),
    servers=Table({"host": TEXT}, ("name",), sparse=True),
)
def path_most_reliable(links, servers):
    sure = servers.distinct().select("host", chance=1.0)

    def hop(known):
        best_by_neighbour = (
            known.join(links, left_on="host", right_on="src")
            .group_by(host="dst")
            .agg(chance=rr.max(pl.col("chance") * pl.col("up")))
        )
        return best_by_neighbour.concat(sure).group_by("host").agg(chance=rr.max("chance"))

    return sure.iterate(hop)


def reached_around(edges: Rows, roots: Rows, blocked: Rows) -> Rows:
    closed = {node for (node,) in blocked}
    open_edges = [(a, b, 1) for a, b in edges if b not in closed]
    return [(node,) for node in nearest(open_edges, {node: 0 for (node,) in roots})]


@spelling(
    reached_around,
    edges=EDGES,
    roots=SOURCES,
    blocked=Table({"node": INT}, ("node",), sparse=True),
)
def path_reachable_unless_blocked(edges, roots, blocked):
    targets = edges.group_by("src").agg(targets=pl.col("dst"))  # adjacency lists

    def visit(visited):
        found = (
            visited.join(targets, left_on="node", right_on="src")
            .select(node="targets")
            .explode("node")
            .anti_join(blocked, on="node")
        )
        return visited.concat(found, roots).distinct()

    return roots.distinct().iterate(visit)


def nearest_by_way_of(edges: Rows, sources: Rows) -> Rows:
    start = {node for (node,) in sources}
    cost = nearest(edges, dict.fromkeys(start, 0))
    answer = []
    for node, least in cost.items():
        ways = [-1] if node in start and least == 0 else []
        ways += [a for a, b, w in edges if b == node and a in cost and cost[a] + w == least]
        answer.append((node, least, min(ways)))
    return answer


@spelling(
    nearest_by_way_of,
    edges=Table({"src": INT, "dst": INT, "weight": INT}, ("count", "count", "whole")),
    sources=Table({"node": INT}, ("count",), sparse=True),
)
def path_with_the_node_before(edges, sources):
    """Routes: -1 stands for the start of one. Of equally short ways the one by way of the least node counts."""
    depart = sources.select("node", distance=pl.lit(0), via=pl.lit(-1)).distinct()

    def extend(routes):
        longer = routes.join(edges, left_on="node", right_on="src").select(
            node="dst", distance=pl.col("distance") + pl.col("weight"), via="node"
        )
        return (
            depart.concat(longer).group_by("node").top(1, by=["distance", "via"], descending=False)
        )

    return depart.iterate(extend)


BUDGET = 9


def within_budget(zones: Rows, trips: Rows, origins: Rows) -> Rows:
    zone = dict(zones)
    steps = []
    for a, b, fare in trips:
        if a in zone and b in zone:
            steps.append((a, b, fare + (2 if zone[a] != zone[b] else 0)))
    start: dict[Any, int] = {}
    for node, spent in origins:
        if spent <= BUDGET:
            start[node] = min(spent, start.get(node, spent))
    return [(node, cost) for node, cost in nearest(steps, start).items() if cost <= BUDGET]


@spelling(
    within_budget,
    zones=Table({"stop": INT, "zone": INT}, ("node", "whole"), key="stop"),
    trips=Table({"src": INT, "dst": INT, "fare": INT}, ("node", "node", "whole")),
    origins=Table({"stop": INT, "spent": INT}, ("node", "whole"), sparse=True),
)
def path_within_a_budget(zones, trips, origins):
    priced = (
        trips.join(zones, left_on="src", right_on="stop")
        .join(zones, left_on="dst", right_on="stop", suffix="_to")
        .with_columns(toll=pl.when(pl.col("zone") != pl.col("zone_to")).then(2).otherwise(0))
    )

    def ride(reached):
        onward = reached.join(priced, left_on="stop", right_on="src").select(
            stop="dst", spent=pl.col("spent") + pl.col("fare") + pl.col("toll")
        )
        affordable = onward.concat(origins).filter(pl.col("spent") <= BUDGET)
        return affordable.group_by("stop").agg(spent=rr.min("spent"))

    return origins.iterate(ride)


# --------------------------------------------------------------------------------------------------------------------
# Oracles of ranks. Sums of parts are `math.fsum`, as `rr.sum` is exact before it rounds.


def nodes_in(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    return sorted({node for pair in pairs for node in pair})


def ranked_in_rounds(
    start: dict[Any, Any],
    rounds: int,
    step: Callable[[dict[Any, Any]], dict[Any, Any]],
) -> Rows:
    values = start
    for _ in range(rounds):
        after = step(values)
        if after == values:
            break
        values = after
    return items(values)


def parts_by_target(parts: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    by_target = defaultdict(list)
    for target, part in parts:
        by_target[target].append(part)
    return by_target


# --------------------------------------------------------------------------------------------------------------------
# Ten of ranks


def plain_pagerank(edges: Rows) -> Rows:
    links = set(edges)
    nodes = nodes_in(links)
    degree = Counter(a for a, _ in links)

    def step(rank):
        parts = parts_by_target((b, 0.85 * (rank[a] / degree[a])) for a, b in links)
        return {node: math.fsum([0.15, *parts[node]]) for node in nodes}

    return ranked_in_rounds(dict.fromkeys(nodes, 1.0), 10, step)


@spelling(plain_pagerank, edges=EDGES)
def rank_textbook(edges):
    links = edges.distinct()
    degrees = links.group_by("src").agg(degree=rr.count())
    shares = links.join(degrees, on="src")
    nodes = rr.graphs.nodes_of(links)
    base = nodes.select("node", part=pl.lit(0.15))

    def flow_on(ranks):
        sent = ranks.join(shares, left_on="node", right_on="src").select(
            node="dst", part=0.85 * (pl.col("rank") / pl.col("degree"))
        )
        return sent.concat(base).group_by("node").agg(rank=rr.sum("part"))

    return nodes.select("node", rank=pl.lit(1.0)).iterate(flow_on, rounds=10)


def pagerank_sum_then_damp(links: Rows) -> Rows:
    nodes = nodes_in(links)
    degree = Counter(a for a, _ in links)

    def step(rank):
        parts = parts_by_target((b, rank[a] / degree[a]) for a, b in links)
        return {node: 0.15 + 0.85 * math.fsum(parts[node]) for node in nodes}

    return ranked_in_rounds(dict.fromkeys(nodes, 1.0), 8, step)


@spelling(pagerank_sum_then_damp, links=Table({"page": TEXT, "link": TEXT}, ("name", "name")))
def rank_left_join_then_damp(links):
    """A link that is there twice counts twice. Pages without links to them are filled in by a left join."""
    out_degree = links.group_by("page").count("out_degree")
    pages = links.select("page").concat(links.select(page="link")).distinct()

    def iteration(ranks):
        contribs = (
            links.join(ranks, on="page")
            .join(out_degree, on="page")
            .with_columns(contrib=pl.col("rank") / pl.col("out_degree"))
            .group_by("link")
            .agg(received=rr.sum("contrib"))
        )
        return pages.join(contribs, left_on="page", right_on="link", how="left").select(
            "page", rank=0.15 + 0.85 * pl.col("received").fill_null(0.0)
        )

    return pages.with_columns(rank=pl.lit(1.0)).iterate(iteration, rounds=8)


def pagerank_rounded(edges: Rows) -> Rows:
    nodes = nodes_in(edges)
    degree = Counter(a for a, _ in edges)

    def rounded(value):  # as Polars rounds: half to even, of the scaled number
        return round(value * 10**4) / 10**4

    def step(rank):
        parts = parts_by_target((b, rank[a] / degree[a]) for a, b in edges)
        return {node: rounded(0.2 + 0.8 * math.fsum(parts[node])) for node in nodes}

    return ranked_in_rounds(dict.fromkeys(nodes, 1.0), 60, step)


@spelling(pagerank_rounded, edges=EDGES)
def rank_until_four_decimals_rest(edges):
    """Until nothing moves in the first four decimals: there is no `until`, so the ranks are rounded in the loop."""
    nodes = rr.graphs.nodes_of(edges)
    weighted = edges.join(edges.group_by("src").agg(n=rr.count()), on="src")

    def again(ranks):
        incoming = (
            ranks.join(weighted, left_on="node", right_on="src")
            .select(node="dst", share=pl.col("rank") / pl.col("n"))
            .concat(nodes.with_columns(share=pl.lit(0.0)))
            .group_by("node")
            .agg(rank=0.2 + 0.8 * rr.sum("share"))
        )
        return incoming.with_columns(pl.col("rank").round(4))

    return nodes.with_columns(rank=pl.lit(1.0)).iterate(again, rounds=60)


def pagerank_with_dangling(edges: Rows) -> Rows:
    links = set(edges)
    nodes = nodes_in(links)
    degree = Counter(a for a, _ in links)
    n = len(nodes)

    def step(rank):
        parts = parts_by_target((b, rank[a] / degree[a]) for a, b in links)
        lost = math.fsum(rank[node] for node in nodes if node not in degree)
        return {node: 0.15 / n + 0.85 * (math.fsum(parts[node]) + lost / n) for node in nodes}

    return ranked_in_rounds(dict.fromkeys(nodes, 1.0 / n) if n else {}, 7, step)


@spelling(pagerank_with_dangling, edges=EDGES)
def rank_with_dangling_mass(edges):
    links = edges.distinct()
    nodes = links.select(node="src").concat(links.select(node="dst")).distinct()
    size = nodes.count("n")
    degrees = links.group_by("src").count("degree")
    dangling = nodes.anti_join(degrees, left_on="node", right_on="src")
    start = nodes.join(size, how="cross").select("node", rank=1.0 / pl.col("n"))

    def step(ranks):
        received = (
            links.join(degrees, on="src")
            .join(ranks, left_on="src", right_on="node")
            .select(node="dst", x=pl.col("rank") / pl.col("degree"))
            .concat(nodes.select("node", x=pl.lit(0.0)))
            .group_by("node")
            .agg(x=rr.sum("x"))
        )
        lost = ranks.semi_join(dangling, on="node").select(x="rank")
        total = lost.concat(size.select(x=pl.lit(0.0))).group_by().agg(lost=rr.sum("x"))
        everywhere = total.join(size, how="cross")
        return received.join(everywhere, how="cross").select(
            "node",
            rank=0.15 / pl.col("n") + 0.85 * (pl.col("x") + pl.col("lost") / pl.col("n")),
        )

    return start.iterate(step, rounds=7)


SCALE = 1_000_000


def integer_pagerank(edges: Rows) -> Rows:
    links = set(edges)
    nodes = nodes_in(links)
    degree = Counter(a for a, _ in links)

    def step(rank):
        parts = parts_by_target((b, rank[a] * 85 // (100 * degree[a])) for a, b in links)
        return {node: sum(parts[node]) + 15 * SCALE // 100 for node in nodes}

    return ranked_in_rounds(dict.fromkeys(nodes, SCALE), 200, step)


@spelling(integer_pagerank, edges=EDGES)
def rank_in_millionths(edges):
    """Whole numbers: every worker and every run gives the same, and the loop comes to rest."""
    links = edges.distinct()
    nodes = rr.graphs.nodes_of(edges)
    out = links.group_by("src").agg(out=rr.count())
    hops = links.join(out, on="src")
    teleport = nodes.with_columns(ppm=pl.lit(15 * SCALE // 100, pl.Int64))

    def step(ranks):
        moved = hops.join(ranks, left_on="src", right_on="node").select(
            pl.col("dst").alias("node"), ppm=pl.col("ppm") * 85 // (pl.col("out") * 100)
        )
        return teleport.concat(moved).group_by("node").agg(rr.sum("ppm"))

    return nodes.with_columns(ppm=pl.lit(SCALE, pl.Int64)).iterate(step, rounds=200)


def personalised(edges: Rows, seeds: Rows) -> Rows:
    links = set(edges)
    degree = Counter(a for a, _ in links)
    restart = {}
    for node, weight in seeds:
        restart.setdefault(node, []).append(weight)
    start = {node: math.fsum(weights) for node, weights in restart.items()}

    def step(rank):
        parts = parts_by_target((b, rank[a] * 0.9 / degree[a]) for a, b in links if a in rank)
        for node, weight in start.items():
            parts[node].append(weight * 0.1)
        return {node: math.fsum(values) for node, values in parts.items()}

    return ranked_in_rounds(start, 6, step)


@spelling(
    personalised,
    edges=EDGES,
    seeds=Table({"node": INT, "weight": FLOAT}, ("node", "real"), sparse=True),
)
def rank_personalised(edges, seeds):
    """Only nodes that a seed reaches have a rank at all."""
    links = edges.distinct()
    degree = links.group_by("src").agg(d=rr.count_distinct("dst"))
    mass = seeds.group_by("node").agg(score=rr.sum("weight"))
    jump = mass.with_columns(score=pl.col("score") * 0.1)
    shares = links.join(degree, on="src", how="inner")

    def walk(scores):
        walked = (
            scores.join(shares, left_on="node", right_on="src")
            .with_columns(score=pl.col("score") * 0.9 / pl.col("d"))
            .select("score", node="dst")
        )
        return walked.concat(jump).group_by("node").agg(score=rr.sum("score"))

    return mass.iterate(walk, rounds=6)


def weighted_pagerank(cites: Rows) -> Rows:
    edges = [(a, b, w) for a, b, w in cites if w > 0]
    nodes = nodes_in((a, b) for a, b, _ in cites)
    total = {a: math.fsum(ws) for a, ws in parts_by_target((a, w) for a, _, w in edges).items()}

    def step(rank):
        parts = parts_by_target((b, 0.85 * rank[a] * (w / total[a])) for a, b, w in edges)
        return {node: math.fsum([*parts[node], 0.15]) for node in nodes}

    return ranked_in_rounds(dict.fromkeys(nodes, 1.0), 9, step)


@spelling(
    weighted_pagerank,
    cites=Table({"src": INT, "dst": INT, "weight": FLOAT}, ("node", "node", "real")),
)
def rank_by_weight(cites):
    nodes = rr.graphs.nodes_of(cites)
    positive = cites.filter(pl.col("weight") > 0)
    strength = positive.group_by("src").agg(strength=rr.sum("weight"))
    normalised = positive.join(strength, on="src").select(
        "src", "dst", p=pl.col("weight") / pl.col("strength")
    )
    constant = nodes.with_columns(rank=pl.lit(0.15))

    def step(ranks):
        passed = normalised.join(ranks, left_on="src", right_on="node").select(
            "dst", rank=0.85 * pl.col("rank") * pl.col("p")
        )
        return passed.rename({"dst": "node"}).concat(constant).group_by("node").agg(rr.sum("rank"))

    return nodes.with_columns(rank=pl.lit(1.0)).iterate(step, rounds=9)


def undirected_pagerank(friends: Rows) -> Rows:
    links = {pair for a, b in friends if a != b for pair in ((a, b), (b, a))}
    nodes = nodes_in(links)
    degree = Counter(a for a, _ in links)

    def step(rank):
        sent = {node: rank[node] / degree[node] for node in nodes}
        parts = parts_by_target((b, sent[a]) for a, b in links)
        return {node: 0.15 + 0.85 * math.fsum(parts[node]) for node in nodes}

    return ranked_in_rounds(dict.fromkeys(nodes, 1.0), 12, step)


@spelling(undirected_pagerank, friends=Table({"x": INT, "y": INT}, ("node", "node")))
def rank_among_friends(friends):
    """Friendship has no direction, and nobody is their own friend. So everyone here has someone who gives to them."""
    pairs = friends.filter(pl.col("x") != pl.col("y"))
    sym = pairs.concat(pairs.select(x="y", y="x")).distinct()
    people = sym.group_by("x").agg(friends=rr.count())
    start = people.select("x", rank=pl.lit(1.0))

    def step(rank):
        gives = rank.join(people, on="x").select("x", gift=pl.col("rank") / pl.col("friends"))
        return (
            sym.join(gives, on="x")
            .group_by("y")
            .agg(got=rr.sum("gift"))
            .select(x="y", rank=0.15 + 0.85 * pl.col("got"))
        )

    return start.iterate(step, rounds=12)


def hub_scores(edges: Rows) -> Rows:
    hubs = {a: 1.0 for a, _ in edges}

    def step(hub):
        heard = parts_by_target((b, hub[a]) for a, b in edges)
        authority = {node: math.fsum(values) for node, values in heard.items()}
        told = parts_by_target((a, authority[b]) for a, b in edges)
        raw = {node: math.fsum(values) for node, values in told.items()}
        most = max(raw.values(), default=None)
        return {node: value / most for node, value in raw.items()}

    return ranked_in_rounds(hubs, 6, step)


@spelling(hub_scores, edges=EDGES)
def rank_hubs(edges):
    """HITS, the hubs: a good hub points to good authorities. Scaled by the best one, round by round."""
    hubs = edges.select(page="src").distinct().with_columns(hub=pl.lit(1.0))

    def step(hubs):
        authority = (
            hubs.join(edges, left_on="page", right_on="src")
            .group_by("dst")
            .agg(authority=rr.sum("hub"))
        )
        raw = edges.join(authority, on="dst").group_by("src").agg(hub=rr.sum("authority"))
        best = raw.group_by().agg(best=rr.max("hub"))
        return raw.join(best, how="cross").select(page="src", hub=pl.col("hub") / pl.col("best"))

    return hubs.iterate(step, rounds=6)


@spelling(pagerank_sum_then_damp, edges=EDGES)
def rank_degree_in_the_loop(edges):
    def pagerank_step(ranks):
        outdegree = edges.group_by("src").agg(pl.len().alias("degree"))
        shares = (
            ranks.join(outdegree, left_on="node", right_on="src")
            .with_columns(share=pl.col("rank") / pl.col("degree"))
            .drop("degree", "rank")
        )
        nodes = edges.select(node="src").concat(edges.select(node="dst")).distinct()
        return (
            edges.join(shares, left_on="src", right_on="node")
            .select(node="dst", share="share")
            .concat(nodes.select("node", share=pl.lit(0.0)))
            .group_by("node")
            .agg(rank=rr.sum("share"))
            .with_columns(rank=pl.lit(0.15) + pl.lit(0.85) * pl.col("rank"))
        )

    start = edges.select(node="src").concat(edges.select(node="dst")).distinct()
    return start.with_columns(rank=pl.lit(1.0)).iterate(pagerank_step, rounds=8)


# --------------------------------------------------------------------------------------------------------------------
# Loops by delta: a solution that is updated by key, and a workset of messages. Not there yet.

ADD = "add"
"""What `missing=` says so that a row whose key is not in the solution adds the key."""


@spelling(least_of_component, needs="delta", edges=EDGES)
def delta_cc_send(edges):
    both = rr.graphs.undirected(edges)
    start = rr.graphs.nodes_of(edges).select("node", label="node")

    def send(labels):
        return labels.join(both, left_on="node", right_on="src").select(node="dst", label="label")

    return start.iterate_delta(send(start), key="node", send=send, better=rr.loops.least("label"))


@spelling(least_of_component, needs="delta", edges=EDGES)
def delta_cc_body(edges):
    both = edges.concat(edges.select(src="dst", dst="src"))
    labels = both.select(v="src", comp="src").distinct()

    def step(labels, messages):
        smallest = messages.group_by("v").agg(candidate=rr.min("candidate"))
        changed = (
            labels.join(smallest, on="v")
            .filter(pl.col("candidate") < pl.col("comp"))
            .select("v", comp="candidate")
        )
        return changed, both.join(changed, left_on="src", right_on="v").select(
            v="dst", candidate="comp"
        )

    first = both.select(v="dst", candidate="src")
    return labels.iterate_delta(first, key="v", body=step)


@spelling(
    greatest_of_component,
    needs="delta",
    follows=Table({"a": TEXT, "b": TEXT}, ("name", "name")),
)
def delta_cc_greatest_of_text(follows):
    graph = follows.concat(follows.rename({"a": "b", "b": "a"})).distinct()
    everyone = graph.select(who="a").distinct().with_columns(top="who")

    def tell(better):
        return graph.join(better, left_on="a", right_on="who").drop("a").rename({"b": "who"})

    return everyone.iterate_delta(
        tell(everyone), key="who", send=tell, better=rr.loops.greatest("top")
    )


@spelling(
    components_by_tenant,
    needs="delta",
    keys=2,
    links=Table({"tenant": TEXT, "account": INT, "linked": INT}, ("tenant", "node", "node")),
)
def delta_cc_two_column_key(links):
    links = links.concat(links.select("tenant", account="linked", linked="account"))
    accounts = links.select("tenant", "account", cluster="account").distinct()

    def onward(news):
        heard = news.join(links, on=["tenant", "account"])
        return heard.select("tenant", "cluster", account="linked")

    return accounts.iterate_delta(
        onward(accounts),
        key=["tenant", "account"],
        send=onward,
        better=rr.loops.least("cluster"),
        name="clusters",
    )


@spelling(
    lambda edges, sources: items(nearest(edges, {node: 0 for (node,) in sources})),
    needs="delta",
    edges=LENGTHS,
    sources=SOURCES,
)
def delta_path_send(edges, sources):
    origin = sources.distinct().with_columns(distance=pl.lit(0))

    def relax(improved):
        return improved.join(edges, left_on="node", right_on="src").select(
            node="dst", distance=pl.col("distance") + pl.col("weight")
        )

    return origin.iterate_delta(
        relax(origin), key="node", send=relax, better=rr.loops.least("distance"), missing=ADD
    )


@spelling(
    within_budget,
    needs="delta",
    zones=Table({"stop": INT, "zone": INT}, ("node", "whole"), key="stop"),
    trips=Table({"src": INT, "dst": INT, "fare": INT}, ("node", "node", "whole")),
    origins=Table({"stop": INT, "spent": INT}, ("node", "whole"), sparse=True),
)
def delta_path_within_a_budget(zones, trips, origins):
    """A body with a left join: stops that nobody has reached yet have no row in the solution."""
    priced = (
        trips.join(zones, left_on="src", right_on="stop")
        .join(zones, left_on="dst", right_on="stop", suffix="_to")
        .with_columns(toll=pl.when(pl.col("zone") != pl.col("zone_to")).then(2).otherwise(0))
    )
    departures = (
        origins.filter(pl.col("spent") <= BUDGET).group_by("stop").agg(spent=rr.min("spent"))
    )

    def ride(from_here):
        return (
            from_here.join(priced, left_on="stop", right_on="src")
            .select(stop="dst", spent=pl.col("spent") + pl.col("fare") + pl.col("toll"))
            .filter(pl.col("spent") <= BUDGET)
        )

    def step(reached, arriving):
        cheapest = arriving.group_by("stop").agg(spent=rr.min("spent"))
        better = (
            cheapest.join(reached, on="stop", how="left", suffix="_before")
            .filter(pl.col("spent_before").is_null() | (pl.col("spent") < pl.col("spent_before")))
            .select("stop", "spent")
        )
        return better, ride(better)

    return departures.iterate_delta(ride(departures), key="stop", body=step, missing=ADD)


@spelling(
    lambda edges, sources: items(
        best_in_rounds(
            [(a, b, 1) for a, b in edges], {n: 0 for (n,) in sources}, int.__add__, min, 3
        )
    ),
    needs="delta",
    edges=EDGES,
    sources=SOURCES,
)
def delta_path_three_hops(edges, sources):
    here = sources.select("node", hops=pl.lit(0)).distinct()

    def expand(new):
        return edges.join(new, left_on="src", right_on="node").select(
            node="dst", hops=pl.col("hops") + 1
        )

    return here.iterate_delta(
        expand(here),
        key="node",
        send=expand,
        better=rr.loops.least("hops"),
        missing=ADD,
        rounds=3,
    )


@spelling(
    lambda pipes, wells: items(
        best_in_rounds(pipes, {node: 1_000_000 for (node,) in wells}, min, max)
    ),
    needs="delta",
    pipes=Table({"src": INT, "dst": INT, "capacity": pl.Int32}, ("node", "node", "whole")),
    wells=SOURCES,
)
def delta_path_widest(pipes, wells):
    start = wells.distinct().select("node", flow=pl.lit(1_000_000, pl.Int64))

    def through(flows):
        return flows.join(pipes, left_on="node", right_on="src").select(
            node="dst", flow=pl.min_horizontal("flow", "capacity")
        )

    return start.iterate_delta(
        through(start), key="node", send=through, better=rr.loops.greatest("flow"), missing=ADD
    )


@spelling(
    nearest_by_way_of,
    needs="delta",
    edges=Table({"src": INT, "dst": INT, "weight": INT}, ("count", "count", "whole")),
    sources=Table({"node": INT}, ("count",), sparse=True),
)
def delta_path_with_the_node_before(edges, sources):
    depart = sources.select("node", distance=pl.lit(0), via=pl.lit(-1)).distinct()

    def extend(routes):
        return routes.join(edges, left_on="node", right_on="src").select(
            node="dst", distance=pl.col("distance") + pl.col("weight"), via="node"
        )

    return depart.iterate_delta(
        extend(depart),
        key="node",
        send=extend,
        better=rr.loops.least("distance", "via"),
        missing=ADD,
    )


@spelling(
    reached_around,
    needs="delta",
    edges=EDGES,
    roots=SOURCES,
    blocked=Table({"node": INT}, ("node",), sparse=True),
)
def delta_path_reachable(edges, roots, blocked):
    """The workset is what was new in the last round; no row is better than another, they are only new."""
    open_edges = edges.anti_join(blocked, left_on="dst", right_on="node")
    roots = roots.distinct()

    def visit(visited, frontier):
        next_nodes = frontier.join(open_edges, left_on="node", right_on="src").select(node="dst")
        new = next_nodes.distinct().anti_join(visited, on="node")
        return new, new

    return roots.iterate_delta(roots, key="node", body=visit, missing=ADD)


def settled_pagerank(edges: Rows) -> Rows:
    links = set(edges)
    nodes = nodes_in(links)
    degree = Counter(a for a, _ in links)

    def step(rank):
        parts = parts_by_target((b, 0.85 * (rank[a] / degree[a])) for a, b in links)
        return {node: math.fsum([0.15, *parts[node]]) for node in nodes}

    return ranked_in_rounds(dict.fromkeys(nodes, 1.0), 300, step)


@spelling(settled_pagerank, needs="delta", close=1e-6, edges=EDGES)
def delta_rank_pushes_what_changed(edges):
    """Each node adds up what it got since it last told others, and tells them if that is not next to nothing."""
    links = edges.distinct()
    shares = links.join(links.group_by("src").agg(degree=rr.count()), on="src")
    nodes = rr.graphs.nodes_of(edges)

    def push(moved):
        return moved.join(shares, left_on="node", right_on="src").select(
            node="dst", part=0.85 * (pl.col("rank") / pl.col("degree"))
        )

    def adapt(ranks, parts):
        moved = parts.group_by("node").agg(rank=rr.sum("part")).filter(pl.col("rank").abs() > 1e-8)
        updated = moved.join(ranks, on="node", suffix="_old").select(
            "node", rank=pl.col("rank") + pl.col("rank_old")
        )
        return updated, push(moved)

    base = nodes.with_columns(rank=pl.lit(0.15))
    return base.iterate_delta(push(base), key="node", body=adapt)


@spelling(
    lambda links, servers: items(
        best_in_rounds(links, {node: 1.0 for (node,) in servers}, lambda p, q: p * q, max)
    ),
    needs="delta",
    links=Table({"src": TEXT, "dst": TEXT, "up": FLOAT}, ("name", "name", "chance")),
    servers=Table({"host": TEXT}, ("name",), sparse=True),
)
def delta_path_most_reliable_over_all_hosts(links, servers):
    """All hosts are in the solution from the start, with a chance of -1: hosts that stay so are left out at the end."""
    hosts = links.select(host="src").concat(links.select(host="dst"), servers).distinct()
    solution = (
        hosts.select("host", chance=pl.lit(-1.0))
        .concat(servers.select("host", chance=pl.lit(1.0)))
        .group_by("host")
        .agg(chance=rr.max("chance"))
    )
    seeds = servers.distinct().select("host", chance=pl.lit(1.0))

    def offer(better):
        return (
            better.filter(pl.col("chance") >= 0.0)
            .join(links, left_on="host", right_on="src")
            .select(host="dst", chance=pl.col("chance") * pl.col("up"))
        )

    best = solution.iterate_delta(
        offer(seeds), key="host", send=offer, better=rr.loops.greatest("chance")
    )
    return best.filter(pl.col("chance") >= 0.0)


# --------------------------------------------------------------------------------------------------------------------
# Loops with a test of their own for the end. Not there yet.


@spelling(settled_pagerank, needs="until", close=1e-4, edges=EDGES)
def until_rank_within_tolerance(edges):
    links = edges.distinct()
    nodes = rr.graphs.nodes_of(edges)
    shares = links.join(links.group_by("src").count("degree"), on="src")
    base = nodes.select("node", part=pl.lit(0.15))

    def step(ranks):
        sent = ranks.join(shares, left_on="node", right_on="src").select(
            node="dst", part=0.85 * (pl.col("rank") / pl.col("degree"))
        )
        return base.concat(sent).group_by("node").agg(rank=rr.sum("part"))

    return nodes.with_columns(rank=pl.lit(1.0)).iterate(
        step, until=rr.loops.tolerance("rank", 1e-6), rounds=500
    )


@spelling(least_of_component, needs="until", edges=EDGES)
def until_cc_unchanged(edges):
    both = edges.concat(edges.select(src="dst", dst="src"))
    nodes = both.select(node="src", label="src").distinct()

    def least(labels):
        heard = labels.join(both, left_on="node", right_on="src").select("label", node="dst")
        return heard.concat(labels).group_by("node").agg(label=rr.min("label"))

    return nodes.iterate(least, until=rr.loops.unchanged, key="node")


@spelling(settled_pagerank, needs="until", close=1e-3, edges=EDGES)
def until_rank_total_of_changes(edges):
    """The end is a test of our own: no node that moved by more than a hundred-thousandth."""
    links = edges.distinct()
    nodes = rr.graphs.nodes_of(edges)
    degrees = links.group_by("src").agg(degree=rr.count())

    def step(ranks):
        return (
            links.join(degrees, on="src")
            .join(ranks, left_on="src", right_on="node")
            .select(node="dst", part=pl.col("rank") / pl.col("degree"))
            .concat(nodes.with_columns(part=pl.lit(0.0)))
            .group_by("node")
            .agg(rank=0.15 + 0.85 * rr.sum("part"))
        )

    def moved(before, after):
        return before.join(after, on="node", suffix="_after").filter(
            (pl.col("rank") - pl.col("rank_after")).abs() > 1e-5
        )

    return nodes.with_columns(rank=pl.lit(1.0)).iterate(step, until=moved)
