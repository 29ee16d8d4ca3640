"""`make demo`: npm, the day left-pad is unpublished.

80,417 packages and 200,840 dependencies (a part of npm of 2016, data/ORIGIN.md). Four questions are asked
once and answered all the time: what is broken, which packages hang together, which need each other in
circles, which are needed most. Then packages come and go. After each change all four answers are
compared with recomputing them from scratch in plain Python (plain.py). Last, the process is killed, and
another goes on where it was.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import riverrun as rr
from examples import plain
from examples.npm import Npm, load
from riverrun.algorithms import components, strongly_connected_components

OUTPUTS = ("broken", "islands", "cycles", "most_needed")
TOP = 5
console = Console(highlight=False)


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


def main() -> None:
    console.print("[bold]Riverrun[/]: answers that stay right while the data changes\n")
    npm = load()
    with console.status("compiling kernels (once for a checkout, about a minute)"):
        warm_up(npm)
    with program().run() as run:
        change_packages(Registry(run), npm)
    kill_and_resume(npm)


def change_packages(registry: Registry, npm: Npm) -> None:
    number, run = npm.number, registry.run
    timings = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    timings.add_column("what happens", no_wrap=True)
    for column in ("broken", "islands", "cycles", "Riverrun", "recomputed", ""):
        timings.add_column(column, justify="right")

    def commit(what: str) -> None:
        """Commit what was changed, compare with recomputation, and add a line to the table."""
        taken = registry.commit()
        again = registry.check()
        sizes = [f"{len(run.read(name)):,}" for name in ("broken", "islands", "cycles")]
        faster = f"{again / taken:,.0f} x" if again > taken else ""
        timings.add_row(what, *sizes, milliseconds(taken), milliseconds(again), faster)

    registry.publish(range(len(npm.packages)), npm.dependencies)
    commit("all is loaded")
    show_answers(run, npm)

    registry.unpublish(number["left-pad"])
    commit("[bold]left-pad is unpublished[/]")
    broken = [node for (node,) in run.read("broken").rows()]
    registry.publish([number["left-pad"]])
    commit("left-pad comes back")
    registry.drop(number["es5-ext"], number["es6-iterator"])
    registry.drop(number["es5-ext"], number["es6-symbol"])
    commit("es5-ext leaves its circle")
    ours = len(npm.packages)
    registry.publish([ours], [(ours, number["left-pad"]), (number["left-pad"], ours)])
    commit("left-pad gets a circle")
    registry.unpublish(number["is-promise"])
    commit("is-promise is unpublished")
    registry.publish([number["is-promise"]])
    commit("is-promise comes back")
    registry.unpublish(number["lodash"])
    commit("lodash is unpublished")

    console.print(timings)
    needed = Counter(dependency for _, dependency in npm.dependencies)
    known = sorted(broken, key=lambda node: -needed[node])[:5]
    console.print(
        f"Without left-pad {len(broken)} packages broke, "
        f"[bold]{', '.join(npm.packages[node] for node in known)}[/] among them.\n"
        "All four answers equal recomputation from scratch after every change.\n"
    )


def show_answers(run: rr.Run, npm: Npm) -> None:
    """What is known once everything is loaded."""
    islands = [size for _, size in run.read("islands").rows()]
    most = sorted(run.read("most_needed").rows(), key=lambda row: -row[1])
    needed = ", ".join(f"[bold]{npm.packages[node]}[/] ({count:,})" for node, count in most)
    console.print(
        f"{len(npm.packages):,} packages with {len(npm.dependencies):,} dependencies. "
        f"{max(islands):,} of them hang together, the others are {len(islands) - 1:,} islands.\n"
        f"{len(run.read('cycles'))} groups of packages need each other in circles. Needed most: {needed}.\n"
    )


def milliseconds(taken: float) -> str:
    return f"{taken * 1e3:,.{0 if taken > 0.1 else 1}f} ms"


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


# -- the process is killed


def kill_and_resume(npm: Npm) -> None:
    """Kill a process that unpublishes packages one by one, and go on with two workers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "examples.demo", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            with console.status("another process loads the packages and unpublishes some"):
                last = next(line for line in child.stdout if int(line) >= 5)
            child.kill()
        start = time.perf_counter()
        with program().run(workers=2, checkpoint=folder) as run:
            registry = Registry(run)
            taken = time.perf_counter() - start
            assert run.epoch is not None
            assert run.epoch >= int(last)  # what was committed is there
            registry.published = set(range(len(npm.packages))) - set(victims(npm)[: run.epoch])
            registry.dependencies = set(npm.dependencies)
            registry.check()
            registry.unpublish(victims(npm)[run.epoch])
            registry.commit()
            registry.check()
            console.print(
                f"Another process was killed (-9) after it had committed epoch {int(last)}. Two workers went on from "
                f"its checkpoint and log within {taken:.1f} s, and did the next change. The answers equal "
                "recomputation."
            )


def unpublish_one_by_one(folder: str) -> None:
    """What the process does that is killed: load, make a checkpoint, then one package less in each epoch."""
    npm = load()
    run = program().run(checkpoint=folder)
    registry = Registry(run)
    registry.publish(range(len(npm.packages)), npm.dependencies)
    registry.commit()
    run.checkpoint()
    for package in victims(npm):
        registry.unpublish(package)
        registry.commit()
        print(run.epoch, flush=True)


def victims(npm: Npm) -> list[int]:
    """Packages to unpublish, one after the other."""
    return list(range(0, len(npm.packages), 1000))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        unpublish_one_by_one(sys.argv[1])
    else:
        main()
