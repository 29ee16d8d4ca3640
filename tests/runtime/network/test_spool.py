"""Fragments wait in order, in memory and on disk."""

from __future__ import annotations

import gc
from collections import deque
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.runtime.codec.fragments import Fragment
from riverrun.runtime.network.spool import Spool

FRAGMENTS = st.builds(
    Fragment,
    st.binary(max_size=20),
    st.none() | st.binary(max_size=40).map(pa.py_buffer),
)


def told(fragment: Fragment) -> tuple[bytes, bytes | None]:
    return fragment.head, None if fragment.body is None else fragment.body.to_pybytes()


@given(
    budget=st.integers(0, 60),
    steps=st.lists(st.tuples(st.lists(FRAGMENTS, max_size=4), st.integers(-1, 4)), max_size=12),
)
def test_it_is_a_queue_whatever_fits(budget: int, steps: list[tuple[list[Fragment], int]]) -> None:
    """Some fragments are put, then some taken, or all dropped; in the end all come."""
    spool, model = Spool(budget), deque[Fragment]()
    for fragments, taken in [*steps, ([], 1000)]:
        for fragment in fragments:
            spool.put(fragment)
            model.append(fragment)
            held = list(model)[: len(model) - spool.spilled]
            assert sum(each.size for each in held) <= budget
        if taken < 0:
            spool.clear()
            model.clear()
        for _ in range(min(taken, len(model))):
            first = spool.peek()
            assert first is None or told(first) == told(model[0])
            assert (first is None) == (spool.spilled == len(model))
            assert told(spool.take()) == told(model.popleft())
        assert len(spool) == len(model)
    with pytest.raises(IndexError):
        spool.take()


def test_what_is_put_between_takes_comes_last() -> None:
    spool, wanted = Spool(0), [bytes([at]) * (at + 1) for at in range(6)]
    found = []
    for at, head in enumerate(wanted):
        spool.put(Fragment(head))
        if at % 3:
            found.append(spool.take().head)
    found += [spool.take().head for _ in range(len(spool))]
    assert found == wanted


def test_fragments_return_to_memory_when_the_file_is_read(tmp_path: Path) -> None:
    spool = Spool(10, tmp_path)
    for round_ in range(3):
        for at in range(5):
            spool.put(Fragment(bytes([round_, at]) * 2))
        assert spool.spilled == 3
        assert [spool.take().head for _ in range(5)] == [bytes([round_, at]) * 2 for at in range(5)]
        assert spool.spilled == 0
    assert not list(tmp_path.iterdir())


def test_what_comes_later_waits_behind_what_is_on_disk() -> None:
    spool = Spool(4)
    spool.put(Fragment(b"long fragment"))
    spool.put(Fragment(b"s"))  # would fit
    assert spool.spilled == 2
    assert spool.peek() is None
    assert [spool.take().head, spool.take().head] == [b"long fragment", b"s"]


def test_clearing_closes_the_file() -> None:
    spool = Spool(0)
    spool.put(Fragment(b"a", pa.py_buffer(b"b")))
    spool.clear()
    del spool
    gc.collect()  # a file that is left open is a ResourceWarning, and that an error
