"""`make demo`: npm, the day left-pad is unpublished. On Spark.

80,417 packages and 200,840 dependencies (a part of npm of 2016, data/ORIGIN.md) are streamed into two workers that live
in a local Spark session. Four questions are asked once and answered all the time: which packages are broken, which hang
together, which need each other in circles, which are needed most. Then packages come and go. After each change
all four answers are compared with recomputation from scratch in plain Python (plain.py). Then one of the two workers
is killed in the middle of an epoch, and the other goes on with a new worker (loss.py). Last, another process is killed,
and two workers go on after its last epoch (crash.py).

`python -m examples.demo --here` does the same without Spark, in this process.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import riverrun as rr
from examples.crash import kill_and_resume
from examples.loss import lose_a_worker
from examples.npm import Npm, load
from examples.registry import Registry, program, warm_up

FILES = 8
console = Console(highlight=False)


def main(here: bool) -> None:
    console.print("[bold]Riverrun[/]: answers that stay right while the data changes\n")
    npm = load()
    start = time.perf_counter()
    with console.status("getting ready: kernels are loaded, or compiled where none are kept"):
        warm_up(npm)
    console.print(
        f"Ready after {time.perf_counter() - start:.0f} s; what follows is timed without that.\n"
    )
    if here:
        with program().run() as run:
            registry = Registry(run)
            registry.publish(range(len(npm.packages)), npm.dependencies)
            change_packages(registry, npm, registry.commit())
    else:
        with tempfile.TemporaryDirectory() as folder:
            with console.status("starting Spark, and two workers in it"):
                run = program().run(on="spark", workers=2, checkpoint=folder)
            with run:
                registry = Registry(run)
                loaded = stream_in(registry, npm)
                ask_with_sql(run, npm)
                change_packages(registry, npm, loaded)
                lose_a_worker(registry, npm, console)
    kill_and_resume(npm, console)


def stream_in(registry: Registry, npm: Npm) -> float:
    """Have Spark stream the packages in from Parquet files, one file for each epoch; how long that took."""
    start = time.perf_counter()
    run, spark = registry.run, registry.run.spark
    packages = pl.DataFrame({"node": range(len(npm.packages))})
    dependencies = pl.DataFrame(npm.dependencies, ["src", "dst"], orient="row")
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as bar:
        for name, rows in (("published", packages), ("dependencies", dependencies)):
            schema, where = f"{', '.join(f'{c} long' for c in rows.columns)}", Path(folder, name)
            where.mkdir()
            for at in range(FILES):
                part = rows[len(rows) * at // FILES : len(rows) * (at + 1) // FILES]
                part.write_parquet(where / f"{at}.parquet")
            files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            query = run.stream(name, files.parquet(str(where)), availableNow=True)
            task = bar.add_task(f"{name} streamed in", total=FILES)
            started = run.completed
            while not query.awaitTermination(0.1):
                bar.update(task, completed=run.completed - started)
            bar.update(task, completed=FILES)
    registry.published = set(range(len(npm.packages)))
    registry.dependencies = set(npm.dependencies)
    return time.perf_counter() - start


def ask_with_sql(run: rr.Run, npm: Npm) -> None:
    """What is known once everything is loaded, asked with Spark SQL."""
    spark: Any = run.spark
    names = pl.DataFrame({"node": range(len(npm.packages)), "name": npm.packages})
    spark.createDataFrame(names.to_arrow()).createOrReplaceTempView("packages")
    for output in ("islands", "cycles", "most_needed"):
        spark.read.format("riverrun").load(output).createOrReplaceTempView(output)
    (sizes,) = spark.sql(
        "SELECT count(*) AS islands, max(packages) AS largest FROM islands"
    ).collect()
    (circles,) = spark.sql("SELECT count(*) AS circles FROM cycles").collect()
    most = spark.sql(
        "SELECT name, dependents FROM most_needed JOIN packages USING (node) ORDER BY dependents DESC"
    ).collect()
    needed = ", ".join(f"[bold]{row.name}[/] ({row.dependents:,})" for row in most)
    console.print(
        f"{len(npm.packages):,} packages with {len(npm.dependencies):,} dependencies. "
        f"{sizes.largest:,} of them hang together, the others are {sizes.islands - 1:,} islands.\n"
        f"{circles.circles} groups of packages need each other in circles. Needed most: {needed}.\n"
        "(asked with Spark SQL, which reads the answers from the workers)\n"
    )


def change_packages(registry: Registry, npm: Npm, loaded: float) -> None:
    number, run = npm.number, registry.run
    timings = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    timings.add_column("what happens", no_wrap=True)
    for column in ("broken", "islands", "cycles", "Riverrun", "recomputed", ""):
        timings.add_column(column, justify="right")

    def compare(what: str, taken: float) -> None:
        """Compare with recomputation, and add a line to the table."""
        again = registry.check()
        sizes = [f"{len(run.read(name)):,}" for name in ("broken", "islands", "cycles")]
        faster = f"{again / taken:,.0f} x" if again > taken else ""
        timings.add_row(what, *sizes, milliseconds(taken), milliseconds(again), faster)

    def commit(what: str) -> None:
        compare(what, registry.commit())

    compare(
        "all is loaded" if run.spark is None else f"streamed in: {run.completed} epochs", loaded
    )
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


def milliseconds(taken: float) -> str:
    return f"{taken * 1e3:,.{0 if taken > 0.1 else 1}f} ms"


if __name__ == "__main__":
    main("--here" in sys.argv[1:])
