"""Watching a run from inside: checks of what actors send and ask for, and failures at chosen moments.

`playing` plays scripts on watched plans. `watched` gives a plan whose operators work as before, under observation. On
each worker two laws are checked:

- **Silence.** An actor sends only at or after the time that it handles (the *capability* law of ARCHITECTURE). After
  an actor was run at a time, which is complete then, it receives nothing at or before that time (the *notification*
  law of ARCHITECTURE).
- **Progress.** An epoch ends, and an actor is not run again and again at one time: an epoch that takes `patience`
  turns, or an actor that takes a certain part of them at one time, breaks the law. When an epoch is complete, every
  request in it was answered.

A broken law raises an error with the code ``testing.silence`` or ``testing.progress``, so the epoch is refused. A
`Watch` also strikes: it interrupts an epoch after a number of turns (`Strike`), or has the epoch fail
(``testing.refused``).

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

MOST_STEPS = 1_000_000
"""How many turns an epoch may take before it is taken to hang."""
AT_ONE_TIME = 20
"""One actor may take one in so many of these turns at one time."""


class Strike(BaseException):
    """Interrupts an epoch at a chosen moment. It is not an Exception, so that no worker handles it."""

    refuses: ClassVar[bool] = False
    """False: the interrupt does not refuse the epoch, which goes on with the workers that are left."""


class Watch:
    """Counts the turns of all workers of a run, and interrupts the run at a chosen turn."""

    def __init__(self, patience: int = MOST_STEPS) -> None:
        self.patience = patience
        self.turns = 0
        self._strike_at: int | None = None
        self._refuse = False

    def epoch(self) -> None:
        """Begin to count the turns of an epoch."""
        self.turns = 0

    def strike(self, after: int, *, refuse: bool = False) -> None:
        """Interrupt after some turns; with `refuse`, by an error that makes the epoch be refused."""
        self._strike_at, self._refuse = self.turns + after, refuse

    def calm(self) -> bool:
        """Strike no more; return whether a strike was still to come."""
        pending, self._strike_at = self._strike_at is not None, None
        return pending

    def turn(self, node: Node) -> None:
        """Count a turn: an actor is about to receive changes or to run."""
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
    # The operator's answers stay as they are; only the actor that it starts is observed.
    object.__setattr__(seen, "start", partial(_start, operator, watch))
    return seen


def _start(operator: Operator, watch: Watch, context: Context) -> Actor:
    actor = operator.start(context)
    _Eye(actor, watch)
    return actor


class _Eye:
    """Stands between an actor and the engine, and checks the calls that pass."""

    def __init__(self, actor: Actor, watch: Watch) -> None:
        self._watch = watch
        self._node = actor.node
        self._context = actor.context
        self._waits = actor.waits
        self._receive, self._run, self._boundary = actor.receive, actor.run, actor.boundary
        self._push: Callable[[Changes, int], None] | None = None
        self._request: Callable[[Timestamp], None] | None = None
        self._now: list[tuple[Timestamp, ...]] = []
        self._completed: list[Timestamp] = []
        """The greatest times at which the actor was run: these are complete."""
        self._asked: set[Timestamp] = set()
        self._runs: Counter[Timestamp] = Counter()
        over: Any = actor
        over.receive, over.run, over.boundary = self.receive, self.run, self.boundary

    def receive(self, port: int, changes: Changes) -> None:
        self._watch.turn(self._node)
        for time in changes.times:
            for complete in self._completed:
                if len(complete) == len(time) and less_equal(time, complete):
                    raise _broken(
                        "silence",
                        self._node,
                        f"it receives rows at {time}, after it was told that {complete} is complete",
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
            self._completed = [
                complete for complete in self._completed if not less_equal(complete, time)
            ] + [time]
        self._handle((time,), lambda: self._run(time, upper))

    def boundary(self, epoch: int) -> None:
        late = sorted(time for time in self._asked if time[0] < epoch)
        if late:
            raise _broken(
                "progress",
                self._node,
                f"it asked to be run at {late[0]}, and epoch {epoch - 1} is complete without",
            )
        self._completed = [time for time in self._completed if time[0] >= epoch - 1]
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
    """Batches by input, of which an input may have several."""

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
