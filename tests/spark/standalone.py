"""A real Spark cluster on this machine: a standalone master and workers, each a process.

A Python process has one SparkContext at a time, and that of the tests belongs to the fixture ``spark``. So a driver
program for the cluster runs in an interpreter of its own:

    @pytest.mark.cluster
    def test_sums(standalone: Standalone) -> None:
        assert standalone.run(program, 10) == "45\\n"

    def program(rows: int) -> None:  # runs in another process, with SPARK_MASTER set
        with session() as spark:
            print(spark.range(rows).groupBy().sum().first()[0])

Everything listens on loopback, on ports that the system chooses. Every process started here leads a session (setsid)
and dies with this process, also with kill -9. The processes in these sessions, executors and their Python workers
included, are the cluster, and only they are ended.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.find_spark_home import _find_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "127.0.0.1"
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"  # for a JVM of seconds

# Runs the command after it, which the kernel kills when the process that started it is gone.
DIES_WITH_PARENT = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL, parent = 1, 9, int(sys.argv[1])
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
if os.getppid() == parent:  # and not gone before
    os.execvp(sys.argv[2], sys.argv[2:])
"""
CALL = """
import sys
from pyspark import cloudpickle
with open(sys.argv[1], "rb") as file:
    function, arguments = cloudpickle.load(file)
function(*arguments)
"""


def in_another_process(program: str, *arguments: str, **environment: str) -> str:
    """What a program prints that has no session yet."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"--driver-java-options '{QUICK_START}' pyspark-shell",
            "SPARK_LOCAL_IP": LOOPBACK,
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,  # a machine may be busy with others
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def session(master: str | None = None, **conf: str) -> SparkSession:
    """A session on `master`, by default $SPARK_MASTER; ``spark_executor_cores="1"`` sets an option."""
    from pyspark.sql import SparkSession

    os.environ.setdefault(
        "PYSPARK_PYTHON", sys.executable
    )  # for tasks; Spark's own choice: python3
    options = {
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.driver.host": LOOPBACK,
        "spark.driver.memory": "1g",
        "spark.executor.extraJavaOptions": QUICK_START,
        "spark.executor.memory": "512m",
        "spark.log.level": "ERROR",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **{name.replace("_", "."): value for name, value in conf.items()},
    }
    builder = SparkSession.builder.master(master or os.environ["SPARK_MASTER"]).appName("riverrun")
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Standalone:
    """The cluster, between ``with`` and its end."""

    def __init__(self, workers: int = 2, cores: int = 2, memory: str = "1g") -> None:
        self.url = ""
        self.directory = Path(tempfile.mkdtemp(prefix="riverrun-spark-"))
        self._count = workers
        self._worker_options = ("--cores", str(cores), "--memory", memory)
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self._sessions: set[int] = set()

    def __enter__(self) -> Standalone:
        try:
            self._master = self._start("master", "--port", "0")
            self.url = self._wait_for("master", r"Starting Spark master at (spark://\S+)")
            while len(self._workers) < self._count:
                self.add_worker(wait=False)
            for i in range(self._count):
                self._wait_for(f"worker-{i}", "Successfully registered with master")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def session(self, **conf: str) -> SparkSession:
        """A session of this process on the cluster, where there is no other."""
        return session(self.url, **conf)

    def run(
        self,
        program: str | Path | Callable[..., object],
        *arguments: Any,
        timeout: float = 240,
        **environment: str,
    ) -> str:
        """What a program prints that runs in a new interpreter, with SPARK_MASTER set.

        `program` is Python source, a file, or a function with its module: it may call what stands
        beside it. Source and files find the arguments, as strings, in ``sys.argv``.
        """
        with tempfile.TemporaryDirectory(dir=self.directory) as directory:
            if callable(program):
                pickled = Path(directory, "call")
                pickled.write_bytes(_by_value(program, arguments))
                command = ["-c", CALL, str(pickled)]
            elif isinstance(program, Path):
                command = [str(program), *map(str, arguments)]
            else:
                command = ["-c", program, *map(str, arguments)]
            process = subprocess.Popen(
                self._command(sys.executable, *command),
                cwd=ROOT,
                env=self._environment(SPARK_MASTER=self.url, **environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException as error:
                _end({process.pid})
                out, err = process.communicate()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise TimeoutError(f"no end within {timeout} s\n{out}\n{err}") from None
                raise
            # The JVM of the driver ends when it notices that the program has.
            _end({process.pid}, patience=10)
        if process.returncode:
            raise RuntimeError(f"the program ended with {process.returncode}\n{out}\n{err}")
        return out

    def add_worker(self, *, wait: bool = True) -> int:
        """Starts one more worker; its number."""
        i = len(self._workers)
        options = (*self._worker_options, "--work-dir", str(self.directory / f"work-{i}"))
        host = f"127.0.0.{i % 250 + 1}"  # as if each were a machine
        self._workers.append(self._start(f"worker-{i}", *options, self.url, host=host))
        if wait:
            self._wait_for(f"worker-{i}", "Successfully registered with master")
        return i

    def kill_worker(self, i: int) -> None:
        """kill -9 of the worker and its executors at once, as when their machine is gone."""
        _end({self._workers[i].pid})
        self._workers[i].wait()

    @property
    def workers(self) -> list[int]:
        """The process ids of the workers, each the session of all that belongs to the worker."""
        return [worker.pid for worker in self._workers]

    def processes(self) -> set[int]:
        """What runs of the cluster: master, workers, executors, their Python workers."""
        return _processes(self._sessions)

    def log(self, name: str) -> str:
        """What ``master`` or ``worker-0`` has said."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """Ends what was started here, and forgets what it wrote."""
        _end(self._sessions)
        for process in (*self._workers, *filter(None, [self._master])):
            process.wait()
        self._sessions.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self, name: str, *options: str, host: str = LOOPBACK) -> subprocess.Popen[bytes]:
        kind = name.partition("-")[0]
        command = self._command(
            str(Path(_find_spark_home(), "bin", "spark-class")),
            f"org.apache.spark.deploy.{kind}.{kind.capitalize()}",
            *("--host", host, "--webui-port", "0"),
            *options,
        )
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._sessions.add(process.pid)
        return process

    def _command(self, *command: str) -> list[str]:
        return [sys.executable, "-ISc", DIES_WITH_PARENT, str(os.getpid()), *command]

    def _environment(self, **more: str) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_CONF_DIR": str(self.directory),  # no spark-env.sh of this machine
            "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LAUNCHER_OPTS": QUICK_START,
            "SPARK_LOCAL_DIRS": str(self.directory),
            "SPARK_LOCAL_IP": LOOPBACK,
            **more,
        }

    def _wait_for(self, name: str, pattern: str, patience: float = 120) -> str:
        """The first group of `pattern`, or all of it, once the log has it."""
        process = self._master if name == "master" else self._workers[int(name.split("-")[1])]
        assert process is not None
        deadline = time.monotonic() + patience
        while not (match := re.search(pattern, self.log(name))):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not say {pattern!r}:\n{self.log(name)}")
            time.sleep(0.05)
        return match.group(match.lastindex or 0)


def _by_value(function: Callable[..., object], arguments: tuple[Any, ...]) -> bytes:
    """The function and what it uses of its module, which the other interpreter need not have."""
    module = sys.modules[function.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        pickled: bytes = cloudpickle.dumps((function, arguments))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    return pickled


def _processes(sessions: set[int]) -> set[int]:
    """The processes of these sessions that have not ended."""
    numbers = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone in between
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) in sessions and state != "Z":
                numbers.add(int(stat.parent.name))
    return numbers


def _end(sessions: set[int], patience: float = 0) -> None:
    """Kills the processes of these sessions, each by its id; first gives them time to end."""
    start = time.monotonic()
    while left := _processes(sessions):
        if time.monotonic() - start >= patience:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
