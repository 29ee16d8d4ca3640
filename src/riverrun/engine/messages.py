"""Messages: everything that coordinator, workers, client and storage say to each other.

Every actor has an *address*, an integer: the address of a worker is its *incarnation*, a number from 1 on that no other
life of any worker had; the other actors have the constants below. An actor is handed ``(sender, message)`` and gives
out ``(address, message)``, and nothing else passes between actors. So the carrier of the messages can be exchanged: a
list, a seeded scheduler, sockets.

Some messages are instructions to the storage (`AppendRecord`, `Write`, `Publish`, `Collect`, `Survey`, `Read`,
`Recall`; for rounds of loops `WriteRound`, `PublishRound`, `ReadRounds`, `ForgetRounds`). The carrier has them executed
(`runtime.storage_calls`) and brings the `Outcome` back.

Laws, on which `worker` and `coordinator` build:

- **Execution.** A message that belongs to one execution of the dataflow carries the number of that execution. A
  receiver drops messages of older executions than its own, and holds messages of a newer execution until its own
  `Begin` for this execution has come. A message without such a number (`JoinRun`, `Heartbeat`, `Wrote`, ...) means the
  same in every execution.
- **Order.** Between two actors messages arrive in the order in which they were sent, up to the moment at which the
  connection breaks. Workers need less: `Data` is numbered, and a receiver that misses a number takes no more `Data` of
  the execution from this sender.
- **Repeated.** Every message may be delivered twice: the second delivery changes nothing.

>>> Data(execution=3, number=0, payload="rows")
Data(execution=3, number=0, payload='rows')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from riverrun.engine.loop_rounds import LoopRound
from riverrun.engine.reading import Portion
from riverrun.errors import RiverrunError
from riverrun.plan.loop_figures import LoopFigures
from riverrun.plan.saved_rounds import SavedRows
from riverrun.progress import Antichain
from riverrun.state.shards import Range, Shards
from riverrun.state.view import View
from riverrun.storage.checkpoint import StatePart
from riverrun.storage.saved_rounds import SavedEpoch, SavedFile

COORDINATOR = 0
STORAGE = -1
CLIENT = -2
SUPERVISOR = -3
"""The address of the part of a runtime that starts and stops workers."""

ORIGIN = 0
"""In place of the number of a checkpoint: the run starts from nothing."""
PINNED = -1
"""In place of the number of a checkpoint: the states are pinned on the workers."""

NO_EPOCH = -1
INTERRUPTED = "run.interrupted"
"""The code of the error of an epoch that the user interrupted."""

Inputs: TypeAlias = Mapping[str, pa.RecordBatch]
Parcels: TypeAlias = Mapping[str, tuple["Parcel", ...]]
States: TypeAlias = Mapping[str, View]
Outputs: TypeAlias = list[tuple[int, Any]]
"""Messages on their way out, each behind the address that it goes to."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Rows of an input that lie at a worker already, and that an epoch takes by name."""

    name: str
    holder: int
    """The worker that has them in memory."""
    rows: int
    file: str | None = None
    """The file in the storage with the same rows, for when that worker is gone."""
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class SavedShare:
    """The round at which a loop of an epoch begins, and the files with a worker's rows of that round."""

    loop: str
    round: int
    is_own: bool
    """Whether these are the rows that the worker at this place had; otherwise those of all workers."""
    files: tuple[SavedFile, ...]


class InstanceInterface(Protocol):
    """One worker's share of a running plan, made anew for every execution (`instance` implements it)."""

    @property
    def completed(self) -> int:
        """All epochs below this one are complete here, as far as the instance knows."""

    def feed(self, epoch: int, inputs: Inputs) -> None:
        """Take all of this worker's rows of an epoch; called once for each epoch, in order."""

    def receive(self, sender: int, payload: Any) -> None:
        """Take a payload that the peer with index `sender` sent; payloads of a peer come in order."""

    def work(self) -> bool:
        """Do one bounded step, and return whether there was anything to do."""

    def take(self) -> list[tuple[int, Any]]:
        """The payloads for peers, in order, each behind the index of its peer."""

    def pin(self) -> Mapping[str, View]:
        """The declared states as of `completed`; called when every epoch that was fed is complete."""

    def notes(self) -> tuple[dict[str, Any], ...]:
        """The notes for people who watch the run, since the last call."""

    @property
    def touched(self) -> int:
        """How many changes were made so far, as a measure of work."""

    def read(self, name: str, epoch: int) -> Portion:
        """This worker's part of an output as of an epoch."""

    def changes(self, name: str, epoch: int) -> Portion:
        """This worker's part of the changes of an epoch to an output."""

    def frontier(self, name: str) -> Antichain:
        """The times that can still come to a probe."""

    def stats(self) -> Mapping[str, Any]:
        """How large each state is here."""


class MakeInstance(Protocol):
    """Makes the instance of the worker with an index, which owns the hashes that `shards` give to this index."""

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
    """The number of the checkpoint with the states of that epoch; or `ORIGIN`, or `PINNED`."""
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
    """More rows of the epoch, by name; the carrier of this message adds them to `inputs`."""
    saved: tuple[SavedShare, ...] = ()
    """Where loops begin that were saved when the epoch was done before."""


@dataclass(frozen=True, slots=True)
class SaveRounds:
    """Save the loops of the epoch under way, each before its next round."""

    execution: int
    epoch: int
    number: int
    """The number of the request; later ones have greater numbers."""
    name: str
    """What the names of the files begin with."""


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
    """The worker has no part in this run any more, and stops."""


# ---- from a worker to the coordinator


@dataclass(frozen=True, slots=True)
class JoinRun:
    """The worker is there, and can begin an execution."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The worker is still there."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has its states, and stands at the epoch at which this execution begins."""

    execution: int


@dataclass(frozen=True, slots=True)
class Completed:
    """All epochs below `epoch` are complete on the worker, and its states as of `epoch` are pinned."""

    execution: int
    epoch: int
    notes: tuple[dict[str, Any], ...] = ()
    """Notes for people who watch the run: each has a kind, and fields."""
    rounds: tuple[LoopFigures, ...] = ()
    """What the rounds of loops did in the epoch on this worker."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The instance raised while `epoch` was under way; None where making the instance raised."""

    execution: int
    epoch: int | None
    error: RiverrunError


@dataclass(frozen=True, slots=True)
class NotReady:
    """The worker could not read its states, or rows. After a `TransportError` the worker itself tries again."""

    execution: int
    error: RiverrunError


@dataclass(frozen=True, slots=True)
class Broken:
    """A message of this execution from the peer with this address to the worker is lost."""

    execution: int
    peer: int


@dataclass(frozen=True, slots=True)
class Wrote:
    """The worker's part of a checkpoint; or None, and the error for which it could not be written."""

    attempt: int
    part: StatePart | None
    error: RiverrunError | None = None


@dataclass(frozen=True, slots=True)
class RoundWritten:
    """The worker's rows of a loop before a round are in the storage; or they could not be written, for this error."""

    execution: int
    epoch: int
    number: int
    loop: str
    round: int
    files: tuple[SavedFile, ...]
    error: RiverrunError | None = None


@dataclass(frozen=True, slots=True)
class NotSaved:
    """The rows with which loops of an epoch were to begin cannot be used."""

    execution: int
    epoch: int
    error: RiverrunError


# ---- from worker to worker


@dataclass(frozen=True, slots=True)
class Data:
    """A payload of an instance for a peer, numbered from 0 for each pair of workers and execution."""

    execution: int
    number: int
    payload: Any


# ---- from process to process: between the carriers of messages


@dataclass(frozen=True, slots=True)
class Credit:
    """The receiver has taken in so many more bytes of the fragments that it was sent."""

    size: int


@dataclass(frozen=True, slots=True)
class Beat:
    """This process is alive. A worker also says how much it has done, and which node's code it is in."""

    touched: int = 0
    busy: float = 0.0
    doing: str | None = None
    seconds: float = 0.0
    """For how long it has been in the code of that node."""


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
    """The network address of each worker, by incarnation."""

    addresses: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Release:
    """The rows that were lent under this number are not needed any more."""

    lease: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Let go of the parcels of an upload, except for those named in `but`."""

    upload: str
    but: tuple[str, ...] = ()


# ---- from the coordinator to its client and to whoever starts workers


@dataclass(frozen=True, slots=True)
class Logged:
    """The input of an epoch is in the log."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Reported:
    """An epoch is complete on all workers. Reported once for each epoch."""

    epoch: int
    notes: tuple[dict[str, Any], ...] = ()
    """The notes of the workers in this epoch."""
    rounds: tuple[LoopFigures, ...] = ()
    """What the rounds of loops did in the epoch, on all workers."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An epoch failed, and none of its rows count."""

    epoch: int
    error: RiverrunError
    inherited: bool = False
    """Whether a run before this one logged the epoch."""
    acknowledged: bool = False
    """Whether a run before this one may have told somebody that the epoch was complete."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint was published; or it could not be, for this error."""

    number: int
    epoch: int
    error: RiverrunError | None = None


@dataclass(frozen=True, slots=True)
class LoopSaved:
    """A loop of the epoch under way was saved before a round; with `again`, the loop begins there."""

    epoch: int
    loop: str
    round: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Scaled:
    """The run has this number of workers now; with an error, not as many as were asked for."""

    workers: int
    error: RiverrunError | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The run is over: by this error, or closed by its user."""

    error: RiverrunError | None


@dataclass(frozen=True, slots=True)
class Notice:
    """A text for people who watch the run, with a level of `logging`."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker with this incarnation."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The worker of this incarnation is not needed any more, or is thought dead."""

    incarnation: int


# ---- instructions to the storage, and their outcomes


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
    """Note that the epochs below `epoch` were complete, for the next owner of the path; nobody waits for an answer.

    The carrier of messages writes the note (`storage.acknowledged`), where that is cheap before the client is told. So
    an `Acknowledge` is never an instruction to `runtime.storage_calls`.
    """

    owner: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Survey:
    """Find the newest checkpoint of the path, since somebody else has published one."""


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """The result of a survey: the number of the newest whole checkpoint, and the description in its manifest."""

    number: int
    about: Mapping[str, Any]
    top: int
    """The greatest number that is used, by a torn checkpoint too."""


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
class WriteRound:
    """Write a worker's rows of a loop before a round; the result names the files."""

    execution: int
    rows: SavedRows
    name: str
    """What the names of the files begin with."""


@dataclass(frozen=True, slots=True)
class PublishRound:
    """Publish where the loops of an epoch under way were saved last, and delete files that are of no use any more."""

    record: SavedEpoch
    owner: int
    number: int
    """How many records of this epoch there were, with this one."""
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadRounds:
    """Read a worker's rows of saved loops; the result has `SavedRows` for each."""

    execution: int
    epoch: int
    shares: tuple[SavedShare, ...]


@dataclass(frozen=True, slots=True)
class ForgetRounds:
    """Delete what is saved of the epochs up to a position of the log; nobody waits for an answer."""

    owner: int
    position: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an instruction: a result or an error. After a `TransportError` it may have been done or not."""

    instruction: Any
    result: Any = None
    error: RiverrunError | None = None
