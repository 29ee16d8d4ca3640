"""A bill of materials: how many of each part a product takes, through all its assemblies, and what it costs."""

import polars as pl

import riverrun as rr


def program():
    flow = rr.Dataflow("materials")
    uses = flow.input(
        "uses",
        {"assembly": pl.String, "part": pl.String, "quantity": pl.Int64},
        key=["assembly", "part"],
    )
    prices = flow.input("prices", {"part": pl.String, "price": pl.Int64}, key="part")

    smaller = uses.select(part="assembly", smaller="part", each="quantity")

    def one_level_more(needs):  # what a product uses, and what the parts that it needs use
        quantity = pl.col("quantity") * pl.col("each")
        below = needs.join(smaller, on="part").select("assembly", part="smaller", quantity=quantity)
        return uses.concat(below).group_by("assembly", "part").agg(quantity=rr.sum("quantity"))

    needs = uses.iterate(one_level_more, patience=1000, name="explosion")
    flow.output("needs", needs)
    bought = needs.join(prices, on="part")
    cost = bought.select("assembly", cost=pl.col("quantity") * pl.col("price"))
    flow.output("costs", cost.group_by("assembly").agg(cost=rr.sum("cost")))
    return flow


def main():
    with program().run() as run:
        run.upsert("uses", [("bike", "wheel", 2), ("wheel", "spoke", 32), ("wheel", "rim", 1)])
        run.upsert("prices", [("spoke", 1), ("rim", 40)])
        run.commit()
        print(run.read("needs").rows())
        run.upsert("uses", [("wheel", "spoke", 28), ("bike", "rim", 1)])  # and one to spare
        run.commit()
        print(run.changes("needs").rows())
        print(run.read("costs").rows())


if __name__ == "__main__":
    main()
