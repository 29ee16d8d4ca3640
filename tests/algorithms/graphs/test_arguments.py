"""What graph algorithms refuse: in the words of the user's own rows, with the user's own line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import riverrun as rr

PAID = {"src": pl.Int64, "dst": pl.Int64, "time": pl.Int64, "end": pl.Int64, "name": pl.String}
Wrong = Callable[[rr.Dataflow, rr.Collection, rr.Collection], Any]
WRONG: dict[str, tuple[Wrong, str, str]] = {
    "no weight": (
        lambda f, e, s: rr.graphs.shortest_paths(e, s), "plan.column_unknown", "'paid': column 'weight'"
    ),
    "no dst": (
        lambda f, e, s: rr.graphs.bfs(s, s), "plan.column_unknown", "'who': column 'src'"
    ),
    "no node": (
        lambda f, e, s: rr.graphs.bfs(e, e), "plan.column_unknown", "'paid': column 'node'"
    ),
    "no src": (
        lambda f, e, s: rr.graphs.components(s), "plan.column_unknown", "'who': column 'src'"
    ),
    "unknown end": (
        lambda f, e, s: rr.graphs.cycles(f, e, span=3, end="ned"),
        "plan.column_unknown",
        "did you mean 'end'",
    ),
    "listed end": (
        lambda f, e, s: rr.graphs.cycles(f, e, span=3, end=["end"]), "plan.end", "name of one column"
    ),
    "computed end": (
        lambda f, e, s: rr.graphs.cycles(f, e, span=3, end=pl.col("end") + 1),
        "plan.end",
        "name of one column",
    ),
    "end of another type": (
        lambda f, e, s: rr.graphs.cycles(f, e, span=3, end="name"), "plan.end", "type of 'time'"
    ),
    "a length twice": (
        lambda f, e, s: rr.graphs.cycles(f, e, span=3, lengths=(3, 3)), "plan.lengths", "twice"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "code", "words"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused_in_the_users_words(
    wrong: Wrong, code: str, words: str
) -> None:
    flow = rr.Dataflow("graph")
    paid, who = flow.input("paid", PAID), flow.input("who", {"node": pl.Int64})
    before = len(flow._builder.nodes)
    with pytest.raises(rr.PlanError) as refused:
        wrong(flow, paid, who)
    assert refused.value.code == code
    assert words in str(refused.value)
    assert "inspect" not in str(refused.value)
    assert refused.value.fields["line"].startswith("test_arguments.py:")
    assert len(flow._builder.nodes) <= before + 2  # the checks alone


def test_an_end_is_named_as_columns_are_everywhere() -> None:
    results = []
    for end in ("end", pl.col("end")):
        flow = rr.Dataflow("graph")
        flow.output("rings", rr.graphs.cycles(flow, flow.input("paid", PAID), span=9, end=end))
        with flow.run() as run:
            run.insert("paid", [(1, 2, 1, None, ""), (2, 3, 2, 9, ""), (3, 1, 3, None, "")])
            run.commit()
            results.append(run.read("rings").rows())
    assert results[0] == results[1] != []


def test_the_steps_of_an_algorithm_have_the_users_line() -> None:
    flow = rr.Dataflow("graph")
    edges = flow.input("edges", {"src": pl.Int64, "dst": pl.Int64})
    flow.output("parts", rr.graphs.components(edges))
    assert {node.line.partition(":")[0] for node in flow._builder.nodes} == {"test_arguments.py"}
