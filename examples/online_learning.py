"""Will this visitor click? A model that learns from every view of an advertisement, and is asked all the while.

Run it with `python -m examples.online_learning`; it needs nothing but the clone. Visitors see advertisements in one of
three places. What they do is made up: it depends on the place, on the advertisement, and on whether they like it there.
Every second some views come in, each with whether the visitor clicked; they are one mini-batch, and an epoch. In the
same epoch the model is asked about two views that are about to happen, and answers with the parameters from before the
epoch.

Half way, people change their minds. The model follows, because it never stops learning.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import count

import polars as pl

import riverrun as rr
from riverrun.learning import ftrl

SECONDS, VIEWS = 40, 200
PLACES = ("top", "side", "foot")
ADS = [f"ad {number}" for number in range(20)]
VIEW = {"id": pl.Int64, "features": pl.List(pl.String)}


def program(workers: int = 2) -> rr.Run:
    """Views with clicks train a model; views without are given a chance."""
    flow = rr.Dataflow("clicks")
    seen = flow.input("seen", {**VIEW, "batch": pl.Int64, "label": pl.Int64})
    asked = flow.input("asked", VIEW)
    model = ftrl(flow, seen, trainers=2, alpha=0.3, l1=0.5, l2=0.1)
    flow.output("losses", model.losses)
    flow.output("chances", model.predict(asked))
    flow.output("parameters", model.parameters)
    return flow.run(workers=workers)


def views(rng: random.Random) -> Iterator[tuple[int, list[str], float]]:
    """Views without end, each with how likely a click is before and after people change their minds."""
    liking = {feature: rng.gauss(0, 1.5) for feature in (*PLACES, *ADS)}
    for number in count():
        features = ["every view", rng.choice(PLACES), rng.choice(ADS)]
        yield number, features, -1.0 + sum(liking.get(each, 0.0) for each in features)


def main(seconds: int = SECONDS) -> list[float]:
    """Show how the loss falls, jumps, and falls again; give it for each second."""
    rng = random.Random(1)
    stream = views(rng)
    losses: list[float] = []
    with program() as run:
        print("second   loss   what it thought of 'ad 7', at the top and at the foot")
        for second in range(seconds):
            sign = 1 if second < seconds // 2 else -1
            rows = []
            for _ in range(VIEWS):
                number, features, liked = next(stream)
                clicked = rng.random() < 1 / (1 + math.exp(-sign * liked))
                rows.append((number, features, second, int(clicked)))
            run.insert("seen", rows)
            asked = [["every view", place, "ad 7"] for place in ("top", "foot")]
            run.insert("asked", [(2 * second + at, features) for at, features in enumerate(asked)])
            run.commit()
            losses.append(
                dict(run.changes("losses").to_polars().select("batch", "loss").rows())[second]
            )
            if second % (seconds // 8) == 0:
                fresh = run.changes("chances").to_polars().sort("id")["chance"]
                chances = "   ".join(f"{chance:.2f}" for chance in fresh)
                print(f"{second:6}  {losses[-1]:.3f}   {chances}")
        weights = run.read("parameters").to_polars().sort("weight")
        least, most = weights.row(0, named=True), weights.row(-1, named=True)
        print(
            f"least liked: {least['feature']} ({least['weight']:+.2f}); most: {most['feature']} ({most['weight']:+.2f})"
        )
    return losses


if __name__ == "__main__":
    main()
