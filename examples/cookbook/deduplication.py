"""Deduplication: of records with the same id, the record that was written last counts, whenever it arrives."""

import polars as pl

import riverrun as rr

RECORD = {"id": pl.Int64, "written": pl.Int64, "source": pl.String, "amount": pl.Int64}


def program():
    flow = rr.Dataflow("records")
    records = flow.input("records", RECORD)
    # Of two records that were written at once, the one whose source is first by name.
    latest = (
        records.distinct().group_by("id").top(1, ["written", "source"], descending=[True, False])
    )
    flow.output("latest", latest)
    flow.output("totals", latest.group_by("source").agg(amount=rr.sum("amount")))
    repeated = records.group_by("id").agg(copies=rr.count()).filter(pl.col("copies") > 1)
    flow.output("repeated", repeated)
    return flow


def main():
    with program().run() as run:
        run.insert("records", [(1, 10, "shop", 50), (1, 10, "shop", 50), (2, 11, "web", 7)])
        run.commit()
        print(run.read("latest").rows(), run.read("repeated").rows())
        run.insert("records", [(1, 12, "shop", 45), (2, 9, "web", 999)])  # newer; older
        run.commit()
        print(run.changes("latest").rows())
        run.delete("records", [(1, 12, "shop", 45)])  # the correction was wrong
        run.commit()
        print(run.changes("latest").rows())


if __name__ == "__main__":
    main()
