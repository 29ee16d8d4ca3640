"""Adding up before an exchange: equal rows travel as one, wherever they are added up anyway behind it.

An arrangement adds up the equal rows of one time. So rows that travel to one may be added up before: a worker sends a
row once, with the sum of its diffs, and not at all where the diffs cancel. Counts and sums have always done so; the
arrangements behind minima, tops, joins and outputs do so by this rewrite. Laws:

- **Same sums.** What arrives, added up, is what would have arrived.
- **While it pays.** An exchange where more than 0.8 of the rows are left lets most batches pass as they are
  (`engine.wiring`).

**Why not the best rows only.** For a minimum, a worker would do with sending the least row of each group. But rows may
be deleted later: when the least row goes, the next one has to come forward, and the worker that held it back has to
know it. So the rows of every group would have to be kept on both sides of the exchange. Even that is wrong where a row
is inserted on one worker and deleted on another, as rows of inputs may be: then no worker knows whether the row is
there. So rows are left out only where the others, added up, say the same, which deletions cannot change.

Cost: sorting a batch that travels, where that pays; nothing with one worker.
"""

from __future__ import annotations

from dataclasses import replace

from riverrun.plan.optimizer.draft import Draft
from riverrun.plan.plan import Plan, Port, Reason


def adding_before(plan: Plan) -> Plan:
    """The plan in which equal rows are added up before they travel to where they are added up."""
    draft = Draft(plan)
    for node in plan.nodes:
        exchange = node.operator.as_exchange
        takers = plan.consumers.get(Port(node.number), [])
        if exchange is None or exchange.adds_before or not takers:
            continue
        adding = exchange.adding_before()
        if adding is None or not all(taker.operator.adds_rows_up for taker, _ in takers):
            continue
        draft.put(replace(node, operator=adding))
        draft.say(
            Reason(
                "added up",
                (node.name,),
                "equal rows travel as one, while fewer than 0.8 of the rows are left",
                "each by itself",
            )
        )
    return draft.plan()
