"""A slowly changing dimension, type 2: each version of a customer with the days on which it was valid."""

from datetime import date

import polars as pl

import riverrun as rr

VERSION = {"city": pl.String, "since": pl.Date, "until": pl.Date}


def versions(reports):
    """The versions of one customer: reports in the order of their days, equal neighbours as one."""
    ordered = reports.sort("since")
    changed = ordered.filter(pl.col("city").ne_missing(pl.col("city").shift()) | first_row())
    return changed.select("city", "since", until=pl.col("since").shift(-1))


def first_row():
    return pl.int_range(pl.len()) == 0


def program():
    flow = rr.Dataflow("customers")
    reports = flow.input(
        "reports",
        {"customer": pl.Int64, "since": pl.Date, "city": pl.String},
        key=["customer", "since"],
    )
    orders = flow.input(
        "orders", {"order": pl.Int64, "customer": pl.Int64, "day": pl.Date, "total": pl.Int64}
    )
    history = reports.group_by("customer").apply(versions, VERSION, many=True)
    flow.output("history", history)
    flow.output("current", history.filter(pl.col("until").is_null()).select("customer", "city"))

    valid = (pl.col("since") <= pl.col("day")) & (
        pl.col("until").is_null() | (pl.col("day") < pl.col("until"))
    )
    placed = orders.join(history, on="customer").filter(valid)
    flow.output("sales", placed.group_by("city").agg(total=rr.sum("total")))
    return flow


def main():
    with program().run() as run:
        run.upsert("reports", [(7, date(2026, 1, 1), "Cork"), (7, date(2026, 3, 1), "Bray")])
        run.insert("orders", [(1, 7, date(2026, 2, 10), 50), (2, 7, date(2026, 3, 5), 20)])
        run.commit()
        print(run.read("sales").rows())
        # It turns out that the customer had moved a month before.
        run.upsert("reports", [(7, date(2026, 2, 1), "Bray")])
        run.commit()
        for _, city, since, until in run.read("history").rows():
            print(city, since, until)
        print(run.read("sales").rows())


if __name__ == "__main__":
    main()
