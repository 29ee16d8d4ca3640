"""Ingest: the rows of a DataFrame go from Spark's own tasks straight to the workers.

Each task conforms its rows to the declared columns and hands them to the workers as parcels
(`engine.staging`), a batch to each in turn; the job's result names the parcels. Laws:

1. **Once.** Of a task that Spark ran several times, the attempt that Spark committed is the one whose
   parcels are named; what others handed in is let go of. So retries and speculation neither double
   nor lose a row.
2. **All or nothing.** A DataFrame that fails halfway names nothing.
3. **Not in the way.** When the run begins another execution, tasks fail at once, so that they do not
   hold the slots that a replacement needs.
4. **A loss is no end.** When workers, or executors with tasks of the job, are lost, the job is run again when the
   workers are back, until it has failed for `retry.DEADLINE` seconds. A DataFrame that fails by itself is not, nor
   is one whose session was stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from riverrun.engine.asking import Asker, Security, Stage
from riverrun.engine.messages import Parcel
from riverrun.engine.operators.upsert import DELETED, FRAME, SEQUENCE
from riverrun.engine.remote import RemoteCluster
from riverrun.engine.wire import describe, pack, revive, unpack
from riverrun.errors import OperatorFailed, RiverrunError, TransportError
from riverrun.interrupts import exposed, sleep
from riverrun.retry import is_outage, persist
from riverrun.spark.session import Site, is_stopped, own_python
from riverrun.spark.shipping import task
from riverrun.state.types import empty_batch

_LOST = ("ExecutorLostFailure", "executor loss", "Executor lost", "Lost executor")
"""How Spark says that it gave a job up since executors were lost."""
PARTITION_BITS = 32


@dataclass(frozen=True)
class Target:
    """Where rows go, and as what."""

    schema: pa.Schema
    """The declared columns."""
    key: tuple[str, ...]
    delete: bool
    attempt: str
    """What is being done, for messages: "insert into 'edges'"."""
    conform: Callable[[Any, pa.Schema, str], pa.RecordBatch]
    """Brings rows to the declared columns, or refuses them."""
    sequence: int = 0
    """Where the numbers of commands start, for inputs with a key."""


@dataclass(frozen=True)
class _Order:
    """What a task is told."""

    target: Target
    upload: str
    driver: str
    """Where a task asks who the workers are, when it begins: by then some may have been lost."""
    security: Security


def upload(
    cluster: RemoteCluster,
    site: Site,
    frame: Any,
    target: Target,
    wait: Callable[[float], object] = sleep,
) -> list[Parcel]:
    """Hand the rows of a DataFrame to the workers; the names of the parcels that count.

    `wait` pauses before it is tried again; where it gives True, nobody wants the rows any more.
    """
    check_columns(frame, target)
    return persist(lambda: _upload(cluster, site, frame, target), target.attempt, wait=wait)


def _upload(cluster: RemoteCluster, site: Site, frame: Any, target: Target) -> list[Parcel]:
    """One try."""
    cluster.members()  # when they are there; each task asks again
    name = cluster.new_upload()
    order = _Order(target, name, cluster.address, cluster.security)
    function = task(__name__, "send", cloudpickle.dumps(order), ship=not site.local)
    try:
        with own_python(site):
            job = frame.mapInArrow(function, "told binary")
        told = [unpack(row.told) for row in exposed(job.collect)]
    except Exception as error:
        cluster.forget_upload(name, ())
        raise _failed(error, target.attempt, stopped=is_stopped(site.session)) from error
    except BaseException:
        cluster.forget_upload(name, ())
        raise
    failed = [revive(each) for each in told if isinstance(each, dict)]
    if failed:
        cluster.forget_upload(name, ())
        final = [error for error in failed if not is_outage(error)]
        raise (final or failed)[0]
    parcels = [parcel for listed in told for parcel in listed]
    cluster.forget_upload(name, [parcel.name for parcel in parcels])
    return parcels


def _failed(error: Exception, attempt: str, *, stopped: bool = False) -> RiverrunError:
    """What it means that Spark has given a job up; `stopped` tells whether the session was."""
    if stopped:  # executors are lost with it, and do not come back
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
    nothing = pa.record_batch([pa.array([], field.type) for field in columns], schema=columns)
    conformed(nothing, target, 0)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error:" in line or "Exception:" in line]
    return (telling or lines or [type(error).__name__])[-1 if telling else 0][:300]


def send(argument: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task does: hand rows in, and name the parcels; or tell why it cannot, which Spark need not retry."""
    from pyspark import TaskContext

    order: _Order = cloudpickle.loads(argument)
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    attempt = context.taskAttemptId() if context else 0
    told: Any
    try:
        told = _send(order, batches, partition, attempt)
    except RiverrunError as error:
        told = describe(error)
    yield pa.record_batch({"told": [pack(told)]})


def _send(
    order: _Order, batches: Iterator[pa.RecordBatch], partition: int, attempt: int
) -> list[Parcel]:
    name = f"{order.upload}-{partition}-{attempt}"
    with ExitStack() as stack:

        def asker(address: str) -> Asker:
            made = Asker(address, order.security)
            stack.callback(made.close)
            return made

        execution, members = asker(order.driver).ask("members")
        askers = [(asker(address), (name, member, execution)) for member, address in members]
        return _hand_out(order.target, batches, partition, askers)


def _hand_out(
    target: Target,
    batches: Iterator[pa.RecordBatch],
    partition: int,
    askers: list[tuple[Asker, Any]],
) -> list[Parcel]:
    """Give the batches to the workers in turn; with each worker comes what it is told about them."""
    stages: list[Stage | None] = [None] * len(askers)
    sequence = target.sequence + (partition << PARTITION_BITS)
    numbers = range(sequence, sequence + (1 << PARTITION_BITS))
    for at, given in enumerate(batches):
        if not given.num_rows:
            continue
        batch = conformed(given, target, sequence)
        sequence += batch.num_rows
        if target.key:
            _check_numbers(target, partition, sequence - 1 in numbers)
        to = (partition + at) % len(askers)
        stage = stages[to]
        if stage is None:
            asker, about = askers[to]
            stage = stages[to] = asker.stage(about, batch.schema)
        stage.write(batch)
    parcels: list[Parcel] = []
    for stage in stages:
        if stage is not None:
            parcels += stage.done()
    return parcels


def _check_numbers(target: Target, partition: int, enough: bool) -> None:
    """No two commands of an epoch have the same number (law of `engine.operators.upsert`)."""
    most = FRAME >> PARTITION_BITS
    if partition >= most or not enough:
        raise OperatorFailed(
            "spark.commands",
            f"cannot {target.attempt}: the rows of partition {partition} cannot be numbered",
            hint=f"for an input with a key a DataFrame has at most {most} partitions, of {1 << PARTITION_BITS} rows: "
            "repartition it",
            partition=partition,
        )


def conformed(given: pa.RecordBatch, target: Target, sequence: int) -> pa.RecordBatch:
    """Rows as an input is fed them: the declared columns, for an input with a key what is to be done, and `diff`."""
    schema, rows = target.schema, given.num_rows
    if target.key and target.delete:
        keys = pa.schema([schema.field(name) for name in target.key])
        if set(given.schema.names) != set(schema.names):
            found = target.conform(given, keys, target.attempt)
        else:
            found = target.conform(given, schema, target.attempt)
        canonical = target.conform(empty_batch(schema), schema, target.attempt).schema
        columns = [
            found.column(field.name) if field.name in target.key else pa.nulls(rows, field.type)
            for field in canonical
        ]
    else:
        columns = list(target.conform(given, schema, target.attempt).columns)
    names = list(schema.names)
    diff = -1 if target.delete and not target.key else 1
    if target.key:
        columns += [
            pa.array(np.arange(sequence, sequence + rows)),
            pa.array(np.full(rows, target.delete)),
        ]
        names += [SEQUENCE, DELETED]
    columns.append(pa.array(np.full(rows, diff, np.int64)))
    return pa.record_batch(columns, names=[*names, "diff"])
