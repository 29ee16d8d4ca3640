"""Taking over: a run owns its checkpoint path from here on, and learns what the path has for it.

Every run with a checkpoint path begins so, the first one at an empty path too. `take_over` looks at the newest
checkpoint and at the log behind it, writes an ``opened`` record, and returns an `Opening`: which checkpoint to go back
to, and which epochs to do again. Laws:

- **Someone runs.** Whoever takes over looks first, and refuses what it cannot go on from while the owner before still
  owns the path. Then it puts that owner out, by its ``opened`` record, also where the owner appends faster than its
  successor reads. After that it goes on from the checkpoint that is the newest *then*. The owner before may still
  publish a checkpoint of a prefix of the log, but collects nothing: whoever collects looks for a successor before it
  looks at what is retained (`runtime.storage_calls`).
- **Deterministic replay.** The epochs from a checkpoint on are given in order, each with the number that it had: a
  refused epoch goes away if the next one has its number, and otherwise stays, without rows.
- **Rows, not programs.** A record holds rows of inputs, whatever a program made of them; whether a program can go on
  from a checkpoint is for whoever takes over to `decide`. But an input that an epoch to be done has rows for is what it
  was when they were logged: the ``opened`` record before says what that was, or the checkpoint where it covers that
  record. (Rows of an input that is gone do not count in epochs that a checkpoint has, and that are done again from the
  start.)
- **Bounded.** Records are read one after the other, and the rows that fit into `keep` bytes are brought along. Those of
  the other epochs are in the log only, and `PendingEpoch.dropped` says so; they stay there, by the law someone runs.
- **Acknowledged or not.** `Opening.reported` is how many epochs anybody may have been told of as complete
  (`acknowledged`). Those after it were never acknowledged: where one fails again, it is refused.

Why the checkpoint that someone goes on from stays: let M be the newest checkpoint after the ``opened`` record was
there. Whoever decides to collect after that record finds it, and deletes nothing. Whoever has decided before has seen
no checkpoint newer than M; the newest one that it has seen, K, is kept, with all files that K names. M is K, or was
built on it: then its files are numbered higher than K, or K names them. Records of the log go only below what K covers,
and M covers no less.

>>> from riverrun.storage.store import open_storage
>>> storage = open_storage("memory:///")
>>> first = take_over(Checkpoints(storage), Log(storage), identity="a")
>>> second = take_over(Checkpoints(storage), Log(storage), identity="b")
>>> (first.owner, first.next), (second.owner, second.next), second.pending
((0, 1), (1, 2), ())

Cost: reads the records behind the checkpoint; what was not brought along is read once more when it is done.
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


LOOKS = 5  # so often what is gone on from is looked at before the path is owned


CHASES = 8  # so often the owner before may be faster


KEEP = 256 << 20  # bytes of rows


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
    """Whether the rows are in the log only (law bounded)."""
    names: tuple[str, ...] = ()
    """Of a dropped one, the inputs that it has rows of."""


class Continuation(Enum):
    """How one goes on from a checkpoint."""

    STRAIGHT = "straight"
    """With its states."""
    BACKFILL = "backfill"
    """With those of its states that are of use, from one epoch before, which is run again for the others."""
    REPLAY = "replay"
    """With none: all epochs are done again."""


Decide: TypeAlias = Callable[[Manifest, bool], Continuation]
"""Says how to go on from a checkpoint, or refuses it. It is told whether the log has all epochs."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a run finds at its path when it takes it over."""

    owner: int
    """The position of its ``opened`` record: later owners have greater ones."""
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
    """Epochs below may have been acknowledged; those from here on never were (law acknowledged or not)."""
    doubtful: int = 0
    """Of the epochs below it is not known exactly which ones were acknowledged: `reported` is a guess; 0 where it is
    known."""
    application: Mapping[str, Any] = field(default_factory=dict)
    """What the checkpoint keeps for the application."""
    offsets: Mapping[str, Any] = field(default_factory=dict)
    """How far streams had come with the checkpoint."""
    done: int = 0
    """Epochs below are in the newest checkpoint, be it that they are run again: they are not reported again."""
    base: int = 0
    """The newest checkpoint; that to go back to, where its states are of use."""
    covered: int = 0
    """The position of the first record that the newest checkpoint does not cover."""
    kept: int | None = None
    """The log keeps all epochs from this one on; None where it keeps what recovery needs."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the checkpoint to go back to says of the program that wrote it."""


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
    """Own the path from here on, and find what it has. `identity` is a word that nobody else uses.

    Without `decide`, a program with another fingerprint is refused. With `keep_inputs` the log is kept whole; without
    either, as it was. With a `number`, go back to that checkpoint in place of the newest (law going back of the log).
    `keep` is how many bytes of rows are brought along (law bounded).
    """
    keep = KEEP if keep is None else keep
    taking = _TakingOver(checkpoints, log, identity, dict(fingerprint or {}), decide, keep_inputs)
    if number is not None:
        return taking.go_back(number, keep)
    for tries in range(TRIES):
        try:
            return taking.newest(keep, blind=tries >= LOOKS)
        except CheckpointError as error:
            # The owner before may have published and collected while we were reading.
            if error.code not in ("log.gap", "checkpoint.missing") or tries + 1 == TRIES:
                raise
            if not taking.is_overtaken:
                raise taking.explained(error) from error
    raise AssertionError("not reached")


@dataclass(slots=True)
class _Found:
    """A checkpoint, or the beginning, and the epochs of the log from there on, as far as they were read."""

    manifest: Manifest | None
    way: Continuation
    number: int
    epoch: int
    start: int
    replay: _Replay
    offsets: Mapping[str, Any]
    position: int
    """The first record that was not read."""
    void: list[int] = field(default_factory=list)
    """Torn records before that one, which the next owner declares void."""

    @property
    def about(self) -> Mapping[str, Any]:
        return {} if self.manifest is None else self.manifest.about

    @property
    def done(self) -> int:
        """Epochs below are in the newest checkpoint."""
        return int(self.about.get("epoch", 0))


class _TakingOver:
    """The work of `take_over`: what is looked at, and in which order (law someone runs)."""

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
        """Go on from the newest checkpoint. `blind`: own the path before the log is read, which went away meanwhile."""
        manifest = self._manifest = self._latest()
        found = self._open(manifest, keep)
        if blind:
            positions = self._log.positions()
            found.position = max(found.position, positions[-1] + 1 if positions else 0)
        else:
            self._read_on(found)
        owner = self._own(found, blind=blind)

        def owned() -> Opening:
            self._check_end(owner)
            newest, now = self._latest(), found
            if blind or _number(newest) != _number(manifest):
                now = self._open(newest, keep)
            self._read_on(now, owner - 1)
            return self._opening(now, owner)

        return _insist(owned)

    def go_back(self, number: int, keep: int) -> Opening:
        """Go on from an older checkpoint, which becomes the newest one (law going back of the log)."""
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
        found = self._open(checkpoints.load(number), keep)
        self._read_on(found)
        owner = self._own(found)

        def owned() -> Opening:
            self._check_end(owner)
            self._read_on(found, owner - 1)
            return self._opening(found, owner)

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
        """The newest checkpoint that is whole; newer ones that are not are said, once."""
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

    def _open(self, manifest: Manifest | None, keep: int) -> _Found:
        """Decide how to go on from a checkpoint; nothing of the log is read yet."""
        if manifest is None:
            return _Found(None, Continuation.STRAIGHT, 0, 0, 0, _Replay(0, 0, {}, keep), {}, 0)
        about, number, way = manifest.about, manifest.number, Continuation.STRAIGHT
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
            way = self._decide(manifest, self._log.positions()[:start] == list(range(start)))
        if way is Continuation.REPLAY:
            return _Found(manifest, way, 0, 0, 0, _Replay(0, 0, {}, keep), {}, 0)
        replay = _Replay(epoch, start, program, keep)
        replay.kept = about.get("kept")
        replay.owner = int(about["owner"])
        return _Found(manifest, way, number, epoch, start, replay, about.get("offsets", {}), start)

    def _read_on(self, found: _Found, last: int | None = None) -> None:
        """Read the records up to the last one, and refuse epochs that this program cannot do."""
        if last is None:
            positions = self._log.positions()
            last = positions[-1] if positions else -1
        compared = self._fingerprint if self._decide is None else None
        while found.position <= last:
            found.void = _read(self._log, found.position, last, found.replay, compared, found.void)
            found.position += 1
        if self._decide is not None:
            found.replay.check_inputs(self._fingerprint, found.done)

    def _own(self, found: _Found, *, blind: bool = False) -> int:
        """Own the path: the position of the record that says so. `blind`: without reading what was appended."""
        for _ in range(0 if blind else CHASES):
            if _create(self._log, found.position, self._opened(found)):
                self._log.own(found.position)
                return found.position
            self._read_on(found, found.position)  # the owner before was faster: its record counts
        # It appends faster than we read: own the path first, and read then what it has appended.
        record, position = self._opened(found, blind=True), found.position
        while not _create(self._log, position, record):
            position += 1
        self._log.own(position)
        return position

    def _opened(self, found: _Found, *, blind: bool = False) -> bytes:
        """The record of an owner. One that has not read all records before it says nothing of a promise that it was
        not asked to change: the promise of the record before it goes on to count (law promised at the start of the
        log).
        """
        header: dict[str, Any] = {
            "kind": "opened", "identity": self._identity, "fingerprint": self._fingerprint,
            "void": found.void,
        }  # fmt: skip
        if not blind or self._keep_inputs is not None:
            header["kept"] = self._kept(found)
        return encode_record(Record(header))

    def _kept(self, found: _Found) -> int | None:
        """The first epoch of a log that is kept whole: as is asked for now, or else as it was promised (law promised
        at the start of the log).
        """
        kept = found.replay.kept
        if self._keep_inputs is None:
            return kept
        if not self._keep_inputs:
            return None
        return found.done if kept is None else kept

    def _check_end(self, owner: int) -> None:
        """We may have been so slow that our position was used, covered and collected: then it is not the end."""
        newest = self._checkpoints.latest()
        if newest is not None and int(newest.about["position"]) > owner:
            raise _gap(owner, int(newest.about["position"]))

    def _opening(self, found: _Found, owner: int) -> Opening:
        replay, about = found.replay, found.about
        acknowledged, is_exact = self._acknowledged(replay)
        top = max(self._checkpoints.numbers(), default=0)
        replay.close()  # when all is read: whoever insists comes here again
        pending, epoch = replay.pending, found.epoch
        if found.way is Continuation.BACKFILL:
            epoch -= 1
            pending = [PendingEpoch(found.start - 1, {}), *pending]
        return Opening(
            owner=owner,
            number=found.number,
            epoch=epoch,
            start=found.start,
            top=top,
            next=owner + 1,
            pending=tuple(pending),
            reported=max(acknowledged, found.done),
            doubtful=0 if is_exact else epoch + len(pending),
            application=about.get("application", {}),
            offsets=found.offsets,
            done=found.done,
            base=0 if found.manifest is None else found.manifest.number,
            covered=int(about.get("position", 0)),
            kept=self._kept(found),
            about=about if found.number else {},
        )

    def _acknowledged(self, replay: _Replay) -> tuple[int, bool]:
        """How many epochs somebody may have been told of as complete (law acknowledged or not), and whether that is
        no guess.
        """
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
        """Whether there is a newer checkpoint than the one that was looked at."""
        return _number(self._checkpoints.latest()) not in (0, _number(self._manifest))

    def explained(self, error: CheckpointError) -> CheckpointError:
        """Why what is gone cannot be had elsewhere either."""
        if self._checkpoints.latest() is None and self._checkpoints.numbers():
            return _nothing_whole(self._checkpoints, error)
        return error


def _insist(act: Callable[[], T]) -> T:
    """Try again what fails: the owner before is put out, and nobody else would go on."""
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
    """Take one record in; return which ones are void, as far as the next owner has to say it."""
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
                raise _answered_for(error) from error
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
    """The epochs that the log has from a checkpoint on (law deterministic replay), and as many of their rows as fit
    (law bounded).
    """

    def __init__(self, epoch: int, start: int, program: Mapping[str, Any], keep: int) -> None:
        self.epoch = epoch
        self.start = start
        self.program = program
        """What the program was that records are of, which are read now."""
        self._programs: dict[int, Mapping[str, Any]] = {}
        self.pending: list[PendingEpoch] = []
        self.reported = epoch
        self.kept: int | None = None
        """The first epoch of a log that was promised to be kept whole."""
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
            self.pending.append(self._kept(PendingEpoch(position, record.inputs, header=header)))
            self._programs[position] = self.program
            self.reported = max(self.reported, int(header.get("reported", 0)))
        elif header["kind"] == "opened":
            self.owner, self.kept = position, header.get("kept", self.kept)
        elif header["kind"] == "refused" and header["refused"] >= self.start:
            at = header["epoch"] - self.epoch
            self._room += _size(self.pending[at].inputs)
            refused = PendingEpoch(self.pending[at].position, {}, refused=True, header=header)
            self.pending[at] = refused
            self.reported = max(self.reported, int(header.get("reported", 0)))

    def program_of(self, pending: PendingEpoch) -> Mapping[str, Any]:
        """The fingerprint of the program that logged an epoch."""
        return self._programs[pending.position]

    def _kept(self, pending: PendingEpoch) -> PendingEpoch:
        """With its rows, where there is room for them."""
        size = _size(pending.inputs)
        if size <= self._room:
            self._room -= size
            return pending
        return replace(pending, inputs={}, dropped=True, names=tuple(pending.inputs))

    def check_inputs(self, fingerprint: Mapping[str, Any], done: int) -> None:
        """Refuse a program in which an input with rows is not what it was ("Rows, not programs"); `done` are the epochs
        before."""
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
        """The number of a refused epoch is free, where no other epoch has come after it, unless it was promised that
        no other epoch will have it."""
        last = self.pending[-1] if self.pending else None
        if last is not None and last.refused and not last.header.get("keeps_number"):
            self.pending.pop()


def _size(inputs: Mapping[str, pa.RecordBatch]) -> int:
    return sum(batch.nbytes for batch in inputs.values())


def _check_fingerprint(theirs: Mapping[str, Any], ours: dict[str, Any], where: str) -> None:
    """Refuse a path that another program wrote to; compared as JSON, which it was stored as."""
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


def _answered_for(error: CheckpointError) -> CheckpointError:
    """The last record is damaged, and not as a power cut leaves one."""
    return CheckpointError(
        "log.corrupt",
        f"{error.message}; it is the last record, and was written whole: its epoch may have been answered for",
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
