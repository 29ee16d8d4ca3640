"""Change data capture: the log of a database (insert, update, delete) applied to a mirror of its table."""

import tempfile

import polars as pl

import riverrun as rr

CHANGE = {
    "position": pl.Int64,  # in the database's log
    "op": pl.Enum(["insert", "update", "delete"]),
    "id": pl.Int64,
    "name": pl.String,
    "city": pl.String,
}


def program():
    flow = rr.Dataflow("mirror")
    log = flow.input("log", CHANGE)
    # The log may be delivered twice, and out of order: the greatest position decides.
    last = log.distinct().group_by("id").top(1, by="position")
    rows = last.filter(pl.col("op") != "delete").select("id", "name", "city")
    flow.output("customers", rows)
    flow.output("cities", rows.group_by("city").count("customers"))
    return flow


def main():
    with tempfile.TemporaryDirectory() as folder, program().run() as run:
        run.write_delta("customers", f"{folder}/customers", mode="mirror", key="id")
        changes = run.write_parquet("customers", f"{folder}/changes")
        run.insert("log", [(1, "insert", 7, "Ann", "Cork"), (2, "insert", 8, "Bob", "Bray")])
        run.commit()
        run.insert("log", [(4, "delete", 8, None, None), (3, "update", 8, "Bob", "Cork")])
        run.insert("log", [(2, "insert", 8, "Bob", "Bray")])  # once more
        run.commit()
        changes.wait()
        run.close()  # when its sinks are done
        print(pl.read_delta(f"{folder}/customers").rows())
        print(sorted(pl.read_parquet(f"{folder}/changes").rows()))


if __name__ == "__main__":
    main()
