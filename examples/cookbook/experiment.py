"""An A/B test: conversion by variant, kept over a checkpoint; and a metric that is wanted a week later."""

import tempfile

import polars as pl

import riverrun as rr


def program(revenue=False):
    flow = rr.Dataflow("experiment")
    seen = flow.input("seen", {"user": pl.Int64, "variant": pl.String})
    orders = flow.input("orders", {"user": pl.Int64, "amount": pl.Int64})
    # A user who saw two variants counts for none.
    variants = seen.distinct(name="seen once").group_by("user").named("variants")
    users = variants.agg(variants=rr.count(), variant=rr.min("variant"))
    users = users.filter(pl.col("variants") == 1).select("user", "variant")
    buyers = users.semi_join(orders, on="user").group_by("variant").named("buyers").count("buyers")
    everybody = users.group_by("variant").named("users").count("users")
    both = everybody.join(buyers, on="variant", how="left").with_columns(
        buyers=pl.col("buyers").fill_null(0)
    )
    rate = (pl.col("buyers") / pl.col("users")).round(4)
    flow.output("conversion", both.with_columns(rate=rate))
    if revenue:  # what was added later
        paid = users.join(orders, on="user").group_by("variant").named("paid")
        flow.output("revenue", paid.agg(paid=rr.sum("amount"), orders=rr.count()))
    return flow


def main():
    with tempfile.TemporaryDirectory() as path:
        with program().run(checkpoint=path, keep_inputs=True) as run:
            run.insert("seen", [(1, "A"), (2, "A"), (3, "B"), (4, "B"), (4, "A")])
            run.insert("orders", [(1, 30), (1, 5), (4, 99)])
            run.commit()
            print(run.read("conversion").rows())
        with program(revenue=True).run(checkpoint=path, rebuild=True) as run:
            print(run.read("revenue").rows())  # of what had been there before, too
            run.insert("orders", [(3, 12)])
            run.commit()
            print(run.read("conversion").rows(), run.read("revenue").rows())


if __name__ == "__main__":
    main()
