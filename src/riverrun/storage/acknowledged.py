"""Acknowledging: how far a run has told that its epochs are complete, noted where its successor finds it.

An epoch is *logged* before it is worked on, and *acknowledged* when somebody is told that it is complete: its
``commit()`` returns, its results can be read, sinks are given it. A logged epoch can fail; the run then refuses it. If
the process dies before the refusal is in the log, its successor does the epoch again, it fails again, and the
successor has to know whether anybody was ever told that the epoch is complete: if so, it must not be taken away. Laws:

1. **Known from the log.** Every record of an epoch says how many epochs were acknowledged when it was written. So only
   the epochs after the last record's word are in doubt: as a rule the last one.
2. **Noted before it is told.** On a local disk each acknowledgement is noted before anybody is told of it, by writing
   in place to a small file of the owner's own, ``acknowledged/OWNER.json``. That outlives the process as surely as the
   log does, and costs some tens of microseconds. Such a note is *exact*: what it does not cover was never
   acknowledged. It is exact for readers in the same start of the machine only, since a power cut may take it and leave
   the records. An owner that had to guess which of the epochs it found were acknowledged notes nothing as exact until
   it has acknowledged all of those itself: otherwise the owner after it would take the guess for knowledge.
3. **Noted soon, elsewhere.** An object store has no such cheap write. There the note is put in the background, at most
   twice a second, only where no later record says the same, and when the run is closed.
4. **In doubt, by what is the same.** Where no exact note tells, an epoch that fails now, in the very program that
   logged it, failed then: functions give the same result for the same input. In another program that does not
   follow, and the epoch counts as acknowledged (`state.log.Opening.reported`).
5. **One file for each owner.** An owner that was put out and does not know it overwrites nobody's note. Notes of
   different owners are about the same epochs: the greatest counts.

>>> from riverrun.storage.store import open_storage
>>> storage = open_storage("memory:///")
>>> put_note(storage, Note(owner=0, epoch=3))
>>> put_note(storage, Note(owner=5, epoch=4))
>>> read_notes(storage)
[Note(owner=0, epoch=3, boot=''), Note(owner=5, epoch=4, boot='')]

Cost: about 25 microseconds for an epoch on a local disk; elsewhere at most two small puts a second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock

from riverrun.errors import CheckpointError, RiverrunError
from riverrun.storage.scratch import boot_id
from riverrun.storage.store import Storage, checksum
from riverrun.storage.threads import Lane

FOLDER = "acknowledged"
PAUSE = 0.5  # seconds between two notes in an object store
CLOSING = 2.0  # seconds that the last one has

_NAME = re.compile(rf"{FOLDER}/(\d{{16}})\.json")
_UNFINISHED = re.compile(rf"{FOLDER}/(\d{{16}})\.json#\d+")
_SIZE = 256  # bytes: one page has it, so a write in place is whole for whoever outlives the writer


@dataclass(frozen=True, slots=True)
class Note:
    """Epochs below `epoch` were acknowledged by `owner`, or by those before it."""

    owner: int
    epoch: int
    boot: str = ""
    """Which start of the machine an exact note is of; empty for one that was put later."""

    @property
    def is_exact(self) -> bool:
        """Whether what the note does not cover was never acknowledged (law 2)."""
        return bool(self.boot) and self.boot == boot_id()


def note_name(owner: int) -> str:
    """The name of the file of an owner's note."""
    return f"{FOLDER}/{owner:016d}.json"


def put_note(storage: Storage, note: Note) -> None:
    """Keep a note, in place of the one that its owner had."""
    storage.put(note_name(note.owner), _encode(note))


def read_notes(storage: Storage) -> list[Note]:
    """The notes of all owners, oldest first; a damaged one tells nothing, and is left out."""
    notes = []
    for name in storage.names(FOLDER):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        with suppress(ValueError, TypeError, LookupError, RecursionError, CheckpointError):
            note = _decode(storage.get(name).to_pybytes())
            if note.owner == int(match[1]):
                notes.append(note)
    return notes


def _delete_older(storage: Storage, owner: int) -> None:
    """Delete the notes of owners before, which are in the note of this one, and what they were killed at writing."""
    older = [note_name(note.owner) for note in read_notes(storage) if note.owner < owner]
    left = map(_UNFINISHED.fullmatch, storage.unfinished(FOLDER))
    storage.delete([*older, *(match[0] for match in left if match and int(match[1]) < owner)])


def _encode(note: Note) -> bytes:
    said = _said(note)
    word = checksum(said.encode())
    return f'{{{said}, "checksum": "{word}"}}'.encode().ljust(_SIZE - 1) + b"\n"


def _decode(data: bytes) -> Note:
    body = json.loads(data)
    note = Note(body["owner"], body["epoch"], body["boot"])
    if type(note.owner) is not int or type(note.epoch) is not int or type(note.boot) is not str:
        raise ValueError("an owner and an epoch are integers, and a start of a machine is text")
    if body["checksum"] != checksum(_said(note).encode()):
        raise ValueError("its checksum differs from the one it carries")
    return note


def _said(note: Note) -> str:
    """What a note says, as JSON without its braces; made by hand, since there is one for every epoch."""
    return f'"owner": {note.owner}, "epoch": {note.epoch}, "boot": "{note.boot}"'


class Acknowledger:
    """Notes what the owner of a path acknowledges. One thread calls `note`."""

    def __init__(
        self,
        storage: Storage,
        owner: int,
        epoch: int,
        *,
        doubtful: int,
        logged: Callable[[], int] = lambda: 0,
    ) -> None:
        """`epoch` is how far those before have come, as far as that is known; that is a guess for epochs below
        `doubtful`. `logged` says how far records of the log tell."""
        self._storage = storage
        self._owner = owner
        self._epoch, self._doubtful, self._noted = epoch, doubtful, 0
        self._logged = logged
        self._boot, self._name = boot_id(), note_name(owner)
        self._lane = Lane("riverrun-acknowledge")
        self._closing, self._lock, self._waiting = Event(), Lock(), False
        self._is_local, self._writing = storage.root is not None, Lock()
        if self._write():
            with suppress(RiverrunError):
                _delete_older(storage, owner)

    def note(self, epoch: int) -> None:
        """Epochs below are about to be acknowledged, or just were (laws 2 and 3)."""
        if epoch <= self._epoch:
            return
        self._epoch = epoch
        if self._write():
            return
        with self._lock:
            if self._waiting or self._closing.is_set():
                return
            self._waiting = True
        self._lane.submit(self._put_soon)

    def close(self) -> None:
        """Note what is not noted yet. May be called again."""
        self._closing.set()
        with self._lock:
            last = not self._waiting and self._noted < self._epoch
        if last:
            self._lane.submit(self._put)
        self._lane.close(wait=CLOSING, drop=False)

    def _write(self) -> bool:
        """Write in place; False where that cannot be: elsewhere than on a local disk, or just now."""
        if not self._is_local:
            return False
        with self._writing:  # whoever writes last has the greatest epoch
            epoch = self._epoch
            note = Note(self._owner, epoch, self._boot if epoch >= self._doubtful else "")
            written = self._storage.write_in_place(self._name, _encode(note))
            if written:
                self._noted = epoch
        return written

    def _put_soon(self) -> None:
        self._closing.wait(PAUSE)
        with self._lock:
            self._waiting = False
        self._put()

    def _put(self) -> None:
        epoch = self._epoch
        if epoch <= max(self._noted, 0 if self._closing.is_set() else self._logged()):
            return
        if self._is_local:
            self._write()
        else:
            with suppress(RiverrunError):  # the next record of the log says it
                put_note(self._storage, Note(self._owner, epoch))
                self._noted = epoch
