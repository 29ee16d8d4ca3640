"""Expectations: rules that the data should keep, each with how many rows break it, at every moment."""

import polars as pl

import riverrun as rr


def program():
    flow = rr.Dataflow("expectations")
    orders = flow.input(
        "orders",
        {"order": pl.Int64, "customer": pl.Int64, "total": pl.Float64, "country": pl.String},
    )
    customers = flow.input("customers", {"customer": pl.Int64}, key="customer")
    rules = {
        "total is positive": ~(pl.col("total") > 0).fill_null(False),
        "country is known": ~pl.col("country").is_in(["IE", "FR", "DE"]).fill_null(False),
    }
    broken = [
        orders.filter(breaks).select("order", rule=pl.lit(rule)) for rule, breaks in rules.items()
    ]
    again = orders.group_by("order").count("copies").filter(pl.col("copies") > 1)
    broken.append(again.select("order", rule=pl.lit("order is unique")))
    strangers = orders.anti_join(customers, on="customer")
    broken.append(strangers.select("order", rule=pl.lit("customer exists")))
    violations = broken[0].concat(*broken[1:])
    flow.output("violations", violations)

    rows = orders.count("rows")
    counts = violations.group_by("rule").agg(orders=rr.count_distinct("order"))
    share = (pl.col("orders") / pl.col("rows")).round(4)
    flow.output("report", counts.join(rows, how="cross").with_columns(share=share))
    return flow


def main():
    with program().run() as run:
        run.insert("orders", [(1, 10, 5.0, "IE"), (2, 11, -1.0, "XX"), (2, 10, 3.0, "FR")])
        run.upsert("customers", [(10,)])
        run.commit()
        for row in run.read("report").rows():
            print(row)
        run.upsert("customers", [(11,)])
        run.delete("orders", [(2, 11, -1.0, "XX")])
        run.commit()
        print(run.read("report").rows(), len(run.changes("violations").rows()))


if __name__ == "__main__":
    main()
