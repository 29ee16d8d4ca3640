"""Operators: what a node does with the changes that arrive, and what is alive of it while it runs.

An :class:`Operator` is a value in the plan. Two kinds:

- :class:`Linear`: keeps nothing and waits for nothing; ``apply`` turns some changes into others, row
  by row (f(a + b) = f(a) + f(b)), so chains of them are fused into one call.
- all others ``start`` an :class:`Actor` on each worker: it keeps state, or waits for times to be
  complete.

An actor is told of changes (``receive``), asks to be run at their times (``request``), and is run at
time t when no change at or before t can arrive any more (``run``): law 2 of DESIGN. It sends at that
time or later only: law 1. What it keeps across epochs is in spines that it declared; these, and
nothing else, are in a checkpoint.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar

from riverrun.errors import OperatorFailed, RiverrunError
from riverrun.progress import Antichain, Summary, Timestamp
from riverrun.state import Schema, Spine
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.view import View

if TYPE_CHECKING:
    from riverrun.engine.plan import Node


class Operator:
    """What a node does. Frozen, comparable, and the same on every worker."""

    kind: ClassVar[str]
    deterministic: bool = True
    """Whether results depend only on the changes, not on how they were cut or when they arrived."""
    keeps_state: ClassVar[bool] = False
    is_feedback: ClassVar[bool] = False
    steps_out: ClassVar[int] = 0
    """How many loops its output is outside of its input: 1 when it leaves one, -1 when it enters one."""
    reads_arrangements: ClassVar[bool] = False
    """Whether its inputs are read as arrangements, batch by batch, rather than as changes."""
    tracked: ClassVar[bool] = True
    """Whether progress is tracked at its ports; time passes the others unchanged and at once."""

    def summary(self, depth: int) -> Summary | None:
        """What happens to times between input and output; None for nothing."""
        return None

    def describe(self) -> str:
        """What it does, on one line, for people."""
        return self.kind

    def identity(self) -> str:
        """What tells it from others that would give other results: a checkpoint is resumed by the same only."""
        return self.describe()

    def start(self, context: Context) -> Actor:
        raise NotImplementedError


class Linear(Operator):
    """Works on each change by itself."""

    tracked: ClassVar[bool] = False

    @property
    def used(self) -> Sequence[int] | None:
        """Which columns of its input it looks at; None for all."""
        return None

    def apply(self, changes: Changes) -> Changes | None:
        raise NotImplementedError


class Context:
    """What an actor is given: its node, its place among the workers, and what it may ask for."""

    __slots__ = (
        "_spill", "arrive", "epoch", "has_consumers", "history", "index", "needed", "node", "push", "request",
        "sources", "states", "workers",
    )  # fmt: skip

    def __init__(
        self,
        node: Node,
        index: int,
        workers: int,
        states: dict[str, Spine],
        sources: Sequence[Actor],
        history: int,
        epoch: int,
        spill: Mapping[str, Any] | None = None,
    ) -> None:
        self.node = node
        self.index = index
        self.workers = workers
        self.states = states
        self._spill = spill or {}
        self.sources = sources
        self.history = history
        self.epoch = epoch
        """The first epoch of this execution."""
        self.has_consumers = True
        """Whether anybody takes what it sends; its arrangement may have readers all the same."""
        self.needed: Sequence[int] | None = None
        """Which columns of what it sends are looked at; None for all."""
        self.arrive: Callable[[int, Timestamp], None] = _nothing
        """To be told when a batch of an arrangement arrives at an input."""
        self.push: Callable[[Changes, int], None] = _unbound
        self.request: Callable[[Timestamp], None] = _unbound

    def spine(self, schema: Schema, suffix: str = "") -> Spine:
        """The state that this node declares under its name: restored, or empty."""
        name = self.node.name + suffix
        if name not in self.states:
            self.states[name] = Spine(name, schema, depth=self.node.depth, **self._spill)
        return self.states[name]


def _unbound(*arguments: Any) -> None:
    raise AssertionError("an actor neither sends nor asks for times while it is being made")


def _nothing(port: int, time: Timestamp) -> None:
    pass


class Actor:
    """A node as it lives on one worker."""

    waits: ClassVar[bool] = True
    """Whether it is run at t only when t is complete, or as soon as may be."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.node = context.node

    def receive(self, port: int, changes: Changes) -> None:
        """Take changes in; nothing is sent here."""
        raise NotImplementedError

    def run(self, time: Timestamp, upper: Antichain) -> None:
        """No change at or before `time` can arrive any more, nor any at a time that is not at or after `upper`."""
        raise NotImplementedError

    def boundary(self, epoch: int) -> None:
        """All epochs before `epoch` are complete, everywhere."""


class Arrangement:
    """A spine that several nodes read: they hear of every batch, in order, before anything else happens."""

    __slots__ = ("before", "keeps_before", "readers", "rows", "spine")

    def __init__(self, spine: Spine) -> None:
        self.spine = spine
        self.readers: list[Callable[[Batch, Timestamp], None]] = []
        self.rows = 0
        """How many changes were appended so far."""
        self.keeps_before = False
        self.before: View | None = None
        """While a batch is announced: the state without it, where a reader asked for that."""

    def append(self, batch: Batch, time: Timestamp) -> None:
        """Append the changes of one time, and announce them."""
        if self.keeps_before:
            self.before = self.spine.view()
        self.spine.append(batch)
        self.rows += len(batch)
        if len(batch):
            for reader in self.readers:
                reader(batch, time)
        self.before = None


class Arranged(Actor):
    """An actor whose result is an arrangement."""

    arrangement: Arrangement

    def boundary(self, epoch: int) -> None:
        settle(self.arrangement.spine, epoch, self.node.depth)


def hold(
    held: dict[Timestamp, list[Changes]],
    changes: Changes,
    request: Callable[[Timestamp], None],
) -> None:
    """Keep changes until their time is run, and ask for that."""
    for time, piece in by_time(changes):
        if time in held:
            held[time].append(piece)
        else:
            held[time] = [piece]
            request(time)


def code_of(function: object) -> str:
    """A word that changes when the code of a Python function does; what it calls or closes over is not in it."""
    if isinstance(function, functools.partial):
        return f"{code_of(function.func)} {len(function.args)} {sorted(function.keywords)}"
    if isinstance(function, type):
        methods = {n: m for n, m in vars(function).items() if callable(m)}
        return " ".join(f"{name} {code_of(methods[name])}" for name in sorted(methods))
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if not isinstance(code, CodeType):
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    if not isinstance(code, CodeType):
        return type(function).__name__

    def parts(some: CodeType) -> Iterator[str]:
        yield f"{some.co_code.hex()} {some.co_names} {some.co_varnames}"
        for constant in some.co_consts:
            if isinstance(constant, CodeType):
                yield from parts(constant)
            elif isinstance(constant, frozenset):  # in another order in every process
                yield repr(sorted(map(repr, constant)))
            else:
                yield repr(constant)

    return hashlib.sha256("\n".join(parts(code)).encode()).hexdigest()[:12]


def settle(spine: Spine, epoch: int, depth: int) -> None:
    """Nothing before `epoch` comes any more; earlier epochs are kept apart only as far as somebody holds them."""
    upper = Antichain([(epoch,) + (0,) * (depth - 1)])
    if spine.upper != upper:
        spine.advance_upper(upper)
    spine.advance_since(upper)


def so_far(spine: Spine, upper: Antichain) -> View:
    """A state as it is if nothing more comes before `upper`: what its owner compares with before it appends."""
    view = spine.view()
    return view.moved(view.since, upper)


def present(spine: Spine) -> tuple[View, Timestamp]:
    """A state as it stands at a boundary, and the time as of which to read that."""
    (now,) = spine.upper
    return so_far(spine, Antichain([(now[0] + 1, *now[1:])])), now


def by_time(changes: Changes) -> Iterator[tuple[Timestamp, Changes]]:
    """The changes of each time by themselves."""
    if len(changes.times) == 1:
        yield changes.times[0], changes
        return
    for time in changes.times:
        piece = changes.at(time)
        if piece is not None:
            yield time, piece


def failed_function(error: Exception, doing: str, **fields: Any) -> OperatorFailed:
    """The error of a user's function, for the node to be added (`located`)."""
    failure = OperatorFailed(
        "operator.failed", f"{doing} failed: {type(error).__name__}: {error}", **fields
    )
    failure.__cause__ = error
    return failure


def located(node: Node, error: Exception) -> RiverrunError:
    """An error that rose in a node, with the node and the user's line."""
    if isinstance(error, OperatorFailed) and "node" in error.fields:
        return error
    if isinstance(error, RiverrunError):
        message, hint, code, fields = error.message, error.hint, error.code, error.fields
    else:
        message, hint = f"{type(error).__name__}: {error}", None
        code, fields = "operator.failed", {}
    failure = OperatorFailed(
        code,
        f"{node.operator.describe()} ({node.name!r}, {node.line}): {message}",
        hint=hint
        or "the epoch was refused, with all its rows: mend the function or the rows, insert and commit again",
        **{**fields, "node": node.name, "line": node.line},
    )
    failure.__cause__ = error.__cause__ if isinstance(error, OperatorFailed) else error
    return failure
