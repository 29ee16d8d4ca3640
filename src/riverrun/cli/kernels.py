"""``riverrun kernels``: compile the kernels that runs need, on all cores, before the first run.

Run it when you build an image or a wheel, for instance: the first run then starts at once. `make setup` runs it with
``--common``.
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from riverrun.frontends.collection import Collection
from riverrun.frontends.collections import aggregates
from riverrun.frontends.dataflow import Dataflow
from riverrun.plan.kernels_needed import kernels_of
from riverrun.state.entries import labels
from riverrun.state.kernels import compiling
from riverrun.state.preparing import compiled_files, make_ready, missing

FAILED = 2
_BETWEEN = 10.0  # seconds between two lines, where output goes to a file


class _Lines:
    """Shows progress line by line, for logs: at the beginning, and then at times."""

    def __init__(self, console: Console, what: str, start: float) -> None:
        self._console, self._what, self._start, self._next = console, what, start, start

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _BETWEEN
            self._console.print(f"{self._what}: {done} of {of}, after {now - self._start:.0f} s")
            self._console.file.flush()


def common() -> list[str]:
    """The labels of the kernels of a program that joins, groups and iterates."""
    flow = Dataflow("common")
    edges = flow.input("edges", "src long, dst long")
    start = edges.select(node="src", label="src").distinct()

    def spread(labels: Collection) -> Collection:
        heard = labels.join(edges, left_on="node", right_on="src").select(node="dst", label="label")
        return heard.concat(start).group_by("node").agg(label=aggregates.min("label"))

    flow.output("labels", start.iterate(spread))
    flow.output("sums", edges.group_by("src").agg(total=aggregates.sum("dst")))
    return kernels_of(flow.plan)


def prepare(folder: str | None = None, *, few: bool = False) -> int:
    """Compile the missing kernels, or a `few` of them, those in `common`; copy the compiled kernels to `folder`, if it
    is given; return the exit code."""
    wanted = common() if few else labels()
    console = Console(highlight=False, soft_wrap=True)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    target = f"{compiling.PROCESSOR[1]}, Python {python}, Numba {version('numba')}"
    absent, start = missing(wanted, anew=True), time.monotonic()
    if absent:
        made = f"compiling kernels for {target}"
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=console) as bar:
                task = bar.add_task(made, total=len(absent))
                make_ready(
                    wanted, progress=lambda done, of: bar.update(task, completed=done, total=of)
                )
        else:
            make_ready(wanted, progress=_Lines(console, made, start))
    left = missing(wanted, anew=True)
    files = compiled_files()
    seconds = f", after {time.monotonic() - start:.0f} s" if absent else ""
    console.print(
        f"{len(wanted) - len(left)} of {len(wanted)} {'common ' if few else ''}kernels are ready for {target}{seconds}"
        + (f": {files[0].parent}" if files else "")
    )
    if left:
        console.print(
            "The others are compiled when they are called. Hint: where they can be kept, say with NUMBA_CACHE_DIR"
            if not files
            else "The others could not be compiled: " + ", ".join(left)
        )
        return FAILED
    if folder is not None:
        target_folder = Path(folder) / files[0].parent.name
        target_folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            (target_folder / file.name).write_bytes(file.read_bytes())
    return 0
