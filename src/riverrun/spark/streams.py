"""Streams: a streaming DataFrame feeds an input; every batch of the stream is an epoch.

``run.stream`` comes here; the query hands its batches over through Spark's ``foreachBatch``. Laws:

- **Each batch once.** The id of the query and the number of the batch are logged with the epoch that has the batch's
  rows. A batch of the same query with that number or a lower one is a repetition, and is left out, also after a resume,
  and after other queries have fed the stream. (Another checkpoint folder is another query. Of the queries of one
  stream, the run knows the last 16: `engine.coordinator.epochs`.)
- **Failures repeat, losses do not.** A batch whose epoch is refused fails the query, which repeats the batch when it is
  started again. A batch whose rows cannot be handed over, since workers or executors are lost, is tried again while the
  query goes on (the lost-tasks-run-again law of `ingest`).
- **Brief errors.** The error of a batch reaches Spark without a stack trace of Java's. Spark looks in the text of an
  error for the interrupt by which a query is stopped, with a regular expression that calls itself for each character
  behind the name of Py4J's error (``StreamExecution.PROXY_ERROR``). A trace of some thousand lines would end the
  thread of the query with a StackOverflowError, and hide the failure or the stop. The brief text still names the
  interrupt.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from riverrun.errors import OperatorFailed, PlanError, RiverrunError
from riverrun.runtime.frames import StreamRequest
from riverrun.spark.ingest import check_columns

if TYPE_CHECKING:
    from riverrun.spark.cluster import SparkCluster

MODES = ("insert", "upsert", "delete")
_JAVA_ERROR = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_INTERRUPTS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""Names that Spark takes for a stop of the query, behind the words above."""
_LOG = logging.getLogger(__name__)
TRIGGERS = ("processingTime", "availableNow", "once", "continuous", "realTime")
ARGUMENTS = ("mode", "stream", "checkpoint")
"""The other arguments that `Run.stream` takes by name."""


def start(
    cluster: SparkCluster,
    frame: Any,
    request: StreamRequest,
    wait: Callable[[int], None],
) -> Any:
    """Start the query that feeds an input."""
    name, stream, target, mode = request.input, request.stream, request.target, request.mode
    checkpoint, trigger = request.checkpoint, request.trigger or {}
    if mode not in MODES:
        raise PlanError(
            "spark.stream",
            f"cannot stream into {name!r} with mode={mode!r}",
            hint=f"one of: {', '.join(MODES)}",
        )
    if not getattr(frame, "isStreaming", False):
        raise PlanError(
            "spark.stream",
            f"cannot stream into {name!r}: {type(frame).__name__} is no streaming DataFrame",
            hint=f"spark.readStream gives one; a DataFrame that is whole goes in by run.{mode}({name!r}, frame)",
        )
    before = cluster.streams.get(stream)
    if before is not None and before.isActive:
        raise PlanError(
            "spark.stream",
            f"cannot stream into {name!r}: a stream called {stream!r} is under way, and batches are told apart by it",
            hint="stop it first, or give this one a name of its own: stream=NAME",
        )
    _check_trigger(name, trigger)
    check_columns(frame, target)

    started: list[Any] = []

    def pause_or_stop(seconds: float) -> bool:
        """Pause; return whether the query was stopped meanwhile: the call that stops it waits for this batch."""
        time.sleep(seconds)
        return bool(started) and not started[0].isActive

    def take(batch: Any, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise PlanError(
                "spark.stream",
                f"cannot stream into {name!r}: Spark does not tell which query a batch is of",
                hint="leave PYSPARK_PIN_THREAD as it is by default: true",
            )
        if has(cluster, stream, query, number):
            return
        parcels = cluster.upload(batch, target, pause_or_stop)
        offsets = {stream: [query, number]}
        wait(cluster.submit({}, offsets, {name: tuple(parcels)} if parcels else {}))

    def take_or_tell(batch: Any, number: int) -> None:
        try:
            take(batch, number)
        except Exception as error:
            brief = in_brief(error, f"take batch {number} of {stream!r} into {name!r}")
            if brief is None:
                raise
            _LOG.debug("batch %d of %r failed", number, stream, exc_info=True)
            raise brief from None  # the long trace is that of the cause

    writer = frame.writeStream.foreachBatch(take_or_tell).queryName(f"riverrun {name} {stream}")
    if checkpoint is None and cluster.path is not None:
        checkpoint = f"{cluster.path.rstrip('/')}/streams/{stream}"
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", str(checkpoint))
    if trigger:
        writer = writer.trigger(**trigger)
    query = cluster.streams[stream] = writer.start()
    started.append(query)
    return query


def in_brief(error: Exception, attempt: str) -> Exception | None:
    """The error to raise in place of one whose traceback, causes included, has a trace of Java's; None for others."""
    text = "".join(traceback.format_exception(error))
    _, calls, trace = text.partition(_JAVA_ERROR)
    if not calls:
        return None
    interrupt = next((name for name in _INTERRUPTS if name in trace), None)
    if interrupt is not None:
        call = trace.split("\n", 1)[0].strip()[:100]
        return OperatorFailed(
            "spark.interrupted",
            f"cannot {attempt}: {_JAVA_ERROR} {call} {interrupt}",
            hint="the query was stopped; the batch comes again when it is started again",
        )
    if isinstance(error, RiverrunError):
        return error
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    return OperatorFailed(
        "spark.batch",
        f"cannot {attempt}: a call of Spark failed: {' '.join(lines[:2])[:300]}",
        hint="the log has the whole of it, at level DEBUG; the batch comes again when the query is started again",
    )


def _check_trigger(name: str, trigger: Mapping[str, Any]) -> None:
    """Refuse a keyword that is neither an argument of `Run.stream` nor a trigger of Spark."""
    for argument in trigger:
        if argument not in TRIGGERS:
            close = get_close_matches(argument, (*TRIGGERS, *ARGUMENTS), n=1)
            raise PlanError(
                "spark.stream",
                f"cannot stream into {name!r} with {argument}=: the triggers of Spark are {', '.join(TRIGGERS)}",
                hint=f"did you mean {close[0]}=?"
                if close
                else 'for instance processingTime="1 second"',
            )
    if len(trigger) > 1:
        raise PlanError(
            "spark.stream",
            f"cannot stream into {name!r} with {' and '.join(trigger)}: a query has one trigger",
            hint="give one of them",
        )


def has(cluster: SparkCluster, stream: str, query: str, number: int) -> bool:
    """Whether an epoch has this batch already."""
    offsets = cluster.offsets.get(stream, [])
    return any(known == query and number <= last for known, last in offsets)
