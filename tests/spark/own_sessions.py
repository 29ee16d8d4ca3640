"""Programs that need Spark sessions of their own. All of them run in one process, one after another.

A test process has one session, the fixture ``spark``. Programs that start without a session, stop their session or make
it in another way run here, in an interpreter of their own. A JVM takes seconds to start, so all programs share one. The
first program is the plainest, and finds the process as a user's program would. The fixture ``printed`` runs them:

    python -m tests.spark.own_sessions FOLDER    # FOLDER/stored is a checkpoint; prints what each program said, as JSON
"""

from __future__ import annotations

import io
import json
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the first program must not find the library imported
    from collections.abc import Iterator

    import riverrun as rr


def plain(folder: Path) -> None:
    """Reads a checkpoint; nothing of the library is imported."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    try:
        frame = spark.read.format("riverrun").load(str(folder / "stored"))
        print(sorted(map(tuple, frame.where("k >= 3").collect())))
        assert "riverrun" not in sys.modules
    finally:
        spark.stop()


def without(folder: Path) -> None:
    """Runs on Spark where there is no session."""
    from pyspark.sql import SparkSession

    assert SparkSession.getActiveSession() is None
    with counted().run(on="spark", workers=2) as run:
        run.insert("a", [("sea",), ("sky",), ("sea",)])
        run.commit()
        print(run.read("out").rows(), run.spark.sparkContext.master)
        seen = run.spark.read.format("riverrun").load("out").filter("count > 1").collect()
        print([tuple(row) for row in seen])
    print(SparkSession.getActiveSession())


def retried(folder: Path) -> None:
    """Inserts DataFrames in a session that tries tasks again; half of the tasks fail halfway at the first attempt."""
    import polars as pl

    import riverrun as rr
    from tests.spark.standalone import session

    marks = folder / "marks"
    marks.mkdir()

    def odd(batches: Iterator[Any]) -> Iterator[Any]:
        """What comes from an odd partition is sent in part by its first attempt."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        (marks / f"{context.partitionId()}-{context.attemptNumber()}").touch()
        for at, batch in enumerate(batches):
            if context.partitionId() % 2 and context.attemptNumber() == 0 and at == 2:
                raise ValueError("on purpose")
            yield batch

    spark = session("local[6, 4]", spark_sql_execution_arrow_maxRecordsPerBatch="20")
    flow = rr.Dataflow("copying")
    flow.output("out", flow.input("a", {"n": pl.Int64}))
    try:
        with flow.run(on=spark, workers=2) as run:
            for _ in range(2):
                rows = spark.range(0, 400, numPartitions=4).selectExpr("id n")
                run.insert("a", rows.mapInArrow(odd, "n long"))
                run.commit()
            print(json.dumps(list(run.read("out")["n"])))
            print(sum(answer["parcels"] for _, answer in run._cluster._questions.ask_all("stats")))
    finally:
        spark.stop()


def stopped(folder: Path) -> None:
    """Stops the session of a run, and starts another run on it."""
    from riverrun.errors import RiverrunError
    from tests.spark.standalone import session

    spark = session("local[2]")
    for workers in (1, 2):
        try:
            with counted().run(on=spark, workers=workers) as run:
                spark.stop()
                try:
                    run.await_termination(60)
                except RiverrunError as error:
                    print(error.code)
        except RiverrunError as error:
            print(error.code)


def counted() -> rr.Dataflow:
    import riverrun as rr

    flow = rr.Dataflow("words")
    flow.output("out", flow.input("a", {"k": str}).group_by("k").count())
    return flow


PROGRAMS = (plain, without, retried, stopped)


def main(folder: str) -> None:
    outputs: dict[str, str] = {}
    for program in PROGRAMS:
        print(program.__name__, file=sys.stderr, flush=True)
        with redirect_stdout(io.StringIO()) as said:
            try:
                program(Path(folder))
            except Exception:
                traceback.print_exc(file=said)
        outputs[program.__name__] = said.getvalue()
    print(json.dumps(outputs))


if __name__ == "__main__":
    main(sys.argv[1])
