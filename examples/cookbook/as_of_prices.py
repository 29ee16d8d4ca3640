"""As-of enrichment: each order with the price of its moment, though prices come late and change afterwards."""

import polars as pl

import riverrun as rr


def program():
    flow = rr.Dataflow("orders")
    prices = flow.input("prices", {"item": pl.String, "time": pl.Int64, "price": pl.Int64})
    orders = flow.input(
        "orders", {"order": pl.Int64, "item": pl.String, "at": pl.Int64, "pieces": pl.Int64}
    )
    history = flow.state("price of", key={"item": pl.String}, value={"price": pl.Int64})
    prices.update(history, late=5)  # a price comes at most 5 behind the latest one
    priced = orders.fetch(history, key="item", at="at")
    flow.output("priced", priced)
    paid = priced.with_columns(paid=pl.col("pieces") * pl.col("price"))
    flow.output("revenue", paid.group_by("item").agg(paid=rr.sum("paid"), orders=rr.count()))
    return flow


def main():
    with program().run() as run:
        run.insert("prices", [("tea", 0, 3), ("tea", 20, 4)])
        run.insert("orders", [(1, "tea", 12, 2), (2, "tea", 25, 1)])
        run.commit()
        print(run.read("priced").rows(), run.status()["states"]["price of"]["pending"])
        run.insert("prices", [("tea", 24, 5), ("ink", 40, 9)])  # now everything up to 34 is in
        run.commit()
        print(run.changes("priced").rows())
        print(run.read("revenue").rows())


if __name__ == "__main__":
    main()
