"""Acknowledging: a note at the checkpoint path of how many epochs were reported as complete, for a run that takes over.

An epoch is *logged* before it is worked on, and *acknowledged* when somebody learns that it is complete: its
``commit()`` returns, its results can be read, sinks are given it. A logged epoch can fail; the run then refuses it. If
the process dies before the refusal is in the log, the next run does the epoch again, and it fails again. If the epoch
was acknowledged, it must not be taken away; so the next run has to know whether it was. Laws:

- **Known from the log.** Every record of an epoch says how many epochs were acknowledged when it was written. So only
  the epochs that no later record speaks of are in doubt: as a rule the last one.
- **Noted before it is told.** On a local disk each acknowledgement is noted before anybody learns of it, by writing in
  place to a small file of the owner's own, ``acknowledged/OWNER.json``. The file outlives the process as surely as the
  log does; writing takes some tens of microseconds. Such a note is *exact*: epochs that it does not cover were never
  acknowledged. A note is exact for readers in the same start of the machine only, since a power cut may take the note
  and leave the records. An owner that began with a guess notes nothing as exact until it has acknowledged all epochs
  that the guess is about: otherwise the owner after it would take the guess for knowledge.
- **Noted soon, elsewhere.** An object store has no such cheap write. There the note is put in the background, at most
  twice a second and only where no later record says the same, and when the run is closed.
- **In doubt, by the program.** Where no exact note tells, an epoch that fails now, in the very program that logged it,
  failed then, since functions give the same result for the same input: it was not acknowledged. In another program that
  does not follow, and the epoch counts as acknowledged (`Opening.reported` of `takeover`).
- **One file for each owner.** An owner that was put out and does not know it overwrites nobody's note. Notes of
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
    """The start of the machine for which the note is exact; empty for a note that is not exact."""

    @property
    def is_exact(self) -> bool:
        """Whether epochs that the note does not cover were never acknowledged (the law noted before it is told)."""
        return bool(self.boot) and self.boot == boot_id()


def note_name(owner: int) -> str:
    """The name of the file of an owner's note."""
    return f"{FOLDER}/{owner:016d}.json"


def put_note(storage: Storage, note: Note) -> None:
    """Put a note, in place of the one that its owner had."""
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
    """Delete the notes of earlier owners, which this owner's note includes, and files that they did not finish."""
    older = [note_name(note.owner) for note in read_notes(storage) if note.owner < owner]
    left = map(_UNFINISHED.fullmatch, storage.unfinished(FOLDER))
    storage.delete([*older, *(match[0] for match in left if match and int(match[1]) < owner)])


def _encode(note: Note) -> bytes:
    fields = _fields(note)
    word = checksum(fields.encode())
    return f'{{{fields}, "checksum": "{word}"}}'.encode().ljust(_SIZE - 1) + b"\n"


def _decode(data: bytes) -> Note:
    body = json.loads(data)
    note = Note(body["owner"], body["epoch"], body["boot"])
    if type(note.owner) is not int or type(note.epoch) is not int or type(note.boot) is not str:
        raise ValueError("an owner and an epoch are integers, and a start of a machine is text")
    if body["checksum"] != checksum(_fields(note).encode()):
        raise ValueError("its checksum differs from the one it carries")
    return note


def _fields(note: Note) -> str:
    """The fields of a note, as JSON without braces. Formatted by hand, since there is a note for every epoch."""
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
        """`epoch` is how many epochs earlier owners have acknowledged; where it is below `doubtful`, that is a guess.
        `logged` says how many epochs the records of the log call acknowledged."""
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
        """Epochs below this one are about to be acknowledged (the law noted before it is told), or just were (the law
        noted soon, elsewhere)."""
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
        """Write in place; False where that fails, or where the storage is no local disk."""
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
