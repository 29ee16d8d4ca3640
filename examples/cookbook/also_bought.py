"""Recommendations: what is bought together with an item most often, out of baskets that may be sent back."""

import polars as pl

import riverrun as rr

AT_LEAST = 2  # baskets that two items share


def program():
    flow = rr.Dataflow("baskets")
    lines = flow.input("lines", {"basket": pl.Int64, "item": pl.String})
    items = lines.distinct()
    pairs = items.join(items.rename({"item": "with"}), on="basket").filter(
        pl.col("item") != pl.col("with")
    )
    together = pairs.group_by("item", "with").count("baskets")
    flow.output("together", together)
    popular = items.group_by(**{"with": "item"}).count("all")
    often = together.filter(pl.col("baskets") >= AT_LEAST).join(popular, on="with")
    # How often they come together, of how often the other is bought at all.
    scored = often.with_columns(lift=(pl.col("baskets") / pl.col("all")).round(6))
    best = scored.group_by("item").top(
        2, ["lift", "baskets", "with"], descending=[True, True, False]
    )
    flow.output("recommended", best.select("item", "with", "lift"))
    return flow


def main():
    baskets = {1: "tea milk", 2: "tea milk ink", 3: "tea ink", 4: "milk rope"}
    with program().run() as run:
        run.insert("lines", [(n, item) for n, items in baskets.items() for item in items.split()])
        run.commit()
        print(run.read("recommended").rows())
        run.delete("lines", [(3, "tea"), (3, "ink")])  # sent back
        run.commit()
        print(run.changes("recommended").rows())


if __name__ == "__main__":
    main()
