"""Taking over: how a run comes to own its checkpoint path, and learns what is there to go on from.

Every run with a checkpoint path begins with `take_over`, also at an empty path. It looks at the newest checkpoint and
at the log behind it, writes an ``opened`` record, and returns an `Opening`: which checkpoint to go back to, and which
epochs to do again. Laws:

- **Someone runs.** A run that takes over looks first: if it cannot go on from what is there, it raises before it
  owns the path, and the owner before goes on. Then it appends its ``opened`` record, which puts the owner before
  out, also where that owner appends faster than its successor reads. Then it goes on from the checkpoint that is the
  newest by then. An owner that was put out may still publish a checkpoint of a prefix of the log, but collects nothing:
  whoever collects looks for a successor before it looks at what is retained (`runtime.storage_calls`).
- **Deterministic replay.** The epochs from a checkpoint on are returned in order, each with the number that it had. A
  refused epoch is left out if the next epoch has its number; otherwise it stays, without rows.
- **Rows, not programs.** A record holds rows of inputs, whatever the program made of them; whether this program can go
  on from a checkpoint is for `decide` to say. But an input for which an epoch still to be done has rows must be what it
  was when the rows were logged. The ``opened`` record before that epoch says what the input was, or else the checkpoint
  that covers that record. (Where all epochs are done again from the start, rows of an input that is gone are left out
  of the epochs that a checkpoint has.)
- **Bounded.** Records are read one after the other, and at most `keep` bytes of rows are brought along. Rows of the
  other epochs are in the log only, as `PendingEpoch.dropped` says; they stay there, by the law someone runs.
- **Acknowledged or not.** `Opening.reported` is how many epochs may have been reported to somebody as complete
  (`acknowledged`). Later epochs were never acknowledged: if one of them fails again, it is refused.

Why the checkpoint that a run goes on from is not collected: let M be the newest checkpoint once the ``opened`` record
is there. An owner that decides to collect after that finds the record, and deletes nothing. An owner that decided
before has seen no checkpoint newer than M. Let K be the newest one that it saw: K is kept, with all files that K names.
M is K, or was built on K, and then each file of M is numbered higher than K or named by K; so every file of M is kept.
Records are deleted only below the position that K covers, and M covers no less.

>>> from riverrun.storage.store import open_storage
>>> storage = open_storage("memory:///")
>>> first = take_over(Checkpoints(storage), Log(storage), identity="a")
>>> second = take_over(Checkpoints(storage), Log(storage), identity="b")
>>> (first.owner, first.next), (second.owner, second.next), second.pending
((0, 1), (1, 2), ())

Cost: the records behind the checkpoint are read once; those whose rows were not brought along, once more when their
epoch is done.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from riverrun.errors import CheckpointError
from riverrun.retry import SOON, persist
from riverrun.storage.acknowledged import read_notes
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.log import Log
from riverrun.storage.manifest import Manifest, manifest_name, say_version
from riverrun.storage.records import (
    Record,
    encode_record,
)

TRIES = 20
LOOKS = 5  # tries that look before they own the path; later ones own it first
CHASES = 8  # tries to append where the log ends, while the owner before appends faster
KEEP = 256 << 20  # bytes of rows that are brought along

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PendingEpoch:
    """An epoch to be done again; a refused one has no rows."""

    position: int
    inputs: Mapping[str, pa.RecordBatch]
    refused: bool = False
    header: Mapping[str, Any] = field(default_factory=dict)
    dropped: bool = False
    """Whether the rows are in the log only (the law bounded)."""
    names: tuple[str, ...] = ()
    """The inputs that a dropped epoch has rows of."""


class Continuation(Enum):
    """How a run goes on from a checkpoint."""

    STRAIGHT = "straight"
    """With its states."""
    BACKFILL = "backfill"
    """With the states that are of use. The run begins one epoch earlier, and that epoch is done again for the other
    states."""
    REPLAY = "replay"
    """Without its states: all epochs are done again."""


Decide: TypeAlias = Callable[[Manifest, bool], tuple[Continuation, Any]]
"""Says how to go on from a checkpoint, or refuses to. Its second argument: whether the log has all epochs. The second
part of the answer is for whoever takes the path over: `Opening.resume`."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a run that takes over a path has there to go on from."""

    owner: int
    """The position of the run's ``opened`` record: later owners have greater positions."""
    number: int
    """The checkpoint to go back to; 0 for none."""
    epoch: int
    """The epoch of that checkpoint."""
    start: int
    """The position of the first record that the checkpoint does not cover."""
    top: int
    """The greatest number of a checkpoint, torn ones included."""
    next: int
    """The position of the next record."""
    pending: tuple[PendingEpoch, ...]
    """The epochs from `epoch` on."""
    reported: int = 0
    """Epochs below this one may have been acknowledged; later ones never were (the law acknowledged or not)."""
    doubtful: int = 0
    """Which epochs below this one were acknowledged is not known, and `reported` is a guess; 0 where `reported` is
    exact."""
    application: Mapping[str, Any] = field(default_factory=dict)
    """What the checkpoint keeps for the application."""
    offsets: Mapping[str, Any] = field(default_factory=dict)
    """How far streams had come with the checkpoint."""
    done: int = 0
    """Epochs below this one are in the newest checkpoint. Where they are done again, they are not reported again."""
    base: int = 0
    """The number of the newest checkpoint: `number`, where its states are of use."""
    covered: int = 0
    """The position of the first record that the newest checkpoint does not cover."""
    whole_from: int | None = None
    """The log is to have all epochs from this one on; None where it has only what recovery needs."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the checkpoint to go back to says of the program that wrote it."""
    resume: Any = None
    """What `decide` said of the way in which the states of that checkpoint are used; storage does not look at it."""


def take_over(
    checkpoints: Checkpoints,
    log: Log,
    *,
    identity: str,
    fingerprint: Mapping[str, Any] | None = None,
    decide: Decide | None = None,
    keep_inputs: bool | None = None,
    number: int | None = None,
    keep: int | None = None,
) -> Opening:
    """Own the path from here on, and return what is there. `identity` is a word that no other run uses.

    Without `decide`, a program with another fingerprint is refused. With `keep_inputs=True` the log is kept whole from
    now on, with False no longer, and with None as it was promised before. With a `number`, the run goes back to that
    checkpoint in place of the newest (the *going back* law of `log`). `keep` is how many bytes of rows are brought
    along (the law bounded).
    """
    keep = KEEP if keep is None else keep
    taking = _TakingOver(checkpoints, log, identity, dict(fingerprint or {}), decide, keep_inputs)
    if number is not None:
        return taking.go_back(number, keep)
    for tries in range(TRIES):
        try:
            return taking.newest(keep, blind=tries >= LOOKS)
        except CheckpointError as error:
            # The owner before may have published and collected during the reading.
            if error.code not in ("log.gap", "checkpoint.missing") or tries + 1 == TRIES:
                raise
            if not taking.is_overtaken:
                raise taking.explain_missing(error) from error
    raise AssertionError("not reached")


@dataclass(slots=True)
class _Resumption:
    """Where the run goes on from: a checkpoint or the beginning, and the epochs of the log from there on, as far as
    they were read."""

    manifest: Manifest | None
    way: Continuation
    number: int
    epoch: int
    start: int
    replay: _Replay
    offsets: Mapping[str, Any]
    position: int
    """The first record that was not read."""
    resume: Any = None
    """What `decide` said besides the way."""
    void: list[int] = field(default_factory=list)
    """Torn records before `position`, which the next owner declares void."""

    @property
    def about(self) -> Mapping[str, Any]:
        return {} if self.manifest is None else self.manifest.about

    @property
    def done(self) -> int:
        """Epochs below this one are in the newest checkpoint."""
        return int(self.about.get("epoch", 0))


class _TakingOver:
    """The steps of `take_over`, in the order that the law someone runs asks for."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        log: Log,
        identity: str,
        fingerprint: dict[str, Any],
        decide: Decide | None,
        keep_inputs: bool | None,
    ) -> None:
        self._checkpoints = checkpoints
        self._log = log
        self._identity = identity
        self._fingerprint = fingerprint
        self._decide = decide
        self._keep_inputs = keep_inputs
        self._manifest: Manifest | None = None
        self._warned: set[str] = set()

    # ---- the two ways in

    def newest(self, keep: int, *, blind: bool) -> Opening:
        """Go on from the newest checkpoint. With `blind`, own the path before the log is read: reading first has
        failed, since the owner before collected what was about to be read."""
        manifest = self._manifest = self._latest()
        resumption = self._open(manifest, keep)
        if blind:
            positions = self._log.positions()
            resumption.position = max(resumption.position, positions[-1] + 1 if positions else 0)
        else:
            self._read_on(resumption)
        owner = self._own(resumption, blind=blind)

        def owned() -> Opening:
            self._check_end(owner)
            newest, now = self._latest(), resumption
            if blind or _number(newest) != _number(manifest):
                now = self._open(newest, keep)
            self._read_on(now, owner - 1)
            return self._opening(now, owner)

        return _insist(owned)

    def go_back(self, number: int, keep: int) -> Opening:
        """Go on from an older checkpoint, which becomes the newest one (the *going back* law of `log`)."""
        checkpoints = self._checkpoints
        there = checkpoints.numbers()
        if number not in there:
            listed = ", ".join(map(str, there)) or "none"
            raise CheckpointError(
                "checkpoint.missing",
                f"cannot go back to checkpoint {number}: there are: {listed}",
                hint="`riverrun checkpoints PATH` lists them; flow.run(retain=N) keeps more of them",
                number=number,
            )
        resumption = self._open(checkpoints.load(number), keep)
        self._read_on(resumption)
        owner = self._own(resumption)

        def owned() -> Opening:
            self._check_end(owner)
            self._read_on(resumption, owner - 1)
            return self._opening(resumption, owner)

        opening = _insist(owned)
        if number == _insist(checkpoints.numbers)[-1]:
            return opening
        newest = checkpoints.again(number, {"owner": opening.owner})
        _LOG.warning(
            "checkpoint %d is taken in place of %d, and is the newest now, as %d; %d epochs of the log are done again",
            number, there[-1], newest.number, len(opening.pending),
        )  # fmt: skip
        number = newest.number if opening.number else 0  # 0: all is done again from the start
        return replace(opening, number=number, base=newest.number, top=newest.number)

    # ---- one step after the other

    def _latest(self) -> Manifest | None:
        """The newest checkpoint that is whole. Damaged newer ones are logged, once each."""
        manifest = self._checkpoints.latest()
        for skipped in manifest.skipped if manifest is not None else ():
            assert manifest is not None
            if skipped.message not in self._warned:
                self._warned.add(skipped.message)
                _LOG.warning(
                    "a damaged manifest is left out, the run goes on from checkpoint %d and the log: %s",
                    manifest.number, skipped.message,
                )  # fmt: skip
        return manifest

    def _open(self, manifest: Manifest | None, keep: int) -> _Resumption:
        """Decide how to go on from a checkpoint; nothing of the log is read yet."""
        if manifest is None:
            return _Resumption(None, Continuation.STRAIGHT, 0, 0, 0, _Replay(0, 0, {}, keep), {}, 0)
        about, number = manifest.about, manifest.number
        way, resume = Continuation.STRAIGHT, None
        for missing in ("epoch", "position", "owner"):
            if missing not in about:
                raise CheckpointError(
                    "checkpoint.foreign",
                    f"cannot resume from checkpoint {number}: it has no {missing}, so no run wrote it",
                    hint="check the path: this one holds states that were saved by hand",
                )
        say_version(manifest)
        epoch, start = int(about["epoch"]), int(about["position"])
        program = about.get("fingerprint", {})
        if self._decide is None:
            _check_fingerprint(program, self._fingerprint, f"checkpoint {number}")
        else:
            way, resume = self._decide(
                manifest, self._log.positions()[:start] == list(range(start))
            )
        if way is Continuation.REPLAY:
            return _Resumption(manifest, way, 0, 0, 0, _Replay(0, 0, {}, keep), {}, 0, resume)
        replay = _Replay(epoch, start, program, keep)
        replay.whole_from = about.get("kept")
        replay.owner = int(about["owner"])
        return _Resumption(
            manifest, way, number, epoch, start, replay, about.get("offsets", {}), start, resume
        )

    def _read_on(self, resumption: _Resumption, last: int | None = None) -> None:
        """Read the records up to position `last`, by default all, and refuse epochs that this program cannot do."""
        if last is None:
            positions = self._log.positions()
            last = positions[-1] if positions else -1
        compared = self._fingerprint if self._decide is None else None
        while resumption.position <= last:
            resumption.void = _read(
                self._log, resumption.position, last, resumption.replay, compared, resumption.void
            )
            resumption.position += 1
        if self._decide is not None:
            resumption.replay.check_inputs(self._fingerprint, resumption.done)

    def _own(self, resumption: _Resumption, *, blind: bool = False) -> int:
        """Own the path; return the position of the ``opened`` record. With `blind`, records that the owner before has
        appended meanwhile are not read first."""
        for _ in range(0 if blind else CHASES):
            if _create(self._log, resumption.position, self._opened(resumption)):
                self._log.own(resumption.position)
                return resumption.position
            # The owner before was faster, and its record counts.
            self._read_on(resumption, resumption.position)
        # The owner before appends faster than this run reads: own the path first, and read its records then.
        record, position = self._opened(resumption, blind=True), resumption.position
        while not _create(self._log, position, record):
            position += 1
        self._log.own(position)
        return position

    def _opened(self, resumption: _Resumption, *, blind: bool = False) -> bytes:
        """The bytes of this run's ``opened`` record.

        With `blind`, not all records before this one were read. It then says nothing about keeping the log whole unless
        the user has: the promise of the record before goes on to count (the *promised at the start* law of `log`).
        """
        header: dict[str, Any] = {
            "kind": "opened", "identity": self._identity, "fingerprint": self._fingerprint,
            "void": resumption.void,
        }  # fmt: skip
        if not blind or self._keep_inputs is not None:
            header["kept"] = self._whole_from(resumption)
        return encode_record(Record(header))

    def _whole_from(self, resumption: _Resumption) -> int | None:
        """From which epoch on the log is kept whole: as the user says now, or else as was promised before (the
        *promised at the start* law of `log`)."""
        promised = resumption.replay.whole_from
        if self._keep_inputs is None:
            return promised
        if not self._keep_inputs:
            return None
        return resumption.done if promised is None else promised

    def _check_end(self, owner: int) -> None:
        """Raise if the log ends elsewhere: this run may have been so slow that its position was used before, covered by
        a checkpoint, and collected (the *one owner* law of `log`)."""
        newest = self._checkpoints.latest()
        if newest is not None and int(newest.about["position"]) > owner:
            raise _gap(owner, int(newest.about["position"]))

    def _opening(self, resumption: _Resumption, owner: int) -> Opening:
        replay, about = resumption.replay, resumption.about
        acknowledged, is_exact = self._acknowledged(replay)
        top = max(self._checkpoints.numbers(), default=0)
        replay.close()  # only now that all records are read; a repeated try comes here again
        pending, epoch = replay.pending, resumption.epoch
        if resumption.way is Continuation.BACKFILL:
            epoch -= 1
            pending = [PendingEpoch(resumption.start - 1, {}), *pending]
        return Opening(
            owner=owner,
            number=resumption.number,
            epoch=epoch,
            start=resumption.start,
            top=top,
            next=owner + 1,
            pending=tuple(pending),
            reported=max(acknowledged, resumption.done),
            doubtful=0 if is_exact else epoch + len(pending),
            application=about.get("application", {}),
            offsets=resumption.offsets,
            done=resumption.done,
            base=0 if resumption.manifest is None else resumption.manifest.number,
            covered=int(about.get("position", 0)),
            whole_from=self._whole_from(resumption),
            about=about if resumption.number else {},
            resume=resumption.resume,
        )

    def _acknowledged(self, replay: _Replay) -> tuple[int, bool]:
        """How many epochs may have been acknowledged (the law acknowledged or not), and whether that is exact."""
        notes = read_notes(self._log.storage)
        reported = max([replay.reported, *(note.epoch for note in notes)])
        if any(note.is_exact and note.owner == replay.owner for note in notes):
            return reported, True
        ours = json.loads(json.dumps(self._fingerprint))
        for at, pending in enumerate(replay.pending):
            if not pending.refused and replay.program_of(pending) != ours:
                reported = max(reported, replay.epoch + at + 1)
        return reported, False

    # ---- when something is gone

    @property
    def is_overtaken(self) -> bool:
        """Whether there is a newer checkpoint by now than the one that was looked at."""
        return _number(self._checkpoints.latest()) not in (0, _number(self._manifest))

    def explain_missing(self, error: CheckpointError) -> CheckpointError:
        """The error to raise where a record or a checkpoint is gone, and no newer checkpoint makes up for it."""
        if self._checkpoints.latest() is None and self._checkpoints.numbers():
            return _nothing_whole(self._checkpoints, error)
        return error


def _insist(act: Callable[[], T]) -> T:
    """Try again what fails: the owner before is put out already, so no other run would go on."""
    return persist(act, "take the path over", deadline=SOON)


def _number(manifest: Manifest | None) -> int:
    return 0 if manifest is None else manifest.number


def _create(log: Log, position: int, data: bytes) -> bool:
    return persist(lambda: log.create(position, data), "own the log", deadline=SOON)


def _read(
    log: Log,
    position: int,
    last: int,
    replay: _Replay,
    fingerprint: dict[str, Any] | None,
    void: list[int],
) -> list[int]:
    """Read one record into the replay; return the torn records that the next owner has to declare void."""
    try:
        record = log.read(position)
    except CheckpointError as error:
        if error.code == "checkpoint.missing":
            raise _gap(position, last) from error
        if error.code != "log.corrupt":
            raise
        following = _next_whole(log, position, last)
        if following is None:
            if not error.fields.get("torn"):
                if position < last:
                    raise
                raise _last_damaged(error) from error
            _LOG.warning("the log ends with a torn record, which is left out: %s", error.message)
            return [*void, position]
        if position not in following.header.get("void", ()):
            raise
        return void
    if record.header["kind"] == "opened":
        replay.program = record.header.get("fingerprint", {})
        if fingerprint is not None:
            _check_fingerprint(replay.program, fingerprint, f"the log from {position} on")
    replay.take(position, record)
    return []


def _next_whole(log: Log, position: int, last: int) -> Record | None:
    for later in range(position + 1, last + 1):
        try:
            return log.read(later)
        except CheckpointError as error:
            if error.code != "log.corrupt":
                raise
    return None


class _Replay:
    """The epochs of the log from a checkpoint on (the law deterministic replay), and as many of their rows as fit (the
    law bounded)."""

    def __init__(self, epoch: int, start: int, program: Mapping[str, Any], keep: int) -> None:
        self.epoch = epoch
        self.start = start
        self.program = program
        """The fingerprint of the program that logged the records that are read now."""
        self._programs: dict[int, Mapping[str, Any]] = {}
        self.pending: list[PendingEpoch] = []
        self.reported = epoch
        self.whole_from: int | None = None
        """The log was promised to be kept whole from this epoch on."""
        self.owner = -1
        """The position of the last ``opened`` record."""
        self._room = keep

    def take(self, position: int, record: Record) -> None:
        header = record.header
        if header["kind"] == "epoch":
            if header["epoch"] == self.epoch + len(self.pending) - 1:
                self.close()
            expected = self.epoch + len(self.pending)
            if header["epoch"] != expected:
                raise CheckpointError(
                    "log.order",
                    f"cannot replay record {position} of the log: it is epoch {header['epoch']}, "
                    f"and epoch {expected} comes next",
                    hint="files of another run were put here, or removed; use another path",
                    position=position,
                )
            self.pending.append(
                self._limit_rows(PendingEpoch(position, record.inputs, header=header))
            )
            self._programs[position] = self.program
            self.reported = max(self.reported, int(header.get("reported", 0)))
        elif header["kind"] == "opened":
            self.owner = position
            self.whole_from = header.get("kept", self.whole_from)
        elif header["kind"] == "refused" and header["refused"] >= self.start:
            at = header["epoch"] - self.epoch
            self._room += _size(self.pending[at].inputs)
            refused = PendingEpoch(self.pending[at].position, {}, refused=True, header=header)
            self.pending[at] = refused
            self.reported = max(self.reported, int(header.get("reported", 0)))

    def program_of(self, pending: PendingEpoch) -> Mapping[str, Any]:
        """The fingerprint of the program that logged an epoch."""
        return self._programs[pending.position]

    def _limit_rows(self, pending: PendingEpoch) -> PendingEpoch:
        """The epoch with its rows where there is room for them, otherwise as a dropped one."""
        size = _size(pending.inputs)
        if size <= self._room:
            self._room -= size
            return pending
        return replace(pending, inputs={}, dropped=True, names=tuple(pending.inputs))

    def check_inputs(self, fingerprint: Mapping[str, Any], done: int) -> None:
        """Refuse a program in which an input with rows is not what it was (the law rows, not programs). Epochs below
        `done` are in a checkpoint: there, rows of inputs that are gone are left out."""
        for at, pending in enumerate(self.pending):
            program, parcels = self._programs[pending.position], pending.header.get("parcels", {})
            if not program or pending.refused:
                continue
            names = {*pending.inputs, *pending.names, *parcels}
            for name in sorted(names):
                was, now = program.get(name), fingerprint.get(name)
                if was != now and (now is not None or self.epoch + at >= done):
                    raise _other_input(name, was, now)
            if not names <= fingerprint.keys():
                header = {**pending.header}
                header["parcels"] = {n: p for n, p in parcels.items() if n in fingerprint}
                inputs = {n: rows for n, rows in pending.inputs.items() if n in fingerprint}
                left = tuple(n for n in pending.names if n in fingerprint)
                self.pending[at] = replace(pending, inputs=inputs, header=header, names=left)

    def close(self) -> None:
        """Leave out a refused epoch that is the last one: its number is free. An epoch that was refused while later
        ones waited behind it keeps its number (`keeps_number`), and stays."""
        last = self.pending[-1] if self.pending else None
        if last is not None and last.refused and not last.header.get("keeps_number"):
            self.pending.pop()


def _size(inputs: Mapping[str, pa.RecordBatch]) -> int:
    return sum(batch.nbytes for batch in inputs.values())


def _check_fingerprint(theirs: Mapping[str, Any], ours: dict[str, Any], where: str) -> None:
    """Refuse a path that another program wrote to. Fingerprints are compared as JSON, the form they are stored in."""
    ours = json.loads(json.dumps(ours))
    differ = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    if not differ:
        return
    said = "; ".join(
        f"{key!r} was {theirs.get(key, 'not there')!r} and is {ours.get(key, 'not there')!r}"
        for key in differ
    )
    raise CheckpointError(
        "checkpoint.incompatible",
        f"cannot resume from {where}: it is of another program: {said}",
        hint="run the program that wrote it, or use another checkpoint path",
        differ=differ,
    )


def _other_input(name: str, was: str | None, now: str | None) -> CheckpointError:
    return CheckpointError(
        "checkpoint.incompatible",
        f"cannot resume: the log has rows for the input {name!r} that are still to be worked on, and it has changed"
        f"\n    was: {was or 'not there'}\n    is:  {now or 'not there'}",
        hint="run the program that wrote them up to its next checkpoint (run.checkpoint()), or use another path",
        differ=[name],
    )


def _last_damaged(error: CheckpointError) -> CheckpointError:
    """The error for a last record that is damaged otherwise than by a power cut."""
    return CheckpointError(
        "log.corrupt",
        f"{error.message}; it is the last record, and was written whole: its epoch may have been acknowledged",
        hint="put a copy of the file there; or delete the file, if its rows may be lost or can be inserted again: the "
        "log then ends with the record before",
        **error.fields,
    )


def _nothing_whole(checkpoints: Checkpoints, error: CheckpointError) -> CheckpointError:
    damaged = ", ".join(map(manifest_name, checkpoints.numbers()))
    return CheckpointError(
        "checkpoint.corrupt",
        f"cannot resume: no checkpoint is whole (damaged: {damaged}), and the log does not go back to the beginning: "
        f"{error.message}",
        hint="put a copy of one of these files there, or start anew on another path",
    )


def _gap(position: int, last: int) -> CheckpointError:
    return CheckpointError(
        "log.gap",
        f"cannot replay the log: record {position} is missing, and there are records up to {last}",
        hint="records were removed by hand, or the checkpoint that covers them was",
        position=position,
    )
