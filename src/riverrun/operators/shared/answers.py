"""Answers: records go on from a state with what they asked for; and answers that nobody may take back.

Used by `fetch`. `Answering` asks the rule of the fetch for the answers to some requests (`fetch_rules`), and sends the
records on with them: the first columns of a request are its record. `GivenAnswers` remembers the requests of
uncommitted fetches. Laws:

- **Inner or not.** A record without an answer goes no further if the fetch is inner; otherwise it goes on with nulls.
- **Late replies.** A record with several requests has a reply to a late one: the complement of its place, and no
  values.
- **Given answers stay.** An uncommitted answer, and that of a lookup, depends on when it was given, and is not kept. So
  requests that take back an answer of an earlier epoch are refused.

Cost: gathering the columns of the records and the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from riverrun.errors import OperatorFailed
from riverrun.operators.shared.fetch_rules import Answer, Asked
from riverrun.plan.operator import Context
from riverrun.progress import Timestamp
from riverrun.rows.records import canonical_columns
from riverrun.state.changes import Changes
from riverrun.state.columns import Ints, as_array, as_column, take_columns
from riverrun.state.keys import Keys
from riverrun.state.types import empty_batch
from riverrun.state.view import View

if TYPE_CHECKING:
    from riverrun.operators.shared.fetch import Fetch


class Answering:
    """Answers the requests of one fetch on a worker."""

    def __init__(
        self, context: Context, operator: Fetch, positions: Sequence[int], schema: pa.Schema
    ) -> None:
        """`positions` are those of the state's columns that the rule reads; `schema` has the columns of what is
        sent."""
        self._context = context
        self._operator = operator
        self._positions = tuple(positions)
        answer = pa.schema(list(schema)[operator.width :])
        self._blank = [each.type for each in canonical_columns(empty_batch(answer), answer)]

    def answer(self, requests: Changes, view: View, as_of: Timestamp) -> None:
        """Send the records of requests on with what a view has for them."""
        operator, bounds = self._operator, self._operator.bounds
        asked = Asked(
            view,
            as_of,
            Keys([requests.columns[at] for at in operator.key], requests.rows),
            None if bounds.since is None else requests.columns[bounds.since],
            None if bounds.until is None else requests.columns[bounds.until],
            bounds.closed,
        )
        answer = operator.rule.answer(asked, self._positions)
        if len(answer.queries):
            self._send(requests, answer)
        all_answered = operator.rule.single and len(answer.queries) == requests.rows
        if not operator.inner and not all_answered:
            self._send_blank(requests, answer.queries)

    def reply_late(self, requests: Changes) -> None:
        """Reply to late requests of records that have several."""
        *ids, places = requests.columns[: self._operator.width]
        places = as_column(-1 - as_array(places))
        self._send_blank(requests.with_columns((*ids, places)), np.zeros(0, np.int64))

    def _send(self, requests: Changes, answer: Answer) -> None:
        queries, columns, counts = answer
        record = requests.columns[: self._operator.width]
        once = len(queries) == requests.rows and (np.diff(queries) > 0).all()
        if not once:
            record = tuple(take_columns(record, queries))
        diffs = requests.diffs
        if diffs is not None:
            diffs = diffs if once else diffs[queries]
        if counts is not None:
            diffs = counts * (requests.diff if diffs is None else diffs)
        answered = (*record, *columns)
        sent = Changes(answered, len(queries), requests.times, None, requests.diff, diffs)
        self._context.push(sent, 0)

    def _send_blank(self, requests: Changes, answered: Ints) -> None:
        """Send the records without an answer on, with nulls in its columns."""
        missing = np.ones(requests.rows, np.bool_)
        missing[answered] = False
        if not missing.any():
            return
        rest = requests.filter(missing)
        blank = tuple(pa.nulls(rest.rows, kind) for kind in self._blank)
        self._context.push(rest.with_columns((*rest.columns[: self._operator.width], *blank)), 0)


class GivenAnswers:
    """The uncommitted requests of one epoch, and the refusal of those that take back an earlier answer."""

    def __init__(self, operator: Fetch, *, depth: int, together: bool) -> None:
        """`together` says that the requests of all rounds of an epoch are answered alike, `depth` how many coordinates
        their times have: in a loop that the state is not in."""
        self._operator = operator
        self._time = (0,) * depth
        self._together = together
        self._requests: list[Changes] = []

    def check(self, requests: Changes) -> None:
        """Refuse requests if one takes back an answer of an earlier epoch (given answers stay)."""
        if self._together:
            self._requests.append(requests.map_times(lambda _: self._time))
        if not has_deletions(requests):
            return
        both = Changes.concat(self._requests) if self._together else requests
        sums = both.consolidate()
        if sums.rows and (sums.diff_array() < 0).any():
            operator = self._operator
            count = -int(np.minimum(sums.diff_array(), 0).sum())
            what = "requests" if operator.many else "rows"
            raise OperatorFailed(
                "state.answer_kept",
                f"cannot take back {count} {what} of {operator.stream} that had their answers from "
                f"{operator.state!r} in another epoch: what an uncommitted fetch found then is not known "
                "any more",
                hint="keep such rows, or read committed: then answers depend on the time of a row alone; a join keeps "
                "up with both sides",
                state=operator.state,
            )

    def clear(self) -> None:
        """The epoch is over."""
        self._requests.clear()


def has_deletions(requests: Changes) -> bool:
    """Whether a request may be the deletion of another one."""
    return bool((requests.diff if requests.diffs is None else requests.diffs.min()) <= 0)
