"""The judge of shared state: one state in plain Python, epoch by epoch.

A :class:`Spec` says which streams update a state, fetch from it and report to it. A :class:`Model` keeps all entries
(it never compacts), U and F, and the fetches that wait; it computes the answers of an epoch by going through lists.
Times are whole numbers. An epoch that has to be refused raises :class:`Refused` with the codes of all its faults, and
leaves the model unchanged. The model is slow, short, and without cleverness.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.frontends.collections.reference import Row, exact_sum, frozen
from tests.oracle import rank

CLOSED = {"both": (True, True), "left": (True, False), "right": (False, True), "none": (False, False)}  # fmt: skip
Changes = Sequence[tuple[Row, int]]


class Refused(Exception):
    """The epoch has to be refused, with one of these codes."""

    def __init__(self, codes: set[str]) -> None:
        super().__init__(*sorted(codes))
        self.codes = codes


@dataclass(frozen=True)
class Reporting:
    """How a stream reports. `late` is None where the stream calls `progress` itself."""

    late: int | None = 0
    by: bool = False
    idle: int | None = None
    reports: bool = True


@dataclass(frozen=True)
class Update:
    """A stream of updates: rows of source, key, time, values."""

    name: str
    rule: str = "replace"
    how: Reporting = Reporting()


@dataclass(frozen=True)
class Fetch:
    """A stream of requests: rows of source, key, since, at, wait, tag. Flags here say which of the three times count.

    With `many`, rows are records, and each makes several requests (`requests_of`).
    """

    name: str
    rule: str = "latest"
    committed: bool = True
    closed: str = "both"
    since: bool = False
    at: bool = True
    wait: bool = False
    inner: bool = False
    how: Reporting = Reporting()
    many: bool = False


SHIFTS = {0: (0, 9, 3), 1: (8, 0), 2: ()}
"""By the tag of a record, the shift in time of each of its requests."""


def requests_of(record: Row, keys: int) -> list[Row]:
    """The requests of a record: one for its key, one for a null key, and so on, with the record in place of the tag."""
    source, key, times, tag = record[0], record[1 : 1 + keys], record[1 + keys : -1], record[-1]
    return [
        (
            source,
            *(key if place % 2 == 0 else (None, *key[1:])),
            *(None if time is None else time + shift for time in times),
            (record, place),
        )
        for place, shift in enumerate(SHIFTS[tag])
    ]


@dataclass
class Copy:
    """A waiting record, apart from equal records: its replies so far, and whether one of its requests is late."""

    replies: list[Row | None]
    late: bool = False


@dataclass(frozen=True)
class Report:
    """A stream that only reports: rows of source, time."""

    name: str
    side: str
    how: Reporting = Reporting(late=None)


@dataclass(frozen=True)
class Spec:
    """A state and its users, in the order of their declaration."""

    name: str
    users: tuple[Update | Fetch | Report, ...]
    keys: int = 1
    start: int | None = None
    compact: str | int | None = None
    """The name of a rule, or a span before F."""

    def of(self, kind: type) -> list[Any]:
        return [user for user in self.users if isinstance(user, kind)]


@dataclass
class Model:
    """The condition of a state after some epochs."""

    spec: Spec
    epoch: int = 0
    update: int | None = None
    fetch: int | None = None
    entries: Counter[tuple[Row, int, Row]] = field(default_factory=Counter)
    marks: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    waiting: dict[str, Counter[Row]] = field(default_factory=dict)
    answers: dict[str, Counter[Row]] = field(default_factory=dict)
    copies: dict[str, dict[Row, list[Copy]]] = field(default_factory=dict)
    """For each fetch with several requests, the waiting copies of each record, the oldest first."""
    apart: int = 0
    """How often equal records went on together with different replies."""
    late: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.update = self.spec.start
        self.marks = {user.name: {} for user in self.spec.users}
        self.waiting = {user.name: Counter() for user in self.spec.of(Fetch)}
        self.answers = {user.name: Counter() for user in self.spec.of(Fetch)}
        self.copies = {user.name: {} for user in self.spec.of(Fetch)}

    @property
    def pending(self) -> int:
        return sum(sum(rows.values()) for rows in self.waiting.values())

    def step(self, changes: Mapping[str, Changes]) -> None:
        """An epoch: updates first, then progress, then fetches."""
        before = copy.deepcopy(self.__dict__)
        try:
            self._step(
                {
                    # A row that comes and goes in one epoch was never there, so it reports no progress.
                    name: list(_added([(tuple(map(frozen, r)), n) for r, n in rows]).items())
                    for name, rows in changes.items()
                }
            )
        except Refused:
            self.__dict__.update(before)
            raise

    def _step(self, arrivals: Mapping[str, Changes]) -> None:
        update, horizon = self.update, self.fetch
        for user in self.spec.of(Update):
            rows = _added(arrivals.get(user.name, ()))
            rows = self._timed(rows, [1 + self.spec.keys])
            gone = {r: n for r, n in rows.items() if update is not None and self._time(r) < update}
            late_rows = _added(
                [(row[1:], n) for row, n in gone.items()]
            )  # equal rows of two sources count as one
            self.late[user.name, "update"] += sum(map(abs, late_rows.values()))
            self._apply(user.rule, {r: n for r, n in rows.items() if r not in gone})
        records = {user.name: _added(arrivals.get(user.name, ())) for user in self.spec.of(Fetch)}
        arrivals = {
            user.name: self._requests(user, arrivals.get(user.name, ())) for user in self.spec.users
        }
        for user in self.spec.users:
            self._report(user, arrivals[user.name])
        self.update = _later(self.update, self._least(("update", Update)))
        fetch = self._least(("fetch", Fetch))
        if fetch is not None:
            fetch = None if self.update is None else min(fetch, self.update)
        self.fetch = _later(self.fetch, fetch)
        for user in self.spec.of(Fetch):
            self._fetch(user, _added(arrivals[user.name]), horizon)
            if user.many:
                self._gather(user, records[user.name], horizon)
        self.epoch += 1
        if self.wrong:
            raise Refused(self.wrong)

    def _timed(self, rows: Counter[Row], places: Sequence[int]) -> Counter[Row]:
        nulls = {row for row in rows if any(row[place] is None for place in places)}
        self.wrong |= {"state.time_null"} if nulls else set()
        return Counter({row: n for row, n in rows.items() if row not in nulls})

    # -- updates

    def _time(self, row: Row) -> Any:
        return row[1 + self.spec.keys]

    def _apply(self, rule: str, rows: Mapping[Row, int]) -> None:
        cut = 1 + self.spec.keys
        split: dict[tuple[Row, int], Counter[Row]] = {}
        for row, count in rows.items():
            values = split.setdefault((row[1:cut], row[cut]), Counter())
            values[row[cut + 1 :]] += count
        if rule == "function" and any(n < 0 for v in split.values() for n in v.values()):
            self.wrong.add("state.rule_deletes")
            return
        for (key, time), values in split.items():
            there = [v for k, t, v in self.entries if (k, t) == (key, time)]
            put = [value for value, count in values.items() if count > 0]
            if rule in ("append", "add"):
                for value, count in values.items():
                    there_now = self.entries[key, time, value]
                    self.entries[key, time, value] = max(there_now + count, 0)
            elif rule == "replace":
                for value in there:
                    if put or values[value] < 0:
                        del self.entries[key, time, value]
                if put:
                    self.entries[key, time, greatest(put)] = 1
            elif put:  # the function of these tests keeps the greatest value of a time
                for value in there:
                    del self.entries[key, time, value]
                self.entries[key, time, greatest([*there, *put])] = 1
        self.entries = Counter({entry: n for entry, n in self.entries.items() if n})

    # -- progress

    def _report(self, user: Update | Fetch | Report, rows: Changes) -> None:
        at = {Update: 1 + self.spec.keys, Fetch: 2 + self.spec.keys, Report: 1}[type(user)]
        if not user.how.reports or (isinstance(user, Fetch) and not user.at):
            return
        said: dict[str, int] = {}
        for row, count in rows:
            if count > 0 and row[at] is not None:
                source = row[0] if user.how.by else ""
                mark = row[at] - (user.how.late or 0)
                said[source] = max(mark, said.get(source, mark))
        for source, mark in said.items():
            known = self.marks[user.name].get(source, (mark, 0))[0]
            if mark < known and user.how.late is None:
                self.wrong.add("progress.went_back")
            self.marks[user.name][source] = max(mark, known), self.epoch

    def _least(self, sides: tuple[Any, ...]) -> int | None:
        active, idle = [], []
        for user in self.spec.users:
            side = user.side if isinstance(user, Report) else type(user)
            reports = user.how.reports and not (isinstance(user, Fetch) and not user.at)
            if side not in sides or not reports:
                continue
            limit, marks = user.how.idle, self.marks[user.name]
            if not marks and (limit is None or self.epoch + 1 < limit):
                return None
            for mark, seen in marks.values():
                silent = limit is not None and self.epoch - seen >= limit
                (idle if silent else active).append(mark)
        return min(active or idle, default=None)

    # -- fetches

    def _requests(self, user: Update | Fetch | Report, rows: Changes) -> Changes:
        if not isinstance(user, Fetch) or not user.many:
            return rows
        return [(each, n) for row, n in rows for each in requests_of(row, self.spec.keys)]

    def _fetch(self, user: Fetch, rows: Counter[Row], horizon: int | None) -> None:
        cut = 1 + self.spec.keys
        at, compact = 1 + cut, self.spec.compact
        bounds = [
            place
            for place, there in ((cut, user.since), (at, user.at), (at + 1, user.wait))
            if there
        ]
        rows = self._timed(rows, bounds)
        if compact is not None and horizon is not None:
            rows = self._taken_back(user, rows)
            if user.at:
                gone = {row: n for row, n in rows.items() if row[at] < horizon}
                self.late[user.name, "fetch"] += sum(map(abs, gone.values()))
                rows = Counter({row: n for row, n in rows.items() if row not in gone})
            free = compact == "function" or (compact == "keep_latest" and user.rule == "latest")
            reach = horizon - (compact if isinstance(compact, int) else 0)
            if user.since and not free and any(row[cut] < reach for row in rows):
                self.wrong.add("state.reaches_back")
        ready: Counter[Row] = Counter()
        waiting, self.waiting[user.name] = self.waiting[user.name], Counter()
        for row, count in _added([*waiting.items(), *rows.items()]).items():
            is_ready = self._is_ready(user, row)
            (ready if is_ready else self.waiting[user.name])[row] += count
        for row, count in ready.items():
            if count < 0 and not user.committed:
                self.wrong.add("state.answer_kept")
            answers = list(self._answer(user, row))
            if user.many:  # the record goes on when all its requests are answered
                continue
            for answer, times in answers or ([] if user.inner else [(self._blank(user), 1)]):
                self.answers[user.name][(*row, *answer)] += count * times
        self.answers[user.name] = Counter({r: n for r, n in self.answers[user.name].items() if n})

    def _gather(self, user: Fetch, rows: Counter[Row], horizon: int | None) -> None:
        """Have records go on whose requests are all answered, one by one, each with its own replies."""
        if self.wrong:
            return
        waiting, answers = self.copies[user.name], self.answers[user.name]
        for row, count in rows.items():
            requests = requests_of(row, self.spec.keys)
            late = [self._is_late(user, request, horizon) for request in requests]
            if count < 0:
                count += _take_back(waiting.get(row, []), -count)
                if count and not any(late):
                    answers[(*row, *self._lists(user, [self._reply(user, r) for r in requests]))] += count  # fmt: skip
            else:
                blank = self._blank(user)
                replies = [blank if each else None for each in late]
                fresh = [Copy(list(replies), any(late)) for _ in range(count)]
                waiting[row] = [*waiting.get(row, []), *fresh]
        for row, listed in list(waiting.items()):
            requests, gone = requests_of(row, self.spec.keys), Counter[Row]()
            for copy_ in listed:
                for place, request in enumerate(requests):
                    if copy_.replies[place] is None and self._is_ready(user, request):
                        copy_.replies[place] = self._reply(user, request)
                if None not in copy_.replies and not copy_.late:
                    gone[(*row, *self._lists(user, copy_.replies))] += 1
            answers.update(gone)
            self.apart += len(gone) > 1
            waiting[row] = [copy_ for copy_ in listed if None in copy_.replies]
            if not waiting[row]:
                del waiting[row]
        self.answers[user.name] = Counter({row: n for row, n in answers.items() if n})

    def _is_late(self, user: Fetch, row: Row, horizon: int | None) -> bool:
        at = row[2 + self.spec.keys]
        return self.spec.compact is not None and user.at and horizon is not None and at < horizon

    def _reply(self, user: Fetch, row: Row) -> Row:
        """The reply to a request, as the lists of its record have it."""
        answers = list(self._answer(user, row))
        if user.rule in ("within", "function"):  # which may give several
            listed = [answer for answer, n in answers for _ in range(n)]
            return tuple(zip(*listed, strict=True)) or ((),) * len(self._blank(user))
        return answers[0][0] if answers else self._blank(user)

    def _lists(self, user: Fetch, replies: Sequence[Any]) -> Row:
        return tuple(zip(*replies, strict=True)) or ((),) * len(self._blank(user))

    def _taken_back(self, user: Fetch, rows: Counter[Row]) -> Counter[Row]:
        """Rows without the deletions of waiting rows, which are never late."""
        waiting, left = self.waiting[user.name], Counter(rows)
        for row, count in rows.items():
            both = min(-count, waiting[row])
            if both > 0:
                left[row] += both
                waiting[row] -= both
        self.waiting[user.name] = Counter({row: n for row, n in waiting.items() if n})
        return Counter({row: count for row, count in left.items() if count})

    def _is_ready(self, user: Fetch, row: Row) -> bool:
        since, at, wait = row[1 + self.spec.keys : 4 + self.spec.keys]
        if user.committed:
            if self.update is None:
                return False
            return at < self.update or (at == self.update and not CLOSED[user.closed][1])
        bound = wait if user.wait else since if user.since else None
        return bound is None or (self.update is not None and bound < self.update)

    def _values(self, user: Fetch, row: Row) -> list[tuple[int, Row, int]]:
        since, at = row[1 + self.spec.keys : 3 + self.spec.keys]
        left, right = CLOSED[user.closed]
        entries = []
        for (key, time, value), count in self.entries.items():
            after = not user.since or time > since or (time == since and left)
            before = not user.at or time < at or (time == at and right)
            if key == row[1 : 1 + self.spec.keys] and after and before:
                entries.append((time, value, count))
        return sorted(entries, key=lambda each: (each[0], [rank(cell) for cell in each[1]]))

    def _answer(self, user: Fetch, row: Row) -> Iterator[tuple[Row, int]]:
        entries = self._values(user, row)
        if not entries:
            return
        if user.rule == "latest":
            yield (entries[-1][0], *entries[-1][1]), 1
        elif user.rule == "within":
            yield from (((time, *value), count) for time, value, count in entries)
        elif user.rule == "total":
            listed = [value for _, value, count in entries for _ in range(count)]
            yield (_sum([v for v, _ in listed], 0), _sum([x for _, x in listed], 0.0)), 1
        else:  # the function of these tests: how many, and the greatest of the first column
            numbers = [value[0] for _, value, _ in entries if value[0] is not None]
            yield (sum(count for *_, count in entries), max(numbers, default=None)), 1

    def _blank(self, user: Fetch) -> Row:
        return (None,) * {"latest": 3, "within": 3, "total": 2, "function": 2}[user.rule]


def _take_back(copies: list[Copy], count: int) -> int:
    """Take back `count` of the waiting copies of a record: first those that are not late, the youngest first."""
    in_time, late = ([c for c in copies if c.late is late] for late in (False, True))
    gone = [*in_time[::-1], *late[::-1]][:count]
    copies[:] = [copy_ for copy_ in copies if not any(copy_ is each for each in gone)]
    return len(gone)


def greatest(values: Sequence[Row]) -> Row:
    return max(values, key=lambda value: [rank(cell) for cell in value])


def _sum(cells: Sequence[Any], zero: Any) -> Any:
    there = [cell for cell in cells if cell is not None]
    return frozen(exact_sum(there)) if there else zero


def _added(rows: Changes) -> Counter[Row]:
    sums: Counter[Row] = Counter()
    for row, count in rows:
        sums[row] += count
    return Counter({row: count for row, count in sums.items() if count})


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
