"""Sessions: the clicks of a user belong together until half an hour passes without one."""

from datetime import datetime, timedelta

import polars as pl

import riverrun as rr

GAP = timedelta(minutes=30)
SESSION = {"start": pl.Datetime("us"), "end": pl.Datetime("us"), "clicks": pl.Int64}


def sessions_of(clicks):
    """The sessions among the clicks of one user, a frame."""
    opened = (pl.col("at").diff() > GAP).fill_null(True)
    return (
        clicks.sort("at")
        .group_by(session=opened.cum_sum(), maintain_order=True)
        .agg(start=pl.col("at").min(), end=pl.col("at").max(), clicks=pl.len().cast(pl.Int64))
        .drop("session")
    )


def program():
    flow = rr.Dataflow("sessions")
    clicks = flow.input("clicks", {"user": pl.String, "at": pl.Datetime("us")})
    sessions = clicks.group_by("user").apply(sessions_of, SESSION, many=True)
    flow.output("sessions", sessions)
    minutes = (pl.col("end") - pl.col("start")).dt.total_minutes()
    lengths = sessions.with_columns(minutes=minutes).group_by("user")
    flow.output("users", lengths.agg(sessions=rr.count(), longest=rr.max("minutes")))
    return flow


def main():
    noon = datetime(2026, 3, 2, 12)
    with program().run() as run:
        run.insert("clicks", [("ann", noon + timedelta(minutes=m)) for m in (0, 20, 70, 80)])
        run.commit()
        print(run.read("users").rows())
        # A click that was under way for an hour joins the two sessions to one.
        run.insert("clicks", [("ann", noon + timedelta(minutes=45))])
        run.commit()
        for user, start, end, clicks, diff in run.changes("sessions").rows():
            print(user, f"{start:%H:%M}-{end:%H:%M}", clicks, diff)


if __name__ == "__main__":
    main()
