"""Checked inputs: an epoch that deletes a row which is not there is refused as a whole."""

from __future__ import annotations

import random

import polars as pl
import pytest

import riverrun as rr
from tests.soaking import seeds


@pytest.fixture
def flow():
    flow = rr.Dataflow("checked")
    rows = flow.input("rows", {"k": pl.Int64, "v": pl.String}, checked=True)
    flow.output("counts", rows.group_by("k").count())
    flow.output("rows", rows)
    return flow


@pytest.mark.parametrize("workers", [1, 3])
def test_deleting_what_is_not_there_refuses_the_epoch(flow, workers):
    with flow.run(workers=workers) as run:
        run.insert("rows", [(1, "a"), (1, "a"), (2, "b")])
        run.commit()
        for absent in [(1, "b"), (3, "a"), (2, None)]:
            run.delete("rows", [absent])
            run.insert("rows", [(9, "z")])
            with pytest.raises(rr.OperatorFailed) as caught:
                run.commit()
            assert caught.value.code == "operator.negative"
            assert caught.value.fields["row"] == dict(zip("kv", absent, strict=True))
            assert "test_checked.py" in str(caught.value)
        run.delete("rows", [(1, "a"), (1, "a")])
        run.commit()
        assert run.read("counts").rows() == [(2, 1)]
        run.delete("rows", [(2, "b"), (2, "b")])
        with pytest.raises(rr.OperatorFailed):
            run.commit()
        assert run.read("rows").rows() == [(2, "b")]


@pytest.mark.drawn
@pytest.mark.parametrize("seed", seeds(6, soak=24))
def test_as_a_bag_would(flow, seed):
    draw = random.Random(seed)
    there: list[tuple[int, str]] = []
    with flow.run(workers=draw.randint(1, 3), seed=seed) as run:
        for _ in range(12):
            put = [(draw.randrange(3), draw.choice("ab")) for _ in range(draw.randrange(4))]
            gone = [(draw.randrange(3), draw.choice("ab")) for _ in range(draw.randrange(4))]
            after = there + put
            allowed = True
            for row in gone:
                if row in after:
                    after.remove(row)
                else:
                    allowed = False
            run.insert("rows", put)
            run.delete("rows", gone)
            if allowed:
                run.commit()
                there = after
            else:
                with pytest.raises(rr.OperatorFailed):
                    run.commit()
            if run.completed:
                assert run.read("rows").rows() == sorted(there), f"seed {seed}"
