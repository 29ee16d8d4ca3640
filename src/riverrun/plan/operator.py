"""Operators: what a node does with the changes that arrive, and what is alive of it while it runs.

An :class:`Operator` is a value in the plan. Three kinds:

- :class:`Linear`: keeps nothing and waits for nothing; ``apply`` turns some changes into others, row
  by row (f(a + b) = f(a) + f(b)), so chains of them are fused into one call.
- :class:`Exchanging`: ``dispatch`` says which worker each row goes to.
- all others ``start`` an :class:`Actor` on each worker: it keeps state, or waits for times to be
  complete.

Whoever looks at a plan (placements, comparing, pictures, the engine, front ends) asks the operator what they need
to know of it: no list of operator classes stands anywhere else.

An actor is told of changes (``receive``), asks to be run at their times (``request``), and is run at
time t when no change at or before t can arrive any more (``run``): law 2 of DESIGN. It sends at that
time or later only: law 1. What it keeps across epochs is in spines that it declared; these, and
nothing else, are in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa

from riverrun.errors import OperatorFailed, RiverrunError
from riverrun.progress import Antichain, Summary, Timestamp
from riverrun.state import Schema, Spine
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.shards import Shards
from riverrun.state.view import View

if TYPE_CHECKING:
    from riverrun.plan.plan import Node, Plan


Columns = tuple[int, ...]
Placement = set[Columns] | None
"""By which keys the rows of an output are placed, each key as positions of columns (`plan.placement`); None, where no
row ever comes, stands for all keys."""


def moved_keys(keys: Iterable[Columns], places: Mapping[int, int]) -> set[Columns]:
    """The keys all of whose columns are there still, by where they are now."""
    return {tuple([places[at] for at in key]) for key in keys if all(at in places for at in key)}


class PlacedInput(NamedTuple):
    """An input as the rule of a placement sees it."""

    keys: Placement
    schema: pa.Schema

    def position(self, name: str) -> int:
        position: int = self.schema.get_field_index(name)
        return position


class Role(Enum):
    """What a node is to a program as a whole, where that is more than changes made of changes.

    The value is the word of the role. Law **Words**: the `identity` of an operator whose role is `PROBE`, `INSPECT` or
    `EXCHANGE` begins with the word of the role, and that of no other operator does; of an operator that a program does
    not have any more, its identity is all that a checkpoint has.
    """

    STEP = "step"
    INPUT = "input"
    """Rows come in from outside; its actor can be fed."""
    CLOCK = "clock"
    """A row comes in for each epoch; its actor can be fed."""
    OUTPUT = "output"
    """A result that can be read from outside; its actor shows the arrangement that is its one input."""
    PROBE = "probe"
    """A place at which one can ask which times can still come. Gives what it gets."""
    INSPECT = "inspect"
    """Shows rows to people. Gives what it gets."""
    EXCHANGE = "exchange"
    """Rows travel between workers: an `Exchanging`."""
    FEEDBACK = "feedback"
    """Leads back to the start of a loop, at the next round."""
    DELAY = "delay"
    """Moves rows to the next round without leading back."""
    NEGATE = "negate"
    """Gives every diff the other sign."""
    CONCAT = "concat"
    """Puts the changes of its inputs together."""

    @property
    def is_source(self) -> bool:
        """Whether rows come in here that no other node gives."""
        return self in (Role.INPUT, Role.CLOCK)

    def begins(self, identity: str) -> bool:
        """Whether an identity is that of an operator with this role (law "words")."""
        return identity.startswith(f"{self.value} ")


class Operator:
    r"""What a node does. Frozen, comparable, and the same on every worker.

    An operator answers for itself: what the rest of the project knows of it is asked here, so a new operator is one
    class in one file. Every answer that is not given is the safe one: nothing is promised. There are three ways for a
    node to work: a `Linear` operator is applied, an `Exchanging` one dispatches rows, and every other `start`\ s an
    actor. Laws of the answers:

    - **Identity.** Operators of one identity give the same results of the same changes. A checkpoint compares
      identities letter by letter, so the identity of an operator never changes while its results do not.
    - **Placement is sound and monotone** (`placement`). If rows lie as the placements of the inputs say, the rows that
      are made of them lie as the answer says; and fewer keys of an input never give more keys of the output.
    - **Added up** (`adds_up`). What is given in an epoch is the same however the changes of the epoch came: equal rows
      are added up, and none of them cancel.
    - **From content** (`from_content`). What is given adds up, as of an epoch, to a function of what was taken up to
      then, added up.
    - **Content** (`gives_content`). What was given adds up, as of a boundary, to what the state under the name of the
      node holds then, in the columns of that state that have the names of the output's.
    - **Nothing of nothing** (`needs_all_inputs`). An operator gives nothing where nothing has come to any of its inputs
      (but those of the clock); one that needs all inputs gives nothing either where one of them has had nothing.
    """

    kind: ClassVar[str]
    """What it is called, on one word, where a node has no name of its own."""
    role: Role = Role.STEP
    deterministic: bool = True
    """Whether results depend only on the changes, not on how they were cut or when they arrived."""
    keeps_state: ClassVar[bool] = False
    steps_out: ClassVar[int] = 0
    """How many loops its output is outside of its input: 1 when it leaves one, -1 when it enters one."""
    reads_arrangements: ClassVar[bool] = False
    """Whether its inputs are read as arrangements, batch by batch, rather than as changes."""
    tracked: ClassVar[bool] = True
    """Whether progress is tracked at its ports; time passes the others unchanged and at once. An operator that sends
    when it is told of a batch, without having asked for the time, is not tracked: what it reads may send then."""
    may_be_tracked: ClassVar[bool] = True
    """Whether a plan may have it tracked all the same."""
    same_rows: ClassVar[bool] = False
    """Whether each row that it gives is one that it took, with the same columns, on the same worker."""
    gives_content: ClassVar[bool] = False
    """Whether what it has given is in its state (law "content"); then others can be built anew from that."""
    needs_all_inputs: ClassVar[bool] = False
    may_cancel: ClassVar[bool] = False
    """Whether it may give a row and take it back in one epoch, in some order of arrival and not in another."""
    is_users: ClassVar[bool] = False
    """Whether a function of the user's decides, change by change, what it sends and when."""
    known_by_input: ClassVar[bool] = False
    """Whether its rows are, to people, those of its first input: they go by the name of that."""

    # -- what it is to a program

    @property
    def public_name(self) -> str:
        """What those outside call an input, an output or a probe; empty for others."""
        return ""

    @property
    def upsert_key(self) -> Sequence[str]:
        """The columns by which a row that is put into an input replaces the one before; none where rows add up."""
        return ()

    @property
    def time_column(self) -> str | None:
        """The column of its state that has the user's own time, in whose type U and F of the state are shown."""
        return None

    @property
    def round_limit(self) -> int | None:
        """After how many rounds a feedback leads nothing back any more; None for no limit."""
        return None

    @property
    def is_feedback(self) -> bool:
        return self.role is Role.FEEDBACK

    @property
    def passes_all(self) -> bool:
        """Whether it gives what it gets, and is there for people only."""
        return self.role in (Role.PROBE, Role.INSPECT)

    def describe(self) -> str:
        """What it does, on one line, for people."""
        return self.kind

    def identity(self) -> str:
        """What tells it from others that would give other results: a checkpoint is resumed by the same only."""
        return self.describe()

    def check(self, plan: Plan, node: Node) -> None:
        """Refuse a plan, once it is whole, in which the node cannot do its work."""

    # -- what it makes of rows

    def reads(self, at: int) -> bool:
        """Whether what comes to its input `at` is read where it is kept, rather than sent as changes."""
        return self.reads_arrangements

    @property
    def adds_up(self) -> bool:
        """Whether what it gives in an epoch is added up, whatever it gets (law "added up")."""
        return self.keeps_state

    @property
    def takes_back(self) -> bool:
        """Whether it may give a row with a negative sign for one that came with a positive one."""
        return self.adds_up

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        """By which keys the rows of its first output, with this schema, are placed, given those of its inputs."""
        if not self.same_rows:
            return set()
        known = [each.keys for each in inputs if each.keys is not None]
        return set.intersection(*known) if known else None

    @property
    def dealt_by(self) -> Columns | None:
        """By which columns the rows of an input that it takes are best dealt to workers: () for evenly, None where
        its work is so little that it makes no difference."""
        return ()

    def summary(self, depth: int) -> Summary | None:
        """What happens to times between input and output; None for nothing."""
        return None

    # -- what it keeps

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What the names of its states have behind the name of the node, one for each state."""
        return ("",) if self.keeps_state else ()

    @property
    def from_content(self) -> bool:
        """Whether it can be built anew from content (law "from content"); otherwise only by all epochs again."""
        return self.deterministic

    @property
    def copied_by(self) -> Sequence[str] | None:
        """Where its state is a copy of just what it was given: the columns by which that is split among workers."""
        return None

    def announced(self, kept: Mapping[int, int]) -> Sequence[int]:
        """The inputs whose content it is told (`Actor.announced`) when it takes part in building states anew.

        `kept` has, of each input that is an arrangement with its content there, the node of that arrangement; what
        comes to the other inputs is announced as it comes. By default each such arrangement is announced once.
        """
        first: dict[int, int] = {}
        for at, source in kept.items():
            first.setdefault(source, at)
        return sorted(first.values())

    # -- how it works on a worker

    @property
    def as_linear(self) -> Linear | None:
        """Itself, where it is linear."""
        return None

    @property
    def as_exchange(self) -> Exchanging | None:
        """Itself, where rows travel by it."""
        return None

    @property
    def has_actor(self) -> bool:
        """Whether something of it is alive on a worker."""
        return self.as_linear is None and self.as_exchange is None

    def start(self, context: Context) -> Actor:
        """What is alive of it on a worker."""
        raise NotImplementedError


class Linear(Operator):
    """Works on each change by itself."""

    tracked: ClassVar[bool] = False

    @property
    def as_linear(self) -> Linear:
        return self

    @property
    def used(self) -> Sequence[int] | None:
        """Which columns of its input it looks at; None for all."""
        return None

    def apply(self, changes: Changes) -> Changes | None:
        raise NotImplementedError


class Exchanging(Operator):
    """Says which worker each row goes to; the engine carries them."""

    role = Role.EXCHANGE
    known_by_input: ClassVar[bool] = True

    @property
    def as_exchange(self) -> Exchanging:
        return self

    @property
    def adds_before(self) -> bool:
        """Whether equal rows may be added up before they travel."""
        return False

    @property
    def goes_by_content(self) -> bool:
        """Whether the columns of a row alone say where it goes: rows that are there already do not move."""
        return False

    @property
    def may_pass(self) -> bool:
        """Whether it only has equal rows meet: where they do, since they are placed by some key, it passes them on."""
        return False

    def dispatch(self, changes: Changes, shards: Shards, turn: int) -> Sequence[Changes | None]:
        """What each worker gets."""
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

    def announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        """A batch has come to an arrangement that it reads; or, while states are built anew, that is its content."""
        raise NotImplementedError

    def boundary(self, epoch: int) -> None:
        """All epochs before `epoch` are complete here: nothing of them is left, and nothing will come."""

    def begin(self, epoch: int) -> None:
        """Its state is built anew in `epoch`, from nothing; or, of an output, that of the arrangement it shows."""
        if epoch:
            self.boundary(epoch)

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
