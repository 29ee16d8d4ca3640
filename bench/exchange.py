"""How fast rows of three int64 columns travel on Spark: between two workers, and from a DataFrame to them.

*Exchange*: each worker makes one chunk of rows after the other, all in one epoch; rows go to the worker that owns their
key, half of them to the other worker, and are counted there. `without` is the same program without an exchange: the
cost of making, handing over and counting rows. *Link*: the rows alone from one process to another, coded and decoded,
one way. *Ingest*: `run.insert(df)` and `commit()` of a cached DataFrame into a plan that only counts. Its peer is
`df.mapInArrow` with a function that counts the rows of its batches: the cost for Spark of bringing the same rows to
Python. The number of rows is checked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from threading import Event
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import riverrun as rr
from bench.measure import at_least, ratio, scale, version
from bench.sessions import session

WORKERS = 2
COLUMNS = {"key": pl.Int64, "a": pl.Int64, "b": pl.Int64}
WIDTH = 24  # bytes of a row


def some_rows(rows: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 1 << 40, rows) for name in COLUMNS}


class Source(rr.Vertex):
    """Sends the same rows as often as it is told, once in each round of a loop: what was sent travels in between."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def start(self) -> None:
        self._left = 0
        self._frame = pl.DataFrame(some_rows(self._rows, self.worker))

    def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
        self._left += int(rows["chunks"].sum())
        self.notify_at(time)

    def on_notify(self, time: Any) -> None:
        self._left -= 1
        self.send(self._frame)
        if self._left:
            self.notify_at((time[0], time[1] + 1))


class Count(rr.Vertex):
    """Counts the rows that come to a worker, and forgets them."""

    def start(self) -> None:
        self._rows = 0

    def on_recv(self, port: str, rows: pl.DataFrame, time: Any) -> None:
        if not self._rows:
            self.notify_at(time)
        self._rows += len(rows)

    def on_notify(self, time: Any) -> None:
        self.send([{"rows": self._rows}])
        self._rows = 0


def counted(run: rr.Run) -> int:
    return int(sum(rows for (rows,) in run.read("rows").rows()))


def exchanged(on: Any, chunk: int, chunks: int, route: str | None) -> float:
    """Rows a second, of both workers."""
    flow = rr.Dataflow("exchange")
    orders = flow.input("orders", {"chunks": pl.Int64})
    loop = flow.loop()
    generated = flow.vertex(partial(Source, chunk), {"orders": loop.enter(orders)}, COLUMNS)
    rows = loop.leave(generated)
    routes = {} if route is None else {"rows": route}
    flow.output("rows", flow.vertex(Count, {"rows": rows}, {"rows": pl.Int64}, routes=routes))
    with flow.run(on=on, workers=WORKERS) as run:
        for ordered in (2, chunks):  # the first is to be warm
            run.insert("orders", [(ordered,)] * WORKERS)  # one to each
            start = time.perf_counter()
            run.commit()
            spent = time.perf_counter() - start
        assert counted(run) == (2 + chunks) * WORKERS * chunk
    return WORKERS * chunk * chunks / spent


def count_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})


def ingested(spark: Any, rows: int, repeats: int) -> tuple[dict[str, float], float]:
    """Rows a second of ours, and of Spark alone."""
    frame = spark.range(0, rows, 1, WORKERS).selectExpr("id AS key", "id * 3 AS a", "id % 7 AS b")
    frame = frame.cache()
    assert frame.count() == rows
    flow = rr.Dataflow("ingest")
    inserted = flow.input("given", COLUMNS)
    flow.output("rows", flow.vertex(Count, {"rows": inserted}, {"rows": pl.Int64}))
    handed, whole, alone = [], [], []
    with flow.run(on=spark, workers=WORKERS) as run:
        for at in range(
            repeats
        ):  # in turns, so that a change of the machine's speed hits all alike
            start = time.perf_counter()
            run.insert("given", frame)
            handed.append(time.perf_counter() - start)
            run.commit()
            whole.append(time.perf_counter() - start)
            assert counted(run) == (at + 1) * rows
            start = time.perf_counter()
            counts = frame.mapInArrow(count_batches, "rows long").collect()
            alone.append(time.perf_counter() - start)
            assert sum(row.rows for row in counts) == rows
    frame.unpersist()
    ours = {
        "rows_per_s": round(rows / float(np.median(whole))),
        "insert_rows_per_s": round(rows / float(np.median(handed))),
    }
    return ours, round(rows / float(np.median(alone)))


# ---- the link alone


class Receiver:
    """Decodes what comes, and lets go of it."""

    def __init__(self, chunks: int) -> None:
        from riverrun.runtime.codec.fragments import Decoder

        self._decoder = Decoder()
        self._left = chunks
        self.rows = 0
        self.done = Event()

    def receive(self, sender: int, stream: object, fragments: list[Any], size: int) -> None:
        for fragment in fragments:
            message = self._decoder.decode(fragment.head, fragment.body)
            if message is not None:
                _, changes = message.payload
                self.rows += changes.rows
                self._left -= 1
        if not self._left:
            self.done.set()

    def ended(self, sender: int, stream: object, cleanly: bool) -> None:
        pass

    def answer(self, question: str, argument: Any) -> Any:
        self.done.wait()
        return self.rows


def receive(chunks: int) -> None:
    """In a process of its own: be sent chunks."""
    from riverrun.runtime.network.client import Credentials
    from riverrun.runtime.network.endpoint import Endpoint

    endpoint = Endpoint("127.0.0.1", Receiver(chunks), Credentials(token=os.environ["BENCH_TOKEN"]))
    print(endpoint.address, flush=True)
    sys.stdin.read()


def linked(chunk: int, chunks: int) -> float:
    """Rows a second from here to another process."""
    from riverrun.engine.instance import RoutedChanges as Rows
    from riverrun.engine.messages import Data
    from riverrun.runtime.network.client import Asker, Credentials
    from riverrun.runtime.network.link import Link
    from riverrun.state.changes import Changes

    columns = [pa.array(column) for column in some_rows(chunk).values()]
    changes = Changes(columns, chunk, ((0,),), None, 1, None)
    credentials = Credentials()
    code = f"import bench.exchange; bench.exchange.receive({chunks + 1})"
    environment = {**os.environ, "BENCH_TOKEN": credentials.token}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        link, asker = Link(address, 0, credentials, window=1 << 60), Asker(address, credentials)
        try:
            for number in range(chunks + 1):
                if number == 1:
                    start = time.perf_counter()
                link.send([Data(0, number, Rows((0, changes)))])
            assert asker.ask("rows") == chunk * (chunks + 1)
            spent = time.perf_counter() - start
        finally:
            link.close()
            asker.close()
            process.communicate()
    return chunk * chunks / spent


def main() -> dict[str, Any]:
    chunk, chunks = scale("chunk", 1e6), scale("chunks", 40)
    rows, repeats = scale("rows", 20e6), scale("repeats", 3)
    with session(WORKERS) as spark:
        exchange = round(exchanged(spark, chunk, chunks, "key"))
        without = round(exchanged(spark, chunk, chunks, None))
        ingest, alone = ingested(spark, rows, repeats)
    link = round(linked(chunk, chunks))
    share = ratio(ingest["rows_per_s"], alone)
    return {
        "workers": WORKERS,
        "chunk": chunk,
        "chunks": chunks,
        "rows": rows,
        "exchange_rows_per_s": exchange,
        "without_rows_per_s": without,
        "link_rows_per_s": link,
        "link_GB_per_s": round(link * WIDTH / 1e9, 2),
        "ingest": ingest,
        "asked": {
            "exchange_rows_per_s": at_least(exchange, 15_000_000),
            "ingest_to_map_in_arrow": at_least(share, 0.5),
        },
        "peers": {"spark_map_in_arrow": {"version": version("pyspark"), "rows_per_s": alone}},
        "ratios": {"spark_map_in_arrow": share},
    }
