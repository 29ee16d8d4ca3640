"""The machine: how much of it this process may use, whatever the machine has.

A container, a batch system or `taskset` gives a process a part of the machine. Numbers that know nothing of that
(``os.cpu_count()``, the total of memory) promise too much. Used by carriers, for ``workers="auto"`` and to refuse
budgets that cannot be kept. Laws:

- **The least counts.** Cores are the least of the cores that the process is bound to (affinity) and of the shares
  of time (``cpu.max``, ``cpu.cfs_quota_us``) that its control group and all groups around it have, rounded up.
  Memory is the least of what the machine has and of the limits of these groups.
- **At least one.** There is always one core. Memory that nobody tells is None.

>>> available_cores() >= 1
True

Cost: some files below ``/proc`` and ``/sys`` are read, in less than a millisecond.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""Bytes from which on a limit is none: the first version of control groups writes a number near 2^63."""


def available_cores(root: Path = _ROOT) -> int:
    """How many cores the threads of this process have at most, at a time. `root` is where ``proc`` and ``sys`` are."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    for folder in _groups(root, "cpu"):
        share = _share(folder)
        if share is not None:
            cores = min(cores, math.ceil(share))
    return max(cores, 1)


def available_memory(root: Path = _ROOT) -> int | None:
    """How many bytes of memory this process and those beside it in its control group have; None if nobody tells."""
    limits = []
    with suppress(OSError, ValueError, IndexError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:")]
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    limits = [limit for limit in limits if limit < _UNLIMITED]
    return min(limits, default=None)


def _share(folder: Path) -> float | None:
    """How many cores' time a control group has."""
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)  # "max" is no number: no limit
    with suppress(OSError, ValueError):
        quota, period = (
            (folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
        )
        if int(quota) > 0:
            return int(quota) / int(period)
    return None


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The control group of this process that a controller looks at, and all groups around it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup"
        if controllers:  # the first version has a tree for each controller
            top /= controllers if (top / controllers).is_dir() else controller
        inside = PurePosixPath(path.lstrip("/"))
        for group in (inside, *inside.parents):
            yield top / group
