"""Four questions about npm, asked once and answered all the time; and the packages as plain sets, to compare."""

from __future__ import annotations

import time
from collections.abc import Iterable

import polars as pl

import riverrun as rr
from examples import plain
from examples.npm import Npm
from riverrun.graphs import components, strongly_connected_components

OUTPUTS = ("broken", "islands", "cycles", "most_needed")
TOP = 5


def program() -> rr.Dataflow:
    """The four questions. Packages are numbers; a dependency says that package `src` needs `dst`."""
    flow = rr.Dataflow("npm")
    published = flow.input("published", {"node": pl.Int64})
    dependencies = flow.input("dependencies", {"src": pl.Int64, "dst": pl.Int64})

    # Broken is what needs a package that is missing, or one that is broken itself.
    missing = dependencies.select(node="dst").distinct().anti_join(published, "node")

    def spread(lost: rr.Collection) -> rr.Collection:
        needing = lost.join(dependencies, left_on="node", right_on="dst").select(node="src")
        return needing.concat(missing).distinct()

    flow.output("broken", missing.iterate(spread).semi_join(published, "node"))

    # The other questions are about dependencies of which both ends are there.
    live = dependencies.semi_join(published, left_on="src", right_on="node")
    live = live.semi_join(published, left_on="dst", right_on="node")

    islands = components(live, published)
    flow.output("islands", islands.group_by("component").count("packages"))

    circles = strongly_connected_components(live).group_by("component").count("packages")
    flow.output("cycles", circles.filter(pl.col("packages") > 1))

    dependents = live.group_by(node="dst").count("dependents")
    flow.output("most_needed", dependents.group_by().top(TOP, by="dependents"))
    return flow


class Registry:
    """A run of the program, and beside it the same packages as plain sets, to compare with."""

    def __init__(self, run: rr.Run) -> None:
        self.run = run
        self.published: set[int] = set()
        self.dependencies: set[tuple[int, int]] = set()

    def publish(self, packages: Iterable[int], needing: Iterable[tuple[int, int]] = ()) -> None:
        packages, needing = list(packages), list(needing)
        self.run.insert("published", pl.DataFrame({"node": packages}))
        self.run.insert("dependencies", pl.DataFrame(needing, ["src", "dst"], orient="row"))
        self.published.update(packages)
        self.dependencies.update(needing)

    def unpublish(self, package: int) -> None:
        self.run.delete("published", [(package,)])
        self.published.remove(package)

    def drop(self, package: int, dependency: int) -> None:
        self.run.delete("dependencies", [(package, dependency)])
        self.dependencies.remove((package, dependency))

    def commit(self) -> float:
        """Seconds until all four answers are right again."""
        start = time.perf_counter()
        self.run.commit()
        return time.perf_counter() - start

    def check(self) -> float:
        """Seconds that recomputing takes; its answers are those that were kept up to date."""
        start = time.perf_counter()
        recomputed = plain.answers(self.published, self.dependencies, TOP)
        taken = time.perf_counter() - start
        for name in OUTPUTS:
            assert self.run.read(name).rows() == recomputed[name], name
        return taken


def warm_up(npm: Npm) -> None:
    """A few packages come and go, so that timings show work and not compilation."""
    few = range(300)
    with program().run() as run:
        registry = Registry(run)
        registry.publish(few, [pair for pair in npm.dependencies if max(pair) < len(few)])
        registry.commit()
        for package in few[::30]:
            registry.unpublish(package)
            registry.commit()
            registry.publish([package])
            registry.commit()
        registry.check()
