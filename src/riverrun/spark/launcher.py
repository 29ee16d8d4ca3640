"""Launching: a worker is a Spark job with a single task, which lasts as long as the worker.

Spark gives the slot, the executor and the interpreter; the rendezvous at the driver says which worker the task is
(`runtime.worker_process`). `SparkLauncher` starts a job through ``DataFrame.mapInArrow`` on a range of one row, in a
thread of its own, under a tag by which the job can be cancelled. The task calls `work`, with the program and, unless
the session is local, the compiled kernels of the plan. Law:

- **Stopped for good.** A job that is stopped ends, even if Spark does not know the job yet, for instance while its
  function is being pickled. Spark cancels only jobs that it knows, so the launcher cancels again until the job is over,
  for a minute at most: by then Spark knows the job. A job that nobody waits for would keep its thread, and wait for a
  slot, for good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from threading import Lock, Thread
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import InheritableThread

from riverrun.engine.messages import MakeInstance
from riverrun.runtime.program import pack_program, unpack_program
from riverrun.runtime.worker_process import Rendezvous, host_worker
from riverrun.spark.session import DATA_SLOTS, Site, own_python, slots
from riverrun.spark.shipping import task
from riverrun.state.kernels.machine_code import CARRIED
from riverrun.state.preparing import carry

_LOG = logging.getLogger(__name__)
_SAID = 600  # characters that are shown of a task's error
_AGAIN = 0.5  # seconds between two attempts to cancel a job
_STOPPING = 60.0  # seconds for which a job is cancelled again: by then Spark knows it


class SparkLauncher:
    """Starts workers as jobs of a session."""

    def __init__(
        self, site: Site, name: str, make_instance: MakeInstance, kernels: Iterable[str] = ()
    ) -> None:
        """`kernels` are the labels of the kernels that workers will call, whose compiled files travel along."""
        self._site = site
        self._name = name
        self._run = uuid4().hex[:12]
        self._make = pack_program(make_instance)
        self._kernels = {} if site.local else carry(kernels)
        self._lock = Lock()
        self._live: dict[int, InheritableThread] = {}
        self._over = False

    def open(self, rendezvous: Rendezvous, ended: Callable[[int, str], None]) -> None:
        self._rendezvous = rendezvous
        self._ended = ended

    def start(self, ticket: int) -> None:
        thread = InheritableThread(
            target=self._work, args=(ticket,), name=f"riverrun-worker-{ticket}", daemon=True
        )
        with self._lock:
            self._live[ticket] = thread
        try:
            thread.start()
        except Exception as error:  # there is no session any more
            with self._lock:
                self._live.pop(ticket, None)
            why = f"the session was stopped ({type(error).__name__}: {error})"
            Thread(target=self._ended, args=(ticket, why), daemon=True).start()

    def _tag(self, ticket: int) -> str:
        return f"riverrun-{self._run}-{ticket}"

    def _work(self, ticket: int) -> None:
        """In a thread: one job, from start to end."""
        site, why = self._site, "it ended"
        session = site.session
        try:
            session.sparkContext.addJobTag(self._tag(ticket))
            # A job group of its own: the worker goes on when the user cancels the group of the thread that started it.
            session.sparkContext.setJobGroup(
                self._tag(ticket), f"riverrun: a worker of {self._name!r}", interruptOnCancel=True
            )
            rendezvous = replace(self._rendezvous, ticket=ticket)
            argument = pack_program((rendezvous, self._make, self._kernels))
            function = task(__name__, "work", argument, ship=not site.local)
            with own_python(site):
                job = session.range(0, 1, 1, 1).mapInArrow(function, "why string")
            (row,) = job.collect()
            why = row.why
        except Exception as error:
            why = _said(error)
            if not self._over:
                _LOG.warning("a worker of %r ended: %s", self._name, why)
        finally:
            with self._lock:
                self._live.pop(ticket, None)
            self._ended(ticket, why)

    def stop(self, ticket: int) -> None:
        with self._lock:
            thread = self._live.get(ticket)
        if thread is not None:
            Thread(
                target=self._interrupt, args=(ticket, thread), name="riverrun-stop", daemon=True
            ).start()

    def _interrupt(self, ticket: int, thread: InheritableThread) -> None:
        """In a thread: cancel a job until it is over."""
        deadline = time.monotonic() + _STOPPING
        while thread.is_alive() and time.monotonic() < deadline:
            with suppress(Exception):
                # Not session.interruptTag, which knows only the tags of the calling thread.
                self._site.session.sparkContext.cancelJobsWithTag(self._tag(ticket))
            thread.join(_AGAIN)

    def advice(self, present: int, wanted: int) -> str:
        context = self._site.session.sparkContext
        known = slots(str(context.master))
        with suppress(Exception):
            known = known or int(context.defaultParallelism)
        return (
            f"the session at {context.master} seems to have {known} task slots; workers keep one each, and data jobs "
            f"need some more: give it {wanted + DATA_SLOTS} (spark.cores.max, spark.executor.instances), run with "
            "fewer workers, or free slots that other jobs keep; executors must be able to connect to "
            f"{self._rendezvous.address} (spark.driver.host); timeout= gives them longer"
        )

    def close(self) -> None:
        self._over = True
        with self._lock:
            live = dict(self._live)
        for ticket in live:
            self.stop(ticket)
        for thread in live.values():
            thread.join(10)
        if self._site.ours:
            self._site.session.stop()


def work(argument: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of the task: be a worker until the run needs it no more."""
    for _ in batches:
        pass
    rendezvous, make, kernels = unpack_program(argument)
    CARRIED.update(kernels)
    why = host_worker(rendezvous, unpack_program(make))
    yield pa.record_batch({"why": [why]})


def _said(error: BaseException) -> str:
    """The message of a failed job, without Java's stack trace around it."""
    text: Any = getattr(error, "_desc", None) or str(error)
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    telling = [
        line for line in lines
        if ("Error" in line or "Exception" in line) and not line.startswith(("at ", "File "))
        and not line.endswith("java.io.EOFException")  # a process that is gone: the line before says so
    ]  # fmt: skip
    shown = telling[-1] if telling else lines[0] if lines else type(error).__name__
    return shown[:_SAID]
