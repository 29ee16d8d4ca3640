"""Random programs around a shared state, played to the engine and to the model (`tests.frontends.shared.model`).

All choices come from one seed, which every message has.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

import riverrun as rr
from tests.frontends.collections.checking import feed
from tests.frontends.collections.reference import Row, counted
from tests.frontends.shared.model import (
    SHIFTS,
    Fetch,
    Model,
    Refused,
    Report,
    Reporting,
    Spec,
    Update,
    requests_of,
)

EPOCH, MICRO, MILLI = datetime(1970, 1, 1), timedelta(microseconds=1), timedelta(milliseconds=1)
TIMES: dict[str, Any] = {
    "int64": (pl.Int64, lambda t: t, lambda n: n),
    "int32": (pl.Int32, lambda t: t, lambda n: n),
    "microseconds": (pl.Datetime("us"), lambda t: EPOCH + t * MICRO, lambda n: n * MICRO),
    "milliseconds": (pl.Datetime("ms"), lambda t: EPOCH + t * MILLI, lambda n: n * MILLI),
    "date": (pl.Date, lambda t: EPOCH.date() + timedelta(days=t), lambda n: timedelta(days=n)),
}
KEYS: dict[str, tuple[dict[str, Any], list[Row]]] = {
    "int": ({"k": pl.Int64}, [(0,), (1,), (7,), (None,)]),
    "string": ({"k": pl.String}, [("a",), ("",), ("bcd",), (None,)]),
    "two": ({"k": pl.Int64, "l": pl.String}, [(0, "a"), (0, "b"), (1, None), (None, "a"), (None, None)]),
}  # fmt: skip
VALUES = {"v": pl.Int64, "x": pl.Float64}


def answers_of(user: Fetch) -> str:
    """The name of the output with the answers to a stream's requests."""
    return f"{user.name} answers"


@dataclass
class Program:
    """The program of a state: its spec, which is the model's part, and the options that the model does not need."""

    spec: Spec
    key: str = "int"
    time: str = "int64"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.schema, self.names = KEYS[self.key]
        self.type, self.shown, self.span = TIMES[self.time]

    def add(self, flow: rr.Dataflow) -> None:
        """Add the state, its inputs and its outputs to a dataflow."""
        spec = self.spec
        compact = {
            None: None,
            "keep_latest": rr.rules.keep_latest,
            "fold": rr.rules.fold,
            "function": rr.rules.compact(self._latest),
        }
        rule = (
            rr.rules.drop_before(self.span(spec.compact))
            if isinstance(spec.compact, int)
            else compact[spec.compact]
        )
        start = None if spec.start is None else self.shown(spec.start)
        state = flow.state(
            spec.name, key=self.schema, value=VALUES, time={"t": self.type}, start=start, compact=rule, **self.options,
        )  # fmt: skip
        for user in spec.users:
            how = {"by": "source" if user.how.by else None, "idle": user.how.idle}
            late = None if user.how.late is None else self.span(user.how.late)
            stream = flow.input(user.name, self.columns(user))
            if isinstance(user, Update):
                stream.update(
                    state, rule=self._update_rule(user), late=late, progress=user.how.reports, **how
                )
            elif isinstance(user, Report):
                stream.progress(state, user.side, at="at", late=late, **how)
            else:
                flow.output(answers_of(user), self._fetched(stream, state, user, late, how))

    def columns(self, user: Update | Fetch | Report) -> dict[str, Any]:
        time = self.type
        if isinstance(user, Update):
            return {"source": pl.String, **self.schema, "t": time, **VALUES}
        if isinstance(user, Report):
            return {"source": pl.String, "at": time}
        bounds = {"since": time, "at": time, "wait": time}
        return {"source": pl.String, **self.schema, **bounds, "tag": pl.Int64}

    def times(self, user: Update | Fetch | Report) -> range:
        """The positions of times in a row."""
        first = 1 if isinstance(user, Report) else 1 + self.spec.keys
        return range(first, first + (3 if isinstance(user, Fetch) else 1))

    def as_inserted(self, user: Update | Fetch | Report, row: Row) -> Row:
        """A row of the model as the engine takes it."""
        places = self.times(user)
        return tuple(
            self.shown(cell) if at in places and cell is not None else cell
            for at, cell in enumerate(row)
        )

    def _fetched(self, stream: Any, state: Any, user: Fetch, late: Any, how: Any) -> Any:
        bounds = {name: name for name in ("since", "at", "wait") if getattr(user, name)}
        rules = {"latest": rr.rules.latest, "within": rr.rules.within, "total": rr.rules.total}
        rule = rules.get(user.rule) or rr.rules.fetch(
            lambda values: values.group_by("request").agg(n=pl.len().cast(pl.Int64), top=pl.col("v").max()),
            {"n": pl.Int64, "top": pl.Int64},
        )  # fmt: skip
        if user.many:
            how = {"requests": self._requests(list(bounds)), "idle": how["idle"]}
        fetch = stream.fetch if user.committed else stream.fetch_uncommitted
        how |= {"how": "inner" if user.inner else "left"}
        return fetch(
            state, rule=rule, closed=user.closed, late=late, progress=None if user.how.reports else False,
            time="of" if user.rule == "latest" else None, **bounds, **how,
        )  # fmt: skip

    def _requests(self, bounds: Sequence[str]) -> Any:
        """A function that gives `requests_of` a row of the engine."""
        first, *others = self.schema
        later = {shift: self.span(shift) for shifts in SHIFTS.values() for shift in shifts}

        def requests(row: dict[str, Any]) -> list[dict[str, Any]]:
            return [
                {first: None if place % 2 else row[first]}
                | {name: row[name] for name in others}
                | {name: None if row[name] is None else row[name] + later[shift] for name in bounds}
                for place, shift in enumerate(SHIFTS[row["tag"]])
            ]

        return requests

    def _update_rule(self, user: Update) -> Any:
        under = [*self.schema, "t"]

        def keep_greatest(entries: pl.DataFrame, updates: pl.DataFrame) -> pl.DataFrame:
            others = entries.join(updates, on=under, how="anti", nulls_equal=True)
            same = entries.join(updates, on=under, how="semi", nulls_equal=True)
            both = pl.concat([same, updates]).sort(*VALUES, nulls_last=True)
            return pl.concat([others, both.group_by(under).last().select(entries.columns)])

        ready = {"replace": rr.rules.replace, "append": rr.rules.append, "add": rr.rules.add}
        return ready.get(user.rule) or rr.rules.update(keep_greatest)

    def _latest(self, entries: pl.DataFrame, horizon: Any) -> pl.DataFrame:
        past = entries.filter(pl.col("t") < horizon).sort("t", *VALUES, nulls_last=True)
        past = past.group_by(list(self.schema)).last().select(entries.columns)
        return pl.concat([past, entries.filter(pl.col("t") >= horizon)])


def draw_program(source: random.Random, name: str = "s", copies: bool = False) -> Program:
    """A state with some users, compaction that its fetches allow, and random switches.

    With `copies`, fetches are uncommitted and have several requests that wait for different times.
    """
    compact = source.choice(
        [None, None, "keep_latest", "keep_latest", "fold", "function", source.randint(0, 12)]
    )
    rules = ["add"] if compact == "fold" else ["replace", "replace", "append", "add", "function"]

    def reporting(silent: bool = True) -> Reporting:
        return Reporting(
            late=source.choice([0, 0, 3, 8]),
            by=source.random() < 0.3,
            idle=source.choice([None, None, 1, 2, 3]),
            reports=not silent or source.random() < 0.85,
        )

    users: list[Any] = []
    for at in range(source.choice([1, 1, 2, 3])):
        users.append(Update(f"{name}u{at}", source.choice(rules), reporting()))
    for at in range(source.choice([1, 2, 2, 3])):
        drawn = _draw_fetch(source, f"{name}f{at}", compact, reporting())
        if copies:
            at, how = drawn.at and source.random() < 0.5, replace(drawn.how, by=False)
            drawn = replace(drawn, committed=False, at=at, wait=True, inner=False, how=how, many=True)  # fmt: skip
        users.append(drawn)
    for at in range(source.choice([0, 0, 1, 2])):
        late = source.choice([None, None, 2])
        how = Reporting(late, source.random() < 0.3, source.choice([None, 2]))
        users.append(Report(f"{name}r{at}", source.choice(["update", "update", "fetch"]), how))
    waits = any(isinstance(u, Fetch) and (u.committed or u.wait or u.since) for u in users)
    reports = any(
        (isinstance(u, Update) and u.how.reports) or (isinstance(u, Report) and u.side == "update")
        for u in users
    )
    if waits and not reports:
        users.append(Report(f"{name}r9", "update"))
    source.shuffle(users)
    key = source.choice([*KEYS, "int"])
    options = {
        "compaction": source.choice(["lazy", "active"]),
        "sweep": source.choice([1, 2, 1 << 20]),
        "accelerate": source.random() < 0.7,
        "replies_first": source.random() < 0.7,
    }
    spec = Spec(name, tuple(users), len(KEYS[key][0]), source.choice([None, None, 5]), compact)
    return Program(spec, key, source.choice([*TIMES, "int64", "int64"]), options)


def _draw_fetch(source: random.Random, name: str, compact: Any, how: Reporting) -> Fetch:
    committed = source.random() < 0.65
    free = {
        None: ["latest", "within", "total", "function"],
        "keep_latest": ["latest"],
        "fold": ["total"],
        "function": ["latest"],
    }
    rule = source.choice(["latest", "latest", "within", "total", "function"])
    since = source.random() < 0.4
    if rule not in free.get(compact, []):
        since = True
    if compact == "function":
        rule, since = "latest", source.random() < 0.3
    at = committed or source.random() < 0.6
    many = source.random() < 0.4
    return Fetch(
        name,
        rule,
        committed,
        source.choice(["both", "both", "left", "right", "none"]),
        since,
        at,
        not committed and source.random() < (0.7 if many else 0.4),
        not many and source.random() < 0.2,
        replace(how, by=False) if many else how,
        many,
    )


class Rows:
    """The rows of all streams: times that grow, in disorder, sometimes far behind; and deletions of rows."""

    def __init__(self, program: Program, source: random.Random, faults: bool) -> None:
        self.program, self.source, self.faults = program, source, faults
        self.there: dict[str, Counter[Row]] = {user.name: Counter() for user in program.spec.users}
        self.said: dict[tuple[str, str], int] = {}
        self.horizon: int | None = None
        self.update: int | None = None

    def epoch(
        self, now: int, most: int, horizon: int | None, update: int | None = None
    ) -> dict[str, list[tuple[Row, int]]]:
        self.horizon, self.update = horizon, update
        return {user.name: self._changes(user, now, most) for user in self.program.spec.users}

    def accepted(self, changes: Mapping[str, Sequence[tuple[Row, int]]]) -> None:
        for name in self.there:
            for row, diff in changes[name]:
                self.there[name][row] += diff
            self.there[name] = +self.there[name]
        for user in self.program.spec.of(Report):
            for row, _ in changes[user.name]:
                self.said[user.name, row[0]] = max(row[1], self.said.get((user.name, row[0]), row[1]))  # fmt: skip

    def _changes(self, user: Any, now: int, most: int) -> list[tuple[Row, int]]:
        source = self.source
        if source.random() < 0.15:
            return []
        if isinstance(user, Report):
            return [(self._report(user, now), 1) for _ in range(source.randint(0, 2))]
        make = self._update if isinstance(user, Update) else self._request
        changes = [(make(user, now), 1) for _ in range(source.randint(0, most))]
        changes += [(row, 1) for row, _ in changes if source.random() < 0.1]
        deletes = source.random() < (0.5 if self.faults or self._takes_deletes(user) else 0)
        if deletes:
            there = [row for row in self.there[user.name].elements() if self._may_go(user, row)]
            changes += [(row, -1) for row in source.sample(there, min(len(there), 2))]
        changes += self._passing(user, now)
        source.shuffle(changes)
        return changes

    def _passing(self, user: Any, now: int) -> list[tuple[Row, int]]:
        """A request that comes and goes in an epoch, which is never looked at, even if it is faulty."""
        if not isinstance(user, Fetch) or user.how.reports or self.source.random() < 0.7:
            return []
        row = list(self._request(user, now))
        place = 1 + self.program.spec.keys + self.source.randrange(3)
        row[place] = self.source.choice([None, -1000])
        return [(tuple(row), 1), (tuple(row), -1)]

    def _may_go(self, user: Any, row: Row) -> bool:
        """Whether a record with several requests may be deleted. An uncommitted record may not be deleted once a
        request is answered, unless that request is late by now."""
        if not isinstance(user, Fetch) or not user.many or user.committed or self.faults:
            return True
        late = [False] * len(SHIFTS[row[-1]])
        if user.at and self.program.spec.compact is not None and self.horizon is not None:
            keys = self.program.spec.keys
            late = [each[2 + keys] < self.horizon for each in requests_of(row, keys)]
        return all(a or b for a, b in zip(self._waiting(user, row), late, strict=True))

    def _waiting(self, user: Fetch, row: Row) -> list[bool]:
        """For each request of an earlier uncommitted record, whether it would wait."""
        first = 1 + self.program.spec.keys
        bound = first + 2 if user.wait else first if user.since else None
        times = [None if bound is None else each[bound] for each in requests_of(row, first - 1)]
        return [t is not None and (self.update is None or t >= self.update) for t in times]

    def _takes_deletes(self, user: Any) -> bool:
        if isinstance(user, Fetch):
            return user.committed or user.many
        return user.rule != "function"

    def _near(self, now: int) -> int:
        source = self.source
        return now + source.randint(-6, 6) if source.random() < 0.9 else source.randint(-5, now + 20)  # fmt: skip

    def _report(self, user: Report, now: int) -> Row:
        who = self.source.choice("pq")
        least = self.said.get((user.name, who), -100) if user.how.by else max(
            (mark for (name, _), mark in self.said.items() if name == user.name), default=-100
        )  # fmt: skip
        if user.how.late is not None:
            return who, self._near(now)
        back = self.faults and self.source.random() < 0.15
        return who, least - self.source.randint(1, 5) if back else max(self._near(now - 3), least)

    def _update(self, user: Update, now: int) -> Row:
        source = self.source
        key = source.choice(self.program.names)
        time = None if self.faults and source.random() < 0.02 else self._near(now)
        value = source.choice([0, 1, 2, 5, -3, None])
        return source.choice("pq"), *key, time, value, source.choice([0.1, 1e16, -1e16, 2.5, None])

    def _request(self, user: Fetch, now: int) -> Row:
        source = self.source
        there = list(self.there[user.name])[-8:] if user.many else []
        if not user.committed:
            there = [row for row in there if any(self._waiting(user, row))] or there
        if there and source.random() < 0.5:
            return source.choice(there)
        at = self._near(now)
        since = at - source.randint(0, 6) if source.random() < 0.8 else self._near(now)
        compact = self.program.spec.compact
        if compact is not None and not (self.faults and source.random() < 0.3):
            since = max(since, self._reach(compact))
        wait = self._near(now)
        if self.faults and source.random() < 0.02:
            at = None
        return (
            source.choice("pq"),
            *source.choice(self.program.names),
            since,
            at,
            wait,
            source.choice([0, 0, 0, 1, 1, 2]),
        )

    def _reach(self, compact: Any) -> int:
        """The time from which on compaction leaves all that a request may need."""
        horizon = self.horizon
        return -1000 if horizon is None else horizon - (compact if isinstance(compact, int) else 0)


class Comparison:
    """A run and the models of its states."""

    def __init__(self, programs: Sequence[Program], said: str) -> None:
        self.said = said
        self.judged = [(program, Model(program.spec)) for program in programs]
        self.added: dict[str, Counter[Row]] = {}

    def resumed(self, run: rr.Run) -> None:
        """Another run goes on. Its events have the late rows of the epochs that were played again, and no older
        ones."""
        late = self._late(run)
        for _, model in self.judged:
            for stream in list(model.late):
                model.late[stream] = late[stream]

    def _late(self, run: rr.Run) -> Counter[tuple[str, str]]:
        late: Counter[tuple[str, str]] = Counter()
        for event in run.events("late"):
            late[event["stream"].strip("'"), event["what"]] += event["rows"]
        return late

    def step(self, changes: Mapping[str, Any]) -> set[str]:
        """Have the models take an epoch; the codes with which they refuse the epoch, if they do."""
        before = [copy.deepcopy(model.__dict__) for _, model in self.judged]
        wrong: set[str] = set()
        for _, model in self.judged:
            try:
                model.step(changes)
            except Refused as refused:
                wrong |= refused.codes
        if wrong:
            for (_, model), state in zip(self.judged, before, strict=True):
                model.__dict__.update(state)
        return wrong

    def give(self, run: rr.Run, changes: Mapping[str, Any]) -> None:
        for program, _ in self.judged:
            for user in program.spec.users:
                rows = [(program.as_inserted(user, row), diff) for row, diff in changes[user.name]]
                feed(run, user.name, rows)

    def compare(self, run: rr.Run, again: bool = False) -> Counter[str]:
        """Compare the run with the models. Counts the kinds of events that happened."""
        happened: Counter[str] = Counter()
        said = f"{self.said}, epoch {run.epoch}"
        figures = run.status()["states"]
        late = self._late(run)
        for program, model in self.judged:
            name = program.spec.name
            shown = {each: figures[name].get(each) for each in ("update", "fetch", "pending")}
            marks = {"update": model.update, "fetch": model.fetch}
            expected = {name: None if t is None else program.shown(t) for name, t in marks.items()}
            expected["pending"] = model.pending
            assert shown == expected, f"{said}, {name}: {shown} and not {expected}"
            if not again:
                for (stream, what), count in model.late.items():
                    there = late[stream, what]
                    assert there == count, f"{said}: {there} late {what}s of {stream} and not {count}"  # fmt: skip
            happened += Counter({"late": model.late.total(), "pending": model.pending})
            happened["apart"] += model.apart
            for user in program.spec.of(Fetch):
                happened[f"{user.rule} {user.committed}"] += len(model.answers[user.name])
                self._compare_answers(run, program, model, user, said, again)
        return happened

    def _compare_answers(
        self, run: rr.Run, program: Program, model: Model, user: Fetch, said: str, again: bool
    ) -> None:
        width = 5 + program.spec.keys
        expected: Counter[Row] = Counter()
        for row, count in model.answers[user.name].items():
            record, answer = program.as_inserted(user, row[:width]), list(row[width:])
            if user.rule in ("latest", "within"):
                answer[0] = _shown(program, answer[0])
            expected[(*record, *answer)] += count
        if any(count < 0 for count in expected.values()):
            expected = Counter({row: count for row, count in expected.items() if count > 0})
            raise AssertionError(f"{said}: the model took more back than there was: {expected}")
        counts = counted(run.read(answers_of(user)).rows())
        where = f"{said}, {user}"
        assert counts == expected, (
            f"{where}: missing {expected - counts}, too many {counts - expected}"
        )
        if again:
            return
        sums = self.added.setdefault(user.name, Counter())
        for *row, diff in run.changes(answers_of(user)).rows():
            sums[next(iter(counted([row])))] += diff
        left = {row: count for row, count in sums.items() if count}
        assert left == expected, f"{where}: the changes do not add up"


def _shown(program: Program, time: Any) -> Any:
    """A time of the model, or lists of them, as the engine shows it."""
    if isinstance(time, tuple):
        return tuple(_shown(program, each) for each in time)
    return None if time is None else program.shown(time)


def play(
    seed: int,
    *,
    epochs: int = 7,
    most: int = 6,
    faults: bool = False,
    states: int = 1,
    copies: bool = False,
    checkpoint: Path | None = None,
) -> Counter[str]:
    """Play a random program with random rows, and compare every epoch. Counts the kinds of events that happened.

    With a place for checkpoints, the run is saved, scaled, or ended and resumed by other workers in between.
    """
    source = random.Random(seed)
    programs = [draw_program(source, f"s{at}", copies) for at in range(states)]
    workers, turns = source.choice([1, 1, 2, 3, 4]), source.choice([None, seed])
    comparison = Comparison(programs, f"seed={seed}, workers={workers}, turns={turns}, {programs}")
    flow = rr.Dataflow("shared")
    for program in programs:
        program.add(flow)
    streams = [Rows(program, source, faults) for program in programs]
    happened: Counter[str] = Counter()
    saved: dict[str, Any] = {} if checkpoint is None else {"checkpoint": checkpoint, "every": None}
    run = flow.run(workers=workers, seed=turns, **saved)
    try:
        for epoch in range(epochs):
            changes: dict[str, Any] = {}
            for rows, (_, model) in zip(streams, comparison.judged, strict=True):
                changes |= rows.epoch(4 * epoch, most, model.fetch, model.update)
            refused = comparison.step(changes)
            comparison.give(run, changes)
            try:
                run.commit()
            except rr.RiverrunError as error:
                if error.code not in refused:
                    raise AssertionError(f"{comparison.said}, epoch {epoch}, {refused}") from error
                happened[error.code] += 1
                continue
            assert not refused, f"{comparison.said}: epoch {epoch} passes in spite of {refused}"
            for rows in streams:
                rows.accepted(changes)
            happened += comparison.compare(run)
            if checkpoint is None:
                continue
            what = source.choice(["", "scale", "checkpoint", "resume", "crash"])
            happened[what] += 1
            if what == "scale":
                run.scale(source.randint(1, 4))
            elif what in ("checkpoint", "resume"):
                run.checkpoint()
            if what in ("resume", "crash"):  # after a crash the input log is played again
                run.close()
                run = flow.run(workers=source.randint(1, 4), seed=turns, **saved)
            comparison.compare(run, again=True)
            if what in ("resume", "crash"):
                comparison.resumed(run)
    finally:
        run.close()
    return happened
