"""One of two workers is killed while packages are unpublished one by one; the other goes on, with a new worker."""

from __future__ import annotations

import os
import signal
import time

from rich.console import Console

from examples.crash import victims
from examples.npm import Npm
from examples.registry import Registry

BEFORE, AFTER = 5, 5
"""Packages that are unpublished before the kill, and after it."""


def lose_a_worker(registry: Registry, npm: Npm, console: Console) -> None:
    """Kill one of two workers with -9 in the middle of an epoch, and print how long each step took."""
    run = registry.run
    with console.status("a worker is killed"):
        run.checkpoint()
        gone = [package for package in victims(npm) if package in registry.published]
        before = pids(registry)
        run.spark.sparkContext.setLogLevel("OFF")  # Spark would tell of it at length
        usual = []
        for package in gone[:BEFORE]:
            registry.unpublish(package)
            usual.append(registry.commit())
        registry.unpublish(gone[BEFORE])
        commit = run.commit(wait=False)
        os.kill(before[0], signal.SIGKILL)
        start = time.perf_counter()
        commit.wait()
        taken = time.perf_counter() - start
        registry.check()
        for package in gone[BEFORE + 1 : BEFORE + 1 + AFTER]:
            registry.unpublish(package)
            registry.commit()
        registry.check()
        after = pids(registry)
    assert before[0] not in after
    assert before[1] in after
    median = sorted(usual)[len(usual) // 2]
    console.print(
        f"While packages were unpublished one by one, the worker with process id {before[0]} was killed (-9) in the "
        f"middle of epoch {commit.epoch}.\nIts answers were there {taken:.1f} s later, as a rule it takes "
        f"{median * 1e3:.0f} ms: process {max(set(after) - {before[1]})} took the place, and its part of the states "
        f"from the checkpoint and the log;\nprocess {before[1]} was not started again, and read nothing. "
        f"{AFTER} more changes, and all four answers equal recomputation.\n"
    )


def pids(registry: Registry) -> list[int]:
    """The processes of the workers."""
    return [worker["pid"] for worker in registry.run.status()["processes"]]
