"""Shares: which rows of an epoch each worker gets.

>>> import pyarrow as pa
>>> rows = pa.record_batch({"n": [1, 2, 3]})
>>> [share_of({"a": rows}, index, 2)["a"].num_rows for index in (0, 1)]
[1, 2]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from riverrun.engine.messages import Inputs, Parcel, Parcels


def share_of(inputs: Inputs, index: int, count: int) -> Inputs:
    """The rows of one of `count` workers: about as many for each."""
    share = {}
    for name, batch in inputs.items():
        rows = batch.num_rows
        start, stop = rows * index // count, rows * (index + 1) // count
        if start < stop:
            share[name] = batch.slice(start, stop - start)
    return share


def share_of_parcels(parcels: Parcels, index: int, members: list[int]) -> Parcels:
    """The parcels that a worker holds, and its part of those whose holder is gone."""
    share = {}
    for name, listed in parcels.items():
        mine = []
        for at, parcel in enumerate(listed):
            held = parcel.holder in members
            if members[index] == parcel.holder if held else at % len(members) == index:
                mine.append(parcel)
        if mine:
            share[name] = tuple(mine)
    return share


def stored_parcels(stored: Mapping[str, list[dict[str, Any]]]) -> Parcels:
    """Parcels as the log has them. Nobody holds them any more."""
    return {
        name: tuple(Parcel(**{**each, "holder": 0}) for each in listed)
        for name, listed in stored.items()
    }
