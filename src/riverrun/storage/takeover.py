"""Taking over: how a run comes to own its checkpoint path, and learns what is there to go on from.

Every run with a checkpoint path begins with `take_over`, also at an empty path. It looks at the newest checkpoint and
at the log behind it, writes an ``opened`` record, and returns an `Opening`: which checkpoint to go back to, and which
epochs to do again. Laws:

- **Someone runs.** A run that takes over looks first: if it cannot go on from what is there, it raises before it
  owns the path, and the owner before goes on. Then it appends its ``opened`` record, which puts the owner before
  out, also where that owner appends faster than its successor reads. Then it goes on from the checkpoint that is the
  newest by then. An owner that was put out may still publish a checkpoint of a prefix of the log, but collects nothing:
  whoever collects looks for a successor before it looks at what is retained (`runtime.storage_calls`).
- **Deterministic replay.** The epochs from a checkpoint on are returned in order, each with the number that it had
  (`replay`).
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

from riverrun.errors import CheckpointError
from riverrun.retry import SOON, persist
from riverrun.storage.acknowledged import read_notes
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.log import Log
from riverrun.storage.manifest import Manifest, manifest_name, say_version
from riverrun.storage.records import Record, encode_record
from riverrun.storage.replay import KEEP, PendingEpoch, Replay, check_fingerprint, log_gap

TRIES = 20
LOOKS = 5  # tries that look before they own the path; later ones own it first
CHASES = 8  # tries to append where the log ends, while the owner before appends faster

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


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
    claim = _Claim(identity, dict(fingerprint or {}), decide, keep_inputs, keep)
    taking = _TakingOver(checkpoints, log, claim)
    if number is not None:
        return taking.go_back(number)
    for tries in range(TRIES):
        try:
            return taking.newest(blind=tries >= LOOKS)
        except CheckpointError as error:
            # The owner before may have published and collected during the reading.
            if error.code not in ("log.gap", "checkpoint.missing") or tries + 1 == TRIES:
                raise
            if not taking.is_overtaken:
                raise taking.explain_missing(error) from error
    raise AssertionError("not reached")


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a run brings along that wants to own a path."""

    identity: str
    fingerprint: dict[str, Any]
    decide: Decide | None
    keep_inputs: bool | None
    keep: int


@dataclass(frozen=True, slots=True)
class _Resumption:
    """Where the run goes on from: a checkpoint or the beginning, and the epochs of the log from there on, as far as
    they were read."""

    manifest: Manifest | None
    replay: Replay
    way: Continuation = Continuation.STRAIGHT
    number: int = 0
    """The checkpoint whose states are of use; 0 for none."""
    offsets: Mapping[str, Any] = field(default_factory=dict)
    resume: Any = None
    """What `decide` said besides the way."""

    @property
    def about(self) -> Mapping[str, Any]:
        return {} if self.manifest is None else self.manifest.about

    @property
    def done(self) -> int:
        """Epochs below this one are in the newest checkpoint."""
        return int(self.about.get("epoch", 0))

    def whole_from(self, keep_inputs: bool | None) -> int | None:
        """From which epoch on the log is kept whole: as the user says now, or else as was promised before (the
        *promised at the start* law of `log`)."""
        promised = self.replay.whole_from
        if keep_inputs is None:
            return promised
        if not keep_inputs:
            return None
        return self.done if promised is None else promised


class _TakingOver:
    """The steps of `take_over`, in the order that the law someone runs asks for: `_StartChoice` says where to begin,
    `_PathOwner` owns the path, and `_opening` tells what was found."""

    def __init__(self, checkpoints: Checkpoints, log: Log, claim: _Claim) -> None:
        self._checkpoints = checkpoints
        self._log = log
        self._claim = claim
        self._choice = _StartChoice(checkpoints, log, claim)
        self._owner = _PathOwner(checkpoints, log, claim)
        self._looked_at = 0
        """The newest checkpoint when the path began to be taken over, for the last time; 0 where there was none."""

    # ---- the two ways in

    def newest(self, *, blind: bool) -> Opening:
        """Go on from the newest checkpoint. With `blind`, own the path before the log is read: reading first has
        failed, since the owner before collected what was about to be read."""
        manifest = self._choice.newest()
        self._looked_at = _number(manifest)
        resumption = self._choice.go_on_from(manifest)
        if blind:
            replay, positions = resumption.replay, self._log.positions()
            replay.position = max(replay.position, positions[-1] + 1 if positions else 0)
        else:
            self._choice.read_on(resumption)
        owner = self._owner.own(resumption, None if blind else self._choice)

        def owned() -> Opening:
            self._owner.check_end(owner)
            newest, now = self._choice.newest(), resumption
            if blind or _number(newest) != _number(manifest):
                now = self._choice.go_on_from(newest)
            self._choice.read_on(now, owner - 1)
            return self._opening(now, owner)

        return _insist(owned)

    def go_back(self, number: int) -> Opening:
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
        resumption = self._choice.go_on_from(checkpoints.load(number))
        self._choice.read_on(resumption)
        owner = self._owner.own(resumption, self._choice)

        def owned() -> Opening:
            self._owner.check_end(owner)
            self._choice.read_on(resumption, owner - 1)
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

    # ---- what was found

    def _opening(self, resumption: _Resumption, owner: int) -> Opening:
        replay, about = resumption.replay, resumption.about
        acknowledged, is_exact = self._acknowledged(replay)
        top = max(self._checkpoints.numbers(), default=0)
        replay.close()  # only now that all records are read; a repeated try comes here again
        pending, epoch = replay.pending, replay.epoch
        if resumption.way is Continuation.BACKFILL:
            epoch -= 1
            pending = [PendingEpoch(replay.start - 1, {}), *pending]
        return Opening(
            owner=owner,
            number=resumption.number,
            epoch=epoch,
            start=replay.start,
            top=top,
            next=owner + 1,
            pending=tuple(pending),
            reported=max(acknowledged, resumption.done),
            doubtful=0 if is_exact else epoch + len(pending),
            application=about.get("application", {}),
            offsets=resumption.offsets,
            done=resumption.done,
            base=_number(resumption.manifest),
            covered=int(about.get("position", 0)),
            whole_from=resumption.whole_from(self._claim.keep_inputs),
            about=about if resumption.number else {},
            resume=resumption.resume,
        )

    def _acknowledged(self, replay: Replay) -> tuple[int, bool]:
        """How many epochs may have been acknowledged (the law acknowledged or not), and whether that is exact."""
        notes = read_notes(self._log.storage)
        reported = max([replay.reported, *(note.epoch for note in notes)])
        if any(note.is_exact and note.owner == replay.owner for note in notes):
            return reported, True
        ours = json.loads(json.dumps(self._claim.fingerprint))
        for at, pending in enumerate(replay.pending):
            if not pending.refused and replay.program_of(pending) != ours:
                reported = max(reported, replay.epoch + at + 1)
        return reported, False

    # ---- when something is gone

    @property
    def is_overtaken(self) -> bool:
        """Whether there is a newer checkpoint by now than the one that was looked at."""
        return _number(self._checkpoints.latest()) not in (0, self._looked_at)

    def explain_missing(self, error: CheckpointError) -> CheckpointError:
        """The error to raise where a record or a checkpoint is gone, and no newer checkpoint makes up for it."""
        if self._checkpoints.latest() is None and self._checkpoints.numbers():
            return _nothing_whole(self._checkpoints, error)
        return error


class _StartChoice:
    """Says where a run goes on from, and refuses what it cannot go on from."""

    def __init__(self, checkpoints: Checkpoints, log: Log, claim: _Claim) -> None:
        self._checkpoints = checkpoints
        self._log = log
        self._claim = claim
        self._warned: set[str] = set()

    def newest(self) -> Manifest | None:
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

    def go_on_from(self, manifest: Manifest | None) -> _Resumption:
        """Decide how to go on from a checkpoint; nothing of the log is read yet."""
        if manifest is None:
            return _Resumption(None, self._replay())
        about, number = manifest.about, manifest.number
        for missing in ("epoch", "position", "owner"):
            if missing not in about:
                raise CheckpointError(
                    "checkpoint.foreign",
                    f"cannot resume from checkpoint {number}: it has no {missing}, so no run wrote it",
                    hint="check the path: this one holds states that were saved by hand",
                )
        say_version(manifest)
        way, resume = self._decided(manifest)
        if way is Continuation.REPLAY:
            return _Resumption(manifest, self._replay(), way, resume=resume)
        replay = self._replay(manifest)
        return _Resumption(manifest, replay, way, number, about.get("offsets", {}), resume)

    def _decided(self, manifest: Manifest) -> tuple[Continuation, Any]:
        program, start = manifest.about.get("fingerprint", {}), int(manifest.about["position"])
        if self._claim.decide is None:
            check_fingerprint(program, self._claim.fingerprint, f"checkpoint {manifest.number}")
            return Continuation.STRAIGHT, None
        has_all_epochs = self._log.positions()[:start] == list(range(start))
        return self._claim.decide(manifest, has_all_epochs)

    def _replay(self, manifest: Manifest | None = None) -> Replay:
        """The epochs from a checkpoint on, or all; none is read yet."""
        compared = self._claim.fingerprint if self._claim.decide is None else None
        if manifest is None:
            return Replay(keep=self._claim.keep, compared=compared)
        about = manifest.about
        replay = Replay(
            int(about["epoch"]),
            int(about["position"]),
            about.get("fingerprint", {}),
            keep=self._claim.keep,
            compared=compared,
        )
        replay.whole_from = about.get("kept")
        replay.owner = int(about["owner"])
        return replay

    def read_on(self, resumption: _Resumption, last: int | None = None) -> None:
        """Read the records up to position `last`, by default all, and refuse epochs that this program cannot do."""
        if last is None:
            positions = self._log.positions()
            last = positions[-1] if positions else -1
        resumption.replay.read_on(self._log, last)
        if self._claim.decide is not None:
            resumption.replay.check_inputs(self._claim.fingerprint, resumption.done)


class _PathOwner:
    """Owns the path, by a record in the log."""

    def __init__(self, checkpoints: Checkpoints, log: Log, claim: _Claim) -> None:
        self._checkpoints = checkpoints
        self._log = log
        self._claim = claim

    def own(self, resumption: _Resumption, reader: _StartChoice | None) -> int:
        """Own the path; return the position of the ``opened`` record. Without a reader, records that the owner before
        has appended meanwhile are not read first."""
        replay = resumption.replay
        for _ in range(0 if reader is None else CHASES):
            if self._create(replay.position, self._opened(resumption)):
                return replay.position
            # The owner before was faster, and its record counts.
            assert reader is not None
            reader.read_on(resumption, replay.position)
        # The owner before appends faster than this run reads: own the path first, and read its records then.
        record, position = self._opened(resumption, blind=True), replay.position
        while not self._create(position, record):
            position += 1
        return position

    def _create(self, position: int, record: bytes) -> bool:
        """Put the ``opened`` record at a position, if nothing is there; whether that made this run the owner."""
        owns = persist(lambda: self._log.create(position, record), "own the log", deadline=SOON)
        if owns:
            self._log.own(position)
        return owns

    def _opened(self, resumption: _Resumption, *, blind: bool = False) -> bytes:
        """The bytes of this run's ``opened`` record.

        With `blind`, not all records before this one were read. It then says nothing about keeping the log whole unless
        the user has: the promise of the record before goes on to count (the *promised at the start* law of `log`).
        """
        claim = self._claim
        header: dict[str, Any] = {
            "kind": "opened", "identity": claim.identity, "fingerprint": claim.fingerprint,
            "void": resumption.replay.void,
        }  # fmt: skip
        if not blind or claim.keep_inputs is not None:
            header["kept"] = resumption.whole_from(claim.keep_inputs)
        return encode_record(Record(header))

    def check_end(self, owner: int) -> None:
        """Raise if the log ends elsewhere: this run may have been so slow that its position was used before, covered by
        a checkpoint, and collected (the *one owner* law of `log`)."""
        newest = self._checkpoints.latest()
        if newest is not None and int(newest.about["position"]) > owner:
            raise log_gap(owner, int(newest.about["position"]))


def _insist(act: Callable[[], T]) -> T:
    """Try again what fails: the owner before is put out already, so no other run would go on."""
    return persist(act, "take the path over", deadline=SOON)


def _number(manifest: Manifest | None) -> int:
    return 0 if manifest is None else manifest.number


def _nothing_whole(checkpoints: Checkpoints, error: CheckpointError) -> CheckpointError:
    damaged = ", ".join(map(manifest_name, checkpoints.numbers()))
    return CheckpointError(
        "checkpoint.corrupt",
        f"cannot resume: no checkpoint is whole (damaged: {damaged}), and the log does not go back to the beginning: "
        f"{error.message}",
        hint="put a copy of one of these files there, or start anew on another path",
    )
