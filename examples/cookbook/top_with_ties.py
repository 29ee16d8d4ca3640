"""The best three of each category, and whoever ties with the third: a ranking as sports and shops have it."""

import polars as pl

import riverrun as rr

PLACES = 3


def program():
    flow = rr.Dataflow("ranking")
    sales = flow.input("sales", {"category": pl.String, "item": pl.String, "sold": pl.Int64})
    sold = sales.group_by("category", "item").agg(sold=rr.sum("sold"))
    # The amount that a place takes: the third largest, or the least where there are fewer.
    bar = (
        sold.group_by("category")
        .top(PLACES, by="sold")
        .group_by("category")
        .agg(bar=rr.min("sold"))
    )
    best = sold.join(bar, on="category").filter(pl.col("sold") >= pl.col("bar")).drop("bar")
    flow.output("best", best)
    # A place is one more than the number of those that sold more.
    rivals = best.select("category", rival="item", more="sold")
    ahead = best.join(rivals, on="category").filter(pl.col("more") > pl.col("sold"))
    counts = ahead.group_by("category", "item").count("ahead")
    places = best.join(counts, on=["category", "item"], how="left")
    flow.output("places", places.select("category", "item", place=pl.col("ahead").fill_null(0) + 1))
    return flow


def main():
    with program().run() as run:
        run.insert(
            "sales", [("tea", item, n) for item, n in zip("abcde", (9, 7, 5, 5, 1), strict=True)]
        )
        run.commit()
        print(run.read("places").rows())
        run.insert("sales", [("tea", "e", 5)])
        run.commit()
        print(run.changes("best").rows())


if __name__ == "__main__":
    main()
