"""Anomalies: hours in which a sensor is far from the mean of the day before them."""

import polars as pl

import riverrun as rr

HOURS = 24  # how far the trailing mean looks back
ENOUGH, FACTOR = 3, 2.0  # hours that it needs, and how many times the mean is far


def program():
    flow = rr.Dataflow("sensors")
    readings = flow.input("readings", {"sensor": pl.String, "minute": pl.Int64, "value": pl.Int64})
    by_hour = readings.group_by("sensor", hour=pl.col("minute") // 60)
    hours = by_hour.agg(total=rr.sum("value"), readings=rr.count())
    # An hour lies in the windows of the 24 hours after it: a window that starts at w ends before w + 24.
    windows = hours.windows("hour", HOURS, 1, into="start").group_by("sensor", "start")
    trailing = windows.agg(mean=rr.sum("total") / rr.sum("readings"), hours=rr.count()).select(
        "sensor", "mean", "hours", hour=pl.col("start") + HOURS
    )
    now = hours.select("sensor", "hour", value=pl.col("total") / pl.col("readings"))
    compared = now.join(trailing.filter(pl.col("hours") >= ENOUGH), on=["sensor", "hour"])
    far = (pl.col("value") > FACTOR * pl.col("mean")) | (pl.col("value") * FACTOR < pl.col("mean"))
    flow.output("anomalies", compared.filter(far).select("sensor", "hour", "value", "mean"))
    return flow


def main():
    with program().run() as run:
        run.insert("readings", [("a", 60 * hour, 10 + hour) for hour in range(5)])
        run.insert("readings", [("a", 300, 30)])
        run.commit()
        print(run.read("anomalies").rows())
        run.insert("readings", [("a", 130, 48), ("a", 140, 48)])  # the hour of 2 had more to say
        run.commit()
        print(run.changes("anomalies").rows())


if __name__ == "__main__":
    main()
