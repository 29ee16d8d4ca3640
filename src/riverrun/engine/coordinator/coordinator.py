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
  keeps the pin of boundary e until the `Feed` of epoch e + 1 arrives. (A `Feed` releases an epoch to a member, and has
  the member's rows of the epoch. So the `Feed` of e + 1 says that all members have reached boundary e + 1.) Where a
  member was lost, or shards move to other members, an execution begins at the boundary of the published checkpoint, or,
  with no checkpoint yet, at the very start of the run, without any state. A run without a checkpoint path ends when a
  member of an execution is lost.
- **Fenced.** The coordinator drops messages of other executions, and of incarnations that are no members. A member is
  declared dead before its successor is started, and never becomes a member again (*no twins* of `membership`).
- **Reported once.** An epoch is reported when it is complete for the first time, and never again, however often it is
  done again.
- **All or nothing.** When the work of a member on epoch e raises an error, no member keeps anything of e. The epoch is
  refused, where *acknowledged epochs stay* (`refusals`) allows that, and a new execution begins at boundary e. An epoch
  that the client wants refused (`refuse`; its user has interrupted it) goes the same way, but without a new execution
  where the epoch still waits for its turn. The table of `phases` says what follows from any other failure.
- **One owner.** Every record of the log is a conditional create at the next position. Somebody else's record at that
  position means that the path has a new owner, and the run ends.
- **Outages are waited out.** While the storage fails, what needs the storage waits and is tried again (`log_writer`,
  `checkpointing`, and members that read), and all else goes on (`storage_watch`). Where the log
  cannot be written, or a member cannot read, for longer than `storage_timeout`, the run ends; checkpoints that cannot
  be written do not end the run.

Why *clean boundaries* and *reported once* give exactly-once results: the state at a boundary is a function of the log
up to that boundary, whatever executions led there (*logged first* here; *oracle*, *split* and *resume* of
`testing.laws`); and the client sees each epoch once.

Why two owners do no harm: the owner that takes a path over appends a record that says so. That record has the position
at which the former owner would append next, so the next append of the former owner fails. An epoch that the former
owner still acknowledges is in the log before that record, and the new owner does the epoch again. The checkpoints that
the former owner still publishes are those of a prefix of the log, and never follow one that covers more of the log
(*covers no less* of `checkpointing`).

Phases (`phases`): *gathering* (members are started), *starting* (members go back to where the execution begins),
*running*, *refusing* (a refusal is on its way to the log), *closed*.

In the example each message stands beside its address: -3 is the supervisor, 1 the incarnation of the only worker. The
worker joins, is ready in execution 1, and has then completed, in execution 1, all epochs before 1.

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

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from riverrun.engine.coordinator.checkpointing import CheckpointSaver
from riverrun.engine.coordinator.epochs import OpenEpoch, OpenEpochs
from riverrun.engine.coordinator.failures import closed_error, not_durable
from riverrun.engine.coordinator.log_writer import LogWriter
from riverrun.engine.coordinator.membership import Membership, MembershipChange, Policy
from riverrun.engine.coordinator.phases import AWAITED, Phase, Reaction, Work, decide_reaction
from riverrun.engine.coordinator.publishing import Boundary, Publisher
from riverrun.engine.coordinator.refusals import Refusals, ending_error
from riverrun.engine.coordinator.round_saving import RoundSaver, UnderWay
from riverrun.engine.coordinator.shares import Dealer, InputRoute
from riverrun.engine.coordinator.storage_watch import StorageWatch
from riverrun.engine.messages import (
    CLIENT,
    INTERRUPTED,
    ORIGIN,
    PINNED,
    STORAGE,
    Acknowledge,
    AppendRecord,
    Begin,
    Broken,
    Closed,
    Completed,
    Failed,
    Heartbeat,
    Inputs,
    JoinRun,
    LeaveRun,
    Logged,
    Notice,
    NotReady,
    NotSaved,
    Outcome,
    Outputs,
    Parcels,
    Publish,
    PublishRound,
    Ready,
    Recall,
    Reported,
    RoundWritten,
    Scaled,
    Survey,
    SurveyResult,
    Wrote,
)
from riverrun.errors import RiverrunError
from riverrun.plan.loop_figures import LoopFigures, add_up
from riverrun.retry import is_outage
from riverrun.storage.saved_rounds import SavedEpoch
from riverrun.storage.takeover import Opening

IDLE_FAILURES = 3  # executions in a row that fail with no epoch under way


_NOTHING = Opening(owner=0, number=0, epoch=0, start=0, top=0, next=0, pending=())
"""What a run without a checkpoint path goes on from."""


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
        program: str | None = None,
        saved: SavedEpoch | None = None,
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
        longer than `storage_timeout`, in seconds, ends the run. `program` is a word for a program with loops that can
        be saved, and None for others; `saved` is what an owner before us has saved of loops.
        """
        if workers < 1:
            raise ValueError(f"a run has at least one worker, not {workers}")
        self.opening = None if opening is None else replace(opening, pending=())
        start = _NOTHING if opening is None else opening
        self.phase = Phase.GATHERING
        self.execution = 0
        self.completed = self.released = self.next = start.epoch
        self.reported = max(start.epoch, start.done)
        self.error: RiverrunError | None = None
        self.limit: float = math.inf
        """Epochs from this one on are not released."""
        self.changing = False
        self._out: Outputs = []
        self._beginning = (start.epoch, ORIGIN)
        self._waiting: set[int] = set()
        """The members that have not answered yet: with `Ready` in a start, with `Completed` in an epoch."""
        self._notes: list[dict[str, Any]] = []
        self._rounds: list[LoopFigures] = []
        self._idle_failures = 0
        self._dealer = Dealer(routes)
        self._epochs = OpenEpochs(start.epoch, start.offsets, keep)
        for pending in start.pending:
            self._epochs.add(self.next, OpenEpoch.from_log(pending))
            self._epochs.drop_rows(self.next)
            self.next += 1
        self.refusals = Refusals(
            self.opening, self.next, skip_failing=skip_failing, keep_numbers=keep_numbers
        )
        self.log = LogWriter(start.next, start.owner)
        self._storage = StorageWatch(self.log, storage_timeout, self._send)
        self.saver = CheckpointSaver(
            every=every,
            number=start.number,
            epoch=start.epoch,
            position=start.covered,
            top=start.top,
            owner=start.owner,
            base=start.base,
        )
        self.publisher = Publisher(
            self.saver,
            self.opening,
            self._send,
            retain=retain,
            fingerprint=fingerprint,
            about=about,
            lineage=lineage,
        )
        of_time = isinstance(every, timedelta) and opening is not None and program is not None
        self.rounds = RoundSaver(
            every.total_seconds() if of_time and isinstance(every, timedelta) else None,
            program or "",
            start.owner,
            self._send,
            saved if of_time else None,
        )
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            Completed: self._on_completed,
            Ready: self._on_ready,
            Failed: self._on_failed,
            NotReady: self._on_not_ready,
            Broken: self._on_broken,
            Wrote: self._on_wrote,
            RoundWritten: self.rounds.wrote,
            NotSaved: self._on_loops_not_saved,
            JoinRun: self._on_join,
            Heartbeat: lambda sender, message: None,
        }
        policy = "replace" if opening is None else policy
        self.membership = Membership(workers, self._send, policy, deadline)

    def _send(self, to: int, message: Any) -> None:
        self._out.append((to, message))

    @property
    def members(self) -> list[int]:
        """The incarnations that take part, by index."""
        return self.membership.members

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.phase is Phase.CLOSED

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
        entry = OpenEpoch(self.log.position, inputs, parcels or {}, offsets or {})
        self._epochs.add(epoch, entry)
        if self.opening is not None:
            self._append(entry.header(epoch, self.refusals.acknowledged(self.reported)), inputs)
        if self.released == epoch:
            self._advance()
        return epoch

    @property
    def offsets(self) -> dict[str, Any]:
        """How far the queries of each stream have come, by the epochs that were submitted and not refused."""
        return self._epochs.offsets_before(self.next)

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
        self.membership.want(MembershipChange(workers))
        self._advance()

    def rebalance(self, weights: Sequence[float]) -> None:
        """Ask for other shares of the same workers, from the next boundary on."""
        self._check_open()
        if self.membership.change is None and len(weights) == len(self.membership):
            self.membership.want(MembershipChange(len(self.membership), tuple(weights)))
            self._advance()

    def give_up(self, error: RiverrunError) -> None:
        """Give up the change of members that is wanted, if any: the run goes on with the workers that there are."""
        if self.membership.give_up():
            self._send(CLIENT, Scaled(len(self.members), error))

    def allow(self, limit: float) -> None:
        """Release epochs below `limit`, and none from there on."""
        self.limit = limit
        self._advance()

    def close(self, error: RiverrunError | None = None) -> None:
        """End the run."""
        if self.is_over:
            return
        self.phase = Phase.CLOSED
        self.error = error
        self.membership.close()
        self._send(CLIENT, Closed(error))

    def status(self) -> dict[str, Any]:
        """Where the run stands."""
        return {
            "phase": self.phase.value,
            "execution": self.execution,
            "workers": len(self.members),
            "shares": self.membership.shards.shares,
            "becoming": None if self.membership.change is None else self.membership.change.workers,
            "next": self.next,
            "completed": self.completed,
            "reported": self.reported,
            "queued": self.next - self.released,
            "checkpoint": self.publisher.status(self.completed),
            "log": None if self.opening is None else self.log.status(),
            "recovery": self._storage.status(),
            "closed": None if self.error is None else self.error.message,
        }

    # ---- what drives the coordinator

    def receive(self, sender: int, message: Any) -> None:
        """Take a message in."""
        if self.is_over:
            return
        if sender == STORAGE:
            self._on_outcome(message)
        elif self.membership.knows(sender):
            self.membership.hear(sender)
            if not self._is_late(message):
                self._handlers[type(message)](sender, message)
        else:  # the sender was dismissed, and does not know (fenced)
            self._send(sender, LeaveRun())

    def _is_late(self, message: Any) -> bool:
        """Whether a message is of another execution, or not awaited in this phase any more."""
        phases = AWAITED.get(type(message))
        if phases is None:
            return False
        return message.execution != self.execution or self.phase not in phases

    def lost(self, member: int, why: str = "") -> None:
        """An incarnation is dead, or is to be thought so; `why` says what is known of its end."""
        membership = self.membership
        if self.is_over or not membership.knows(member):
            return
        self._dismiss(member)
        if member not in membership.members:
            error = membership.replace_newcomer(member, why)
            if error is not None:
                self.give_up(error)
            return
        if self.opening is None and self.execution:  # before the first execution nothing is lost
            self.close(not_durable(membership.members.index(member), why))
            return
        membership.replace(member)
        self._gather()

    def tick(self, now: float | None = None) -> list[int]:
        """A tick has passed, and it is `now`, in seconds; return the incarnations that were too silent and are lost."""
        if self.is_over:
            return []
        if now is not None:
            self.saver.clock(now)
            self.rounds.tick(now)
            error = self._storage.watch(now)
            if error is not None:
                self.close(error)
        silent = self.membership.silent()
        for member in silent:
            self.lost(member, "it gave no sign of life")
        self._advance()
        return silent

    def clock(self, now: float) -> None:
        """What time it is, in seconds."""
        self._storage.clock(now)
        self.saver.clock(now)

    def take(self) -> Outputs:
        """What is to be sent, oldest first."""
        out = self._out
        if out:
            self._out = []
        return out

    # ---- members and executions

    def _dismiss(self, member: int) -> None:
        self.saver.lost(member)
        self.membership.dismiss(member)

    def _on_join(self, sender: int, message: JoinRun) -> None:
        self.membership.join(sender)
        if self.phase is Phase.GATHERING:
            self._gather()
        else:
            self._advance()

    def _gather(self) -> None:
        """Begin again from storage when all members are there."""
        self.phase = Phase.GATHERING
        if self.membership.complete:
            self._begin(self.saver.epoch, self.saver.number)

    def _begin(self, epoch: int, source: int) -> None:
        self.execution += 1
        self.phase = Phase.STARTING
        self.rounds.stop()
        self.completed = self.released = epoch
        self._beginning = (epoch, source)
        self._waiting = set(self.members)
        attempt = self.saver.attempt
        if attempt is not None and attempt.epoch > epoch:
            self.saver.abort()
        peers = tuple(self.members)
        for index, member in enumerate(peers):
            begin = Begin(self.execution, epoch, source, index, self.membership.shards, peers)
            self._send(member, begin)

    def _restart(self) -> None:
        """Begin another execution at the epoch of which all members have the state; no member was lost."""
        if self.phase is Phase.STARTING:
            self._begin(*self._beginning)
        elif self.phase is Phase.RUNNING:
            self._begin(self.completed, PINNED)

    def _on_ready(self, sender: int, message: Ready) -> None:
        self._waiting.discard(sender)
        if self._waiting:
            return
        self.phase = Phase.RUNNING
        self._storage.read()
        if self.changing:
            self.changing = False
            if self.opening is None:
                self.publisher.forget(self.members)
            self._send(CLIENT, Scaled(len(self.members)))
        self._advance()

    def _on_not_ready(self, sender: int, message: NotReady) -> None:
        if is_outage(message.error):
            self._storage.read_failed(message.error)
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
        if (saver.every is not None or saver.wanted) and saver.is_due(completed, saver.now):
            self._announce()
        if self.membership.change is not None and self._prepare(self.membership.change):
            return
        entry = self._epochs.get(completed)
        if entry is None or completed >= self.limit:
            return
        if self.opening is not None and entry.position >= self.log.durable:
            return
        if completed in self.refusals:
            return
        if entry.dropped:
            recall = self._epochs.recall(completed)
            if recall is not None:
                self._send(STORAGE, recall)
            return
        self.released = completed + 1
        self._waiting = set(self.members)
        self._notes, self._rounds = [], []
        if self._may_be_saved(completed):
            first, refused = self._epochs.refused_before(completed)
            members = tuple(self.members)
            at = UnderWay(
                self.execution, completed, entry.position, first, refused, members,
                self.membership.shards,
            )  # fmt: skip
            self.rounds.begin(at)
        feeds = self._dealer.feeds(
            self.execution, completed, entry, self.members, self.membership.shards
        )
        for index, (member, feed) in enumerate(feeds):
            saved = self.rounds.share(index)
            self._send(member, replace(feed, saved=saved) if saved else feed)

    def _may_be_saved(self, epoch: int) -> bool:
        """Whether an epoch may be saved while it is under way: not the one in which states are built anew."""
        if self.opening is None:
            return False
        resume = self.opening.resume
        return resume is None or epoch != resume.epoch

    def _on_loops_not_saved(self, sender: int, message: NotSaved) -> None:
        """A member cannot use what is saved of loops: all begin again, without it."""
        text = f"epoch {message.epoch} begins its loops anew: {message.error.message}"
        self._send(CLIENT, Notice(logging.WARNING, text))
        self.rounds.drop()
        self._restart()

    def make_ready(self) -> None:
        """Cut the rows of the next epoch into shares while workers are at this one; may be called at any time."""
        entry = self._epochs.get(self.released)
        if entry is not None:
            self._dealer.prepare(entry, self.membership.shards)

    def _on_completed(self, sender: int, message: Completed) -> None:
        if message.epoch != self.released or message.epoch == self.completed:
            return
        if sender not in self._waiting:
            return
        self._waiting.discard(sender)
        self._notes += message.notes
        self._rounds += message.rounds
        if self._waiting:
            return
        epoch, self.completed = self.completed, self.released
        self.rounds.end()
        notes, self._notes = tuple(self._notes), []
        rounds: tuple[LoopFigures, ...] = ()
        if self._rounds:
            rounds, self._rounds = add_up(self._rounds), []
        self._idle_failures = 0
        if self.opening is not None:
            self._epochs.drop_rows(epoch)
        self._storage.read()
        if self.opening is not None and self.saver.epoch <= epoch == self.opening.done - 1:
            self.saver.wanted = True  # so that the states that were built anew are not built again
        if epoch >= self.reported:
            self.reported = epoch + 1
            if self.opening is not None and self.reported > self.refusals.acknowledged_before:
                self._send(STORAGE, Acknowledge(self.opening.owner, self.reported))
            if not self._epochs[epoch].refused:
                self._send(CLIENT, Reported(epoch, notes, rounds))
        self._forget()
        self._advance()

    def _forget(self) -> None:
        """Drop epochs that will not be done again."""
        floor = self.completed
        if self.opening is not None and self.saver.epoch < floor:
            floor = self.saver.epoch
        self._epochs.forget(floor)

    def _on_recalled(self, position: int, inputs: Inputs, error: RiverrunError | None) -> None:
        if error is None:
            self._epochs.recalled(position, inputs)
        else:
            self._epochs.not_recalled(position)
            if not is_outage(error):
                self.close(error)
                return
            self._storage.read_failed(error)
        self._advance()

    # ---- failures and refusals

    def _on_failed(self, sender: int, message: Failed) -> None:
        """Work of a member failed, or was interrupted: do what the table of `phases` says (*decided by a table*)."""
        epoch, error = message.epoch, message.error
        work = Work.INSTANCE if epoch is None else self._work_at(epoch)
        reaction = decide_reaction(self.phase, work, interrupted=error.code == INTERRUPTED)
        if reaction is Reaction.RETRY:
            self._idle_failures += 1
            again = self._idle_failures < IDLE_FAILURES
            reaction = Reaction.RESTART if again else Reaction.CLOSE
        if reaction is Reaction.RESTART:
            self._restart()
        elif reaction is Reaction.CLOSE:
            self.close(ending_error(work, epoch, error))
        elif reaction is Reaction.REFUSE:
            assert epoch is not None
            self._refuse(epoch, error)

    def _work_at(self, epoch: int) -> Work:
        """What a member is at that says it is at an epoch."""
        entry = self._epochs.get(epoch)
        if entry is None or not self.completed <= epoch < self.released:
            return Work.IDLE
        return self.refusals.kind_of_work(epoch, self.reported, is_refused=entry.refused)

    @property
    def under_way(self) -> int | None:
        """The epoch that workers are at and that may still be refused; None where there is none."""
        is_open = self.phase is Phase.RUNNING and self._work_at(self.completed) is Work.OPEN
        return self.completed if is_open else None

    def refuse(self, epoch: int, error: RiverrunError) -> None:
        """Refuse an epoch that is under way or waits, if nobody was told that it is complete."""
        if self.is_over or not self.completed <= epoch < self.next:
            return
        is_refused = self._epochs[epoch].refused
        if self.refusals.kind_of_work(epoch, self.reported, is_refused=is_refused) is Work.OPEN:
            self._refuse(epoch, error)

    def _refuse(self, epoch: int, error: RiverrunError) -> None:
        """Forget the rows of an epoch, and have the log say so (*all or nothing*)."""
        entry = self._epochs[epoch]
        entry.refuse()
        self.rounds.refused(entry.position)
        if self.phase is Phase.RUNNING and self.completed <= epoch < self.released:
            self.phase = Phase.REFUSING
        header = self.refusals.begin(epoch, error, entry.position, self.completed, self.reported)
        if self.opening is None:
            self._refused(epoch)
        else:
            self._append(header)

    def _refused(self, epoch: int) -> None:
        """The log has the refusal: where the epoch was under way, go back to the boundary before it."""
        refused, number_is_free = self.refusals.end(epoch, self.next)
        if number_is_free:
            self.next = epoch
            self._epochs.remove(epoch)
        self._send(CLIENT, refused)
        if self.phase is Phase.REFUSING and epoch == self.completed:
            self._begin(self.completed, PINNED)
        else:  # the epoch was not under way, or a member was lost meanwhile and the run begins further back
            self._advance()

    # ---- the log

    def _append(self, header: Mapping[str, Any], inputs: Inputs | None = None) -> None:
        record = self.log.add(header, inputs or {})
        if record is not None:
            self._send(STORAGE, record)

    def _on_appended(self, append: AppendRecord, error: RiverrunError | None) -> None:
        log = self.log
        if not log.is_next(append):
            return
        if error is not None and is_outage(error):
            self._storage.append_failed(error)
            self._send(STORAGE, append)
            return
        if error is not None:
            self.close(error)
            return
        self._storage.appended()
        following = log.done()
        if following is not None:
            self._send(STORAGE, following)
        epoch = append.header["epoch"]
        if append.header["kind"] == "refused":
            self._refused(epoch)
        else:
            self._send(CLIENT, Logged(epoch))
            self._advance()

    # ---- checkpoints and another number of workers

    def _announce(self) -> None:
        epoch = self.completed
        entry = self._epochs.get(epoch)
        position = self.log.position if entry is None else entry.position
        members = tuple(self.members)
        self.publisher.announce(
            Boundary(self.execution, epoch, position, self.membership.shards, members)
        )

    def _on_wrote(self, sender: int, message: Wrote) -> None:
        failed = self.publisher.wrote(sender, message, self._epochs.offsets_before)
        if failed is not None:
            self._not_saved(failed.number, failed.epoch)

    def _on_published(self, publish: Publish, error: RiverrunError | None) -> None:
        if error is not None:
            failed = self.publisher.not_published(publish, error)
            if failed is not None:
                self._not_saved(failed.number, failed.epoch)
        elif self.publisher.published(publish, self.members):
            self._forget()
            self._advance()

    def _on_surveyed(self, survey: SurveyResult, error: RiverrunError | None) -> None:
        if error is not None:
            self.saver.not_surveyed(self.completed, error)
            self._not_saved(0, self.completed)
            return
        takeover = self.publisher.surveyed(survey, self.reported)
        if takeover is not None:
            self.close(takeover)
        else:
            self._forget()
            self._advance()

    def _not_saved(self, number: int, epoch: int) -> None:
        error = self.publisher.not_saved(number, epoch)
        if error is not None and self.membership.not_saved():
            self.give_up(error)
        self._advance()

    def _prepare(self, change: MembershipChange) -> bool:
        """Prepare a change of members, and make it when all is ready; whether the next epoch has to wait for it.

        When the newcomers have joined, a checkpoint of this boundary is written, since the members read the shards that
        move from there. When that checkpoint is published, the change is made.
        """
        saver, membership = self.saver, self.membership
        if not membership.take_turn(change, self.completed, min(self.next, self.limit)):
            return False
        if saver.epoch != self.completed:
            if saver.attempt is None and not saver.surveying:
                saver.wanted = True
                self._announce()
            return saver.is_at(self.completed)
        for member in membership.make(change):
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
        elif type(instruction) is PublishRound:
            self.rounds.published(instruction, error)
        elif type(instruction) is Survey:
            self._on_surveyed(outcome.result, error)
        elif type(instruction) is Recall:
            self._on_recalled(instruction.position, outcome.result, error)

    def _check_open(self) -> None:
        if self.is_over:
            raise closed_error(self.error)
