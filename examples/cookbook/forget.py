"""The right to be forgotten: one row, and every result loses what came from that person; with a proof of it."""

import polars as pl

import riverrun as rr


def program():
    flow = rr.Dataflow("privacy")
    people = flow.input("people", {"person": pl.Int64, "city": pl.String}, key="person")
    visits = flow.input("visits", {"person": pl.Int64, "page": pl.String})
    orders = flow.input("orders", {"person": pl.Int64, "amount": pl.Int64})
    forget = flow.input("forget", {"person": pl.Int64}, key="person")

    # Every table passes here first; nothing else reads the inputs.
    tables = {"people": people, "visits": visits, "orders": orders}
    people, visits, orders = (table.anti_join(forget, on="person") for table in tables.values())
    flow.output("pages", visits.group_by("page").agg(people=rr.count_distinct("person")))
    placed = orders.join(people, on="person")
    flow.output(
        "cities", placed.group_by("city").agg(amount=rr.sum("amount"), most=rr.max("amount"))
    )

    # What of a forgotten person the inputs still have: rows to be deleted there, until none is left.
    left = [
        table.semi_join(forget, on="person").select("person", table=pl.lit(name))
        for name, table in tables.items()
    ]
    flow.output("to_delete", left[0].concat(*left[1:]).group_by("person", "table").count("rows"))
    return flow


def main():
    with program().run() as run:
        run.upsert("people", [(1, "Cork"), (2, "Cork")])
        run.insert("visits", [(1, "home"), (2, "home"), (2, "help")])
        run.insert("orders", [(1, 10), (2, 25)])
        run.commit()
        run.upsert("forget", [(2,)])
        run.commit()
        print(run.read("pages").rows(), run.read("cities").rows())
        print(run.read("to_delete").rows())
        run.delete("visits", [(2, "home"), (2, "help")])
        run.delete("orders", [(2, 25)])
        run.delete("people", [(2,)])
        run.commit()
        print(run.read("to_delete").rows())


if __name__ == "__main__":
    main()
