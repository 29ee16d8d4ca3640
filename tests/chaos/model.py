"""A shared state as one sequential loop: the answers that the engine has to give, whatever is done to it meanwhile.

In an epoch, first the updates that are not late are applied, stream by stream. Then reports move U, and then F. Then
fetches whose time U has passed are answered, and the others wait. Here nothing is compacted, there is one worker, and
nothing fails. The programs of `sharing` build on this model.

>>> state = State(updates={"moves": Reporter()})
>>> views = Waiting(state)
>>> state.update([("ad", 10, "spring"), ("ad", 20, "summer")])
>>> state.settle(0, {"moves": [("", 20)]})
>>> views.take([(15, ("ad", 15)), (30, ("ad", 30))])
[(('ad', 15), 1)]
>>> state.latest("ad", 15)
'spring'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Entries = list[tuple[int, Any]]
Marks = Mapping[str, Iterable[tuple[str, int]]]
"""Of each reporter, the sources and times of the rows that it brought."""


@dataclass(frozen=True)
class Reporter:
    """A stream that reports its greatest time, less `late`; silent for `idle` epochs, it does not count."""

    late: int = 0
    idle: int | None = None


class State:
    """Entries, and how far updates and fetches have come."""

    def __init__(
        self,
        updates: Mapping[str, Reporter],
        fetches: Mapping[str, Reporter] | None = None,
        *,
        start: int | None = None,
        compacted: bool = False,
    ) -> None:
        self.reporters = {"update": dict(updates), "fetch": dict(fetches or {})}
        self.compacted = compacted
        self.update_progress, self.fetch_progress = start, None
        self.fetch_before: int | None = None
        self._entries: dict[Any, Counter[tuple[int, Any]]] = {}
        self._marks: dict[str, dict[str, tuple[int, int]]] = {}

    def update(self, rows: Iterable[Sequence[Any]], rule: str = "replace") -> None:
        """Rows of one stream in one epoch: key, time, value, and perhaps how often."""
        net: Counter[tuple[Any, int, Any]] = Counter()
        for key, time, value, *diff in rows:
            if self.update_progress is None or time >= self.update_progress:
                net[key, time, value] += diff[0] if diff else 1
        if rule == "append":
            for (key, time, value), diff in net.items():
                self._entries.setdefault(key, Counter())[time, value] += diff
            return
        asked: dict[tuple[Any, int], dict[Any, int]] = {}
        for (key, time, value), diff in net.items():
            if diff:
                asked.setdefault((key, time), {})[value] = diff
        for (key, time), values in asked.items():
            entry = self._entries.setdefault(key, Counter())
            put = [value for value, diff in values.items() if diff > 0]
            for old in [old for old in entry if old[0] == time and (put or old[1] in values)]:
                del entry[old]
            if put:
                entry[time, max(put)] = 1

    def settle(self, epoch: int, marks: Marks) -> None:
        """What is reported in an epoch counts."""
        for name, rows in marks.items():
            side = "update" if name in self.reporters["update"] else "fetch"
            sources = self._marks.setdefault(name, {})
            for source, time in rows:
                mark = time - self.reporters[side][name].late
                sources[source] = max(mark, sources.get(source, (mark, 0))[0]), epoch
        self.fetch_before = self.fetch_progress
        self.update_progress = _later(self.update_progress, self._least("update", epoch))
        fetch = self._least("fetch", epoch)
        if fetch is not None and self.update_progress is not None:
            self.fetch_progress = _later(self.fetch_progress, min(fetch, self.update_progress))

    def _least(self, side: str, epoch: int) -> int | None:
        active, idle = [], []
        for name, reporter in self.reporters[side].items():
            marks = self._marks.get(name, {})
            limit = 1 << 60 if reporter.idle is None else reporter.idle
            if not marks and epoch + 1 < limit:
                return None
            for mark, seen in marks.values():
                (idle if epoch - seen >= limit else active).append(mark)
        return min(active or idle, default=None)

    def within(self, key: Any, since: int | None = None, at: int | None = None) -> Entries:
        """The values of a key between two times, each as often as it is there, in order."""
        entries = [
            each
            for each in self._entries.get(key, Counter()).elements()
            if (since is None or each[0] >= since) and (at is None or each[0] <= at)
        ]
        return sorted(entries, key=lambda each: (each[0], each[1] is not None, each[1]))

    def latest(self, key: Any, at: int | None = None) -> Any:
        """The latest value up to a time; None if there is none."""
        entries = self.within(key, None, at)
        return entries[-1][1] if entries else None


class Waiting:
    """The fetches of one stream that wait for a state."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._rows: list[tuple[int, Any, int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def take(
        self, requests: Iterable[Sequence[Any]], at: Mapping[Any, int] | None = None
    ) -> list[tuple[Any, int]]:
        """Those that are answered now, of requests that come (wait, record, perhaps how often) and of older ones,
        without those that were deleted while they waited.

        Where the state is compacted, one that asks for a time before F is late: that is `at` of the record, if it is
        given, or else what it waits for.
        """
        state, older = self.state, len(self._rows)
        for wait, record, *diff in requests:
            asks = wait if at is None else at.get(record)
            late = asks is not None and state.fetch_before is not None and asks < state.fetch_before
            if not (state.compacted and late):
                self._rows.append((wait, record, diff[0] if diff else 1))
        bound = state.update_progress
        if bound is None:
            return []
        waited: Counter[Any] = Counter()
        for wait, record, diff in self._rows[:older]:
            if wait < bound:
                waited[record] += diff
        fresh = [(record, diff) for wait, record, diff in self._rows[older:] if wait < bound]
        self._rows = [row for row in self._rows if row[0] >= bound]
        return [*((record, diff) for record, diff in waited.items() if diff), *fresh]


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
