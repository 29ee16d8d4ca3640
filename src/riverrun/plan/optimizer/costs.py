"""Costs: what the ways of a choice cost, as far as sizes are known before a run; and which way costs least.

`ways` asks `cheapest`. A loop on arrays can run on one worker, or on all of them. One worker does all of the work, and
waits for nobody. All workers share the work, but a value that goes from worker to worker waits for a message each
time. So the costs of one worker grow with the rows, and those of all workers grow less, from a higher start. Laws:

- **Same choice.** The choice depends on the program and on the user's hints alone: not on how many workers there are
  now, as a run may go on with another number of them, and not on rows.
- **Hints first.** What the program asks for is taken, whatever it costs.

>>> (
...     round(one_worker(10**6), 1) < round(all_workers(10**6), 1),
...     all_workers(10**8) < one_worker(10**8),
... )
(True, True)
"""

from __future__ import annotations

from riverrun.plan.operator import Role
from riverrun.plan.plan import Choice, Plan, Port, Shortcut

WORKERS = 4
"""The number of workers that costs are reckoned for."""
LOAD = 0.7e-6
"""Seconds for a row: to take it in, and to send a value along it."""
LETTER = 0.3e-6
"""Seconds for a row whose value is sent to another worker."""
HOPS = 200
"""So many hops follow one on another in a large graph, as a rule."""
HOP = 0.005
"""Seconds for a hop between workers, where machines have other work too."""


def one_worker(rows: int) -> float:
    """The seconds of a loop over so many rows, on one worker."""
    return LOAD * rows


def all_workers(rows: int) -> float:
    """The seconds of the same loop on `WORKERS` workers."""
    away = rows * (WORKERS - 1) / WORKERS
    return LOAD * rows / WORKERS + LETTER * away / WORKERS + HOPS * HOP


def cheapest(plan: Plan, choice: Choice) -> tuple[Shortcut, str, str]:
    """The way to take; and in words, if there was anything to choose, the reason and what another way would cost."""
    if choice.ways[0].edges is None:
        return choice.ways[0], "", ""
    by_name = {way.over: way for way in choice.ways}
    if choice.over != "auto":
        return by_name[choice.over], f"on {_named(choice.over)}, as asked for", ""
    rows = expected_rows(plan, choice.ways[0].edges)
    if rows is None or len(by_name) == 1:
        return by_name["one"], "on one worker, as no size is known (expect= of inputs)", ""
    costs = {"one": one_worker(rows), "all": all_workers(rows)}
    over = min(costs, key=costs.__getitem__)
    other = "all" if over == "one" else "one"
    return (
        by_name[over],
        f"on {_named(over)}, for {rows:,} rows: about {costs[over]:.2g} s",
        f"{costs[other]:.2g} s on {_named(other)}; ",
    )


def _named(over: str) -> str:
    return "one worker" if over == "one" else "all workers"


def expected_rows(plan: Plan, port: Port) -> int | None:
    """How many rows are expected at an output: the sum of what is expected of the inputs that lead to it, taking the
    larger side of a join; None if that is unknown."""
    known: dict[int, int | None] = {}
    waiting = [port.node]
    while waiting:
        at = waiting[-1]
        node = plan.nodes[at]
        if at in known:
            waiting.pop()
            continue
        if at in plan.expected:
            known[at] = plan.expected[at]
            continue
        missing = [one.node for one in node.inputs if one.node not in known]
        if missing and not node.operator.is_feedback:
            waiting += missing
            continue
        sizes = [known[one.node] for one in node.inputs if known.get(one.node) is not None]
        numbers = [size for size in sizes if size is not None]
        adds = node.operator.role is Role.CONCAT
        known[at] = (sum(numbers) if adds else max(numbers)) if numbers else None
    return known[port.node]
