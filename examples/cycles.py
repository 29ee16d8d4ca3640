"""Money that goes around in a circle: each payment that closes a circle is reported as soon as that is certain.

    python -m examples.cycles

Some hundred accounts pay each other at random through a day. Now and then somebody sends money around: through a few
accounts within two hours, and back to the first. The payments arrive in batches, some of them up to
five minutes late, and out of order. Whatever the order, every circle of 3 to 5 accounts whose payments lie within two
hours is found, once, by its last payment.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import polars as pl

import riverrun as rr
from riverrun.graphs import cycles

Payment = tuple[str, str, datetime, int]
"""From, to, when, how much."""

ACCOUNTS, PAYMENTS, CIRCLES = 400, 3000, 4
MIDNIGHT = datetime(2026, 3, 2)
SPAN, LATE = timedelta(hours=2), timedelta(minutes=5)
BATCH = 60


def payments(seed: int = 7) -> tuple[list[Payment], list[list[str]]]:
    """A day of payments, in the order in which they arrive; and the accounts through which money was sent around."""
    chance = random.Random(seed)
    accounts = [f"A{number:03}" for number in range(ACCOUNTS)]

    def moment(first: float, last: float) -> datetime:
        return MIDNIGHT + timedelta(microseconds=round(chance.uniform(first, last) * 3.6e9))

    day: list[Payment] = []
    for _ in range(PAYMENTS):
        payer, payee = chance.sample(accounts, 2)
        day.append((payer, payee, moment(0, 24), chance.randrange(5, 500)))
    circles = [chance.sample(accounts, chance.choice([3, 4, 5])) for _ in range(CIRCLES)]
    for circle in circles:
        begin, amount = chance.uniform(1, 21), 9000
        times = sorted(moment(begin, begin + 1.9) for _ in circle)
        for payer, payee, time in zip(circle, circle[1:] + circle[:1], times, strict=True):
            day.append((payer, payee, time, amount))
            amount -= 100  # each keeps a little
    return sorted(day, key=lambda each: each[2] + LATE * chance.random()), circles


def program() -> rr.Dataflow:
    """The whole of it."""
    flow = rr.Dataflow("payments")
    kinds = {"src": pl.String, "dst": pl.String, "time": pl.Datetime("us"), "amount": pl.Int64}
    paid = flow.input("paid", kinds)
    flow.output("circles", cycles(flow, paid, SPAN, late=LATE))
    return flow


def main() -> None:
    """Feed a day of payments, and print the circles."""
    arriving, sent_around = payments()
    circle_count = 0
    with program().run(workers=2) as run:
        for at in range(0, len(arriving), BATCH):
            run.insert("paid", arriving[at : at + BATCH])
            run.commit()
            for time, src, dst, length, nodes, diff in run.changes("circles").rows():
                assert diff == 1
                around = " > ".join([*nodes, nodes[0]])
                print(f"{time:%H:%M}  {src} pays {dst} and closes a circle of {length}: {around}")
                circle_count += 1
    print(
        f"{len(sent_around)} circles were hidden among {PAYMENTS} payments, and {circle_count} are there."
    )


if __name__ == "__main__":
    main()
