"""Rules of shared states: what an update does to an entry, what a fetch makes of entries, what compaction leaves.

| for | rules |
|---|---|
| ``stream.update(state, rule=...)`` | `replace` (the default), `append`, `add`, or a function: `update` |
| ``stream.fetch(state, rule=...)`` | `latest` (the default), `within`, `distinct`, `total`, or a function: `fetch` |
| ``flow.state(..., compact=...)`` | `keep_latest`, `drop_before`, `fold`, or a function: `compact` |

>>> import polars as pl, riverrun as rr
>>> flow = rr.Dataflow("shop")
>>> sales = flow.input("sales", {"item": pl.String, "time": pl.Int64, "amount": pl.Int64})
>>> asked = flow.input("asked", {"item": pl.String, "at": pl.Int64})
>>> sold = flow.state("sold", key={"item": pl.String}, value={"amount": pl.Int64})
>>> _ = sales.update(sold, rule=rr.rules.add)
>>> flow.output("totals", asked.fetch_uncommitted(sold, at="at", rule=rr.rules.total))
"""

from riverrun.frontends.shared.rules import (
    add,
    append,
    compact,
    distinct,
    drop_before,
    fetch,
    fold,
    keep_latest,
    latest,
    replace,
    total,
    update,
    within,
)

__all__ = [
    "add",
    "append",
    "compact",
    "distinct",
    "drop_before",
    "fetch",
    "fold",
    "keep_latest",
    "latest",
    "replace",
    "total",
    "update",
    "within",
]
