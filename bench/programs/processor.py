"""The time of the processor that processes have used: for benchmarks, and for programs of peers."""

from __future__ import annotations

import os
from pathlib import Path


def processor_seconds(*, own: bool = True) -> float:
    """Seconds of the processor that this process and all that it has started have used so far; without `own`, those of
    the others alone. Processes that have ended do not count; a tick is a hundredth of a second."""
    ticks, parents = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
            parents[int(folder.name)] = int(fields[1])
    here = os.getpid()
    children: dict[int, list[int]] = {}
    for process, parent in parents.items():
        children.setdefault(parent, []).append(process)
    total, left = 0, list(children.get(here, []))
    if own:
        total += ticks[here]
    while left:
        process = left.pop()
        total += ticks[process]
        left += children.get(process, [])
    return total / float(os.sysconf("SC_CLK_TCK"))
