"""Operators: the interface of a node's work on the changes that arrive, and of the actor that does it on a worker.

An :class:`Operator` is a value in the plan, the same on all workers. There are three kinds:

- a :class:`Linear` operator keeps nothing and waits for nothing. Its ``apply`` turns changes into changes, row by row
  (f(a + b) = f(a) + f(b)), so a chain of linear operators is fused into one call.
- an :class:`Exchanging` operator says which worker each row goes to (``dispatch``).
- every other operator has an :class:`Actor` on each worker (``start``), which keeps state or waits for times to be
  complete.

Who uses it: the catalogue in `operators` implements this interface. Whoever looks at a plan (placements, `plan.diff`,
pictures, the engine, front ends) asks the operator, so no list of operator classes stands anywhere else.

An actor is handed changes (``receive``) and asks to be run at their times (``Context.request``). The engine runs the
actor at time t (``run``) when no change at or before t can arrive at it any more: the *notification* law of
ARCHITECTURE. The actor then sends changes at t or later only: the *capability* law. State that an actor keeps across
epochs is in spines that the actor has declared (`Context.spine`), or is given by `Actor.saved`; a checkpoint contains
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa

from riverrun.errors import OperatorFailed, RiverrunError
from riverrun.progress import Antichain, Summary, Timestamp
from riverrun.state import Order, Schema, Spine
from riverrun.state.batch import Batch
from riverrun.state.changes import Changes
from riverrun.state.shards import Shards
from riverrun.state.view import View

if TYPE_CHECKING:
    from riverrun.plan.loop_figures import RoundFigures
    from riverrun.plan.plan import Node, Plan


Columns = tuple[int, ...]
Placement = set[Columns] | None
"""The keys by which the rows of an output are placed, each key as positions of columns (`plan.placement`). None stands
for all keys: the placement of an output at which no row ever comes."""


def moved_keys(keys: Iterable[Columns], places: Mapping[int, int]) -> set[Columns]:
    """The keys all of whose columns have a new place in `places`, with each column at its new place."""
    return {tuple([places[at] for at in key]) for key in keys if all(at in places for at in key)}


class PlacedInput(NamedTuple):
    """An input of an operator, as `Operator.placement` sees it: the placement of its rows, and their schema."""

    keys: Placement
    schema: pa.Schema

    def position(self, name: str) -> int:
        position: int = self.schema.get_field_index(name)
        return position


class Role(Enum):
    """What part a node has in the program as a whole.

    The value is the word of the role. Law:

    - **Words.** The `identity` of an operator begins with the word `PROBE`, `INSPECT` or `EXCHANGE` stands for exactly
      when the operator has that role. (A checkpoint knows the operators of an older program by their identities only.)
    """

    STEP = "step"
    """Makes changes of changes: the role of most operators."""
    INPUT = "input"
    """Rows come in from outside: the engine feeds them to the actor."""
    CLOCK = "clock"
    """One row comes in for each epoch: the engine feeds it to the actor."""
    OUTPUT = "output"
    """A result that can be read from outside. The actor shows the arrangement that is the node's only input."""
    STATE = "shared state"
    """Values that streams update and fetch from. The actor keeps them as an arrangement. Outside of all loops, its
    content can be read from outside, as an output can."""
    PROBE = "probe"
    """A place whose frontier a run can tell. Rows pass unchanged."""
    INSPECT = "inspect"
    """Shows rows to people. Rows pass unchanged."""
    EXCHANGE = "exchange"
    """Rows travel between workers: an `Exchanging`."""
    FEEDBACK = "feedback"
    """Leads rows back to the start of a loop, at the next round."""
    DELAY = "delay"
    """Moves rows to the next round, and leads them onward rather than back."""
    NEGATE = "negate"
    """Gives every diff the other sign."""
    CONCAT = "concat"
    """Puts the changes of its inputs together."""

    @property
    def is_source(self) -> bool:
        """Whether rows come into the plan at a node with this role."""
        return self in (Role.INPUT, Role.CLOCK)

    def begins(self, identity: str) -> bool:
        """Whether an identity is that of an operator with this role; for the roles that the *words* law names."""
        return identity.startswith(f"{self.value} ")


class Operator:
    r"""What a node does. Frozen, comparable, and the same on every worker.

    The rest of the project knows of an operator only its answers here, so a new operator is one class in one file.
    An answer that a class does not give has a safe default, which promises nothing. A node works in one of three ways:
    a `Linear` operator is applied, an `Exchanging` operator dispatches rows, and every other operator `start`\ s an
    actor. In the laws, the operator *takes* changes at its inputs and *gives* changes at its outputs.

    Laws of the answers:

    - **Identity.** Operators of one identity give the same results of the same changes. A checkpoint compares
      identities letter by letter, so the identity of an operator never changes while its results do not.
    - **Placement.** The rule of an operator (`placement`) is sound: if rows lie as the placements of the inputs say,
      the rows made of them lie as the answer says. The rule is monotone: fewer keys of an input never give more keys of
      the output.
    - **Added up** (`adds_up`). The changes given in an epoch do not depend on how the changes of the epoch arrived:
      equal rows are added up, and no two of the changes cancel.
    - **From content** (`from_content`). The changes given up to an epoch add up to a function of the changes taken up
      to that epoch, added up.
    - **Content** (`gives_content`). The changes given before a boundary add up to what the state under the name of the
      node holds at that boundary, in the columns of the state that have the names of the output's columns.
    - **Nothing of nothing** (`needs_all_inputs`). An operator, other than the clock's, gives nothing as long as nothing
      has come to any of its inputs. An operator that needs all inputs also gives nothing as long as nothing has come to
      one of them.
    """

    kind: ClassVar[str]
    """One word for what the operator does. A node without a name of its own is called by this word and a number."""
    role: Role = Role.STEP
    deterministic: bool = True
    """Whether results depend on the changes alone, neither on how they were cut into batches nor on when they
    arrived."""
    keeps_state: ClassVar[bool] = False
    """Whether an actor keeps a state under the name of the node."""
    steps_out: ClassVar[int] = 0
    """By how many loops the output lies further out than the input: 1 for leaving a loop, -1 for entering one."""
    reads_arrangements: ClassVar[bool] = False
    """Whether the operator reads the arrangements at its inputs, batch by batch, rather than takes changes."""
    tracked: ClassVar[bool] = True
    """Whether progress is tracked at the ports of the node. Time passes a node that is not tracked unchanged and at
    once. An operator that sends as soon as a batch is announced to it, without having asked for the time, is not
    tracked: it sends by the right of the arrangement that it reads."""
    may_be_tracked: ClassVar[bool] = True
    """Whether a plan may track progress at the node although `tracked` is false (`Plan.origins`)."""
    same_rows: ClassVar[bool] = False
    """Whether each row given is a row that was taken, with the same columns, on the same worker."""
    gives_content: ClassVar[bool] = False
    """Whether the state holds all that was given (the *content* law), so that other states can be built anew from
    it."""
    needs_all_inputs: ClassVar[bool] = False
    """Whether nothing is given while one of the inputs has had nothing (the *nothing of nothing* law)."""
    may_cancel: ClassVar[bool] = False
    """Whether there is an order of arrival in which a row is given and taken back in one epoch, and one in which
    neither happens."""
    is_users: ClassVar[bool] = False
    """Whether a function of the user's decides, change by change, what is sent and when."""
    kernels: ClassVar[tuple[str, ...]] = ()
    """The kernels that a node calls besides those that every plan calls, each with its module, as `state.entries` lists
    them: they are compiled before a run starts. A kernel that is not named is compiled when it is first called."""
    common_figures: ClassVar[frozenset[str]] = frozenset()
    """The names of those figures (`Actor.figures`) that are the same on all workers, and so are not added up. For a
    state with a `time_column`, they are times in that column's type."""
    reads_outside: ClassVar[bool] = False
    """Of an operator of a round (`in_round`): whether an input that reads an arrangement may read one from outside of
    the loop, which is the same in all rounds."""
    known_by_input: ClassVar[bool] = False
    """Whether messages to people call the rows of this node by the name of the node's first input."""
    runs_loop: ClassVar[bool] = False
    """Whether the actor runs all rounds of a loop by itself, and tells what they did (`Actor.rounds`). The name of the
    loop is that of the node up to its last colon."""
    is_part_of_loop: ClassVar[bool] = False
    """Whether the loop that the node is in is a part of another one, which a node outside of it tells of
    (`runs_loop`)."""

    # -- its part in the program

    @property
    def public_name(self) -> str:
        """The name that users know an input, an output, a shared state or a probe by; empty for every other
        operator."""
        return ""

    @property
    def upsert_key(self) -> Sequence[str]:
        """Of an input: the columns by which a new row replaces the row before it; empty where rows add up."""
        return ()

    @property
    def time_column(self) -> str | None:
        """The column of a shared state that has the user's own time; U and F are shown in the type of this column."""
        return None

    @property
    def round_limit(self) -> int | None:
        """Of a feedback: the number of rounds after which nothing is led back any more; None for no limit."""
        return None

    @property
    def is_feedback(self) -> bool:
        return self.role is Role.FEEDBACK

    @property
    def passes_all(self) -> bool:
        """Whether all rows pass unchanged, as the node is there for people only."""
        return self.role in (Role.PROBE, Role.INSPECT)

    def describe(self) -> str:
        """What the operator does, on one line, for people."""
        return self.kind

    def identity(self) -> str:
        """A text that differs from those of all operators that give other results (the *identity* law)."""
        return self.describe()

    def renumbered(self, places: Mapping[int, int]) -> Operator:
        """The same operator in a plan whose nodes have other numbers: `places` has the new number of each node. For
        operators that know other nodes by their numbers."""
        return self

    def check(self, plan: Plan, node: Node) -> None:
        """Raise a `PlanError` if the node cannot do its work in this plan. Called when the plan is whole."""

    # -- how rows are taken and given

    def reads(self, at: int) -> bool:
        """Whether input `at` reads an arrangement, rather than takes changes."""
        return self.reads_arrangements

    @property
    def adds_up(self) -> bool:
        """Whether the changes given in an epoch are added up, whatever was taken (the *added up* law)."""
        return self.keeps_state

    @property
    def adds_rows_up(self) -> bool:
        """Whether the operator adds equal rows of one time up before it does anything else with them. So it makes no
        difference whether equal rows come as one."""
        return self.copied_by is not None

    @property
    def pair_columns(self) -> Sequence[tuple[int, str]] | None:
        """Of an operator that puts rows of two inputs together, by the keys of their arrangements: for each column of a
        pair the input, and the name there. None for the others."""
        return None

    @property
    def by_row(self) -> bool:
        """Whether each row that is given is made of one row that was taken, with the same diff, by that row alone."""
        return False

    @property
    def takes_back(self) -> bool:
        """Whether a change with a negative diff may be given for changes that all came with positive diffs."""
        return self.adds_up

    def placement(self, inputs: Sequence[PlacedInput], schema: pa.Schema) -> Placement:
        """The keys by which the rows of the first output, which has this schema, are placed, given the placements of
        the inputs (the *placement* law)."""
        if not self.same_rows:
            return set()
        finite = [each.keys for each in inputs if each.keys is not None]
        return set.intersection(*finite) if finite else None

    @property
    def dealt_by(self) -> Columns | None:
        """The columns by which rows of an input are best dealt to workers when this operator takes them. Empty: evenly.
        None: this operator does so little with a row that it makes no difference."""
        return ()

    def summary(self, depth: int) -> Summary | None:
        """How times change from input to output; None where they do not change."""
        return None

    # -- state

    @property
    def suffixes(self) -> tuple[str, ...]:
        """One suffix for each state: the name of a state is the name of the node and the suffix."""
        return ("",) if self.keeps_state else ()

    @property
    def from_content(self) -> bool:
        """Whether the states can be built anew from the content of others (the *from content* law). Otherwise they can
        be built anew only by running all epochs again."""
        return self.deterministic

    @property
    def copied_by(self) -> Sequence[str] | None:
        """Where the state is a copy of all rows that were taken: the columns by which these are split among workers.
        None where the state is something else."""
        return None

    def without_state(self) -> Operator | None:
        """An operator that gives the same changes outside of loops, and keeps no state, for nodes whose arrangement
        nobody reads; None where there is no such operator, or where it would do more work."""
        return None

    @property
    def arranged_by(self) -> tuple[Sequence[str], Sequence[Order]] | None:
        """The key of the arrangement in which all rows given are, and the order of rows within a key; None where there
        is no such arrangement."""
        return None

    @property
    def passes_arrangement(self) -> bool:
        """Whether the operator shows the arrangement at its only input to readers elsewhere, as it is."""
        return False

    def columns_read(self, at: int, taken: Collection[int] | None) -> Collection[str] | None:
        """The columns of the arrangement at input `at` that are read where takers look at the columns `taken` of the
        output (None: at all); None where all may be read."""
        return None

    def over_arrangement(self) -> Operator | None:
        """The operator that does to an arrangement what this one does to changes, without keeping rows; None where
        there is no such operator."""
        return None

    def announced(self, arrangements: Mapping[int, int]) -> Sequence[int]:
        """The inputs at which content is announced to the actor (`Actor.announced`) in a backfill (`engine.backfill`).

        `arrangements` has the inputs that read an arrangement which was kept, each with the node of that arrangement.
        Batches that come to other inputs are announced as they come. By default each kept arrangement is announced
        once, at the first input that reads it.
        """
        first_input: dict[int, int] = {}
        for at, source in arrangements.items():
            first_input.setdefault(source, at)
        return sorted(first_input.values())

    def in_round(self, varying: Sequence[bool]) -> Operator | None:
        """The operator that gives for the rows of one round alone what this one gives for their sums over all rounds
        (`operators.rounds`); None where there is none. `varying` says of each input whether its rows differ from round
        to round; those of one input do at least."""
        return None

    # -- on a worker

    @property
    def as_linear(self) -> Linear | None:
        """The operator itself if it is linear, otherwise None."""
        return None

    @property
    def as_exchange(self) -> Exchanging | None:
        """The operator itself if it is an exchange, otherwise None."""
        return None

    @property
    def has_actor(self) -> bool:
        """Whether the operator has an actor on each worker."""
        return self.as_linear is None and self.as_exchange is None

    def start(self, context: Context) -> Actor:
        """Start the actor of the operator on one worker."""
        raise NotImplementedError


class Linear(Operator):
    """An operator that works on each change by itself: no state, no waiting."""

    tracked: ClassVar[bool] = False

    @property
    def as_linear(self) -> Linear:
        return self

    def in_round(self, varying: Sequence[bool]) -> Operator | None:
        return self if not (self.steps_out or self.passes_all) and self.deterministic else None

    @property
    def by_row(self) -> bool:
        return not self.takes_back

    @property
    def used(self) -> Sequence[int] | None:
        """The columns of the input that `apply` looks at; None for all."""
        return None

    @property
    def picked(self) -> Sequence[int | None] | None:
        """For each column of the output, the column of the input that it is, or None; None where that is not known, or
        rows are not given one for one."""
        return None

    def apply(self, changes: Changes) -> Changes | None:
        """The changes to give for some changes taken; None for none."""
        raise NotImplementedError


class Exchanging(Operator):
    """An operator that says which worker each row goes to. The engine carries the rows there."""

    role = Role.EXCHANGE
    known_by_input: ClassVar[bool] = True

    @property
    def as_exchange(self) -> Exchanging:
        return self

    def in_round(self, varying: Sequence[bool]) -> Operator | None:
        return self if self.deterministic else None

    @property
    def by_row(self) -> bool:
        return True

    @property
    def adds_before(self) -> bool:
        """Whether equal rows may be added up before they travel."""
        return False

    def of_picked(
        self, positions: Sequence[int], schema: pa.Schema
    ) -> tuple[Linear, Exchanging] | None:
        """An operator that picks columns of the rows, which have this schema, and the exchange that sends the picked
        rows where this one sends the whole rows; None where it depends on other columns where a row goes."""
        return None

    def adding_before(self) -> Exchanging | None:
        """The same exchange, which adds equal rows up before they travel; None where there is no such exchange."""
        return None

    @property
    def goes_by_content(self) -> bool:
        """Whether the columns of a row alone decide which worker it goes to. Rows that lie there already do not
        move."""
        return False

    @property
    def may_pass(self) -> bool:
        """Whether the only purpose is that equal rows meet on one worker. Where rows are placed by some key, equal rows
        have met already, and the exchange may pass them on."""
        return False

    def dispatch(self, changes: Changes, shards: Shards, turn: int) -> Sequence[Changes | None]:
        """The changes for each worker, by index; None for a worker that gets none. `turn` grows from call to call."""
        raise NotImplementedError


class Context:
    """The surroundings of an actor: its node, its place among the workers, its states, and the calls open to it."""

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
        """The actors of this worker, by the number of their node. While an actor is started, only those before it."""
        self.states = states
        self._spill = spill or {}
        self.sources = sources
        self.history = history
        self.epoch = epoch
        """The first epoch of this execution."""
        self.has_consumers = True
        """Whether some input takes the changes that the actor sends. Its arrangement may have readers besides."""
        self.needed: Sequence[int] | None = None
        """The columns of the changes it sends that takers look at; None for all."""
        self.arrive: Callable[[int, Timestamp], None] = _nothing
        """To be called when a batch of an arrangement arrives: with the input and the time."""
        self.push: Callable[[Changes, int], None] = _unbound
        """To be called to send: with changes, and the output that they leave."""
        self.request: Callable[[Timestamp], None] = _unbound
        """To be called to be run (`Actor.run`) at a time; until then the actor may send at that time."""
        self.note: Callable[..., None] = _unnoted
        """To be called with a kind and fields, to have an event recorded for whoever watches the run
        (`engine.events`)."""

    def spine(self, schema: Schema, suffix: str = "") -> Spine:
        """The state that the node declares under its name and `suffix`: as restored, or empty."""
        name = self.node.name + suffix
        if name not in self.states:
            self.states[name] = Spine(name, schema, depth=self.node.depth, **self._spill)
        return self.states[name]

    def restored(self, schema: Schema, suffix: str = "") -> pa.RecordBatch | None:
        """The rows saved of a state that the actor keeps in a form of its own (`Actor.saved`), or None.

        The last column counts how often a row is there.
        """
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
    """What lives of an operator on one worker while it runs."""

    waits: bool = True
    """Whether the actor is run at t only when no change at or before t can arrive; otherwise as soon as may be."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.node = context.node

    def receive(self, port: int, changes: Changes) -> None:
        """Take changes at an input. Nothing is sent during this call."""
        raise NotImplementedError

    def run(self, time: Timestamp, upper: Antichain) -> None:
        """Work at `time`: no change at or before `time` can arrive any more, and none at a time not at or after
        `upper`."""
        raise NotImplementedError

    def announced(self, port: int, batch: Batch, time: Timestamp) -> None:
        """A batch was appended to the arrangement at an input; in a backfill, the batch is the arrangement's
        content."""
        raise NotImplementedError

    def boundary(self, epoch: int) -> None:
        """All epochs before `epoch` are complete here: nothing of them is under way, and nothing of them will come."""

    def begin(self, epoch: int) -> None:
        """A backfill builds the actor's state anew in `epoch`, from nothing. (An output has no state of its own: it
        begins so when the arrangement that it shows is built anew.)"""
        if epoch:
            self.boundary(epoch)

    def figures(self) -> dict[str, dict[str, Any]]:
        """More numbers about states, by name of the state, for people. Any thread may ask."""
        return {}

    def rounds(self) -> Sequence[RoundFigures]:
        """Where the actor runs a loop by itself: what the rounds since the last call did, in their order."""
        return ()

    def saved(self, epoch: int) -> dict[str, View]:
        """At a boundary: the states that the actor keeps in a form of its own, by name, as they are to be saved."""
        return {}


class Arrangement:
    """A spine that several nodes read: each batch is announced to all readers, in order, before anything else
    happens."""

    __slots__ = ("before", "keeps_before", "readers", "rows", "spine")

    def __init__(self, spine: Spine) -> None:
        self.spine = spine
        self.readers: list[Callable[[Batch, Timestamp], None]] = []
        self.rows = 0
        """The number of changes appended so far."""
        self.keeps_before = False
        """Whether a reader asked for `before`."""
        self.before: View | None = None
        """While a batch is announced, if `keeps_before`: the state without that batch."""

    def append(self, batch: Batch, time: Timestamp) -> None:
        """Append the changes of one time, and announce them to all readers."""
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
    waiting: dict[Timestamp, list[Changes]],
    changes: Changes,
    request: Callable[[Timestamp], None],
) -> None:
    """Add changes to those that wait for their time, and ask to be run at each time that is new."""
    for time, piece in by_time(changes):
        if time in waiting:
            waiting[time].append(piece)
        else:
            waiting[time] = [piece]
            request(time)


def settle(spine: Spine, epoch: int, depth: int) -> None:
    """Advance a state to the boundary `epoch`: no change before it comes any more, and compaction may no longer tell
    earlier epochs apart, as far as no read hold keeps them."""
    upper = Antichain.boundary(epoch, depth)
    if spine.upper != upper:
        spine.advance_upper(upper)
    spine.advance_since(upper)


def so_far(spine: Spine, upper: Antichain) -> View:
    """A view of a state, as if nothing more came before `upper`: the owner compares with it before it appends."""
    view = spine.view()
    return view.with_frontiers(view.since, upper)


def present(spine: Spine) -> tuple[View, Timestamp]:
    """A view of a state at a boundary, and the time as of which to read the view to have all that is in it."""
    (now,) = spine.upper
    return so_far(spine, Antichain([(now[0] + 1, *now[1:])])), now


def by_time(changes: Changes) -> Iterator[tuple[Timestamp, Changes]]:
    """Split changes by time."""
    if len(changes.times) == 1:
        yield changes.times[0], changes
        return
    for time in changes.times:
        piece = changes.at(time)
        if piece is not None:
            yield time, piece


def failed_function(error: Exception, doing: str, **fields: Any) -> OperatorFailed:
    """The error of a user's function. The engine adds the node to it (`located`)."""
    failure = OperatorFailed(
        "operator.failed", f"{doing} failed: {type(error).__name__}: {error}", **fields
    )
    failure.__cause__ = error
    return failure


def located(node: Node, error: Exception) -> RiverrunError:
    """The error that rose in a node, with the name of the node and the user's line added."""
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
