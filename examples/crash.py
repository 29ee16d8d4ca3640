"""A process that unpublishes packages one by one is killed, and two workers go on after its last epoch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

from rich.console import Console

from examples.npm import Npm, load
from examples.registry import Registry, program


def kill_and_resume(npm: Npm, console: Console) -> None:
    """Kill a process that unpublishes packages one by one, and go on with two workers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "examples.crash", folder]
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
    unpublish_one_by_one(sys.argv[1])
