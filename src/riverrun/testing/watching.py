"""Watching a run from inside: who sends what when, whether times pass, and blows at chosen moments.

`watched` gives a plan whose operators do what they did, under observation. On each worker:

1. **Silence.** What an actor sends is at or after the time it handles (law 1 of DESIGN), and an actor
   that was told that a time is complete receives nothing at or before it any more (law 2).
2. **Progress.** An epoch does not go on for ever, nor is an actor run without end at one time: after
   `patience` turns, or a part of them, time is taken to be held up. When an epoch is complete, every
   request in it was answered.

What breaks them raises an error with the code ``testing.silence`` or ``testing.progress``, so the epoch
is refused. A `Watch` also strikes: it interrupts an epoch after a number of turns (`Strike`), or has it
fail (``testing.refused``).

Cost: some microseconds for each turn.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from riverrun.engine.instance import Instance
from riverrun.errors import OperatorFailed
from riverrun.plan.operator import Actor, Context, Operator
from riverrun.plan.plan import Node, Plan
from riverrun.progress import Antichain, Timestamp, less_equal
from riverrun.state.changes import Changes

PATIENCE = 1_000_000
"""How many turns an epoch may take before it is taken to hang."""
AT_ONE_TIME = 20
"""The part of them that one actor may take at one time: one in so many."""


class Strike(BaseException):
    """The moment that was chosen for a blow has come. Not an Exception, so that no worker handles it."""

    refuses: ClassVar[bool] = False
    """All is to stay as it stands: the epoch goes on with whoever is left."""


class Watch:
    """What all workers of a run tell, and when they are to be interrupted."""

    def __init__(self, patience: int = PATIENCE) -> None:
        self.patience = patience
        self.turns = 0
        self._strike_at: int | None = None
        self._refuse = False

    def epoch(self) -> None:
        """An epoch begins."""
        self.turns = 0

    def strike(self, after: int, *, refuse: bool = False) -> None:
        """Interrupt after some turns; with `refuse`, by an error of the epoch."""
        self._strike_at, self._refuse = self.turns + after, refuse

    def calm(self) -> bool:
        """Strike no more; whether it was still to come."""
        pending, self._strike_at = self._strike_at is not None, None
        return pending

    def turn(self, node: Node) -> None:
        """An actor is about to handle something."""
        self.turns += 1
        if self._strike_at is not None and self.turns >= self._strike_at:
            self._strike_at = None
            if self._refuse:
                raise OperatorFailed(
                    "testing.refused", "this epoch was to be refused", node=node.name
                )
            raise Strike
        if self.turns > self.patience:
            raise _broken("progress", node, f"the epoch has taken {self.turns} turns and goes on")


def watched(plan: Plan, watch: Watch) -> Plan:
    """The same plan under observation."""
    nodes = tuple(replace(node, operator=_watched(node.operator, watch)) for node in plan.nodes)
    return replace(plan, nodes=nodes)


def _watched(operator: Operator, watch: Watch) -> Operator:
    if operator.role.is_source or not operator.has_actor:
        return operator
    seen = copy.copy(operator)
    # What it answers stays as it is; only how it starts is another matter.
    object.__setattr__(seen, "start", partial(_start, operator, watch))
    return seen


def _start(operator: Operator, watch: Watch, context: Context) -> Actor:
    actor = operator.start(context)
    _Eye(actor, watch)
    return actor


class _Eye:
    """Stands between an actor and the engine."""

    def __init__(self, actor: Actor, watch: Watch) -> None:
        self._watch = watch
        self._node = actor.node
        self._context = actor.context
        self._waits = actor.waits
        self._receive, self._run, self._boundary = actor.receive, actor.run, actor.boundary
        self._push: Callable[[Changes, int], None] | None = None
        self._request: Callable[[Timestamp], None] | None = None
        self._now: list[tuple[Timestamp, ...]] = []
        self._told: list[Timestamp] = []  # the greatest times that it was told are complete
        self._asked: set[Timestamp] = set()
        self._runs: Counter[Timestamp] = Counter()
        over: Any = actor
        over.receive, over.run, over.boundary = self.receive, self.run, self.boundary

    def receive(self, port: int, changes: Changes) -> None:
        self._watch.turn(self._node)
        for time in changes.times:
            for told in self._told:
                if len(told) == len(time) and less_equal(time, told):
                    raise _broken(
                        "silence",
                        self._node,
                        f"it receives rows at {time}, after it was told that {told} is complete",
                    )
        self._handle(changes.times, lambda: self._receive(port, changes))

    def run(self, time: Timestamp, upper: Antichain) -> None:
        self._watch.turn(self._node)
        self._runs[time] += 1
        if self._runs[time] > self._watch.patience // AT_ONE_TIME:
            raise _broken(
                "progress",
                self._node,
                f"it was run {self._runs[time] - 1} times at {time} and asks for more",
            )
        self._asked.discard(time)
        if self._waits:
            self._told = [told for told in self._told if not less_equal(told, time)] + [time]
        self._handle((time,), lambda: self._run(time, upper))

    def boundary(self, epoch: int) -> None:
        late = sorted(time for time in self._asked if time[0] < epoch)
        if late:
            raise _broken(
                "progress",
                self._node,
                f"it asked to be run at {late[0]}, and epoch {epoch - 1} is complete without",
            )
        self._told = [time for time in self._told if time[0] >= epoch - 1]
        self._runs.clear()
        self._boundary(epoch)

    def push(self, changes: Changes, output: int) -> None:
        now = self._now[-1] if self._now else ()
        for time in changes.times:
            if not any(len(t) == len(time) and less_equal(t, time) for t in now):
                handled = f"while it handles {now[0]}" if now else "while it handles nothing"
                raise _broken("silence", self._node, f"it sends rows at {time} {handled}")
        assert self._push is not None
        self._push(changes, output)

    def request(self, time: Timestamp) -> None:
        self._asked.add(time)
        assert self._request is not None
        self._request(time)

    def _handle(self, times: tuple[Timestamp, ...], function: Callable[[], None]) -> None:
        if self._push is None:  # the engine sets these once all actors are made
            self._push, self._request = self._context.push, self._context.request
            self._context.push, self._context.request = self.push, self.request
        self._now.append(times)
        try:
            function()
        finally:
            self._now.pop()


def _broken(law: str, node: Node, what: str) -> OperatorFailed:
    return OperatorFailed(
        f"testing.{law}",
        f"{node.operator.describe()} ({node.name!r}, {node.line}): {what}",
        hint="send at the time that is handled, or later; ask for a time once, and let it pass",
        node=node.name,
        line=node.line,
    )


class CutInstance(Instance):
    """An instance that is fed the rows of an epoch in pieces of at most `cut` rows, shuffled with a seed."""

    cut: int | None = None
    shuffle: int | None = None

    def feed(self, epoch: int, inputs: Mapping[str, pa.RecordBatch]) -> None:
        if self.cut is not None or self.shuffle is not None:
            inputs = _Pieces(self._pieces(epoch, inputs))
        super().feed(epoch, inputs)

    def _pieces(
        self, epoch: int, inputs: Mapping[str, pa.RecordBatch]
    ) -> list[tuple[str, pa.RecordBatch]]:
        source = random.Random(f"{self.shuffle} {epoch} {self.index}")
        pieces = []
        for name, batch in inputs.items():
            if self.shuffle is not None:
                batch = batch.take(source.sample(range(batch.num_rows), batch.num_rows))
            size = self.cut or max(batch.num_rows, 1)
            pieces += [(name, batch.slice(start, size)) for start in range(0, batch.num_rows, size)]
        if self.shuffle is not None:
            source.shuffle(pieces)
        return pieces


class _Pieces(dict[str, pa.RecordBatch]):
    """Inputs of which one may be there several times."""

    def __init__(self, pieces: list[tuple[str, pa.RecordBatch]]) -> None:
        super().__init__(pieces)
        self._listed = pieces

    def items(self) -> Any:
        return _Items(self._listed)


class _Items:
    def __init__(self, listed: list[tuple[str, pa.RecordBatch]]) -> None:
        self._listed = listed

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        return iter(self._listed)
