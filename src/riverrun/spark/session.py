"""Sessions: finding or making the session of a run, and checking it before workers are started.

`cluster` calls `open_site` when a run starts. A start that cannot succeed is refused here, with the setting that would
help:

- a session has to be made, and Java is missing or too old;
- the session was stopped, or its driver is another process (Spark Connect);
- the session has too few slots: each worker keeps a slot as long as the run lasts, and data jobs need one more;
- the executors have not the memory that each worker is to have.

A session that is made here is local, with a slot for each worker and `DATA_SLOTS` more, and ends with the run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from riverrun.errors import PlanError, RiverrunError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
DATA_SLOTS = 2
"""Task slots for jobs beside the workers, in a session that is made here."""

_LOOPBACK = "127.0.0.1"
_PYTHON = Lock()
_QUIET = Path(__file__).with_name("log4j2.properties")


@dataclass(frozen=True)
class Site:
    """A session, and where its tasks run."""

    session: SparkSession
    ours: bool
    """Whether the session was made here, and ends with the run."""
    local: bool
    """Whether tasks run on this machine, in this application's own JVM."""
    host: str
    """The address at which tasks reach this process."""


def open_site(on: Any, workers: int, memory: int | None = None, taken: int = 0) -> Site:
    """The session to run on: `on` itself, or, where that is "spark", the active session or a new local one.

    `taken` is how many slots of the session other runs occupy.
    """
    pyspark_sql = _pyspark()
    if on == "spark":
        active = active_session()
        if active is None:
            return Site(_local_session(pyspark_sql, workers), True, True, _LOOPBACK)
        on = active
    if type(on).__module__.startswith("pyspark.sql.connect"):
        raise PlanError(
            "spark.connect",
            "cannot run on a Spark Connect session: its driver is another process, which workers could not tell from "
            "this one, and it does not say where executors could reach us",
            hint="run this program where the driver is, with an ordinary session: SparkSession.builder.master(...)",
        )
    if not isinstance(on, pyspark_sql.SparkSession):
        raise PlanError(
            "plan.run",
            f'cannot run on {on!r}: that is no session; `on` is a SparkSession, or "spark" for a local one',
            hint='flow.run(on="spark", workers=2)',
        )
    context = on.sparkContext
    if is_stopped(on):
        raise PlanError(
            "spark.stopped",
            "cannot run on this session: it was stopped",
            hint='make another one, or use on="spark"',
        )
    master = context.master
    local = re.fullmatch(r"local(\[.*\])?", master) is not None
    check_slots(context, workers, taken)
    _check_memory(context, local, workers, memory)
    host = _LOOPBACK if local else str(context.getConf().get("spark.driver.host", _LOOPBACK))
    return Site(on, False, local, host)


def active_session() -> Any:
    """The session of this process, or None."""
    pyspark_sql = _pyspark()
    active = pyspark_sql.SparkSession.getActiveSession()
    if active is None and _context() is not None:  # made by another thread
        active = pyspark_sql.SparkSession.builder.getOrCreate()
    return active


def is_stopped(session: Any) -> bool:
    """Whether a session was stopped, or its JVM is gone. Such a session does not come back."""
    gateway = session.sparkContext._jsc
    try:
        return gateway is None or bool(gateway.sc().isStopped())
    except Exception:  # nobody answers: Py4J has several errors for it
        return True


def _pyspark() -> Any:
    try:
        import pyspark.sql
    except ImportError as error:
        raise PlanError(
            "spark.missing",
            f"cannot run on Spark: pyspark cannot be imported ({error})",
            hint="pip install pyspark; without Spark, flow.run() runs in this process",
        ) from error
    return pyspark.sql


def _context() -> Any:
    """The context of this process, if there is one."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return None if context is None or context._jsc is None else context


def _local_session(pyspark_sql: Any, workers: int) -> SparkSession:
    java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    slots = workers + DATA_SLOTS
    builder = (
        pyspark_sql.SparkSession.builder.master(f"local[{slots}]")
        .appName("riverrun")
        .config("spark.driver.host", _LOOPBACK)
        .config("spark.driver.bindAddress", _LOOPBACK)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_QUIET.as_uri()}")
        .config("spark.sql.shuffle.partitions", str(DATA_SLOTS))
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.python.filterPushdown.enabled", "true")
    )
    session: SparkSession = builder.getOrCreate()
    return session


def java_home() -> str:
    """The folder of a Java that is new enough: that of JAVA_HOME, on the path, or below /usr/lib/jvm. The environment
    is set so that Spark uses it."""
    too_old: dict[str, int] = {}
    java_home_before = os.environ.get("JAVA_HOME")
    candidates = [f"{java_home_before}/bin/java"] if java_home_before else []
    on_path = shutil.which("java")
    candidates += [on_path] if on_path else []
    candidates += sorted(map(str, Path("/usr/lib/jvm").glob("*/bin/java")), reverse=True)
    for candidate in candidates:
        version = _java_version(candidate)
        if version >= OLDEST_JAVA:
            home = str(Path(candidate).resolve().parents[1])
            if candidate != on_path:
                os.environ["JAVA_HOME"] = home
            elif java_home_before:  # JAVA_HOME is an older Java, and Spark would take that first
                del os.environ["JAVA_HOME"]
            return home
        if version:
            too_old[candidate] = version
    old = ", ".join(f"{path} is {version}" for path, version in too_old.items())
    raise RiverrunError(
        "spark.java",
        f"cannot start Spark: it needs Java {OLDEST_JAVA} or later, and "
        + (f"there are older ones only: {old}" if old else "there is none"),
        hint="Debian, Ubuntu: apt-get install openjdk-17-jre-headless; elsewhere set JAVA_HOME to a JDK of 17 or later",
        too_old=too_old,
    )


def _java_version(path: str) -> int:
    """The major version of the Java at a path; 0 where there is none."""
    try:
        completed = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', completed.stderr + completed.stdout)
    return int(match[1]) if match else 0


def slots(master: str) -> int | None:
    """How many tasks a master runs at a time, if its name says so.

    >>> slots("local[4]"), slots("local"), slots("local[3, 2]"), slots("spark://host:7077")
    (4, 1, 3, None)
    """
    if master == "local":
        return 1
    match = re.fullmatch(r"local\[\s*(\*|\d+)\s*(?:,.*)?\]", master)
    if match:
        return (os.cpu_count() or 1) if match[1] == "*" else int(match[1])
    match = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master)
    return int(match[1]) * int(match[2]) if match else None


def known_slots(context: Any) -> int | None:
    """How many tasks a session runs at a time, or None where the session does not say."""
    cores = slots(context.master)
    if cores is None:
        most = context.getConf().get("spark.cores.max", None)
        cores = int(most) if most else None
    return None if cores is None else cores // int(context.getConf().get("spark.task.cpus", "1"))


def check_slots(context: Any, workers: int, taken: int = 0) -> None:
    """Refuse more workers than a session has room for, beside data jobs and the workers of other runs."""
    master = context.master
    known = known_slots(context)
    if known is not None and known < taken + workers + 1:
        wanted = taken + workers + DATA_SLOTS
        others = f" ({taken} of them are kept by other runs)" if taken else ""
        raise PlanError(
            "spark.slots",
            f"cannot run {workers} workers on {master}: it has {known} task slots{others}, workers keep one "
            "each, and data jobs need at least one more",
            hint=f"give it {wanted}: local[{wanted}], or spark.cores.max on a cluster; or run with fewer workers",
            slots=known,
            workers=workers,
        )


def _check_memory(context: Any, local: bool, workers: int, memory: int | None) -> None:
    """Refuse a `memory` that does not fit into executors. State lives in Python processes, whose memory is the overhead
    of an executor, not its heap."""
    if memory is None or local:
        return
    conf = context.getConf()
    cores = int(conf.get("spark.executor.cores", "1"))
    together = min(workers, max(cores // int(conf.get("spark.task.cpus", "1")), 1))
    heap = _bytes(conf.get("spark.executor.memory", "1g"), 1 << 20)
    factor = float(conf.get("spark.executor.memoryOverheadFactor", "0.1"))
    overhead = conf.get("spark.executor.memoryOverhead", None)
    room = _bytes(overhead, 1 << 20) if overhead else max(int(heap * factor), 384 << 20)
    python = conf.get("spark.executor.pyspark.memory", None)
    if python:
        room = max(room, _bytes(python, 1 << 20))
    if together * memory > room:
        needed = -(-together * memory * 5 // 4 >> 20)
        raise PlanError(
            "spark.memory",
            f"cannot give each worker {memory >> 20} MiB: {together} of them can share an executor, whose Python "
            f"processes have {room >> 20} MiB (its memory overhead)",
            hint=f"set spark.executor.memoryOverhead={needed}m when the session is made, or run with a smaller memory=",
            memory=memory,
            room=room,
        )


def _bytes(text: str, unit: int) -> int:
    """A size as Spark's settings write it; a number without a unit counts `unit` bytes.

    >>> _bytes("2g", 1), _bytes("512", 1 << 20)
    (2147483648, 536870912)
    """
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower())
    if match is None:
        raise PlanError("spark.memory", f"cannot read {text!r} as an amount of memory")
    powers = {"k": 10, "m": 20, "g": 30, "t": 40}
    return int(match[1]) * (1 << powers[match[2]] if match[2] else unit)


@contextmanager
def own_python(site: Site) -> Iterator[None]:
    """Have tasks on this machine run with the interpreter of this process, whichever `python3` is on the path."""
    context = site.session.sparkContext
    if not site.local:
        yield
        return
    with _PYTHON:  # several workers start at once, and each puts back the setting that it replaced
        before = context.pythonExec
        context.pythonExec = sys.executable
        try:
            yield
        finally:
            context.pythonExec = before
