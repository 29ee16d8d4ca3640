"""The first thing to run: a few seconds, the main road from end to end."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

import riverrun
import riverrun.progress
import riverrun.state
from riverrun.progress import Antichain
from riverrun.state import Schema, Spine
from riverrun.storage import Checkpoints


def test_public_names_are_pinned():
    assert set(riverrun.__all__) == {
        "Aggregate",
        "CheckpointError",
        "Collection",
        "Commit",
        "Dataflow",
        "Grouped",
        "Loop",
        "OperatorFailed",
        "PlanError",
        "Result",
        "RiverrunError",
        "Rounds",
        "Route",
        "Run",
        "SchemaError",
        "Sink",
        "State",
        "TO_ALL",
        "TO_ANY",
        "TO_ONE",
        "TimeViolation",
        "TransportError",
        "Vertex",
        "count",
        "count_distinct",
        "first",
        "graphs",
        "last",
        "learning",
        "loops",
        "max",
        "mean",
        "min",
        "options",
        "read_checkpoint",
        "rules",
        "sum",
    }
    assert set(riverrun.state.__all__) == {
        "END",
        "Batch",
        "Order",
        "ReadHold",
        "Schema",
        "Selection",
        "Spine",
        "View",
    }
    for module in (riverrun, riverrun.progress, riverrun.state):
        assert all(hasattr(module, name) for name in module.__all__)


def test_a_state_is_changed_read_compacted_saved_and_restored(tmp_path):
    stock = Spine("stock", Schema.of({"item": pa.string()}, {"left": pa.int64()}))
    stock.insert(pa.table({"item": ["rope", "sail"], "left": [5, 2]}), time=(0,))
    stock.insert(pa.table({"item": ["rope", "rope"], "left": [5, 4]}), time=(1,), diffs=[-1, 1])
    asked = pa.array(["rope", "mast"])
    assert stock.lookup(asked, as_of=(0,)).column("left").to_pylist() == [5]
    assert stock.lookup(asked, as_of=(1,)).column("left").to_pylist() == [4]
    Checkpoints(tmp_path).save({"stock": stock.view()})
    stock.advance_since(Antichain([(1,)]))
    stock.compact()
    with pytest.raises(riverrun.TimeViolation):
        stock.lookup(asked, as_of=(0,))
    restored = Spine.from_view(Checkpoints(tmp_path).restore("stock"))
    assert restored.lookup(asked, as_of=(0,)).column("left").to_pylist() == [5]
    assert restored.to_batch((1,)).equals(stock.to_batch((1,)))


def test_errors_survive_pickling():
    error = riverrun.SchemaError("schema.x", "no", hint="yes", story=["first", "then"], column="c")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "no\nHint: yes\nWhat led here:\n  first\n  then"
    assert (copy.code, copy.fields, copy.story) == (error.code, error.fields, error.story)
