"""The input log: what was accepted and is not yet covered by a checkpoint; and who owns the path.

A log is a sequence of *records*, one file each, named by its position. A record is created, never
changed: `Storage.create` lets one caller have a position, and the next position is used only when
this one is known to be there. Three kinds:

- ``opened``: a run owns the path from here on; with what it was promised at its start (law 9);
- ``epoch``: the input of an epoch, an Arrow batch for each input;
- ``refused``: the epoch at that position failed, and its rows do not count.

Laws:

1. **In order.** Records stand without a gap, from the first that is kept up to the last.
2. **Whole or refused.** A record carries its length and checksums: of its head, which says the length, and of the
   rest. One at the very end that is *torn* (shorter than it says, or nothing but zeros: what a power cut leaves of a
   file that was not `synced`) is declared void by the next owner, with a warning. Any other damage is named and
   refused, at the end too: a record that has its length was written whole, and its epoch may have been answered for.
3. **Repeatable.** Appending the same record again does nothing: that is how a lost answer is
   found out. Somebody else's record at the position means that the path has another owner.
4. **One owner.** The run whose ``opened`` record is last owns the path. An owner before it appends
   next where that record stands, and is refused. ``opened`` records are never deleted, since
   otherwise a position would become free again under somebody who has slept for long; there is
   one for each start of the run. And one who takes over looks at the newest checkpoint once more:
   if it covers the position of its record, that one had been used and collected, and the end of
   the log is elsewhere. (If it had, the checkpoint that covers it was published before, and later
   ones cover no less.)
5. **Deterministic replay.** `take_over` gives the epochs from a checkpoint on, each with the number
   that it had: a refused epoch goes away if the next one has its number, and otherwise stays,
   without rows.
6. **Going back.** The log is kept from where the oldest checkpoint that is there ends: whoever collects
   (`engine.storing`) deletes the manifests of older ones first, and records then. So from every
   checkpoint that can be listed all epochs can be done again, also when newer ones are damaged. The
   one that was gone back to is published once more, as the newest, though it covers less of the log
   than the damaged ones: what law 4 and those who collect late need is only that it covers every
   record that anybody has decided to delete, and that holds for all that are listed.
7. **Rows, not programs.** A record holds rows of inputs, whatever was made of them; whether a program can
   go on from a checkpoint is for whoever takes over to `decide`. But an input that an epoch to be
   done has rows for is what it was when they were logged: the ``opened`` record before says what
   that was, or the checkpoint where it covers that record. (Rows of an input that is gone do not
   count in epochs that a checkpoint has, and that are done again from the start.)
8. **Bounded.** Whoever takes over reads one record after the other, and brings along the rows that fit into
   `keep` bytes. Those of the other epochs are in the log only, and `Pending.dropped` says so. They stay there (law 10).
9. **Promised at the start.** What later runs at the path rely on, and a user says once, is in the ``opened`` record, so
   it is durable before the first epoch is: whether the log is kept whole (``kept``), and what the program and its
   inputs are (``fingerprint``). The last ``opened`` record counts; what a checkpoint says is older.
10. **Someone runs.** Whoever takes over looks first, and refuses what it cannot go on from while the owner before still
   owns the path. Then it puts that owner out, by its ``opened`` record, also where the owner appends faster than
   its successor reads. After that it goes on from the checkpoint that is the newest *then*. The owner before may
   still publish one of a prefix of the log, but collects nothing: whoever collects looks for a successor before it
   looks at what is retained (`engine.storing`).
11. **Acknowledged or not.** `Opening.reported` is how many epochs anybody may have been told of as complete
   (`acknowledging`). Those after it were never acknowledged: where one fails again, it is refused.

Why the checkpoint of law 10 stays: let M be the newest checkpoint after the ``opened`` record was there. Whoever
decides to collect after that record finds it, and deletes nothing. Whoever has decided before has seen no checkpoint
newer than M; the newest one that it has seen, K, is kept, with all files that K names. M is K, or was built on it: then
its files are numbered higher than K, or K names them. Records of the log go only below what K covers, and M covers no
less.

>>> from riverrun.state.storage import open_storage
>>> storage = open_storage("memory:///")
>>> log = Log(storage)
>>> opening = take_over(Checkpoints(storage), log, identity="a")
>>> rows = pa.record_batch({"n": [1, 2]})
>>> log.append(1, {"kind": "epoch", "epoch": 0, "owner": opening.owner}, {"numbers": rows})
>>> again = take_over(Checkpoints(storage), Log(storage), identity="b")
>>> again.owner, again.next, [pending.inputs["numbers"].num_rows for pending in again.pending]
(2, 3, [2])
>>> log.append(2, {"kind": "epoch", "epoch": 1, "owner": opening.owner}, {})
Traceback (most recent call last):
    ...
riverrun.errors.CheckpointError: cannot append record 2 to the log: another run has written there
Hint: one run at a time owns a checkpoint path; stop the other one, or give this one its own path

Cost: one put for each record; taking over reads the records since the checkpoint, and what it did not keep is
read once more when it is done.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from riverrun.errors import CheckpointError
from riverrun.retry import SOON, persist
from riverrun.state.acknowledging import read_notes
from riverrun.state.checkpoint import Checkpoints
from riverrun.state.manifest import Manifest, manifest_name, say_version
from riverrun.state.soundness import UnsoundRows, read_json, read_stream
from riverrun.state.storage import Storage, checksum

LOG = "log"
PARCELS = "parcels"
"""Where rows are that an epoch takes by name; the name begins with the owner they were handed in to."""
VERSION = 2
MAGIC = b"riverrun log %d\n" % VERSION
_OLD = b"riverrun log 1\n"  # the same without its length and the checksum of its head
TRIES = 20
LOOKS = 5  # so often what is gone on from is looked at before the path is owned
CHASES = 8  # so often the owner before may be faster
KEEP = 256 << 20  # bytes of rows

_NAME = re.compile(rf"{LOG}/(\d{{16}})\.record")
_UNFINISHED = re.compile(rf"{LOG}/(\d{{16}})\.record#\d+")
_MAGIC = re.compile(rb"riverrun log (\d+)\n")
_PARCEL = re.compile(rf"{PARCELS}/(\d+)\..*")
_PARCEL_KEYS = frozenset(("name", "holder", "rows", "file", "checksum"))
_SUM = 32  # a checksum in hex
_LENGTH = 8
_BODY = len(MAGIC) + _LENGTH + 2 * _SUM  # where what the head is about begins
_HEAD = 1 << 14  # a header is rarely longer
_LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its header (JSON, with its kind), and the input of an epoch."""

    header: Mapping[str, Any]
    inputs: Mapping[str, pa.RecordBatch] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pending:
    """An epoch to be done again; a refused one has no rows."""

    position: int
    inputs: Mapping[str, pa.RecordBatch]
    refused: bool = False
    header: Mapping[str, Any] = field(default_factory=dict)
    dropped: bool = False
    """Whether the rows are in the log only (law 8)."""
    names: tuple[str, ...] = ()
    """Of a dropped one, the inputs that it has rows of."""


class Way(Enum):
    """How one goes on from a checkpoint."""

    STRAIGHT = "straight"
    """With its states."""
    BACKFILL = "backfill"
    """With those of its states that are of use, from one epoch before, which is run again for the others."""
    REPLAY = "replay"
    """With none: all epochs are done again."""


Decide: TypeAlias = Callable[[Manifest, bool], Way]
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
    pending: tuple[Pending, ...]
    """The epochs from `epoch` on."""
    reported: int = 0
    """Epochs below may have been acknowledged; those from here on never were (law 11)."""
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


class Log:
    """The log in a storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._opened: set[int] = set()  # positions below which nothing else is kept
        self._others: set[int] = set()  # positions that are known to hold another kind
        self._unreadable: set[int] = set()  # positions that are kept, whatever they hold
        self._files: dict[int, list[str]] = {}  # what the rows of an epoch are in besides
        self._owner: int | None = None
        self.acknowledged = 0
        """Epochs below were acknowledged, by the word of a record that was appended here."""

    def append(
        self, position: int, header: Mapping[str, Any], inputs: Mapping[str, pa.RecordBatch]
    ) -> None:
        """Append a record at the next position; safe to repeat."""
        data = encode_record(Record(header, inputs))
        if not self.create(position, data):
            raise CheckpointError(
                "log.taken",
                f"cannot append record {position} to the log: another run has written there",
                hint="one run at a time owns a checkpoint path; stop the other one, or give this one its own path",
                position=position,
            )
        self._note(position, header)
        self.acknowledged = max(self.acknowledged, int(header.get("reported", 0)))

    def _note(self, position: int, header: Mapping[str, Any]) -> None:
        (self._opened if header["kind"] == "opened" else self._others).add(position)
        files = [
            parcel["file"]
            for listed in header.get("parcels", {}).values()
            for parcel in listed
            if parcel["file"]
        ]
        if files:
            self._files[position] = files

    def create(self, position: int, data: bytes) -> bool:
        """Put some bytes at a position; False when it has others."""
        name = record_name(position)
        if self.storage.create(name, data):
            return True
        return bool(self.storage.get(name).to_pybytes() == data)

    def positions(self) -> list[int]:
        """The positions of all records, in order."""
        matches = map(_NAME.fullmatch, self.storage.names(LOG))
        return [int(match[1]) for match in matches if match]

    def read(self, position: int) -> Record:
        """The record at a position."""
        name = record_name(position)
        record = decode_record(name, self.storage.get(name))
        self._note(position, record.header)
        return record

    def header(self, position: int, size: int) -> Mapping[str, Any]:
        """The header of the record at a position, a file of so many bytes, without its rows; unverified."""
        name = record_name(position)
        data = self.storage.head(name, min(size, _HEAD))
        start = (len(_OLD) + _SUM if data.startswith(_OLD) else _BODY) + _LENGTH
        length = int.from_bytes(data[start - _LENGTH : start], "little")
        if not data.startswith((MAGIC, _OLD)) or start + length > size:
            raise _corrupt(name, "it does not begin like one, or ends too early")
        if start + length > len(data):
            data = self.storage.head(name, start + length)
        try:
            return _check_header(read_json(data[start : start + length])["header"])
        except (ValueError, LookupError, TypeError) as error:
            raise _corrupt(name, f"it has another shape: {error}") from error

    def collect(self, floor: int) -> list[int]:
        """Delete the records below a position, but those that say who owned the path ("One owner"); none by who is not
        the owner any more ("Someone runs")."""
        gone: list[int] = []
        positions = self.positions()
        if self.has_successor(positions):
            return gone
        for position in positions:
            if position >= floor:
                break
            if not any(
                position in known for known in (self._opened, self._others, self._unreadable)
            ):
                try:
                    self.read(position)
                except CheckpointError as error:
                    if error.code != "log.corrupt":
                        raise
                    self._unreadable.add(position)  # it cannot be told what it was
            if position not in self._opened and position not in self._unreadable:
                gone.append(position)
        # The records first: one that is there names files that are there.
        self.storage.delete(map(record_name, gone))
        self.storage.delete([file for at in gone for file in self._files.pop(at, ())])
        # What killed owners left: the one that lives is past these positions.
        left = map(_UNFINISHED.fullmatch, self.storage.unfinished(LOG))
        self.storage.delete([match[0] for match in left if match and int(match[1]) < floor])
        self._others.difference_update(gone)
        return gone

    def has_successor(self, positions: Sequence[int] | None = None) -> bool:
        """Whether somebody has taken the path over since whoever uses this did."""
        ours = self._owner
        if ours is None:
            return False
        if positions is None:
            positions = self.positions()
        # One that cannot be read is being written, by us or by the other.
        return any(self.is_opened(position) for position in positions if position > ours)

    def own(self, position: int) -> None:
        """Whoever uses this owns the path, by the record at a position."""
        self._owner = position
        self._opened.add(position)

    def is_opened(self, position: int) -> bool:
        """Whether the record at a position says that a run owns the path."""
        if position not in self._opened and position not in self._others:
            with suppress(CheckpointError):
                self.read(position)
        return position in self._opened

    def sweep(self, owner: int) -> list[str]:
        """Delete rows that were handed in to owners before this one, and that no record names."""
        left = [
            name
            for name in (*self.storage.names(PARCELS), *self.storage.unfinished(PARCELS))
            if (match := _PARCEL.fullmatch(name)) and int(match[1]) < owner
        ]
        if left:
            for position in self.positions():
                if position not in self._opened:
                    self.read(position)
            named = {file for files in list(self._files.values()) for file in files}
            left = [name for name in left if name not in named]
            self.storage.delete(left)
        return left


def is_logs_own(name: str) -> bool:
    """Whether a log makes files of such names that may be left over: rows handed in, and records cut short."""
    return any(pattern.fullmatch(name) is not None for pattern in (_PARCEL, _UNFINISHED))


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
    either, as it was. With a `number`, go back to that checkpoint in place of the newest (law 6). `keep` is how many
    bytes of rows are brought along (law 8).
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
    way: Way
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
    """The work of `take_over`: what is looked at, and in which order (law 10)."""

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
        """Go on from an older checkpoint, which becomes the newest one (law 6)."""
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
            return _Found(None, Way.STRAIGHT, 0, 0, 0, _Replay(0, 0, {}, keep), {}, 0)
        about, number, way = manifest.about, manifest.number, Way.STRAIGHT
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
        if way is Way.REPLAY:
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
        not asked to change: the promise of the record before it goes on to count (law 9)."""
        header: dict[str, Any] = {
            "kind": "opened", "identity": self._identity, "fingerprint": self._fingerprint,
            "void": found.void,
        }  # fmt: skip
        if not blind or self._keep_inputs is not None:
            header["kept"] = self._kept(found)
        return encode_record(Record(header))

    def _kept(self, found: _Found) -> int | None:
        """The first epoch of a log that is kept whole: as is asked for now, or else as it was promised (law 9)."""
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
        if found.way is Way.BACKFILL:
            epoch -= 1
            pending = [Pending(found.start - 1, {}), *pending]
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
        """How many epochs somebody may have been told of as complete (law 11), and whether that is no guess."""
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
    """The epochs that the log has from a checkpoint on (law 5), and as many of their rows as fit (law 8)."""

    def __init__(self, epoch: int, start: int, program: Mapping[str, Any], keep: int) -> None:
        self.epoch = epoch
        self.start = start
        self.program = program
        """What the program was that records are of, which are read now."""
        self._programs: dict[int, Mapping[str, Any]] = {}
        self.pending: list[Pending] = []
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
            self.pending.append(self._kept(Pending(position, record.inputs, header=header)))
            self._programs[position] = self.program
            self.reported = max(self.reported, int(header.get("reported", 0)))
        elif header["kind"] == "opened":
            self.owner, self.kept = position, header.get("kept", self.kept)
        elif header["kind"] == "refused" and header["refused"] >= self.start:
            at = header["epoch"] - self.epoch
            self._room += _size(self.pending[at].inputs)
            refused = Pending(self.pending[at].position, {}, refused=True, header=header)
            self.pending[at] = refused
            self.reported = max(self.reported, int(header.get("reported", 0)))

    def program_of(self, pending: Pending) -> Mapping[str, Any]:
        """The fingerprint of the program that logged an epoch."""
        return self._programs[pending.position]

    def _kept(self, pending: Pending) -> Pending:
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


def encode_record(record: Record) -> bytes:
    """The bytes of a record: a head with lengths and checksums, then the header and the inputs."""
    streams = []
    for batch in record.inputs.values():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        streams.append(sink.getvalue())
    sizes = {name: s.size for name, s in zip(record.inputs, streams, strict=True)}
    header = json.dumps({"header": dict(record.header), "inputs": sizes}).encode()
    # Padded, so that Arrow's buffers lie where its readers want them.
    header += b" " * (-(_BODY + _LENGTH + len(header)) % 64)
    body = b"".join((len(header).to_bytes(_LENGTH, "little"), header, *streams))
    head = MAGIC + (_BODY + len(body)).to_bytes(_LENGTH, "little") + checksum(body).encode()
    return b"".join((head, checksum(head).encode(), body))


def decode_record(name: str, data: pa.Buffer) -> Record:
    """The record in a file called `name`, or a `CheckpointError` that says why it is none."""
    begin = data.slice(0, min(_BODY, data.size)).to_pybytes()
    match = _MAGIC.match(begin)
    if match and int(match[1]) not in (1, VERSION):
        raise CheckpointError(
            "checkpoint.incompatible",
            f"cannot read {name}: its format has version {int(match[1])}, and this Riverrun reads version {VERSION}",
            hint="resume with the version of Riverrun that wrote it, or start anew on another path",
            file=name,
        )
    body, expected = (_old_body if begin.startswith(_OLD) else _body)(name, data, begin)
    if checksum(body).encode() != expected:
        raise _corrupt(
            name, "its checksum differs from the one it carries", torn=begin.startswith(_OLD)
        )
    try:
        size = int.from_bytes(body.slice(0, _LENGTH).to_pybytes(), "little")
        if size > body.size - _LENGTH:
            raise ValueError(f"its header has {size} bytes, and the record {body.size}")
        about = read_json(body.slice(_LENGTH, size).to_pybytes())
        header = _check_header(about["header"])
        at, inputs = _LENGTH + size, {}
        for key, length in about["inputs"].items():
            if not (_is_count(length) and at + length <= body.size):
                raise ValueError(f"the rows of {key!r} do not lie inside of it")
            inputs[key] = _read_batch(body.slice(at, length), key)
            at += length
        return Record(header, inputs)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _corrupt(name, f"it has another shape: {error}") from error


def _body(name: str, data: pa.Buffer, begin: bytes) -> tuple[pa.Buffer, bytes]:
    """What the head of a record is about, and its checksum there; refused where the length is not that of the head."""
    if len(begin) < _BODY or not any(begin):
        whole = data.size <= _BODY or not any(data.to_pybytes())
        raise _corrupt(name, f"it ends after {data.size} bytes, or is empty", torn=whole)
    if not begin.startswith(MAGIC):
        raise _corrupt(name, "it does not begin like one")
    head, summed = begin[:-_SUM], begin[-_SUM:]
    if checksum(head).encode() != summed:
        raise _corrupt(name, "the checksum of its head differs from the one it carries")
    length = int.from_bytes(head[len(MAGIC) : len(MAGIC) + _LENGTH], "little")
    if data.size != length:
        raise _corrupt(name, f"it has {data.size} bytes of {length}", torn=bool(data.size < length))
    return data.slice(_BODY), head[-_SUM:]


def _old_body(name: str, data: pa.Buffer, begin: bytes) -> tuple[pa.Buffer, bytes]:
    start = len(_OLD) + _SUM
    if data.size < start:
        raise _corrupt(name, f"it ends after {data.size} bytes", torn=True)
    return data.slice(start), begin[len(_OLD) : start]


def _check_header(header: Any) -> Mapping[str, Any]:
    """The header of a record, if it has the shape of one; a ValueError says what it has not."""
    if not isinstance(header, dict):
        raise ValueError(f"its header is {type(header).__name__}, not an object")
    kind = header.get("kind")
    counts = {"opened": (), "epoch": ("epoch",), "refused": ("epoch", "refused")}
    if kind not in counts:
        raise ValueError(f"its kind is {str(kind)[:80]!r}")
    for key in (*counts[kind], *({"reported", "owner"} & header.keys())):
        if not _is_count(header.get(key)):
            raise ValueError(f"its {key} is {str(header.get(key))[:80]!r}")
    for key in ("parcels", "offsets", "fingerprint"):
        if not isinstance(header.get(key, {}), dict):
            raise ValueError(f"its {key} are no object")
    void = header.get("void", [])
    if not (isinstance(void, list) and all(map(_is_count, void))):
        raise ValueError("what it declares void is no list of positions")
    for name, listed in header.get("parcels", {}).items():
        for parcel in listed if isinstance(listed, list) else [None]:
            if not _is_parcel(parcel):
                raise ValueError(f"what was handed in for {name!r} is not named as such")
    return header


def _is_parcel(parcel: Any) -> bool:
    if not isinstance(parcel, dict) or parcel.keys() != _PARCEL_KEYS:
        return False
    file = parcel["file"]
    return (
        _is_count(parcel["rows"])
        and _is_count(parcel["holder"])
        and all(isinstance(parcel[key], str) for key in ("name", "checksum"))
        and (file is None or (isinstance(file, str) and _PARCEL.fullmatch(file) is not None))
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _read_batch(data: pa.Buffer, name: str) -> pa.RecordBatch:
    try:
        batches = read_stream(data)
    except UnsoundRows as error:
        raise ValueError(f"the rows of {name!r} are damaged: {error}") from error
    if len(batches) != 1:
        raise ValueError(f"{name!r} has {len(batches)} batches, not one")
    return batches[0]


def record_name(position: int) -> str:
    """The name of the file of a record."""
    return f"{LOG}/{position:016d}.record"


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


def _corrupt(name: str, why: str, *, torn: bool = False) -> CheckpointError:
    return CheckpointError(
        "log.corrupt",
        f"cannot read {name} as a record of the log: {why}",
        hint="the file was damaged, or another program wrote it; what it held is lost, and what came after needs it: "
        "put a copy of the file there, or start anew on another path",
        file=name,
        torn=torn,
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
