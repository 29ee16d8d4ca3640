"""The coordinator: which workers take part, in which execution, and which epoch they are at. Sans I/O, like the worker.

Every run has one coordinator. It knows the *members* (for the index of each worker the *incarnation* that it is now, a
number that no other life of a worker had), the current *execution* (a stretch of the run; whenever members go back,
another begins), and how far epochs are: submitted by the client, released to the members, complete on every member,
reported to the client. The *boundary* e is the moment at which all epochs before e are complete, and nothing of e was
released. Messages (`messages`) go to and come from the client, the members, the storage, and the supervisor, which
starts and stops worker processes; the time comes in by `tick`. Laws:

- **Logged first.** The coordinator releases an epoch only when the input of the epoch is in the log, and forgets a
  refused epoch only when the log says that it is refused. So whatever anybody has seen can be done again from the log.
- **Clean boundaries.** The coordinator releases epoch e only when every member has completed all epochs before e in
  this execution. So at boundary e no rows are under way between members, and the states of all members together are the
  state of the run as of e.
- **Common start.** An execution begins at a boundary of which every member can have the state. As long as the members
  stay the same, that is the last boundary. Each member has *pinned* the state of that boundary (it holds a view), and
  keeps the pin of boundary e until the `Feed` of epoch e + 1 says that boundary e + 1 was reached by all. Where a
  member was lost, or shards move to other members, an execution begins at the boundary of the published checkpoint, or,
  with no checkpoint yet, at the very start of the run, without any state.
- **Fenced.** The coordinator drops messages of other executions, and of incarnations that are no members. A member is
  declared dead before its successor is started, and never becomes a member again (*no twins* of `membership`).
- **Reported once.** An epoch is reported when it is complete for the first time, and never again, however often it is
  done again.
- **All or nothing.** When the work of a member on epoch e raises an error, no member keeps anything of e. The epoch is
  refused, where *acknowledged epochs stay* allows that, and a new execution begins at boundary e. An epoch that the
  client wants refused (`refuse`; its user has interrupted it) goes the same way, but without a new execution where the
  epoch still waits for its turn.
- **Numbers without gaps.** The epoch that is submitted next gets the number of a refused epoch. A refused epoch keeps
  its number, and is done without rows, where later epochs were submitted already, where it still waited behind others,
  where an owner before us may have acknowledged it, or where the client knows epochs by their numbers (`keep_numbers`).
- **One owner.** Every record of the log is a conditional create at the next position. Somebody else's record at that
  position means that the path has a new owner, and the run ends.
- **Outages are waited out.** While the storage fails, what needs the storage waits and is tried again (`log_writer`,
  `checkpointing`, and members that read), and all else goes on. Where the log cannot be written, or a member cannot
  read, for longer than `storage_timeout`, the run ends; checkpoints that cannot be written do not end the run.
- **Acknowledged epochs stay.** An epoch is acknowledged when it is reported; a note says so for the next owner of the
  path (`Acknowledge`). An epoch of the log may fail when it is done again. An epoch that was never acknowledged is then
  refused, as the owner that logged it would have refused it. If the epoch was acknowledged, or may have been, the run
  ends with the error. With `skip_failing` the run refuses such an epoch too, unless it has reported the epoch itself.

Why *clean boundaries* and *reported once* give exactly-once results: the state at a boundary is a function of the log
up to that boundary, whatever executions led there (*logged first* here; *oracle*, *split* and *resume* of
`testing.laws`); and the client sees each epoch once.

Why two owners do no harm: the owner that takes a path over appends a record that says so. That record has the position
at which the former owner would append next, so the next append of the former owner fails. An epoch that the former
owner still acknowledges is in the log before that record, and the new owner does the epoch again. The checkpoints that
the former owner still publishes are those of a prefix of the log, and never follow one that covers more of the log
(*covers no less* of `checkpointing`).

Phases: *gathering* (members are started), *starting* (members go back to where the execution begins), *running*,
*refusing* (a refusal is on its way to the log), *closed*.

In the example messages come with their address: -3 is the supervisor, 1 the only worker. The worker joins, is ready in
execution 1, and has then completed, in execution 1, all epochs before 1.

>>> from riverrun.engine.messages import Completed, JoinRun, Ready
>>> coordinator = Coordinator(1)
>>> coordinator.submit({})
0
>>> coordinator.take()
[(-3, Start(incarnation=1))]
>>> for message in JoinRun(), Ready(execution=1), Completed(execution=1, epoch=1):
...     coordinator.receive(1, message)
...     print([type(message).__name__ for _, message in coordinator.take()])
['Begin']
['Feed']
['Reported']

Cost: a few microseconds for each epoch and member.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from enum import Enum
from typing import Any

from riverrun.engine.coordinator.checkpointing import CheckpointSaver
from riverrun.engine.coordinator.epochs import Backlog, BacklogEntry
from riverrun.engine.coordinator.failures import not_durable, not_repeatable
from riverrun.engine.coordinator.log_writer import LogWriter
from riverrun.engine.coordinator.membership import MembershipChange, Policy, Roster
from riverrun.engine.coordinator.outages import Outage
from riverrun.engine.coordinator.resume import not_rebuilt
from riverrun.engine.coordinator.shares import (
    InputRoute,
    share_of_parcels,
    shares_of,
    stored_parcels,
)
from riverrun.engine.messages import (
    CLIENT,
    INTERRUPTED,
    NO_EPOCH,
    ORIGIN,
    PINNED,
    STORAGE,
    Acknowledge,
    Announce,
    AppendRecord,
    Begin,
    Broken,
    Closed,
    Collect,
    Completed,
    Failed,
    Feed,
    Heartbeat,
    Inputs,
    JoinRun,
    LeaveRun,
    Logged,
    Notice,
    NotReady,
    Outcome,
    Outputs,
    Parcels,
    Publish,
    Published,
    Ready,
    Recall,
    Refused,
    Reported,
    Saved,
    Scaled,
    Survey,
    SurveyResult,
    Wrote,
)
from riverrun.errors import CheckpointError, RiverrunError
from riverrun.retry import is_outage
from riverrun.storage.takeover import Opening

IDLE_FAILURES = 3  # executions in a row that fail with no epoch under way


class Phase(Enum):
    """What the coordinator waits for."""

    GATHERING = "gathering"
    STARTING = "starting"
    RUNNING = "running"
    REFUSING = "refusing"
    CLOSED = "closed"


class Coordinator:
    """Leads a run; the module says how."""

    def __init__(
        self,
        workers: int,
        *,
        opening: Opening | None = None,
        every: int | timedelta | None = None,
        retain: int = 2,
        fingerprint: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
        lineage: Mapping[str, str] | None = None,
        policy: Policy = "replace",
        deadline: int | None = None,
        skip_failing: bool = False,
        keep_numbers: bool = False,
        routes: Mapping[str, InputRoute] | None = None,
        keep: int | None = None,
        storage_timeout: float | None = None,
    ) -> None:
        """Begin a run with so many workers.

        `opening` says what the checkpoint path has, and that the run owns it; without an opening nothing is durable,
        and no worker may be lost. `every` is the distance of checkpoints, `retain` how many stay. `fingerprint`,
        `about` and `lineage` describe the program, in every checkpoint. `policy` says who takes the shards of a lost
        worker, and `deadline` for how many ticks a member may be silent. With `skip_failing` an epoch that owners
        before us acknowledged is refused when it is done again and fails; otherwise the run ends, and the log keeps the
        epoch (*acknowledged epochs stay*). With `keep_numbers` the number of a refused epoch never goes to another
        epoch: for clients that do not wait for each epoch. `routes` say where the rows of some inputs go first, and
        `keep` how many bytes of rows stay in memory in case they are needed again (`epochs`). A storage that fails for
        longer than `storage_timeout`, in seconds, ends the run.
        """
        if workers < 1:
            raise ValueError(f"a run has at least one worker, not {workers}")
        self.opening = opening
        self.application: Mapping[str, Any] = {} if opening is None else opening.application
        """What a checkpoint keeps for the application: JSON."""
        self.phase = Phase.GATHERING
        self.execution = 0
        epoch = 0 if opening is None else opening.epoch
        self.completed = epoch
        self.released = epoch
        self.reported = epoch if opening is None else max(epoch, opening.done)
        self.next = epoch
        self.error: RiverrunError | None = None
        self.limit: float = math.inf
        """Epochs from this one on are not released."""
        self.saver = CheckpointSaver(
            every=every,
            number=0 if opening is None else opening.number,
            epoch=epoch,
            position=0 if opening is None else opening.covered,
            top=0 if opening is None else opening.top,
            owner=0 if opening is None else opening.owner,
            base=None if opening is None else opening.base,
        )
        self._foreign_checkpoint = self._of_another_program(opening, fingerprint, about)
        self._retain = retain
        self._fingerprint = dict(fingerprint or {})
        self._about_program = dict(about or {})
        self._lineage = lineage
        self._deadline = deadline
        self._keep_numbers = keep_numbers
        self._routes = routes or {}
        self._beginning = (epoch, ORIGIN)
        self._waiting: set[int] = set()
        """The members that have not answered yet: with `Ready` in a start, with `Completed` in an epoch."""
        self._notes: list[dict[str, Any]] = []
        self._now: float | None = None
        self._backlog = Backlog(epoch, None if opening is None else opening.offsets, keep)
        self._recalling: set[int] = set()
        self.log = LogWriter(0, 0) if opening is None else LogWriter(opening.next, opening.owner)
        self.reads = Outage(
            "what a worker lost cannot be read from the storage", "it is tried again"
        )
        self._storage_timeout = storage_timeout
        self._idle_failures = 0
        self._refusing: dict[int, tuple[RiverrunError, bool]] = {}
        """Epochs whose refusals are on their way to the log: why, and whether they keep their numbers."""
        self.changing = False
        self._out: Outputs = []
        if opening is not None:
            for pending in opening.pending:
                parcels = stored_parcels(pending.header.get("parcels", {}))
                offsets = pending.header.get("offsets", {})
                entry = BacklogEntry(
                    pending.position, pending.inputs, parcels, offsets, pending.refused,
                    dropped=pending.dropped, input_names=pending.names,
                )  # fmt: skip
                self._backlog.add(self.next, entry)
                self._backlog.drop_rows(self.next)
                self.next += 1
            self.opening = replace(opening, pending=())
        self._inherited = self.next
        """Epochs below were logged by owners before us."""
        self._acknowledged = 0 if opening is None else opening.reported
        """Epochs below may have been acknowledged by owners before us."""
        self._skip_failing = skip_failing
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            Completed: self._on_completed,
            Ready: self._on_ready,
            Failed: self._on_failed,
            NotReady: self._on_not_ready,
            Broken: self._on_broken,
            Wrote: self._on_wrote,
            JoinRun: self._on_join,
            Heartbeat: lambda sender, message: None,
        }
        policy = "replace" if opening is None else policy
        self.roster = Roster(workers, lambda to, message: self._out.append((to, message)), policy)

    @staticmethod
    def _of_another_program(
        opening: Opening | None,
        fingerprint: Mapping[str, Any] | None,
        about: Mapping[str, Any] | None,
    ) -> int:
        """The number of the checkpoint that the run goes on from if another program wrote it, otherwise 0."""
        if opening is None or not opening.about:
            return 0
        program = {"fingerprint": dict(fingerprint or {}), **(about or {})}
        same = all(opening.about.get(key) == word for key, word in program.items())
        return 0 if same else opening.number

    @property
    def members(self) -> list[int]:
        """The incarnations that take part, by index."""
        return self.roster.members

    # ---- the client

    def submit(
        self,
        inputs: Inputs,
        offsets: Mapping[str, Any] | None = None,
        parcels: Parcels | None = None,
    ) -> int:
        """Queue the input of the next epoch, and return its number."""
        self._check_open()
        epoch = self.next
        self.next = epoch + 1
        entry = BacklogEntry(self.log.position, inputs, parcels or {}, offsets or {})
        self._backlog.add(epoch, entry)
        if self.opening is not None:
            header = {"kind": "epoch", "epoch": epoch, "reported": self._said_complete()}
            if offsets:
                header["offsets"] = dict(offsets)
            if parcels:
                header["parcels"] = {
                    name: [asdict(parcel) for parcel in listed] for name, listed in parcels.items()
                }
            self._append(header, inputs)
        if self.released == epoch:
            self._advance()
        return epoch

    @property
    def offsets(self) -> dict[str, Any]:
        """How far the queries of each stream have come, by the epochs that were submitted and not refused."""
        return self._backlog.offsets_before(self.next)

    def checkpoint(self) -> None:
        """Ask for a checkpoint at the next boundary."""
        self._check_open()
        self.saver.wanted = True
        self._advance()

    def scale(self, workers: int) -> None:
        """Ask for another number of workers, from the next boundary on."""
        self._check_open()
        if workers < 1:
            raise ValueError(f"a run has at least one worker, not {workers}")
        self.roster.want(MembershipChange(workers))
        self._advance()

    def rebalance(self, weights: Sequence[float]) -> None:
        """Ask for other shares of the same workers, from the next boundary on."""
        self._check_open()
        if self.roster.change is None and len(weights) == len(self.roster):
            self.roster.want(MembershipChange(len(self.roster), tuple(weights)))
            self._advance()

    def give_up(self, error: RiverrunError) -> None:
        """Give up the change of members that is wanted, if any: the run goes on with the workers that there are."""
        if self.roster.give_up():
            self._out.append((CLIENT, Scaled(len(self.members), error)))

    def allow(self, limit: float) -> None:
        """Release epochs below `limit`, and none from there on."""
        self.limit = limit
        self._advance()

    def close(self, error: RiverrunError | None = None) -> None:
        """End the run."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        self.error = error
        self.roster.close()
        self._out.append((CLIENT, Closed(error)))

    def status(self) -> dict[str, Any]:
        """Where the run stands."""
        saver = self.saver
        attempt = saver.attempt
        return {
            "phase": self.phase.value,
            "execution": self.execution,
            "workers": len(self.members),
            "shares": self.roster.shards.shares,
            "becoming": None if self.roster.change is None else self.roster.change.workers,
            "next": self.next,
            "completed": self.completed,
            "reported": self.reported,
            "queued": self.next - self.released,
            "checkpoint": {
                "number": saver.number,
                "epoch": saver.epoch,
                "lag": None if self.opening is None else self.completed - saver.epoch,
                "behind": None if self.opening is None else saver.behind,
                "writing": None if attempt is None else attempt.epoch,
                "failures": saver.failures,
                "error": None if saver.error is None else saver.error.message,
            },
            "log": None if self.opening is None else self.log.status(),
            "recovery": self.reads.status(self._now),
            "closed": None if self.error is None else self.error.message,
        }

    # ---- what drives the coordinator

    def receive(self, sender: int, message: Any) -> None:
        """Take a message in."""
        if self.phase is Phase.CLOSED:
            return
        if sender == STORAGE:
            self._on_outcome(message)
        elif self.roster.knows(sender):
            self.roster.hear(sender)
            self._handlers[type(message)](sender, message)
        else:  # the sender was dismissed, and does not know (fenced)
            self._out.append((sender, LeaveRun()))

    def lost(self, member: int, why: str = "") -> None:
        """An incarnation is dead, or is to be thought so; `why` says what is known of its end."""
        roster = self.roster
        if self.phase is Phase.CLOSED or not roster.knows(member):
            return
        self._dismiss(member)
        if member not in roster.members:
            error = roster.replace_newcomer(member, why)
            if error is not None:
                self.give_up(error)
            return
        if self.opening is None and self.execution:  # before the first execution nothing is lost
            self.close(not_durable(roster.members.index(member), why))
            return
        roster.replace(member)
        self._gather()

    def tick(self, now: float | None = None) -> list[int]:
        """A tick has passed, and it is `now`, in seconds; return the incarnations that were too silent and are lost."""
        if self.phase is Phase.CLOSED:
            return []
        if now is not None:
            self.clock(now)
            self._watch(now)
        silent = self.roster.silent(self._deadline)
        for member in silent:
            self.lost(member, "it gave no sign of life")
        self._advance()
        return silent

    def clock(self, now: float) -> None:
        """What time it is, in seconds."""
        self._now = self.log.now = now
        self.saver.clock(now)

    def _watch(self, now: float) -> None:
        """Tell people of outages, and end the run when one has gone on for too long (*outages are waited out*)."""
        self._say(self.log.remind(now))
        self._say(self.reads.remind(now, "it is tried again"))
        error = self.log.timeout_error(self._storage_timeout, now)
        error = error or self.reads.timeout_error(
            self._storage_timeout, now, "go back to a checkpoint"
        )
        if error is not None:
            self.close(error)

    def _say(self, notice: Notice | None) -> None:
        if notice is not None:
            self._out.append((CLIENT, notice))

    def take(self) -> Outputs:
        """What is to be sent, oldest first."""
        out = self._out
        if out:
            self._out = []
        return out

    # ---- members and executions

    def _dismiss(self, member: int) -> None:
        self.saver.lost(member)
        self.roster.dismiss(member)

    def _on_join(self, sender: int, message: JoinRun) -> None:
        self.roster.join(sender)
        if self.phase is Phase.GATHERING:
            self._gather()
        else:
            self._advance()

    def _gather(self) -> None:
        """Begin again from storage when all members are there."""
        self.phase = Phase.GATHERING
        if self.roster.complete:
            self._begin(self.saver.epoch, self.saver.number)

    def _begin(self, epoch: int, source: int) -> None:
        self.execution += 1
        self.phase = Phase.STARTING
        self.completed = self.released = epoch
        self._beginning = (epoch, source)
        self._waiting = set(self.members)
        attempt = self.saver.attempt
        if attempt is not None and attempt.epoch > epoch:
            self.saver.abort()
        peers = tuple(self.members)
        for index, member in enumerate(peers):
            begin = Begin(self.execution, epoch, source, index, self.roster.shards, peers)
            self._out.append((member, begin))

    def _restart(self) -> None:
        """Begin another execution at the epoch of which all members have the state; no member was lost."""
        if self.phase is Phase.STARTING:
            self._begin(*self._beginning)
        elif self.phase is Phase.RUNNING:
            self._begin(self.completed, PINNED)

    def _on_ready(self, sender: int, message: Ready) -> None:
        if message.execution != self.execution or self.phase is not Phase.STARTING:
            return
        self._waiting.discard(sender)
        if self._waiting:
            return
        self.phase = Phase.RUNNING
        self._say(self.reads.over(self._now))
        if self.changing:
            self.changing = False
            if self.opening is None:  # the checkpoint served to move shards, and nothing else
                self.saver.forget()
                self._out += [(member, Published(NO_EPOCH)) for member in self.members]
            self._out.append((CLIENT, Scaled(len(self.members))))
        self._advance()

    def _on_not_ready(self, sender: int, message: NotReady) -> None:
        if message.execution != self.execution or self.phase is Phase.GATHERING:
            return
        if is_outage(message.error):
            self._say(self.reads.failed(message.error, self._now))
        elif self.phase is not Phase.STARTING:
            return
        elif self._beginning[1] not in (PINNED, self.saver.number):
            self._gather()  # the checkpoint that the worker tried to read was collected: there is a newer one
        else:
            self.close(message.error)

    def _on_broken(self, sender: int, message: Broken) -> None:
        # Also where the message names an older execution: the rows that are lost may have been sent in this
        # execution, to a member that had not begun it yet.
        self._restart()

    # ---- epochs

    def _advance(self) -> None:
        """At a boundary: announce a checkpoint, change the members, or release the next epoch."""
        completed = self.completed
        if self.phase is not Phase.RUNNING or self.released > completed:
            return
        saver = self.saver
        if (saver.every is not None or saver.wanted) and saver.is_due(completed, self._now):
            self._announce()
        if self.roster.change is not None and self._prepare(self.roster.change):
            return
        entry = self._backlog.get(completed)
        if entry is None or completed >= self.limit:
            return
        if self.opening is not None and entry.position >= self.log.durable:
            return
        if completed in self._refusing:
            return
        if entry.dropped:
            if entry.position not in self._recalling:
                self._recalling.add(entry.position)
                self._out.append((STORAGE, Recall(entry.position)))
            return
        self.released = completed + 1
        members = self.members
        self._waiting = set(members)
        self._notes = []
        execution = self.execution
        if len(members) == 1:
            feed = Feed(execution, completed, entry.inputs, entry.parcels)
            self._out.append((members[0], feed))
            return
        for index, (member, share) in enumerate(zip(members, self._shares(entry), strict=True)):
            parcels = share_of_parcels(entry.parcels, index, members) if entry.parcels else {}
            self._out.append((member, Feed(execution, completed, share, parcels)))
        entry.shares = None

    def make_ready(self) -> None:
        """Cut the rows of the next epoch into shares while workers are at this one; may be called at any time."""
        entry = self._backlog.get(self.released)
        if entry is not None and not entry.dropped and self._routes and len(self.members) > 1:
            self._shares(entry)

    def _shares(self, entry: BacklogEntry) -> list[Inputs]:
        """The rows of each worker, as the shards are now."""
        if entry.shares is None or entry.shares[0] is not self.roster.shards:
            shards = self.roster.shards
            entry.shares = shards, shares_of(entry.inputs, shards, self._routes)
        return entry.shares[1]

    def _on_completed(self, sender: int, message: Completed) -> None:
        if message.execution != self.execution or self.phase is not Phase.RUNNING:
            return
        if message.epoch != self.released or message.epoch == self.completed:
            return
        if sender not in self._waiting:
            return
        self._waiting.discard(sender)
        self._notes += message.notes
        if self._waiting:
            return
        epoch, self.completed = self.completed, self.released
        notes, self._notes = tuple(self._notes), []
        self._idle_failures = 0
        if self.opening is not None:
            self._backlog.drop_rows(epoch)
        if self.reads.error is not None:
            self._say(self.reads.over(self._now))
        if self.opening is not None and self.saver.epoch <= epoch == self.opening.done - 1:
            self.saver.wanted = True  # so that the states that were built anew are not built again
        if epoch >= self.reported:
            self.reported = epoch + 1
            if self.opening is not None and self.reported > self._acknowledged:
                self._out.append((STORAGE, Acknowledge(self.opening.owner, self.reported)))
            if not self._backlog[epoch].refused:
                self._out.append((CLIENT, Reported(epoch, notes)))
        self._forget()
        self._advance()

    def _forget(self) -> None:
        """Drop epochs that will not be done again."""
        floor = self.completed
        if self.opening is not None and self.saver.epoch < floor:
            floor = self.saver.epoch
        self._backlog.forget(floor)

    def _on_recalled(self, position: int, inputs: Inputs, error: RiverrunError | None) -> None:
        self._recalling.discard(position)
        if error is None:
            self._backlog.recalled(position, inputs)
        elif is_outage(error):
            self._say(self.reads.failed(error, self._now))
        else:
            self.close(error)
            return
        self._advance()

    def _on_failed(self, sender: int, message: Failed) -> None:
        if message.execution != self.execution:
            return
        epoch, error = message.epoch, message.error
        if error.code == INTERRUPTED and (epoch is None or not self._can_refuse(epoch)):
            if self.phase in (Phase.STARTING, Phase.RUNNING):
                self._restart()  # nothing is wrong with the work that was interrupted: it is done again
        elif epoch is None:
            self.close(error)
        elif self.phase is Phase.RUNNING:
            if epoch < self.completed or self.released == self.completed:
                self._idle_failures += 1
                if self._idle_failures < IDLE_FAILURES:
                    self._restart()
                else:
                    self.close(error)
            elif self.opening is not None and self.opening.epoch == epoch == self.opening.done - 1:
                self.close(not_rebuilt(error))
            elif epoch < self._not_to_be_refused() or self._backlog[epoch].refused:
                # The error of a damaged file says so itself: the rows would be missing the next time too.
                damaged = isinstance(error, CheckpointError)
                self.close(error if damaged else not_repeatable(epoch, error))
            else:
                self._refuse(epoch, error)
        elif self.phase is Phase.STARTING:
            self.close(error)

    def _can_refuse(self, epoch: int) -> bool:
        """Whether an epoch is under way, and may be refused."""
        return (
            self.phase is Phase.RUNNING
            and self.completed <= epoch < self.released
            and self._counts_for_nobody(epoch)
        )

    def _counts_for_nobody(self, epoch: int) -> bool:
        """Whether an epoch may be refused: nobody was told that it is complete, and it is not refused already."""
        return (
            epoch >= self._said_complete()
            and not self._backlog[epoch].refused
            and (self.opening is None or not self.opening.epoch == epoch == self.opening.done - 1)
        )

    def refuse(self, epoch: int, error: RiverrunError) -> None:
        """Refuse an epoch that is under way or waits, if nobody was told that it is complete."""
        if (
            self.phase is not Phase.CLOSED
            and self.completed <= epoch < self.next
            and self._counts_for_nobody(epoch)
        ):
            self._refuse(epoch, error)

    @property
    def refusals(self) -> int:
        """How many refusals are on their way to the log."""
        return len(self._refusing)

    def is_refusing(self, epoch: int) -> bool:
        """Whether the refusal of an epoch is on its way to the log."""
        return epoch in self._refusing

    @property
    def under_way(self) -> int | None:
        """The epoch that workers are at and that may still be refused; None where there is none."""
        return self.completed if self._can_refuse(self.completed) else None

    def _said_complete(self) -> int:
        """Epochs below this one were acknowledged by us, or may have been by the owners before us."""
        return max(self.reported, self._acknowledged)

    def _not_to_be_refused(self) -> int:
        """Epochs below this one cannot be refused any more (*acknowledged epochs stay*)."""
        return self.reported if self._skip_failing else self._said_complete()

    def _refuse(self, epoch: int, error: RiverrunError) -> None:
        """Forget the rows of an epoch, and have the log say so (*all or nothing*)."""
        entry = self._backlog[epoch]
        entry.refuse()
        if self.phase is Phase.RUNNING and self.completed <= epoch < self.released:
            self.phase = Phase.REFUSING
        # At most one number in a row goes to another epoch: otherwise the log would not tell which.
        keeps = self._keeps_number(epoch) or epoch > max(self.completed, self.reported)
        self._refusing[epoch] = error, keeps
        if self.opening is None:
            self._refused(epoch)
        else:
            header = {
                "kind": "refused", "epoch": epoch, "refused": entry.position,
                "reported": self._said_complete(),
            }  # fmt: skip
            if keeps:
                header["keeps_number"] = True
            self._append(header)

    def _keeps_number(self, epoch: int) -> bool:
        """Whether no other epoch may get the number of a refused epoch: somebody may know the epoch by its number."""
        if (
            epoch < self._inherited
        ):  # nobody knows of an inherited epoch that was never acknowledged
            return epoch < self._acknowledged
        return self._keep_numbers

    def _refused(self, epoch: int) -> None:
        """The log has the refusal: where the epoch was under way, go back to the boundary before it."""
        error, keeps = self._refusing.pop(epoch)
        refused = Refused(epoch, error, epoch < self._inherited, epoch < self._acknowledged)
        if self.next == epoch + 1 and not keeps:
            self.next = epoch
            self._inherited = min(self._inherited, epoch)
            self._backlog.remove(epoch)
        self._out.append((CLIENT, refused))
        if self.phase is Phase.REFUSING and epoch == self.completed:
            self._begin(self.completed, PINNED)
        else:  # the epoch was not under way, or a member was lost meanwhile and the run begins further back
            self._advance()

    # ---- the log

    def _append(self, header: Mapping[str, Any], inputs: Inputs | None = None) -> None:
        record = self.log.add(header, inputs or {})
        if record is not None:
            self._out.append((STORAGE, record))

    def _on_appended(self, append: AppendRecord, error: RiverrunError | None) -> None:
        log = self.log
        if not log.is_next(append):
            return
        if error is not None and is_outage(error):
            self._say(log.outage.failed(error, self._now))
            self._out.append((STORAGE, append))
            return
        if error is not None:
            self.close(error)
            return
        self._say(log.outage.over(self._now))
        following = log.done()
        if following is not None:
            self._out.append((STORAGE, following))
        epoch = append.header["epoch"]
        if append.header["kind"] == "refused":
            self._refused(epoch)
        else:
            self._out.append((CLIENT, Logged(epoch)))
            self._advance()

    # ---- checkpoints and another number of workers

    def _announce(self) -> None:
        saver, epoch = self.saver, self.completed
        if saver.unsure:
            saver.surveying = True
            self._out.append((STORAGE, Survey()))
            return
        if saver.epoch == epoch and saver.number and saver.number != self._foreign_checkpoint:
            saver.wanted = False
            self._out.append((CLIENT, Saved(saver.number, epoch)))
            return
        entry = self._backlog.get(epoch)
        position = self.log.position if entry is None else entry.position
        if not saver.covers(position):
            return
        members = tuple(self.members)
        attempt = saver.announce(epoch, position, self.roster.shards, members, self._now)
        for member in members:
            announce = Announce(self.execution, attempt.id, attempt.number, epoch)
            self._out.append((member, announce))

    def _on_wrote(self, sender: int, message: Wrote) -> None:
        attempt = self.saver.attempt
        publish = None
        if attempt is not None:
            publish = self.saver.wrote(sender, message, self._about())
        if publish is not None:
            self._out.append((STORAGE, publish))
        elif attempt is not None and self.saver.attempt is None:
            self._not_saved(attempt.number, attempt.epoch)

    def _about(self) -> dict[str, Any]:
        attempt = self.saver.attempt
        assert attempt is not None
        kept_from = None if self.opening is None else self.opening.whole_from
        return {
            **self._about_program,
            **({} if kept_from is None else {"kept": kept_from}),
            **({} if self._lineage is None else {"lineage": self._lineage}),
            "epoch": attempt.epoch,
            "position": attempt.position,
            "owner": 0 if self.opening is None else self.opening.owner,
            "workers": len(attempt.members),
            "shards": [
                [f"{low:x}", owner]
                for low, owner in zip(attempt.shards.bounds, attempt.shards.owners, strict=False)
            ],
            "fingerprint": self._fingerprint,
            "application": dict(self.application),
            "offsets": self._backlog.offsets_before(attempt.epoch),
        }

    def _on_published(self, publish: Publish, error: RiverrunError | None) -> None:
        saver, attempt = self.saver, self.saver.attempt
        if error is not None:
            again = saver.not_published(publish, error)
            if again is not None:
                self._out.append((STORAGE, again))
            elif attempt is not None and saver.attempt is None:
                self._not_saved(attempt.number, attempt.epoch)
            return
        if not saver.published(publish):
            return
        self._out.append((CLIENT, Saved(saver.number, saver.epoch)))
        self._out += [(member, Published(saver.epoch)) for member in self.members]
        whole = self.opening is not None and self.opening.whole_from is not None
        self._out.append((STORAGE, Collect(self._retain, whole)))
        self._forget()
        self._advance()

    def _not_saved(self, number: int, epoch: int) -> None:
        if self.saver.is_tried_again:
            self._advance()
            return
        error = self.saver.error
        self._out.append((CLIENT, Saved(number, epoch, error)))
        change = self.roster.change
        wanted = change is not None and not change.is_repair
        if wanted and error is not None and change is not None and self.roster.is_there(change):
            self.give_up(error)  # epochs wait for the change: better to go on without it
        elif change is not None and error is not None:
            change.after = None  # a repair is tried again after the epochs that wait
        self._advance()

    def _on_surveyed(self, survey: SurveyResult, error: RiverrunError | None) -> None:
        if error is not None:
            self.saver.not_surveyed(self.completed, error)
            self._not_saved(0, self.completed)
            return
        of_use = survey.about.get("fingerprint") == self._fingerprint
        takeover = self.saver.take_survey(survey, self.reported, of_use=of_use)
        if takeover is not None:
            self.close(takeover)
        else:
            self._forget()
            self._advance()

    def _prepare(self, change: MembershipChange) -> bool:
        """Prepare a change of members, and make it when all is ready; whether the next epoch has to wait for it.

        When the newcomers have joined, a checkpoint of this boundary is written, since the members read the shards that
        move from there. When that checkpoint is published, the change is made.
        """
        saver, roster = self.saver, self.roster
        if not roster.take_turn(change, self.completed, min(self.next, self.limit)):
            return False
        if change.weights is None and change.workers == len(roster):
            roster.change = None
            self._out.append((CLIENT, Scaled(change.workers)))
            return False
        if saver.epoch != self.completed:
            if saver.attempt is None and not saver.surveying:
                saver.wanted = True
                self._announce()
            attempt = saver.attempt  # epochs go on while an older checkpoint is being written
            return saver.surveying or (attempt is not None and attempt.epoch == self.completed)
        for member in roster.make(change):
            self._dismiss(member)
        self.changing = True
        self._gather()
        return True

    def _on_outcome(self, outcome: Outcome) -> None:
        instruction, error = outcome.instruction, outcome.error
        if type(instruction) is AppendRecord:
            self._on_appended(instruction, error)
        elif type(instruction) is Publish:
            self._on_published(instruction, error)
        elif type(instruction) is Survey:
            self._on_surveyed(outcome.result, error)
        elif type(instruction) is Recall:
            self._on_recalled(instruction.position, outcome.result, error)

    def _check_open(self) -> None:
        if self.phase is Phase.CLOSED:
            raise closed_error(self.error)


def closed_error(reason: RiverrunError | None) -> RiverrunError:
    """The error of using a run that is over; `reason` is what ended the run, if it failed."""
    error = CheckpointError(
        "run.closed",
        "cannot use the run: it is closed" + (f", since: {reason.message}" if reason else ""),
        hint="start it again; with a checkpoint path it goes on from where it was",
    )
    error.__cause__ = reason
    return error
