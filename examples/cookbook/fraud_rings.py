"""Fraud rings: accounts that share a card or a device, directly or through others, and what a ring has spent."""

import polars as pl

import riverrun as rr

SUSPICIOUS = 3  # accounts


def program():
    flow = rr.Dataflow("rings")
    traits = flow.input("traits", {"account": pl.Int64, "kind": pl.String, "value": pl.String})
    payments = flow.input("payments", {"account": pl.Int64, "amount": pl.Int64})
    shared = traits.distinct()
    accounts = shared.select("account", ring="account").distinct()

    def spread(rings):  # by way of a trait every account hears the least ring of those who share it
        least = rings.join(shared, on="account").group_by("kind", "value").agg(ring=rr.min("ring"))
        heard = shared.join(least, on=["kind", "value"]).select("account", "ring")
        return heard.concat(accounts).group_by("account").agg(ring=rr.min("ring"))

    rings = accounts.iterate(spread, name="rings")
    flow.output("rings", rings)
    sizes = rings.group_by("ring").agg(accounts=rr.count())
    large = sizes.filter(pl.col("accounts") >= SUSPICIOUS)
    spent = payments.join(rings, on="account").group_by("ring").agg(spent=rr.sum("amount"))
    flow.output("suspicious", large.join(spent, on="ring", how="left"))
    return flow


def main():
    with program().run() as run:
        run.insert(
            "traits", [(1, "card", "x"), (2, "card", "x"), (2, "device", "p"), (3, "device", "q")]
        )
        run.insert("payments", [(1, 100), (3, 70)])
        run.commit()
        print(run.read("rings").rows(), run.read("suspicious").rows())
        run.insert("traits", [(3, "device", "p")])
        run.commit()
        print(run.read("suspicious").rows())
        run.delete("traits", [(2, "device", "p")])  # a mistake: nothing links 3 to the others
        run.commit()
        print(run.read("rings").rows(), run.read("suspicious").rows())


if __name__ == "__main__":
    main()
