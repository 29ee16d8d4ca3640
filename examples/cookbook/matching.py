"""Master data: records of several systems that mean one person are matched, and make one golden record."""

from difflib import SequenceMatcher

import polars as pl

import riverrun as rr
from riverrun.graphs import components

ALIKE = 0.8


def similarity(pairs):
    """Pairs of records with how alike their names are, from 0 to 1; the order of names is ignored."""
    ratios = [
        SequenceMatcher(None, *sorted([one.lower(), two.lower()])).ratio()
        for one, two in pairs.select("name", "other").rows()
    ]
    return pairs.select("id", "partner").with_columns(alike=pl.Series(ratios, dtype=pl.Float64))


def program():
    flow = rr.Dataflow("people")
    records = flow.input(
        "records",
        {"id": pl.Int64, "name": pl.String, "postcode": pl.String, "changed": pl.Int64},
        key="id",
    )
    # Only records of one postcode are compared: all pairs would be too many.
    others = records.select("postcode", partner="id", other="name")
    pairs = records.join(others, on="postcode").filter(pl.col("id") < pl.col("partner"))
    ratios = {"id": pl.Int64, "partner": pl.Int64, "alike": pl.Float64}
    matches = pairs.map_batches(similarity, ratios).filter(pl.col("alike") >= ALIKE)
    flow.output("matches", matches.select("id", "partner"))

    nodes = records.select(node="id")
    people = components(matches.select(src="id", dst="partner"), nodes)
    members = records.join(people, left_on="id", right_on="node")
    golden = members.group_by(person="component").agg(
        name=rr.last("name", by=["changed", "id"]), records=rr.count()
    )
    flow.output("people", golden)
    return flow


def main():
    with program().run() as run:
        run.upsert("records", [(1, "Ann Byrne", "T12", 1), (2, "Anne Byrne", "T12", 5)])
        run.upsert("records", [(3, "Bob Daly", "T12", 2), (4, "Ann Byrne", "D01", 3)])
        run.commit()
        print(run.read("people").rows())
        run.upsert("records", [(4, "Ann Byrne", "T12", 9)])  # she has moved
        run.commit()
        print(run.changes("people").rows())


if __name__ == "__main__":
    main()
