"""Currency conversion: revenue by country in euro, restated when a rate is corrected."""

from datetime import date
from decimal import Decimal

import polars as pl

import riverrun as rr


def program():
    flow = rr.Dataflow("revenue")
    money = pl.Decimal(18, 2)
    sales = flow.input(
        "sales", {"day": pl.Date, "country": pl.String, "currency": pl.String, "amount": money}
    )
    rates = flow.input(
        "rates",
        {"day": pl.Date, "currency": pl.String, "euro": pl.Decimal(12, 6)},
        key=["day", "currency"],
    )
    rated = sales.join(rates, on=["day", "currency"], how="left")
    euro = (pl.col("amount") * pl.col("euro")).round(2).cast(money)
    converted = rated.filter(pl.col("euro").is_not_null()).with_columns(euro=euro)
    month = pl.col("day").dt.truncate("1mo")
    by_month = converted.group_by("country", month=month).agg(euro=rr.sum("euro"))
    flow.output("revenue", by_month)
    missing = rated.filter(pl.col("euro").is_null()).select("day", "currency")
    flow.output("missing", missing.distinct())
    return flow


def main():
    first, second = date(2026, 3, 2), date(2026, 3, 3)
    with program().run() as run:
        run.upsert("rates", [(first, "USD", Decimal("0.9")), (first, "GBP", Decimal("1.15"))])
        run.insert(
            "sales", [(first, "US", "USD", Decimal("10")), (second, "US", "USD", Decimal(5))]
        )
        run.commit()
        print([(c, str(euro)) for c, _, euro in run.read("revenue").rows()])
        print([(str(day), currency) for day, currency in run.read("missing").rows()])
        run.upsert("rates", [(second, "USD", Decimal("0.8")), (first, "USD", Decimal("0.91"))])
        run.commit()
        print([(c, str(euro), diff) for c, _, euro, diff in run.changes("revenue").rows()])


if __name__ == "__main__":
    main()
