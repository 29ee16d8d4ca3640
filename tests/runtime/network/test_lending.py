"""Loans that nobody can ask for any more are given back, whatever went wrong on the way."""

from __future__ import annotations

import gc
from typing import Any

import pyarrow as pa
import pytest

from riverrun.runtime.network.connection import Credentials
from riverrun.runtime.network.lending import ArgumentFor, Lender
from riverrun.state.shards import Shards


def test_what_workers_lent_is_given_back_where_one_answer_cannot_be_read() -> None:
    schema = pa.schema({"n": pa.int64()}).serialize().to_pybytes()
    released: list[tuple[str, int]] = []

    def ask(question: str, *, argument_for: ArgumentFor) -> list[tuple[str, Any]]:
        for index in range(3):
            argument_for(Shards.even(3), index)
        return [("a", ([1], schema)), ("b", ([2], b"no schema")), ("c", ([3], schema))]

    lender = Lender(Credentials(), ask, lambda *loan: released.append(loan), lambda address: False)
    with pytest.raises((pa.ArrowException, OSError)):
        lender.borrow("read", "counts", 4)
    gc.collect()
    assert sorted(released) == [("a", 1), ("b", 2), ("c", 3)]
