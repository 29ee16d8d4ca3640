"""Ingest: the rows of a DataFrame go from Spark's own tasks straight to the workers.

``run.insert`` of a DataFrame and every batch of a stream (`streams`) come here. A job of Spark runs `send` on each
partition: it conforms the rows to the declared columns and hands them to the workers as parcels, a batch to each
worker in turn. The job's result names the parcels. Laws:

- **Once.** Where Spark ran a task several times, only the parcels of the attempt that Spark committed are named; the
  parcels of other attempts are dropped. So retries and speculation neither double nor lose a row.
- **All or nothing.** A DataFrame that fails halfway names no parcel.
- **No slot held.** When the run begins another execution, workers refuse rows of tasks that had begun before, so these
  tasks end at once. They would hold the slots that a replacement needs, which is a task of Spark too.
- **Errors are results.** A task that cannot hand its rows in returns the error in place of parcels. So Spark takes the
  task for done, and does not run the task again.
- **Lost tasks run again.** When workers, or executors with tasks of the job, are lost, the job is run again once the
  workers are back, until it has failed for `retry.DEADLINE` seconds. A DataFrame that fails by itself is not run
  again, nor is one whose session was stopped.

Cost: one job. The rows go over the network once, from the tasks to the workers; the driver gets the names of parcels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pyarrow as pa

from riverrun.engine.messages import Parcel
from riverrun.errors import OperatorFailed, RiverrunError, TransportError
from riverrun.interrupts import exposed, sleep
from riverrun.retry import is_outage, persist
from riverrun.rows.commands import partition_numbers, too_many_commands
from riverrun.runtime.codec.plain import describe, pack, revive, unpack
from riverrun.runtime.frames import Target
from riverrun.runtime.network.client import Asker, RowUpload
from riverrun.runtime.network.connection import Credentials
from riverrun.runtime.remote import RemoteCluster
from riverrun.spark.session import Site, is_stopped, own_python
from riverrun.spark.shipping import task

_LOST = ("ExecutorLostFailure", "executor loss", "Executor lost", "Lost executor")
"""Words in Spark's message when it gives a job up since executors were lost."""


@dataclass(frozen=True)
class _TaskOrder:
    """What a task needs to know to hand its rows in."""

    target: Target
    upload: str
    driver: str
    """The address where a task, when it begins, asks for the workers: some may have been lost since the job began."""
    credentials: Credentials


def upload(
    cluster: RemoteCluster,
    site: Site,
    frame: Any,
    target: Target,
    wait: Callable[[float], object] = sleep,
) -> list[Parcel]:
    """Hand the rows of a DataFrame to the workers; return the parcels that count.

    `wait` pauses before another try; where it returns True, nobody wants the rows any more.
    """
    check_columns(frame, target)
    return persist(lambda: _upload(cluster, site, frame, target), target.attempt, wait=wait)


def _upload(cluster: RemoteCluster, site: Site, frame: Any, target: Target) -> list[Parcel]:
    """One try."""
    cluster.members()  # waits until workers are there; each task asks again
    name = cluster.new_upload()
    order = _TaskOrder(target, name, cluster.address, cluster.credentials)
    function = task(__name__, "send", cloudpickle.dumps(order), ship=not site.local)
    try:
        with own_python(site):
            job = frame.mapInArrow(function, "outcome binary")
        outcomes = [unpack(row.outcome) for row in exposed(job.collect)]
    except Exception as error:
        cluster.forget_upload(name, ())
        raise _failed(error, target.attempt, stopped=is_stopped(site.session)) from error
    except BaseException:
        cluster.forget_upload(name, ())
        raise
    failed = [revive(each) for each in outcomes if isinstance(each, dict)]
    if failed:
        cluster.forget_upload(name, ())
        final = [error for error in failed if not is_outage(error)]
        raise (final or failed)[0]
    parcels = [parcel for listed in outcomes for parcel in listed]
    cluster.forget_upload(name, [parcel.name for parcel in parcels])
    return parcels


def _failed(error: Exception, attempt: str, *, stopped: bool = False) -> RiverrunError:
    """The error of a job that Spark has given up; `stopped` tells whether the session was stopped."""
    if stopped:  # executors are lost with the session, and do not come back
        return TransportError(
            "spark.stopped",
            f"cannot {attempt}: the Spark session was stopped, and nothing of the DataFrame is applied",
            hint="the run ends with its session: start it again on another one, with the same checkpoint path",
        )
    if any(sign in str(error) for sign in _LOST):
        return TransportError(
            "spark.lost",
            f"cannot {attempt}: Spark has lost executors with tasks of the DataFrame, and nothing of it is applied: "
            f"{_first_line(error)}",
            hint="look at the logs of the executors for why they end; a lack of memory is the usual cause",
        )
    return OperatorFailed(
        "spark.dataframe",
        f"cannot {attempt}: the DataFrame failed, and nothing of it is applied: {_first_line(error)}",
        hint="the cause has what Spark says; mend it and insert again",
    )


def upload_of(parcel: Parcel) -> str:
    """The name of the upload that a parcel belongs to."""
    return parcel.name.partition("-")[0]


def check_columns(frame: Any, target: Target) -> None:
    """Refuse columns that do not fit, before anything runs."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    columns = to_arrow_schema(frame.schema, timezone=zone)
    nothing = pa.record_batch([pa.nulls(0, field.type) for field in columns], schema=columns)
    conformed(nothing, target, 0)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error:" in line or "Exception:" in line]
    return (telling or lines or [type(error).__name__])[-1 if telling else 0][:300]


def send(argument: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of a task: hand rows in and return the parcels; or return the error, which Spark need not retry."""
    from pyspark import TaskContext

    order: _TaskOrder = cloudpickle.loads(argument)
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    attempt = context.taskAttemptId() if context else 0
    outcome: Any
    try:
        outcome = _send(order, batches, partition, attempt)
    except RiverrunError as error:
        outcome = describe(error)
    yield pa.record_batch({"outcome": [pack(outcome)]})


def _send(
    order: _TaskOrder, batches: Iterator[pa.RecordBatch], partition: int, attempt: int
) -> list[Parcel]:
    name = f"{order.upload}-{partition}-{attempt}"
    with ExitStack() as stack:

        def asker(address: str) -> Asker:
            new_asker = Asker(address, order.credentials)
            stack.callback(new_asker.close)
            return new_asker

        execution, members = asker(order.driver).ask("members")
        askers = [(asker(address), (name, member, execution)) for member, address in members]
        return _hand_out(order.target, batches, partition, askers)


def _hand_out(
    target: Target,
    batches: Iterator[pa.RecordBatch],
    partition: int,
    askers: list[tuple[Asker, Any]],
) -> list[Parcel]:
    """Give the batches to the workers in turn. `askers` has for each worker its client, and the upload's name, the
    member and the execution, which the worker checks."""
    stages: list[RowUpload | None] = [None] * len(askers)
    numbers = partition_numbers(target.sequence, partition)
    sequence = numbers.start
    for at, rows_of_spark in enumerate(batches):
        if not rows_of_spark.num_rows:
            continue
        if target.form.key and sequence + rows_of_spark.num_rows > numbers.stop:
            raise too_many_commands(partition, target.attempt)
        batch = conformed(rows_of_spark, target, sequence)
        sequence += batch.num_rows
        to = (partition + at) % len(askers)
        stage = stages[to]
        if stage is None:
            asker, about = askers[to]
            stage = stages[to] = asker.begin_upload(about, batch.schema)
        stage.write(batch)
    parcels: list[Parcel] = []
    for stage in stages:
        if stage is not None:
            parcels += stage.done()
    return parcels


def conformed(batch: pa.RecordBatch, target: Target, sequence: int) -> pa.RecordBatch:
    """Rows in the form that an input is fed; `sequence` is the number of the first command, for an input with a key."""
    form = target.form
    rows = (form.deletion if target.delete else form.conform)(batch, target.attempt)
    return form.fed(rows, delete=target.delete, first=sequence)
