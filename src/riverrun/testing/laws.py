"""The eight laws of operators, and the check that a program keeps them.

========== ========================================================================================
law        what it says, and how it is tried
========== ========================================================================================
progress   when the input lets a time pass, so does the operator: no epoch hangs, notifications come
silence    nothing is sent before the time that is handled, nor at a time that was told complete
oracle     at every epoch the result is that of a computation from scratch
split      how the rows of an epoch are cut into batches does not show: one by one, by threes
order      nor does the order in which rows and batches of one epoch arrive
compaction nor does how far states are compacted, nor how much history is kept, also in re-reading
resume     restored at any epoch, from a checkpoint or the log, or after a loss or a failure on the
           way, it goes on as if it had never stopped
rescale    one to four workers, and another number in between, give the same
========== ========================================================================================

They are tried in this order, and the first that is broken is raised, as :class:`LawBroken`: the law, the
seed, the smallest script that shows it, the rows that differ. Rows are compared exactly, as bags;
floats too.

What is *arrival-dependent* (``Plan.arrival_dependent``: a vertex that does not say it is deterministic,
rows sent to any worker) is exempt from oracle, split, order and rescale, unless there is an oracle: whoever
has one says that results are determined after all. `Checked` names the laws that were tried, and
those that were not.

Cost: some fifteen runs of a few epochs for each round, 0.1 to 1 s for most operators.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from riverrun.engine.operators.arrange import Output
from riverrun.engine.operators.linear import Input
from riverrun.engine.plan import Plan
from riverrun.errors import PlanError, RiverrunError
from riverrun.frontends.flow import Dataflow
from riverrun.run import Result
from riverrun.run.live import CLOCK
from riverrun.run.rows import as_table
from riverrun.testing.draws import Drawn, as_draw, draw_script
from riverrun.testing.harness import build
from riverrun.testing.playing import PLAIN, Stage, Way
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

LAWS: dict[str, str] = {
    "progress": "when the input lets a time pass, the operator lets it pass",
    "silence": "nothing is sent before the time that is handled",
    "oracle": "at every epoch the result is that of a computation from scratch",
    "split": "how the rows of an epoch are cut into batches changes no result",
    "order": "the order in which rows of one epoch arrive changes no result",
    "compaction": "how far states are compacted changes no result",
    "resume": "restored at any epoch, it goes on as if it had never stopped",
    "rescale": "the number of workers changes no result",
}
_FOR_DETERMINED = frozenset({"oracle", "split", "order", "rescale"})
_CODES = {"operator.diverges": "progress", "testing.progress": "progress"}

Bag = Counter[tuple[Any, ...]]
Bags = dict[str, Bag]
Oracle = Callable[..., Any]


class LawBroken(AssertionError):
    """A law was broken: which one, with which seed, and the smallest script that shows it."""

    def __init__(
        self, law: str, seed: int | None, script: Sequence[Item], way: Way, difference: str
    ) -> None:
        self.law = law
        self.seed = seed
        self.script = list(script)
        self.way = way
        self.difference = difference
        found = "with the script that was given" if seed is None else f"with seed={seed}"
        arguments = f", {way}" if str(way) else ""
        super().__init__(
            f"the law of {law} is broken: {LAWS[law]}\n"
            f"found {found}; the smallest script that shows it:\n"
            f"play(flow, {shown(script)}{arguments})\n{difference}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return LawBroken, (self.law, self.seed, self.script, self.way, self.difference)


@dataclass(frozen=True)
class Checked:
    """What was tried: the laws, those that the program is exempt from and why, and the scripts."""

    laws: tuple[str, ...]
    exempt: tuple[str, ...]
    why: str
    scripts: int

    def __str__(self) -> str:
        without = f"; exempt from {', '.join(self.exempt)}: {self.why}" if self.exempt else ""
        return f"kept {', '.join(self.laws)} in {self.scripts} scripts{without}"


def check_operator(
    operator: Callable[..., Any],
    inputs: Mapping[str, Any],
    *,
    oracle: Oracle | None = None,
    script: Iterable[Item] | None = None,
    seed: int = 0,
    rounds: int = 3,
    epochs: int = 5,
    rows: int = 5,
    laws: Iterable[str] | None = None,
) -> Checked:
    """Try all laws on a function of collections to a collection, or to several by name.

    `inputs` says what the rows of each input are like: a schema, example rows, or a `Draw`. Without a
    `script` of one's own, `rounds` of them are drawn, with the seeds from `seed` on. `oracle` is a
    function of lists of rows (dicts), one for each input, to rows (dicts or tuples); without one, the
    operator itself is the judge: run from scratch, by one worker, in one epoch.

    >>> import riverrun as rr
    >>> from riverrun.testing import check_operator
    >>> def oracle(words):
    ...     return {(row["word"], words.count(row)) for row in words}
    >>> print(
    ...     check_operator(
    ...         lambda w: w.group_by("word").count(), {"words": {"word": str}}, oracle=oracle
    ...     )
    ... )
    kept progress, silence, oracle, split, order, compaction, resume, rescale in 3 scripts
    """
    draws = [as_draw(name, given) for name, given in inputs.items()]
    keys = {each.name: each.key or None for each in draws}
    flow = build(operator, {each.name: each.schema for each in draws}, keys)
    judge = None if oracle is None else (lambda bags: oracle(*(bags[d.name] for d in draws)))
    check = _Check(flow.plan, draws, judge, _listed(laws))
    return check.all(script, seed, rounds, epochs, rows)


def check_dataflow(
    program: Dataflow | Callable[[], Dataflow],
    inputs: Mapping[str, Any] | None = None,
    *,
    oracle: Oracle | None = None,
    script: Iterable[Item] | None = None,
    seed: int = 0,
    rounds: int = 3,
    epochs: int = 5,
    rows: int = 5,
    laws: Iterable[str] | None = None,
) -> Checked:
    """Try all laws on a whole program, a dataflow or a function that makes one; all outputs count.

    As `check_operator`; besides, it is resumed from checkpoints in a real directory. `inputs` may
    give example rows or a `Draw` for some inputs; of the others the schema is known. `oracle` is
    called with keywords, the names of the inputs, and gives the rows of each output by name, or of
    the only one.

    >>> import riverrun as rr
    >>> from riverrun.testing import check_dataflow
    >>> flow = rr.Dataflow("friends")
    >>> likes = flow.input("likes", {"who": str, "whom": str})
    >>> flow.output("mutual", likes.join(likes.rename(whom="who", who="whom"), on=["who", "whom"]))
    >>> check_dataflow(
    ...     flow, {"likes": [{"who": "a", "whom": "b"}, {"who": "b", "whom": "a"}]}
    ... ).exempt
    ()
    """
    flow = program if isinstance(program, Dataflow) else program()
    if not isinstance(flow, Dataflow):
        raise PlanError(
            "testing.program",
            f"cannot check {flow!r}: it is no dataflow",
            hint="give a dataflow, or a function without arguments that returns one",
        )
    known = {
        node.operator.name: node.operator.key
        for node in flow.plan.nodes
        if isinstance(node.operator, Input) and node.operator.name != CLOCK
    }
    for name in inputs or {}:
        if name not in known:
            raise PlanError(
                "plan.input_unknown",
                f"cannot draw rows of {name!r}: the inputs are: {', '.join(known)}",
                hint="check the spelling",
                input=name,
            )
    draws = [
        as_draw(name, (inputs or {}).get(name, flow.schema(name)), flow.schema(name), key)
        for name, key in known.items()
    ]
    judge = None if oracle is None else (lambda bags: oracle(**bags))
    check = _Check(flow.plan, draws, judge, _listed(laws), in_directory=True)
    return check.all(script, seed, rounds, epochs, rows)


@dataclass(frozen=True)
class _Trial:
    """One way to try a law: a script with marks, and how it is played."""

    law: str
    script: list[Item]
    way: Way = PLAIN
    place: str | None = None
    """Where checkpoints are: "memory" or "directory"; None where there are none."""
    rereads: bool = False


@dataclass(frozen=True)
class _Fault:
    """A law that is broken, and how that shows."""

    law: str
    shows: str
    cause: BaseException | None = None


class _Check:
    """A program, and what is known of its inputs."""

    def __init__(
        self,
        plan: Plan,
        draws: Sequence[Drawn],
        judge: Callable[[Mapping[str, list[Row]]], Any] | None,
        laws: Sequence[str],
        *,
        in_directory: bool = False,
    ) -> None:
        self._stage = Stage(plan)
        self._draws = draws
        self._keys = {each.name: each.key for each in draws if each.key}
        self._judge = judge
        self._in_directory = in_directory
        self._outputs = {
            node.operator.name: node for node in plan.nodes if isinstance(node.operator, Output)
        }
        doubtful = [n for n in self._outputs.values() if n.number in plan.arrival_dependent]
        marked = sorted(
            (n for n in plan.nodes if not n.operator.deterministic), key=lambda n: n.number
        )
        self._is_determined = not doubtful or judge is not None
        self._why = f"{marked[0].name!r} ({marked[0].line}) depends on arrival" if doubtful else ""
        self._laws = [each for each in laws if self._is_determined or each not in _FOR_DETERMINED]
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
        """A user's script, without failures (they are ours to choose), its rows as dicts."""
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
        some_way = Way(seed=number(1000))
        boundaries = script.count(COMMIT)
        for law in self._laws:
            if law in ("progress", "silence"):
                yield _Trial(law, script)
                yield _Trial(law, script, Way(workers=2, seed=number(1000)))
            elif law == "oracle":
                yield _Trial(law, script)
            elif law == "split":
                yield _Trial(law, script, Way(cut=1))
                yield _Trial(law, script, Way(cut=3))
            elif law == "order":
                yield _Trial(law, script, Way(shuffle=number(1000)))
                yield _Trial(law, script, Way(cut=1, shuffle=number(1000)))
            elif law == "compaction":
                yield _Trial(law, script, Way(compact=True))
                yield _Trial(law, script, Way(history=boundaries), rereads=True)
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
                    yield _Trial(law, script, Way(workers=workers, seed=number(1000)))
                sizes = [SCALE(n) for n in (3, 2, 4, 1)]
                moved = _marked(script, after=sizes, alternate=True)
                yield _Trial(law, moved, Way(cut=2, seed=number(1000)))
                lost = _marked(script, inside=[KILL(1)], at=number(boundaries))
                resumed = _marked(lost, after=[CHECKPOINT, CRASH(3)], at=number(boundaries))
                yield _Trial(law, resumed, Way(workers=2, seed=number(1000)), "memory")

    # -- one trial

    def _fault(self, trial: _Trial, known: dict[str, list[Bags]]) -> _Fault | None:
        """How a trial breaks its law, or another that shows at any time; None where it does not."""
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
            found = self._bags(self._played(trial))
        except (RiverrunError, AssertionError) as error:
            law = _law_of(error) or trial.law
            return _Fault(law, f"it raised {type(error).__name__}: {error}", error)
        if trial.law in ("progress", "silence"):
            return None  # whether the result is right is the business of the law of rescale
        return self._difference(trial.law, known["plain"], found)

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
        """What the result has to be, for some rows."""
        given = {each.name: rows.get(each.name, []) for each in self._draws}
        if self._judge is None:
            script: list[Item] = [
                *(insert(name, some) for name, some in given.items() if some),
                COMMIT,
            ]
            return self._bags(self._stage.play(script))[0]
        judged = self._judge(given)
        by_name = judged if isinstance(judged, Mapping) else dict.fromkeys(self._outputs, judged)
        return {
            name: _counted(by_name[name], node.schemas[0].names)
            for name, node in self._outputs.items()
        }

    def _difference(self, law: str, expected: list[Bags], found: list[Bags]) -> _Fault | None:
        for epoch, (wanted, given) in enumerate(zip(expected, found, strict=True)):
            for name in self._outputs:
                missing, surplus = wanted[name] - given[name], given[name] - wanted[name]
                if missing or surplus:
                    columns = ", ".join(self._outputs[name].schemas[0].names)
                    lines = [f"{name!r} ({columns}) after epoch {epoch}, - expected, + found:"]
                    lines += _signed("-", missing) + _signed("+", surplus)
                    return _Fault(law, "\n".join(lines))
        return None

    def _smallest(self, trial: _Trial, fault: _Fault, seed: int | None) -> LawBroken:
        """The error, for the smallest script that breaks the same law in the same way."""
        last = fault

        def fails(script: list[Item]) -> bool:
            nonlocal last
            try:
                found = self._fault(replace(trial, script=script), {})
            except Exception:  # it fails in another way
                return False
            if found is None or found.law != fault.law:
                return False
            last = found
            return True

        script = shrink(trial.script, fails, self._keys)
        broken = LawBroken(last.law, seed, script, trial.way, last.shows)
        broken.__cause__ = last.cause
        return broken


def _listed(laws: Iterable[str] | None) -> list[str]:
    if laws is None:
        return list(LAWS)
    asked = list(laws)
    for law in asked:
        if law not in LAWS:
            raise PlanError(
                "testing.law",
                f"cannot check the law of {law!r}: there are {', '.join(LAWS)}",
                hint="check the spelling",
            )
    return [law for law in LAWS if law in asked]


def _law_of(error: BaseException) -> str | None:
    """The law that an error is about, wherever it rose."""
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
    """The script with marks before and after each commit, or one of them; `alternate` takes them in turn."""
    found: list[Item] = []
    epoch = 0
    for item in script:
        chosen = item == COMMIT and at in (None, epoch)
        if chosen:
            found += inside
        found.append(item)
        if chosen:
            found += [after[epoch % len(after)]] if alternate else after
        epoch += item == COMMIT
    return found


def _bag(result: Result) -> Bag:
    columns = [column.to_pylist() for column in result.to_arrow().columns]
    if not columns:
        return Counter({(): len(result)})
    return Counter(frozen(row) for row in zip(*columns, strict=True))


def _counted(rows: Iterable[Any], columns: Sequence[str]) -> Bag:
    """The rows of an oracle."""
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
