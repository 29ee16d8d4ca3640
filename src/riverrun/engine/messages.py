"""Messages: all that coordinator, workers, client and storage say to each other.

Every actor has an *address*, an integer: a worker's is its *incarnation*, a number that no other
life of any worker had, from 1 on; the others have the constants below. An actor is handed
``(sender, message)`` and gives out ``(address, message)``; nothing else passes between actors, so
what carries the messages is exchangeable: a list, a seeded scheduler, sockets.

Laws, on which `worker` and `coordinator` build:

1. **Execution.** What belongs to a run of the dataflow carries the number of its *execution*. A
   receiver drops what is older than its own, and holds what is newer until it has begun that one.
   What does not carry one (`JoinRun`, `Heartbeat`, `Wrote`, ...) means the same in every execution.
2. **Order.** Between two actors messages arrive in the order in which they were sent, up to the
   moment where the connection breaks. Workers need less: `Data` is numbered, and a receiver that
   misses one takes no more of that execution.
3. **Repeated.** Every message may be delivered twice: the second one changes nothing.

>>> Data(execution=3, number=0, payload="rows")
Data(execution=3, number=0, payload='rows')

Instructions are messages to the storage (`AppendRecord`, `Write`, `Publish`, `Collect`, `Survey`,
`Read`, `Recall`): whoever carries messages has them executed (`storing.execute`) and brings the `Outcome`
back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from riverrun.engine.loop_rounds import LoopRound
from riverrun.engine.reading import Portion
from riverrun.errors import RiverrunError
from riverrun.progress import Antichain
from riverrun.state.shards import Range, Shards
from riverrun.state.view import View
from riverrun.storage.checkpoint import StatePart

COORDINATOR = 0
STORAGE = -1
CLIENT = -2
SUPERVISOR = -3
"""Whoever starts and stops workers."""

ORIGIN = 0
"""In place of the number of a checkpoint: the run starts from nothing."""
PINNED = -1
"""In place of the number of a checkpoint: every worker has the states pinned."""

NO_EPOCH = -1
INTERRUPTED = "run.interrupted"
"""The code of the error of an epoch that did not fail by itself: the user interrupted it."""

Inputs: TypeAlias = Mapping[str, pa.RecordBatch]
Parcels: TypeAlias = Mapping[str, tuple["Parcel", ...]]
States: TypeAlias = Mapping[str, View]
Outputs: TypeAlias = list[tuple[int, Any]]
"""Messages on their way out, each with the address it goes to."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Rows of an input that lie at a worker already, and that an epoch takes by name."""

    name: str
    holder: int
    """The worker that has them in memory."""
    rows: int
    file: str | None = None
    """Where they are in the storage, for when that worker is gone."""
    checksum: str = ""


class InstanceInterface(Protocol):
    """One worker's share of a running plan, made anew for every execution."""

    @property
    def completed(self) -> int:
        """All epochs below are complete here, as far as it knows."""

    def feed(self, epoch: int, inputs: Inputs) -> None:
        """Take this worker's rows of an epoch, once for each epoch, in order; it has no others."""

    def receive(self, sender: int, payload: Any) -> None:
        """Take what the peer with that index sent, in the order in which it was sent."""

    def work(self) -> bool:
        """Do one bounded step; whether anything was done."""

    def take(self) -> list[tuple[int, Any]]:
        """What is to be sent to peers: the index of each, and what it gets."""

    def pin(self) -> Mapping[str, View]:
        """The declared states as of `completed`; called when every epoch that was fed is complete."""

    def notes(self) -> tuple[dict[str, Any], ...]:
        """What there is to be told to who watches the run, since it was asked for last."""

    @property
    def touched(self) -> int:
        """How many changes were made so far."""

    def read(self, name: str, epoch: int) -> Portion:
        """Its part of an output as of an epoch."""

    def changes(self, name: str, epoch: int) -> Portion:
        """Its part of what an epoch changed in an output."""

    def frontier(self, name: str) -> Antichain:
        """The times that can still come to a probe."""

    def stats(self) -> Mapping[str, Any]:
        """How large each state is here."""


class MakeInstance(Protocol):
    """Makes the share of the worker with an index, which owns the hashes that `shards` say."""

    def __call__(
        self, index: int, shards: Shards, epoch: int, states: States | None, /
    ) -> InstanceInterface: ...


# ---- from the coordinator to a worker


@dataclass(frozen=True, slots=True)
class Begin:
    """Drop all that is under way, and go back to the state as of `epoch`."""

    execution: int
    epoch: int
    source: int
    """The checkpoint that has the states of that epoch; or `ORIGIN`, or `PINNED`."""
    index: int
    shards: Shards
    peers: tuple[int, ...]
    """The addresses of all workers, by index."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A worker's rows of an epoch. All epochs before are complete everywhere."""

    execution: int
    epoch: int
    inputs: Inputs
    parcels: Parcels = field(default_factory=dict)
    """More rows of it, which whoever carries this message puts to the others."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Write your part of a checkpoint, as pinned at `epoch`."""

    execution: int
    attempt: int
    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Published:
    """The checkpoint of `epoch` is published: recovery goes back to it, and no further.

    With `NO_EPOCH`, recovery goes back to no checkpoint at all.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class LeaveRun:
    """You have no part in this run any more: stop."""


# ---- from a worker to the coordinator


@dataclass(frozen=True, slots=True)
class JoinRun:
    """I am there."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """I am still there."""


@dataclass(frozen=True, slots=True)
class Ready:
    """I have gone back, and stand at the epoch where this execution begins."""

    execution: int


@dataclass(frozen=True, slots=True)
class Completed:
    """All epochs below `epoch` are complete here, and their states pinned."""

    execution: int
    epoch: int
    notes: tuple[dict[str, Any], ...] = ()
    """What there is to be told to who watches the run: a kind, and fields."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The instance raised while `epoch` was worked on; None where it could not even be made."""

    execution: int
    epoch: int | None
    error: RiverrunError


@dataclass(frozen=True, slots=True)
class NotReady:
    """The states could not be read, or rows. With a `TransportError` it is tried again, and this is only said."""

    execution: int
    error: RiverrunError


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that the peer with this address sent to me in this execution is lost."""

    execution: int
    peer: int


@dataclass(frozen=True, slots=True)
class Wrote:
    """My part of a checkpoint; or None, and why it could not be written."""

    attempt: int
    part: StatePart | None
    error: RiverrunError | None = None


# ---- from worker to worker


@dataclass(frozen=True, slots=True)
class Data:
    """What an instance sends to a peer, numbered from 0 for each pair and execution."""

    execution: int
    number: int
    payload: Any


# ---- from process to process: what those say to each other that carry messages


@dataclass(frozen=True, slots=True)
class Credit:
    """So many bytes of your frames more were taken in here."""

    size: int


@dataclass(frozen=True, slots=True)
class Beat:
    """This process is alive. A worker also says how far it is, and what it is in."""

    touched: int = 0
    busy: float = 0.0
    doing: str | None = None
    seconds: float = 0.0
    """For how long it has been in that."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels that this worker has called."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loops:
    """The loops that this worker is in."""

    rounds: tuple[LoopRound, ...]


@dataclass(frozen=True, slots=True)
class Peers:
    """Where each worker is reached, by incarnation."""

    addresses: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Release:
    """What was lent under this number is not needed any more."""

    lease: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Let go of what was handed in for an upload, but of these parcels."""

    upload: str
    but: tuple[str, ...] = ()


# ---- from the coordinator to its client and to whoever starts workers


@dataclass(frozen=True, slots=True)
class Logged:
    """The input of an epoch is in the log."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Reported:
    """An epoch is complete everywhere. Said once for each."""

    epoch: int
    notes: tuple[dict[str, Any], ...] = ()
    """What workers noted in it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An epoch failed, and none of its rows count."""

    epoch: int
    error: RiverrunError
    inherited: bool = False
    """Whether a run before this one logged it."""
    acknowledged: bool = False
    """Whether that run, or one before it, may have told somebody that it was complete."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint was published; or could not be, and why."""

    number: int
    epoch: int
    error: RiverrunError | None = None


@dataclass(frozen=True, slots=True)
class Scaled:
    """The run has that many workers now; an error says why it has not as many as were asked for."""

    workers: int
    error: RiverrunError | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The run is over; the error says why, unless it was closed by its owner."""

    error: RiverrunError | None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something for whoever watches the run: a level of `logging`, and a text."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker, and tell it that this is its incarnation."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The worker of this incarnation is not needed any more, or is thought dead."""

    incarnation: int


# ---- instructions to the storage, and what came of them


@dataclass(frozen=True, slots=True)
class AppendRecord:
    """Append a record to the log, at its next position."""

    position: int
    header: Mapping[str, Any]
    inputs: Inputs = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Write:
    """Write the files of a worker's part of a checkpoint."""

    attempt: int
    number: int
    states: States
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish a checkpoint, all parts of which are written."""

    attempt: int
    number: int
    parts: tuple[StatePart, ...]
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Collect:
    """Delete what no retained checkpoint needs: files, manifests, log records."""

    retain: int
    keep_log: bool = False
    """Whether the log keeps all records."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Note that the epochs below `epoch` were complete, for whoever owns the path next; nobody waits for an answer.

    The carrier of messages notes it (`state.acknowledging`), where that is cheap before the client is told. So an
    `Acknowledge` is never an instruction to `storing`.
    """

    owner: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Survey:
    """Find the newest checkpoint of the path: somebody else has published one."""


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """The result of a survey: the newest checkpoint that is whole, and what is kept beside it."""

    number: int
    about: Mapping[str, Any]
    top: int
    """The greatest number that is used, be it by a torn one."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read these ranges of hashes of every state of a checkpoint; the result has a mapping for each."""

    execution: int
    source: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Recall:
    """Read the rows of an epoch again, from its record in the log."""

    position: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an instruction: a result, or an error. A `TransportError` leaves open what was done."""

    instruction: Any
    result: Any = None
    error: RiverrunError | None = None
