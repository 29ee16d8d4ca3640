"""Acknowledged epochs: a note at the checkpoint path of how many there are, for the next run that takes the path over.

An epoch is *logged* before it is worked on, and *acknowledged* when somebody learns that it is complete: its
``commit()`` returns, its results can be read, sinks are given it. A run that takes over a path, its *owner* from then
on, does the last epochs of the log again, and one of them may fail. Where nobody was told that this epoch is complete,
the new owner refuses the epoch, as the former owner would have done. Where somebody was told, the rows of the epoch
must not be taken away, and the run ends with the error (*acknowledged epochs stay* of
`engine.coordinator.refusals`). So the new owner has to know which epochs were acknowledged. An `Acknowledger` writes
the notes of an owner; `takeover` reads the notes of all owners. Laws:

- **Known from the log.** The record of an epoch says how many epochs were acknowledged when the epoch was submitted. So
  the records leave in doubt only the last epochs of the log, as a rule the very last one.
- **Noted first.** On a local disk the owner writes a note before anybody learns that an epoch is complete, over its
  former note, in a small file of its own, ``acknowledged/OWNER.json``. The file outlives the process, as the log does.
  Such a note is *exact*: epochs that it does not cover were never acknowledged. (Where writing fails, the epoch is
  acknowledged all the same, and the owner tries again half a second later; until then its former note says too little.)
- **Exact or not.** A note is exact only until the machine is started again, since a power cut may take the note and
  leave the records; so the note names the start of the machine (`Note.boot`). An owner that took over without knowing
  how many epochs were acknowledged (`Opening.doubtful`) writes no exact note before it has itself acknowledged all
  epochs in doubt. Otherwise the owner after it would take a guess for knowledge.
- **Noted soon.** An object store has no such cheap write. There the note is put in the background, at most twice a
  second, and only where no record of the log says as much; and once more when the run is closed. It is never exact.
- **Doubt goes by the program.** Where the last owner left no exact note, an epoch in doubt counts as acknowledged if
  another program logged it. If this very program logged it (by its fingerprint: `plan.diff`), and the epoch fails now,
  then it failed at that time too, since functions give the same result for the same input: it was not acknowledged.
- **One file for each owner.** An owner that was put out by another one, and does not know it, overwrites nobody's note
  but its own. The notes of all owners count the epochs of one log, so the greatest number counts.

In the example two owners say how many epochs are acknowledged. An owner is known by the position of the log record with
which it took the path over.

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
from riverrun.storage.threads import SerialThread

FOLDER = "acknowledged"
PAUSE = 0.5  # seconds between two notes in an object store
LAST_NOTE = 2.0  # seconds that the last one has

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
        """Whether epochs that the note does not cover were never acknowledged (the law noted first)."""
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
        self._thread = SerialThread("riverrun-acknowledge")
        self._closing, self._lock, self._waiting = Event(), Lock(), False
        self._is_local, self._writing = storage.root is not None, Lock()
        if self._write():
            with suppress(RiverrunError):
                _delete_older(storage, owner)

    def note(self, epoch: int) -> None:
        """Epochs below this one are about to be acknowledged (the law noted first), or just were (the law
        noted soon)."""
        if epoch <= self._epoch:
            return
        self._epoch = epoch
        if self._write():
            return
        with self._lock:
            if self._waiting or self._closing.is_set():
                return
            self._waiting = True
        self._thread.submit(self._put_soon)

    def close(self) -> None:
        """Note what is not noted yet. May be called again."""
        self._closing.set()
        with self._lock:
            last = not self._waiting and self._noted < self._epoch
        if last:
            self._thread.submit(self._put)
        self._thread.close(wait=LAST_NOTE, drop=False)

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
