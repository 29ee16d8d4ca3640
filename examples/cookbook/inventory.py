"""Running stock: what is there of each item, and the moments at which the books say less than nothing."""

import polars as pl

import riverrun as rr

MOMENT = {"minute": pl.Int64, "stock": pl.Int64}


def below_zero(movements):
    """The minutes of one item in which its running stock is negative."""
    running = (
        movements.group_by("minute")
        .agg(pl.col("quantity").sum())
        .sort("minute")
        .select("minute", stock=pl.col("quantity").cum_sum())
    )
    return running.filter(pl.col("stock") < 0)


def program():
    flow = rr.Dataflow("stock")
    movements = flow.input(
        "movements",
        {"item": pl.String, "place": pl.String, "minute": pl.Int64, "quantity": pl.Int64},
    )
    stock = movements.group_by("item", "place").agg(stock=rr.sum("quantity"))
    flow.output("stock", stock)
    negative = movements.group_by("item", "place").apply(below_zero, MOMENT, many=True)
    flow.output("negative", negative)
    since = negative.group_by("item", "place").agg(since=rr.min("minute"), worst=rr.min("stock"))
    flow.output("alarms", since)
    return flow


def main():
    with program().run() as run:
        run.insert(
            "movements", [("rope", "A", 0, 10), ("rope", "A", 30, -12), ("rope", "A", 60, 5)]
        )
        run.commit()
        print(run.read("stock").rows(), run.read("alarms").rows())
        run.insert("movements", [("rope", "A", 20, 4)])  # a delivery that was booked late
        run.commit()
        print(run.read("stock").rows(), run.changes("alarms").rows())


if __name__ == "__main__":
    main()
