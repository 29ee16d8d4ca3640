"""Kills: real processes die at random moments under load, and no result shows it.

    python -m tests.chaos.kills --kills 200 --seed 7 --on processes
    python -m tests.chaos.kills --kills 50 --on spark --program scc --stream --frames

A suite is a sequence of lives on one checkpoint path (`besieged`). All lives but the last are processes of their own,
and end by kill -9 of the driver; the next life resumes with another number of workers. The last line of output is JSON:
kills by kind, epochs, comparisons, times of recovery. `--program all` takes the programs over collections in turn, each
with a path of its own, and `--program shared` the programs with shared state.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.chaos.besieged import KINDS, Report, Siege, Wrong, alive, besiege
from tests.chaos.loads import NAMES, PROGRAMS, SHARED
from tests.spark.standalone import ROOT, Standalone, session

SLOTS = {"spark": "local[7]"}


def suite(
    siege: Siege,
    drivers: int = 0,
    *,
    spark: Any = None,
    cluster: Standalone | None = None,
    say: Callable[[str], None] = print,
) -> Report:
    """A run that is besieged through several lives: `drivers` of them end by the death of their process."""
    total, source = Report(), random.Random(f"{siege.seed}.drivers")
    share = siege.kills // (drivers + 1)
    for life in range(drivers):
        one = replace(siege, kills=share, life=life, endless=True)
        total.add(_doomed(one, source.uniform(0, 1.0), cluster, say))
    last = replace(siege, kills=siege.kills - share * drivers, life=drivers)
    if cluster is not None or (siege.on == "spark" and spark is None):
        total.add(_child(last, cluster, say))
    else:
        total.add(besiege(last, spark, say))
    return total


def _popen(siege: Siege, cluster: Standalone | None) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "tests.chaos.kills", "--life", json.dumps(asdict(siege))]
    environment = dict(os.environ)
    if cluster is not None:
        command = cluster._command(*command)
        environment = cluster._environment(SPARK_MASTER=cluster.url)
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )  # fmt: skip


def _doomed(
    siege: Siege, after: float, cluster: Standalone | None, say: Callable[[str], None]
) -> Report:
    """A life in a process of its own, which is killed a moment after its kills are done."""
    with _popen(siege, cluster) as child:
        report, pids = _listen(child, say)
        if report is None:
            raise Wrong(f"life {siege.life} ended by itself, with {child.wait()}")
        time.sleep(after)
        child.kill()
        say(f"driver: {child.pid} is killed")
    report.kills["driver"] += 1
    deadline = time.monotonic() + 30
    while siege.on == "processes" and (left := [pid for pid in pids if alive(pid)]):
        if time.monotonic() > deadline:
            raise Wrong(f"workers {left} live on without their driver")
        time.sleep(0.1)
    return report


def _child(siege: Siege, cluster: Standalone | None, say: Callable[[str], None]) -> Report:
    """A life in a process of its own, which ends by itself."""
    with _popen(siege, cluster) as child:
        try:
            report, _ = _listen(child, say)
            code = child.wait(120)
        finally:
            child.kill()
        if code or report is None:
            raise Wrong(f"life {siege.life} ended with {code}")
    return report


def _listen(
    child: subprocess.Popen[str], say: Callable[[str], None]
) -> tuple[Report | None, list[int]]:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("{"):
            said = json.loads(line)
            pids = said.pop("pids")
            report = Report(**said)
            report.kills, report.retries = Counter(report.kills), Counter(report.retries)
            return report, pids
        say(line.rstrip())
    return None, []


def _live(siege: Siege) -> None:
    """What a process does that is one life."""

    def print_report(report: Report, pids: list[int]) -> None:
        print(json.dumps({**vars(report), "pids": pids}), flush=True)

    with ExitStack() as stack:
        spark = None
        if siege.on == "spark":
            spark = stack.enter_context(session(SLOTS["spark"], spark_log_level="OFF"))
        elif siege.on == "standalone":
            spark = stack.enter_context(session(spark_log_level="OFF"))
        report = besiege(siege, spark, lambda text: print(text, flush=True), print_report)
        print_report(report, [])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tests.chaos.kills")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--on", choices=tuple(KINDS), default="processes")
    parser.add_argument("--program", choices=(*NAMES, "all", "shared"), default="all")
    parser.add_argument("--drivers", type=int, default=1, help="lives that end by kill -9")
    parser.add_argument("--stream", action="store_true", help="a Spark stream feeds an input too")
    parser.add_argument("--frames", action="store_true", help="rows come as DataFrames, too")
    parser.add_argument("--poison", type=float, default=0.0, help="the share of epochs that fail")
    parser.add_argument("--kinds", default="", help="of kills, with commas between")
    parser.add_argument("--life", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.life:
        fields = json.loads(options.life)
        lists = {name: tuple(fields[name]) for name in ("kinds", "first")}
        _live(Siege(**{**fields, **lists}))
        return
    seed = random.SystemRandom().randrange(1 << 20) if options.seed is None else options.seed
    shown = f"--seed {seed} --on {options.on} --program {options.program} --kills {options.kills}"
    print(shown, flush=True)
    groups = {"all": list(PROGRAMS), "shared": list(SHARED)}
    names = groups.get(options.program, [options.program])
    if options.stream and not set(names) <= set(PROGRAMS):
        parser.error("--stream feeds an input 'a', which programs with shared state do not have")
    total = Report()
    start = time.monotonic()
    epochs = 0
    with ExitStack() as stack:
        cluster = stack.enter_context(Standalone(cores=3)) if options.on == "standalone" else None
        for at, name in enumerate(names):
            kills = options.kills * (at + 1) // len(names) - options.kills * at // len(names)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="riverrun-kills-"))
            siege = Siege(
                seed + at, kills, options.on, name, str(Path(folder, "run")), stream=options.stream,
                frames=options.frames, poison=options.poison,
                kinds=tuple(filter(None, options.kinds.split(","))),
            )  # fmt: skip
            report = suite(
                siege, options.drivers, cluster=cluster, say=lambda text: print(text, flush=True)
            )
            total.add(report)
            epochs += report.epochs
            print(f"{name}: {json.dumps(report.summed())}", flush=True)
    total.epochs = epochs
    took = round(time.monotonic() - start, 1)
    print(
        json.dumps({"seed": seed, "on": options.on, **total.summed(), "seconds": took}), flush=True
    )


if __name__ == "__main__":
    main()
