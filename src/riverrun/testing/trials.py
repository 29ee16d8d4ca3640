"""Trials: the ways in which each law is tried on a script, and the comparison of the results.

`check_operator` and `check_dataflow` make a `LawCheck` of the program. A script is a list of changes of inputs and
commits; further *marks* in it stand for failures, checkpoints and other numbers of workers (`script`). A trial plays a
script with such marks, or with options (`PlayOptions`: pieces, order of rows, compaction, workers). The results of a
trial are compared with those of the *plain* script, which has changes and commits only and is played without options.
For the law called *oracle* (`laws`) the plain results are compared with those of the oracle, for every epoch. Where the
user gives no oracle, the program itself is the oracle: it is run from scratch, in a single epoch, on all rows that
there are at that epoch. Laws:

- **First fault.** The laws are tried in the order of `laws.LAWS`, and the first trial that fails is reported.
- **Whose error.** Some errors are about a law whichever trial raises them: a time that went back breaks *silence*, an
  epoch or a loop that does not end breaks *progress*. Any other error of the plain script is the program's own: it is
  raised unchanged, with the script as a note. Any other error of a trial breaks the law being tried.
- **Same seed, same trials.** The seed decides all random choices.

Cost: one run for the plain script and one for each trial; without an oracle, one more for each epoch. When a law is
broken, up to `shrinking.TRIES` smaller scripts are tried, each with a plain run and a trial (or a run for each epoch).
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from riverrun.errors import PlanError, RiverrunError
from riverrun.plan.plan import Plan
from riverrun.rows.convert import as_table
from riverrun.run import Result
from riverrun.testing.draws import Drawn, draw_script
from riverrun.testing.laws import FOR_DETERMINED, Checked, LawBroken
from riverrun.testing.playing import PLAIN, PlayOptions, ScriptPlayer
from riverrun.testing.script import (
    CHECKPOINT,
    COMMIT,
    CRASH,
    KILL,
    REFUSE,
    SCALE,
    Change,
    Item,
    Row,
    accumulated,
    frozen,
    insert,
    plain,
    shown,
    whole,
)
from riverrun.testing.shrinking import shrink

_CODES = {"operator.diverges": "progress", "testing.progress": "progress"}

Bag = Counter[tuple[Any, ...]]
Bags = dict[str, Bag]


@dataclass(frozen=True)
class _Trial:
    """One way to try a law: a script with marks, and the options to play it with."""

    law: str
    script: list[Item]
    way: PlayOptions = PLAIN
    place: str | None = None
    """Where checkpoints are: "memory" or "directory"; None where there are none."""
    rereads: bool = False


@dataclass(frozen=True)
class _Fault:
    """A broken law, and the difference or error that shows it."""

    law: str
    shows: str
    cause: BaseException | None = None


class LawCheck:
    """Checks laws on one program, whose inputs `draws` describes."""

    def __init__(
        self,
        plan: Plan,
        draws: Sequence[Drawn],
        judge: Callable[[Mapping[str, list[Row]]], Any] | None,
        laws: Sequence[str],
        patience: int,
        *,
        in_directory: bool = False,
    ) -> None:
        self._stage = ScriptPlayer(plan, patience)
        self._draws = draws
        self._keys = {each.name: each.key for each in draws if each.key}
        self._judge = judge
        self._in_directory = in_directory
        self._outputs = plan.outputs
        doubtful = [n for n in self._outputs.values() if n.number in plan.arrival_dependent]
        marked = sorted(
            (n for n in plan.nodes if not n.operator.deterministic), key=lambda n: n.number
        )
        self._is_determined = not doubtful or judge is not None
        self._why = f"{marked[0].name!r} ({marked[0].line}) depends on arrival" if doubtful else ""
        self._laws = [each for each in laws if self._is_determined or each not in FOR_DETERMINED]
        self._exempt = [each for each in laws if each not in self._laws]

    def all(
        self, script: Iterable[Item] | None, seed: int, rounds: int, epochs: int, rows: int
    ) -> Checked:
        if script is not None:
            self._one(self._normal(script), None)
            count = 1
        else:
            draws = {each.name: each for each in self._draws}
            for at in range(rounds):
                self._one(draw_script(draws, seed + at, epochs, rows), seed + at)
            count = rounds
        return Checked(
            tuple(self._laws), tuple(self._exempt), self._why if self._exempt else "", count
        )

    def _normal(self, script: Iterable[Item]) -> list[Item]:
        """A user's script with its rows as dicts, and without failures: trials choose the failures."""
        schemas = {each.name: each.schema for each in self._draws}
        return [
            replace(
                item,
                rows=as_table(
                    item.rows, schemas[item.input], f"{item.kind} {item.input!r}"
                ).to_pylist(),
            )
            if isinstance(item, Change)
            else item
            for item in plain(whole(script))
        ]

    def _one(self, script: list[Item], seed: int | None) -> None:
        known: dict[str, list[Bags]] = {}
        for trial in self._trials(script, random.Random(seed or 0)):
            fault = self._fault(trial, known)
            if fault is not None:
                raise self._smallest(trial, fault, seed)

    def _trials(self, script: list[Item], source: random.Random) -> Iterator[_Trial]:
        """The ways in which each law is tried, in the order of the laws."""
        number = source.randrange
        some_way = PlayOptions(seed=number(1000))
        boundaries = script.count(COMMIT)
        for law in self._laws:
            if law in ("progress", "silence"):
                yield _Trial(law, script)
                yield _Trial(law, script, PlayOptions(workers=2, seed=number(1000)))
            elif law == "oracle":
                yield _Trial(law, script)
            elif law == "split":
                yield _Trial(law, script, PlayOptions(cut=1))
                yield _Trial(law, script, PlayOptions(cut=3))
            elif law == "order":
                yield _Trial(law, script, PlayOptions(shuffle=number(1000)))
                yield _Trial(law, script, PlayOptions(cut=1, shuffle=number(1000)))
            elif law == "compaction":
                yield _Trial(law, script, PlayOptions(compact=True))
                yield _Trial(law, script, PlayOptions(history=boundaries), rereads=True)
            elif law == "resume":
                yield _Trial(law, _marked(script, after=[CHECKPOINT, CRASH]), some_way, "memory")
                yield _Trial(law, _marked(script, inside=[REFUSE]), some_way, "memory")
                yield _Trial(law, _marked(script, inside=[KILL(0)]), some_way, "memory")
                here = number(boundaries)
                place = "directory" if self._in_directory else "memory"
                middle = _marked(script, after=[CHECKPOINT], at=here)
                crashed = _marked(middle, inside=[CRASH], at=number(boundaries))
                yield _Trial(law, crashed, some_way, place)
            elif law == "rescale":
                for workers in (2, 3, 4):
                    yield _Trial(law, script, PlayOptions(workers=workers, seed=number(1000)))
                sizes = [SCALE(n) for n in (3, 2, 4, 1)]
                moved = _marked(script, after=sizes, alternate=True)
                yield _Trial(law, moved, PlayOptions(cut=2, seed=number(1000)))
                lost = _marked(script, inside=[KILL(1)], at=number(boundaries))
                resumed = _marked(lost, after=[CHECKPOINT, CRASH(3)], at=number(boundaries))
                yield _Trial(law, resumed, PlayOptions(workers=2, seed=number(1000)), "memory")

    # -- one trial

    def _fault(self, trial: _Trial, known: dict[str, list[Bags]]) -> _Fault | None:
        """The law that a trial breaks, its own or one that can break at any time; None where it breaks none. `known`
        caches the results that several trials are compared with."""
        script = trial.script
        if "plain" not in known:
            try:
                known["plain"] = self._bags(self._stage.play(plain(script)))
            except (RiverrunError, AssertionError) as error:
                law = _law_of(error)
                if law is None:
                    error.add_note(f"in play(flow, {shown(plain(script))})")
                    raise
                return _Fault(law, f"it raised {type(error).__name__}: {error}", error)
        if trial.law == "oracle":
            if "oracle" not in known:
                known["oracle"] = [self._judged(bags) for bags in accumulated(script, self._keys)]
            return self._difference("oracle", known["oracle"], known["plain"])
        if trial == _Trial(trial.law, script):
            return None
        try:
            results = self._bags(self._played(trial))
        except (RiverrunError, AssertionError) as error:
            law = _law_of(error) or trial.law
            return _Fault(law, f"it raised {type(error).__name__}: {error}", error)
        if trial.law in ("progress", "silence"):
            return None  # the law of rescale checks the results
        return self._difference(trial.law, known["plain"], results)

    def _played(self, trial: _Trial) -> list[dict[str, Result]]:
        if trial.rereads:
            return self._stage.reread(trial.script, trial.way)
        if trial.place == "directory":
            with tempfile.TemporaryDirectory(prefix="riverrun-check-") as folder:
                return self._stage.play(trial.script, replace(trial.way, seed=None), folder)
        return self._stage.play(trial.script, trial.way)

    def _bags(self, results: Sequence[Mapping[str, Result]]) -> list[Bags]:
        return [{name: _bag(result) for name, result in each.items()} for each in results]

    def _judged(self, rows: Mapping[str, list[Row]]) -> Bags:
        """The expected results for some rows: the oracle's, or those of the program run from scratch."""
        rows_by_input = {each.name: rows.get(each.name, []) for each in self._draws}
        if self._judge is None:
            script: list[Item] = [
                *(insert(name, some) for name, some in rows_by_input.items() if some),
                COMMIT,
            ]
            return self._bags(self._stage.play(script))[0]
        judged = self._judge(rows_by_input)
        by_name = judged if isinstance(judged, Mapping) else dict.fromkeys(self._outputs, judged)
        return {
            name: _counted(by_name[name], node.schemas[0].names)
            for name, node in self._outputs.items()
        }

    def _difference(self, law: str, expected: list[Bags], actual: list[Bags]) -> _Fault | None:
        for epoch, (wanted, bag) in enumerate(zip(expected, actual, strict=True)):
            for name in self._outputs:
                missing, surplus = wanted[name] - bag[name], bag[name] - wanted[name]
                if missing or surplus:
                    columns = ", ".join(self._outputs[name].schemas[0].names)
                    lines = [f"{name!r} ({columns}) after epoch {epoch}, - expected, + found:"]
                    lines += _signed("-", missing) + _signed("+", surplus)
                    return _Fault(law, "\n".join(lines))
        return None

    def _smallest(self, trial: _Trial, fault: _Fault, seed: int | None) -> LawBroken:
        """The error to raise, with a smallest script that breaks the same law."""
        last = fault

        def fails(script: list[Item]) -> bool:
            nonlocal last
            try:
                smaller_fault = self._fault(replace(trial, script=script), {})
            except Exception:  # the script fails in another way
                return False
            if smaller_fault is None or smaller_fault.law != fault.law:
                return False
            last = smaller_fault
            return True

        script = shrink(trial.script, fails, self._keys)
        broken = LawBroken(last.law, seed, script, trial.way, last.shows)
        broken.__cause__ = last.cause
        return broken


def _law_of(error: BaseException) -> str | None:
    """The law that an error is about, whichever trial raised it; None for other errors."""
    if isinstance(error, RiverrunError):
        if error.code == "testing.silence" or error.code.startswith("time."):
            return "silence"
        return _CODES.get(error.code)
    return "progress" if "nothing to do, and not done" in str(error) else None


def _marked(
    script: Sequence[Item],
    *,
    inside: Sequence[Item] = (),
    after: Sequence[Item] = (),
    at: int | None = None,
    alternate: bool = False,
) -> list[Item]:
    """The script with marks before (`inside` the epoch) and `after` each commit, or commit number `at` only. With
    `alternate`, the marks of `after` are used in turn, one for each commit."""
    marked: list[Item] = []
    epoch = 0
    for item in script:
        chosen = item == COMMIT and at in (None, epoch)
        if chosen:
            marked += inside
        marked.append(item)
        if chosen:
            marked += [after[epoch % len(after)]] if alternate else after
        epoch += item == COMMIT
    return marked


def _bag(result: Result) -> Bag:
    columns = [column.to_pylist() for column in result.to_arrow().columns]
    if not columns:
        return Counter({(): len(result)})
    return Counter(frozen(row) for row in zip(*columns, strict=True))


def _counted(rows: Iterable[Any], columns: Sequence[str]) -> Bag:
    """The rows of an oracle, counted."""
    bag: Bag = Counter()
    for row in rows:
        if isinstance(row, Mapping):
            if set(row) != set(columns):
                raise PlanError(
                    "testing.oracle",
                    f"cannot compare with the oracle: it gave a row of {', '.join(row)}, and the columns are: "
                    f"{', '.join(columns)}",
                    hint="give dicts with these columns, or tuples in their order",
                )
            row = tuple(row[name] for name in columns)
        elif not isinstance(row, tuple) or len(row) != len(columns):
            raise PlanError(
                "testing.oracle",
                f"cannot compare with the oracle: it gave {row!r}, and the columns are: {', '.join(columns)}",
                hint="an oracle gives dicts, or tuples in the order of the columns",
            )
        bag[frozen(row)] += 1
    return bag


def _signed(sign: str, bag: Bag, most: int = 10) -> list[str]:
    rows = sorted(bag.elements(), key=repr)
    lines = [f"  {sign} {row}" for row in rows[:most]]
    return lines + ([f"  {sign} ... and {len(rows) - most} more"] if len(rows) > most else [])
