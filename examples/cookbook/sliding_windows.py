"""Sliding windows: requests and errors of each host over the last minute, every twenty seconds, for an hour back."""

from datetime import datetime, timedelta

import polars as pl

import riverrun as rr

SIZE, STEP = timedelta(seconds=60), timedelta(seconds=20)
KEEP, LATE = timedelta(hours=1), timedelta(seconds=30)


def program():
    flow = rr.Dataflow("requests")
    requests = flow.input(
        "requests", {"host": pl.String, "at": pl.Datetime("us"), "status": pl.Int64}
    )
    recent = requests.expire("at", after=KEEP, late=LATE)
    windows = recent.windows("at", SIZE, STEP).with_columns(
        failed=(pl.col("status") >= 500).cast(pl.Int64)
    )
    by_window = windows.group_by("host", "window").agg(requests=rr.count(), failed=rr.sum("failed"))
    flow.output("windows", by_window)
    flow.output("alarms", by_window.filter(pl.col("failed") * 2 > pl.col("requests")))
    return flow


def main():
    noon = datetime(2026, 3, 2, 12)
    second = timedelta(seconds=1)
    with program().run() as run:
        run.insert("requests", [("a", noon, 200), ("a", noon + 30 * second, 500)])
        run.commit()
        for host, start, requests, failed in run.read("windows").rows():
            print(host, f"{start:%H:%M:%S}", requests, failed)
        # An hour and a half later: what was there has left by itself.
        run.insert("requests", [("a", noon + 5400 * second, 200)])
        run.insert("requests", [("a", noon + 60 * second, 200)])
        run.commit()
        print(len(run.read("windows").rows()), [event["rows"] for event in run.events("late")])


if __name__ == "__main__":
    main()
