"""Streams: a streaming DataFrame feeds an input; every batch of it is an epoch.

Over ``foreachBatch``. Law: each batch counts once. How far a stream has come is logged with the epoch
that has its rows, as the id of the query and the number of the batch; a batch of that query with
that number or a lower one is a repetition, and is left out, also after a resume. A batch whose
epoch is refused fails the query, which repeats it when it is started again. A batch whose rows cannot be handed
over since workers or executors are lost is tried again (law 4 of `ingest`): the query goes on.

Law: **told briefly**. What fails a batch reaches Spark without a trace of Java's. Spark looks in the text of a failure
for the interrupt by which a query is stopped, with a regular expression that calls itself for each character behind
the name of Py4J's error (``StreamExecution.PROXY_ERROR``): a trace of some thousand lines ends the thread of the query
with a StackOverflowError, in place of the failure, or of the stop. The text that is left says which interrupt it was.
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
"""What Spark takes for a stop, behind the words above."""
_LOG = logging.getLogger(__name__)
TRIGGERS = ("processingTime", "availableNow", "once", "continuous", "realTime")
ARGUMENTS = ("mode", "stream", "checkpoint")
"""What else `Run.stream` takes by name."""


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
        """Pause; whether the query was stopped meanwhile: whoever stops it waits for the batch under way."""
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
            raise brief from None  # the cause is what is long

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
    """What to raise in place of an error whose traceback has a trace of Java's, be it of a cause; None for others."""
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
    """Refuse what is neither an argument of ours nor a trigger of Spark's."""
    for given in trigger:
        if given not in TRIGGERS:
            close = get_close_matches(given, (*TRIGGERS, *ARGUMENTS), n=1)
            raise PlanError(
                "spark.stream",
                f"cannot stream into {name!r} with {given}=: the triggers of Spark are {', '.join(TRIGGERS)}",
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
    """Whether a batch has come before."""
    known = cluster.offsets.get(stream)
    return known is not None and known[0] == query and number <= known[1]
