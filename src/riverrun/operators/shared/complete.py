"""Complete: which records have all the replies to their requests, and which replies each of them goes on with.

Called by `gather` once for each time at which records or replies came. A record has made requests to a shared state,
and waits for a reply to each. The *ids* identify a record, and the *place* of a request is its number among the
requests of its record; a reply carries both. A request is *late* when the state may have lost the values that it asks
for (`fetch`). The reply to a late request has no values, and carries the complement of the place, which is negative.
Equal records are *copies*: one record with a diff of more than one, and with as many replies for each place. The
replies to the requests of a deletion have diffs below zero. Laws:

- **All replies.** A record is *complete*, and waits no longer, when each of its places has as many replies, late ones
  included, as the record has copies.
- **Late copies stop.** The copies of a complete record that go no further are as many as the late replies of one place,
  the place with the most of them. The other copies go on.
- **Late deletions.** A late reply to a deletion takes back the last reply of its place that was not late. Where every
  reply of the place was late, it takes back a late one. So a deletion takes effect at once, and late replies that come
  after the deletion count against the copies that are left.
- **Lots in turn.** Replies that were given to one place at one time are alike: they are a *lot*. Where replies do not
  say when they were given, all replies of a place are one lot. The lots of a place are in the order of their times,
  late replies behind them. The first copy goes on with the first reply of each place, the second copy with the second
  reply, and so on. Late replies aside, the lots of a place are all above zero, or all below zero, since `fetch` refuses
  to take back an answer that was given at another time.

Cost: some hundreds of ns a reply, in sorting; where a place has several lots, some 50 us a record besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riverrun.state.changes import Changes
from riverrun.state.columns import as_array

Rows = np.ndarray[Any, Any]
# The kinds of replies of a place, in the order of its lots; `_TAKES_BACK` is a late reply below zero.
_IN_TIME, _LATE, _TAKES_BACK = range(3)


@dataclass(frozen=True)
class CompleteRecords:
    """Which records are complete, and which records and replies are left to wait, added up."""

    rows: Rows
    """Positions of complete records among the records: once for each choice of replies."""
    sizes: Rows
    """How many requests each of these records has made."""
    diffs: Rows
    replies: Rows
    """Positions of their replies, in the order of records and places."""
    records_left: Rows
    record_diffs: Rows
    replies_left: Rows
    reply_diffs: Rows


@dataclass(frozen=True)
class _Lots:
    """Replies added up by record, place and time; those of a place that are late are one lot, behind the others.

    The sum of a lot may be zero.
    """

    group: Rows
    place: Rows
    late: Rows
    reply: Rows
    """The position of one reply of each lot."""
    sums: Rows

    @property
    def pairs(self) -> Rows:
        """Where the lots of each record and place start."""
        return np.flatnonzero(_differ(self.group, self.place))


def find_complete(records: Changes, replies: Changes, stamps: int = 0) -> CompleteRecords:
    """Match records (ids, number of requests, columns) with replies (ids, place, time given, values).

    The time at which a reply was given has as many columns as `stamps`.
    """
    record_columns, cut = [as_array(column) for column in records.columns[:3]], records.rows
    reply_columns = [as_array(column) for column in replies.columns[: 3 + stamps]]
    groups = _grouped(
        *(np.concatenate(pair) for pair in zip(record_columns[:2], reply_columns[:2], strict=True))
    )
    count = int(groups.max()) + 1 if len(groups) else 0
    of_record, of_reply = groups[:cut], groups[cut:]
    first = np.full(count, -1)
    first[of_record[::-1]] = np.arange(cut)[::-1]
    diffs = np.zeros(count, np.int64)
    np.add.at(diffs, of_record, records.diff_array())
    lots = _lots(of_reply, reply_columns[2], reply_columns[3:], replies.diff_array())
    group, place, late, sums = lots.group, lots.place, lots.late, lots.sums
    # A place has its replies when there are as many, of either kind, as there are copies.
    pairs = lots.pairs
    both = np.add.reduceat(sums, pairs) if len(pairs) else pairs
    owner = group[pairs]
    there = np.bincount(owner[both == diffs[owner]], minlength=count)
    known = first >= 0
    needed = np.full(count, -1)
    needed[known] = record_columns[2][first[known]]
    done = (diffs != 0) & (there == needed)
    # Some copies of a record may have come in time, others late: copies with a late request go no further.
    dropped = np.zeros(count, np.int64)
    sign = np.sign(diffs)
    np.maximum.at(dropped, group[late], (sums * sign[group])[late])
    copies = diffs - sign * dropped
    sent = np.flatnonzero(done & (copies != 0))
    sent = sent[np.argsort(first[sent])]
    rank = np.full(count, -1)
    rank[sent] = np.arange(len(sent))
    taken = np.flatnonzero(~late & (rank[group] >= 0) & (sums != 0))
    taken = taken[np.lexsort((place[taken], rank[group[taken]]))]
    ranks = rank[group[taken]]
    plain = np.bincount(ranks, minlength=len(sent)) == needed[sent]  # one lot for each place
    shares = [(np.flatnonzero(plain), copies[sent][plain], taken[plain[ranks]])]
    for at in np.flatnonzero(~plain):
        mine = taken[np.searchsorted(ranks, at) : np.searchsorted(ranks, at, "right")]
        dealt, from_lots = _dealt(lots, mine, copies[sent[at]])
        shares.append((np.full(len(dealt), at), dealt, from_lots))
    rows, row_diffs, from_lots = (np.concatenate(each) for each in zip(*shares, strict=True))
    # A record that was deleted while it waited is gone once its replies have been deleted too.
    uneven = np.bincount(owner[both != 0], minlength=count)
    gone = done | ((diffs == 0) & (uneven == 0))
    waiting = np.flatnonzero(known & (diffs != 0) & ~done)
    left_lots = np.flatnonzero(~gone[group] & (sums != 0))
    return CompleteRecords(
        first[sent[rows]], needed[sent[rows]], row_diffs, lots.reply[from_lots],
        first[waiting], diffs[waiting], lots.reply[left_lots], sums[left_lots],
    )  # fmt: skip


def _lots(of_reply: Rows, places: Rows, when: Sequence[Rows], diffs: Rows) -> _Lots:
    late, places = places < 0, np.where(places < 0, -1 - places, places)
    kinds = np.where(late, np.where(diffs < 0, _TAKES_BACK, _LATE), _IN_TIME)
    times = [np.where(late, 0, column) for column in when]
    order = np.lexsort((*reversed(times), kinds, places, of_reply))
    columns = [column[order] for column in (of_reply, places, kinds, *times)]
    starts = np.flatnonzero(_differ(*columns))
    sums = np.add.reduceat(diffs[order], starts) if len(starts) else starts
    group, place, kinds = (column[starts] for column in columns[:3])
    lots = _Lots(group, place, kinds != _IN_TIME, order[starts], sums)
    return _taken_back(lots, kinds) if (kinds == _TAKES_BACK).any() else lots


def _taken_back(lots: _Lots, kinds: Rows) -> _Lots:
    """The lots less the replies that late deletions take back (the late-deletions law); the late lots of a place become
    one."""
    pairs, sums = lots.pairs, lots.sums.copy()
    pair = np.repeat(np.arange(len(pairs)), np.diff(np.append(pairs, len(sums))))

    def added(chosen: Rows) -> Rows:
        return np.add.reduceat(chosen, pairs)

    wanted = -added(np.where(kinds == _TAKES_BACK, sums, 0))
    there = np.where(kinds == _IN_TIME, np.maximum(sums, 0), 0)
    so_far = np.cumsum(there)
    behind = (
        so_far[np.append(pairs[1:], len(sums)) - 1][pair] - so_far
    )  # in the lots after this one
    taken = np.clip(wanted[pair] - behind, 0, there)
    late = added(np.where(kinds == _LATE, sums, 0)) - (wanted - added(taken))
    sums -= taken
    sums[lots.late] = 0
    firsts = np.flatnonzero(lots.late & _differ(pair, lots.late))
    sums[firsts] = late[pair[firsts]]
    return replace(lots, sums=sums)


def _dealt(lots: _Lots, mine: Rows, copies: int) -> tuple[Rows, Rows]:
    """Deal the lots of one record, which has several lots for a place, to its copies (the lots-in-turn law).

    `mine` are the lots of the record in the order of places and times. The answer: how many copies have the same
    replies, for each choice of replies, and from which lots those replies are.
    """
    places = np.split(mine, np.flatnonzero(np.diff(lots.place[mine])) + 1)
    ends = [np.cumsum(np.abs(lots.sums[each])) for each in places]
    cuts = np.unique(np.minimum(np.concatenate(ends), abs(copies)))
    dealt = [each[np.searchsorted(end, cuts)] for each, end in zip(places, ends, strict=True)]
    return np.sign(copies) * np.diff(cuts, prepend=0), np.stack(dealt, axis=1).ravel()


def _differ(*columns: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows are not like the one before."""
    fresh = np.ones(len(columns[0]), np.bool_)
    if len(fresh):
        fresh[1:] = False
        for column in columns:
            fresh[1:] |= column[1:] != column[:-1]
    return fresh


def _grouped(a: Rows, b: Rows) -> Rows:
    """The number of the group of each row: rows with the same ids are one group."""
    order = np.lexsort((b, a))
    fresh = np.append(False, (a[order][1:] != a[order][:-1]) | (b[order][1:] != b[order][:-1]))
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(fresh[: len(order)])
    return groups
