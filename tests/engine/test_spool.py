"""Frames wait in order, in memory and on disk."""

from __future__ import annotations

import gc
from collections import deque
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.engine.codec import Frame
from riverrun.engine.spool import Spool

FRAMES = st.builds(
    Frame,
    st.binary(max_size=20),
    st.none() | st.binary(max_size=40).map(pa.py_buffer),
)


def told(frame: Frame) -> tuple[bytes, bytes | None]:
    return frame.head, None if frame.body is None else frame.body.to_pybytes()


@given(
    budget=st.integers(0, 60),
    steps=st.lists(
        FRAMES | FRAMES | st.sampled_from(["take", "peek", "clear"]), min_size=8, max_size=60
    ),
)
def test_it_is_a_queue_whatever_fits(budget: int, steps: list[Frame | str]) -> None:
    spool, model = Spool(budget), deque[Frame]()
    for step in steps:
        if isinstance(step, Frame):
            spool.put(step)
            model.append(step)
        elif step == "clear":
            spool.clear()
            model.clear()
        elif step == "peek":
            first = spool.peek()
            if first is None:
                assert spool.spilled == len(model)
            else:
                assert told(first) == told(model[0])
        elif model:
            assert told(spool.take()) == told(model.popleft())
        else:
            with pytest.raises(IndexError):
                spool.take()
        assert len(spool) == len(model)
        held = list(model)[: len(model) - spool.spilled]
        assert sum(frame.size for frame in held) <= budget
    while model:
        assert told(spool.take()) == told(model.popleft())
    assert len(spool) == spool.spilled == 0


def test_frames_return_to_memory_when_the_file_is_read(tmp_path: Path) -> None:
    spool = Spool(10, tmp_path)
    for round_ in range(3):
        for at in range(5):
            spool.put(Frame(bytes([round_, at]) * 2))
        assert spool.spilled == 3
        assert [spool.take().head for _ in range(5)] == [bytes([round_, at]) * 2 for at in range(5)]
        assert spool.spilled == 0
    assert not list(tmp_path.iterdir())


def test_what_comes_later_waits_behind_what_is_on_disk() -> None:
    spool = Spool(4)
    spool.put(Frame(b"long frame"))
    spool.put(Frame(b"s"))  # would fit
    assert spool.spilled == 2
    assert spool.peek() is None
    assert [spool.take().head, spool.take().head] == [b"long frame", b"s"]


def test_clearing_closes_the_file() -> None:
    spool = Spool(0)
    spool.put(Frame(b"a", pa.py_buffer(b"b")))
    spool.clear()
    del spool
    gc.collect()  # a file that is left open is a ResourceWarning, and that an error
