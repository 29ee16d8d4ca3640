"""Which campaign did that click belong to? `python -m examples.campaigns`

Ads move between campaigns, and people click on ads. A click counts for the campaign that its ad belonged to *when the
click happened*. Both streams come out of order and a little late, as they do from many phones and servers. A
lookup credits the campaign that is known when the click arrives. A fetch waits until every move up to the time of the
click has arrived, and then answers once, for good.

The program does both side by side, minute by minute, and compares both with the moves and clicks as they happened.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import riverrun as rr

LATE = 30  # seconds that a move or a click may take to arrive
MINUTES, ADS, CAMPAIGNS = 10, 50, ("spring", "summer", "autumn", "winter")


@dataclass(frozen=True)
class Happened:
    """Moves and clicks: (arrived, ad, at, campaign) and (arrived, ad, at), at seconds from the start."""

    moves: list[tuple[int, int, int, str]]
    clicks: list[tuple[int, int, int]]

    @staticmethod
    def draw(seed: int, clicks_a_minute: int = 600, moves_a_minute: int = 60) -> Happened:
        draw = random.Random(seed)
        moves = [(0, ad, 0, draw.choice(CAMPAIGNS)) for ad in range(ADS)]
        clicks = []
        for at in range(1, MINUTES * 60):
            for _ in range(moves_a_minute // 60):
                arrived = at + draw.randrange(LATE)
                moves.append((arrived, draw.randrange(ADS), at, draw.choice(CAMPAIGNS)))
            for _ in range(clicks_a_minute // 60):
                clicks.append((at + draw.randrange(LATE), draw.randrange(ADS), at))
        return Happened(moves, clicks)

    def counts(self, before: int, now: int) -> Counter[str]:
        """For each campaign, the clicks before a time that have arrived by now. The last move before a click counts."""
        clicks_of_campaign: Counter[str] = Counter()
        for arrived, ad, at in self.clicks:
            if at < before and arrived < now:
                known = [
                    (when, name)
                    for _, moved, when, name in self.moves
                    if moved == ad and when <= at
                ]
                clicks_of_campaign[max(known)[1]] += 1
        return clicks_of_campaign


def program() -> rr.Dataflow:
    flow = rr.Dataflow("campaigns")
    moves = flow.input("moves", {"ad": pl.Int64, "time": pl.Int64, "campaign": pl.String})
    clicks = flow.input("clicks", {"ad": pl.Int64, "at": pl.Int64})

    campaigns = flow.state(
        "campaigns",
        key={"ad": pl.Int64},
        value={"campaign": pl.String},
        compact=rr.rules.keep_latest,
    )
    moves.update(campaigns, late=LATE)
    credited = clicks.fetch(campaigns, key="ad", at="at", late=LATE)
    flow.output("clicks by campaign", credited.group_by("campaign").count())

    latest = moves.group_by("ad").top(1, by="time")
    flow.output(
        "on arrival", clicks.lookup(latest, "ad").group_by("campaign").count()
    )  # as known then
    return flow


def main(seed: int = 7) -> bool:
    console, happened = Console(highlight=False), Happened.draw(seed)
    table = Table("minute", "clicks in", "answered", "wait", "compared", box=SIMPLE_HEAD)
    right = True
    with program().run(workers=2) as run:
        for minute in range(1, MINUTES + 2):
            came = range(60 * (minute - 1), 60 * minute)
            moves = [row for arrived, *row in happened.moves if arrived in came]
            if minute > MINUTES:  # the last move, so that all clicks are answered
                moves.append([0, 60 * MINUTES + 2 * LATE, CAMPAIGNS[0]])
            run.insert("moves", [tuple(row) for row in moves])
            run.insert(
                "clicks", [tuple(row) for arrived, *row in happened.clicks if arrived in came]
            )
            run.commit()
            state = run.status()["states"]["campaigns"]
            counts = dict(run.read("clicks by campaign").rows())
            arrived = sum(at < 60 * minute for at, _, _ in happened.clicks)
            # Clicks before U are answered; they are counted from scratch here. Later clicks wait.
            equal = counts == happened.counts(state["update"], 60 * minute)
            right &= equal
            table.add_row(
                str(minute), f"{arrived:,}", f"{sum(counts.values()):,}", str(state["pending"]),
                "equal" if equal else "[red]different[/]",
            )  # fmt: skip
        guessed = dict(run.read("on arrival").rows())
    console.print(table)
    truth = happened.counts(60 * MINUTES, 60 * MINUTES + LATE)
    off = sum(abs(guessed.get(name, 0) - truth[name]) for name in CAMPAIGNS) // 2
    console.print(
        f"fetched as of the time of the click: {sum(truth.values()):,} clicks, all credited as it happened"
    )
    console.print(
        f"taken as known on arrival: at least {off:,} clicks are credited to the wrong campaign"
    )
    return right


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
