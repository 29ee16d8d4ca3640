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

import datetime
import decimal
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, NoneType
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from riverrun.errors import OperatorFailed, RiverrunError
from riverrun.progress import Antichain, Summary, Timestamp
from riverrun.state import Schema, Spine
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.shards import Shards
from riverrun.state.view import View

if TYPE_CHECKING:
    from riverrun.engine.plan import Node, Plan

_PLAIN = (
    NoneType, bool, int, float, complex, str, bytes, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal,
)  # fmt: skip
"""Values that are told by how they are written, the same in every process."""


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
    may_be_tracked: ClassVar[bool] = True
    """Whether a plan may have it tracked all the same."""
    passes_all: ClassVar[bool] = False
    """Whether it gives what it gets, and is there for people only."""

    def reads(self, at: int) -> bool:
        """Whether what comes to its input `at` is read where it is kept, rather than sent as changes."""
        return self.reads_arrangements

    @property
    def adds_up(self) -> bool:
        """Whether what it gives in an epoch is added up: the same rows however they came, none of which cancel."""
        return self.keeps_state

    def check(self, plan: Plan, node: Node) -> None:
        """Refuse a plan, once it is whole, in which the node cannot do its work."""

    @property
    def from_content(self) -> bool:
        """Whether what it gives adds up, as of an epoch, to a function of what it was given up to then, added up.

        Then it can be built anew from that; otherwise only by going through all epochs again.
        """
        return self.deterministic

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What the names of its states have behind the name of the node, one for each state."""
        return ("",) if self.keeps_state else ()

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
        "_spill", "actors", "arrive", "epoch", "has_consumers", "history", "index", "needed", "node", "note", "push",
        "request", "shards", "sources", "states", "workers",
    )  # fmt: skip

    def __init__(
        self,
        node: Node,
        index: int,
        shards: Shards,
        states: dict[str, Spine],
        sources: Sequence[Actor],
        history: int,
        epoch: int,
        spill: Mapping[str, Any] | None = None,
        actors: Mapping[int, Actor] | None = None,
    ) -> None:
        self.node = node
        self.index = index
        self.shards = shards
        self.workers = shards.workers
        self.actors = actors or {}
        """The actors of this worker by the number of their node: of those before it, while it is being made."""
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
        self.note: Callable[..., None] = _unnoted
        """To have something told to who watches the run (`engine.events`): a kind, and fields."""

    def spine(self, schema: Schema, suffix: str = "") -> Spine:
        """The state that this node declares under its name: restored, or empty."""
        name = self.node.name + suffix
        if name not in self.states:
            self.states[name] = Spine(name, schema, depth=self.node.depth, **self._spill)
        return self.states[name]

    def restored(self, schema: Schema, suffix: str = "") -> pa.RecordBatch | None:
        """What was saved of a state that the node keeps in a form of its own (`Actor.saved`); a last column counts."""
        spine = self.states.pop(self.node.name + suffix, None)
        if spine is None:
            return None
        view, now = present(spine)
        return view.to_batch(now)


def _unbound(*arguments: Any) -> None:
    raise AssertionError("an actor neither sends nor asks for times while it is being made")


def _nothing(port: int, time: Timestamp) -> None:
    pass


def _unnoted(kind: str, **fields: Any) -> None:
    pass


class Actor:
    """A node as it lives on one worker."""

    waits: bool = True
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
        """All epochs before `epoch` are complete here: nothing of them is left, and nothing will come."""

    def figures(self) -> dict[str, dict[str, Any]]:
        """What else there is to say of states, by name, for people. Any thread may ask."""
        return {}

    def saved(self, epoch: int) -> dict[str, View]:
        """At a boundary: the states that it keeps in a form of its own, by name, as they are to be saved."""
        return {}


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
    """A word that changes when a Python function does: its code, defaults, and the plain values it closes over.

    Functions in there count by their code, other objects by their type. What it calls by a global name is not in it.
    The word is the same in every process.
    """
    return hashlib.sha256("\n".join(_parts(function, ())).encode()).hexdigest()[:12]


def _parts(value: object, around: tuple[object, ...]) -> Iterator[str]:
    """What makes up a function, a class or a value, as text; `around` are those it is in."""
    if any(value is other for other in around):
        yield "itself"
        return
    around = (*around, value)
    if isinstance(value, functools.partial):
        yield from _parts(value.func, around)
        for each in (*value.args, *sorted(value.keywords)):
            yield from _parts(each, around)
        for name in sorted(value.keywords):
            yield from _parts(value.keywords[name], around)
    elif isinstance(value, type):
        yield from _class_parts(value, around)
    elif isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} of {len(value)}"
        for each in value:
            yield from _parts(each, around)
    elif isinstance(value, set | frozenset):  # in another order in every process
        yield f"set of {sorted(' '.join(_parts(each, around)) for each in value)}"
    elif isinstance(value, dict):
        yield f"dict of {len(value)}"
        for key, each in value.items():
            yield from _parts(key, around)
            yield from _parts(each, around)
    elif isinstance(value, CodeType):
        yield f"{value.co_code.hex()} {value.co_names} {value.co_varnames} {value.co_freevars}"
        for constant in value.co_consts:
            yield from _parts(constant, around)
    else:
        yield from _function_parts(value, around)


def _function_parts(value: object, around: tuple[object, ...]) -> Iterator[str]:
    function = getattr(value, "__func__", value)
    if not isinstance(getattr(function, "__code__", None), CodeType):
        kind = type(value)
        function = vars(kind).get("__call__")
        yield kind.__name__
        held = getattr(value, "__dict__", {})
        for name in sorted(name for name in held if isinstance(held[name], _PLAIN)):
            yield f"{name} {held[name]!r}"
    if not isinstance(function, FunctionType):
        return
    yield from _parts(function.__code__, around)
    yield from _parts(function.__defaults__, around)
    yield from _parts(function.__kwdefaults__, around)
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        yield from _parts(held, around)


def _class_parts(kind: type, around: tuple[object, ...]) -> Iterator[str]:
    for each in kind.__mro__:
        if each.__module__.split(".")[0] in ("riverrun", "builtins") and each is not kind:
            continue
        held = vars(each)
        for name in sorted(held):
            value = held[name]
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            elif isinstance(value, property):
                value = value.fget
            plain = isinstance(value, _PLAIN) and not name.startswith("__")
            if plain or isinstance(value, FunctionType):
                yield name
                yield from _parts(value, around)


def settle(spine: Spine, epoch: int, depth: int) -> None:
    """Nothing before `epoch` comes any more; earlier epochs are kept apart only as far as somebody holds them."""
    upper = Antichain.boundary(epoch, depth)
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
