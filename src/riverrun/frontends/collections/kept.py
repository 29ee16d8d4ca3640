"""Kept columns: the argument ``keeps=`` of the methods that take a user's function.

A kept column is one that the function leaves as it is (`operators.kept` has the laws). Here the argument is checked
while the program is built: each kept column is a column of the rows that the function takes and of those that it gives,
with one layout in states, so that equal values have equal hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.frontends.collections.rows import Rows
from riverrun.rows.column_names import checked_columns
from riverrun.state.types import share_layout, type_text


def kept_columns(
    keeps: Any, taken: Rows, schema: pa.Schema, method: str, key: Sequence[str] = ()
) -> tuple[str, ...]:
    """The columns of ``keeps=``. The function takes rows of `taken` and gives rows of the `schema`, beside the columns
    of the `key`, which the method itself keeps: they are left out of the answer."""
    attempt = f"keep columns of {taken._name} in {method}"
    named: tuple[str, ...] = checked_columns(keeps, taken.columns, attempt, least=0)
    kept = tuple([name for name in named if name not in key])
    checked_columns(list(kept), schema.names, f"{attempt} (schema=)", least=0)
    for name in kept:
        check_kept_type(taken.schema.field(name), schema.field(name), attempt)
    return kept


def check_kept_type(taken: pa.Field, given: pa.Field, attempt: str) -> None:
    """Refuse to keep a column whose type the function changes."""
    if not share_layout(taken.type, given.type):
        raise PlanError(
            "plan.types_differ",
            f"cannot {attempt}: {taken.name!r} is {type_text(taken.type)} there, and schema= declares it "
            f"{type_text(given.type)}",
            hint="declare it in schema= as it is there, or leave it out: keeps= names columns that stay as they are",
            column=taken.name,
        )
