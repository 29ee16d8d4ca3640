"""Clocks, memory and the hardware line."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version as package_version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np


def seconds(run: Callable[[], Any], times: int = 5) -> float:
    """The median time of several runs."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def timed(
    run: Callable[[], Any], processor: Callable[[], float] = time.process_time
) -> tuple[float, float]:
    """The time that a call takes: by the clock, and of the processor, which the other argument reads."""
    used, begin = processor(), time.perf_counter()
    run()
    wall = time.perf_counter() - begin
    return wall, processor() - used


def spread_of(taken: Sequence[tuple[float, float]], digits: int = 3) -> dict[str, float]:
    """Times of `timed` in milliseconds: the median and the 99th percentile of each kind."""
    figures = {}
    for name, each in zip(("wall", "cpu"), zip(*taken, strict=True), strict=True):
        figures[f"{name}_ms"] = round(statistics.median(each) * 1e3, digits)
        figures[f"{name}_ms_p99"] = round(float(np.percentile(each, 99)) * 1e3, digits)
    return figures


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int:
    """The most memory that this process has had in RAM so far."""
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def granted() -> float | None:
    """The time that this thread has run so far, as a part of the time that it wanted to run; it waited for the rest.

    At 0.5 others had the processor half of the time, and every time measured is twice as long as on an idle machine.
    """
    try:
        ran, waited = map(int, Path("/proc/self/schedstat").read_text().split()[:2])
    except OSError:
        return None
    return round(ran / (ran + waited), 2)


def alone(call: str) -> Any:
    """The value of a call such as ``bench.memory.measure_ours(10)``, made in a process of its own."""
    module = call.partition("(")[0].rpartition(".")[0]
    code = f"import json, {module}; print(json.dumps({call}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])


def at_most(figure: float, limit: float) -> dict[str, Any]:
    """A figure, and what was asked of it."""
    return {"ours": figure, "asked": f"<= {limit}", "met": figure <= limit}


def at_least(figure: float, limit: float) -> dict[str, Any]:
    """A figure, and what was asked of it."""
    return {"ours": figure, "asked": f">= {limit}", "met": figure >= limit}


def ratio(over: float, under: float) -> float:
    """A ratio, to three digits."""
    return float(f"{over / under:.3g}")


def installed(package: str) -> bool:
    return find_spec(package) is not None


def version(package: str) -> str:
    return f"{package} {package_version(package)}"


def scale(name: str, default: float) -> int:
    """A size, which the environment may change: BENCH_ROWS=1e6 python -m bench lookup."""
    return int(float(os.environ.get(f"BENCH_{name.upper()}", default)))


def hardware() -> dict[str, Any]:
    """The machine, with two calibrations: a Python loop, and random reads of memory."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )

    def loop() -> None:
        for step in range(1_000_000):
            step + 1

    def read() -> None:
        cells[places].sum()

    cells = np.arange(1 << 24)
    places = np.random.default_rng(0).integers(0, 1 << 24, 1 << 20)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "granted": granted(),
        "python": platform.python_version(),
        "loop_ns": round(seconds(loop) * 1e3, 1),
        "random_read_ns": round(seconds(read) * 1e9 / (1 << 20), 2),
    }
