"""The machine: how many cores and how much memory this process may use, which may be less than the machine has.

A container, a batch system or `taskset` gives a process a part of the machine. Numbers that do not take that into
account (``os.cpu_count()``, the total of memory) promise too much. Carriers use this module for ``workers="auto"``, and
to refuse memory budgets that cannot be kept. (`freeze` has the garbage collector of this process do less.) Laws:

- **The least counts.** The number of cores is the least of the number that the process is bound to (affinity) and of
  the shares of time (``cpu.max``, ``cpu.cfs_quota_us``) that its control group and all groups around that have, rounded
  up. The memory is the least of the machine's total and of the limits of these groups.
- **At least one.** There is always one core. Where neither the machine nor a group tells its memory, the memory is
  None.

>>> available_cores() >= 1
True

Cost: some files below ``/proc`` and ``/sys`` are read, in less than a millisecond.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""Bytes from which on a number means "no limit": the first version of control groups writes one near 2^63."""


def available_cores(root: Path = _ROOT) -> int:
    """How many cores the threads of this process have at a time. `root` is the folder of ``proc`` and ``sys``."""
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
    """How many bytes of memory this process and the others of its control group have together; None if unknown."""
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
    """How many cores' worth of time a control group has; None if it has no limit."""
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
    """The control group of this process for a controller ("cpu" or "memory"), then all groups around that group."""
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


@cache
def freeze() -> None:
    """Have the garbage collector ignore all objects that exist by now: walking them takes 40 ms, at any moment."""
    gc.collect()
    gc.freeze()
