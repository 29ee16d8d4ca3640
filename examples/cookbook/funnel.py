"""A funnel: how many users look at a product, put a product into a cart, and buy one, within a day."""

import polars as pl

import riverrun as rr

STEPS = ["view", "cart", "buy"]
WITHIN = 24 * 60  # minutes from the first view


def program():
    flow = rr.Dataflow("funnel")
    events = flow.input("events", {"user": pl.Int64, "step": pl.String, "minute": pl.Int64})
    first_views = events.filter(step="view").group_by("user").agg(begin=rr.min("minute"))
    reached = first_views.select("user", "begin", at="begin")
    counts = [reached.select(step=pl.lit("view"), user="user")]
    for step in STEPS[1:]:
        later = events.filter(step=step).join(reached, on="user")
        in_time = (pl.col("minute") >= pl.col("at")) & (
            pl.col("minute") <= pl.col("begin") + WITHIN
        )
        reached = later.filter(in_time).group_by("user", "begin").agg(at=rr.min("minute"))
        counts.append(reached.select(step=pl.lit(step), user="user"))
    steps = counts[0].concat(*counts[1:])
    users = steps.group_by("step").count("users")
    flow.output("funnel", users)
    everybody = first_views.count("all")
    share = (pl.col("users") / pl.col("all")).round(3)
    flow.output("shares", users.join(everybody, how="cross").select("step", share=share))
    return flow


def main():
    with program().run() as run:
        run.insert("events", [(1, "view", 0), (1, "cart", 5), (2, "view", 3), (2, "buy", 9)])
        run.commit()
        print(run.read("funnel").rows())
        run.insert("events", [(1, "buy", 2000), (2, "cart", 4)])  # too late; out of order
        run.commit()
        print(run.changes("funnel").rows(), run.read("shares").rows())


if __name__ == "__main__":
    main()
