"""Notes of what was acknowledged: exact only where nothing was guessed, in the right directory, the greatest last."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riverrun.storage import Checkpoints
from riverrun.storage.acknowledged import (
    Acknowledger,
    Note,
    note_name,
    put_note,
    read_notes,
)
from riverrun.storage.log import Log
from riverrun.storage.store import Storage, open_storage
from riverrun.storage.takeover import Continuation, Opening, take_over

PROGRAM = {"n": "as it was"}
CHANGED = {"n": "as it was", "m": "new"}
ROWS = pa.record_batch({"n": [1]})


def open_path(storage: Storage, log: Log, identity: str, program: dict[str, str]) -> Opening:
    return take_over(
        Checkpoints(storage),
        log,
        identity=identity,
        fingerprint=program,
        decide=lambda *_: (Continuation.STRAIGHT, None),
    )


def append_epoch(log: Log, position: int, epoch: int, owner: int) -> None:
    log.append(position, {"kind": "epoch", "epoch": epoch, "owner": owner}, {"n": ROWS})


def acknowledge(storage: Storage, opening: Opening, *epochs: int) -> None:
    """What an owner notes until it is killed."""
    acknowledger = Acknowledger(storage, opening.owner, opening.reported, doubtful=opening.doubtful)
    for epoch in epochs:
        acknowledger.note(epoch)


def two_epochs_in_doubt(tmp_path: Path) -> Storage:
    """Two epochs were logged, and a power cut has taken how far they were acknowledged."""
    storage = open_storage(tmp_path)
    log = Log(storage)
    owner = open_path(storage, log, "a", PROGRAM).owner
    append_epoch(log, 1, 0, owner)
    append_epoch(log, 2, 1, owner)
    put_note(storage, Note(owner, 0, "another start of the machine"))
    return storage


@pytest.mark.parametrize("owner", ["Infinity", "NaN", "1.0", "true", "[1]", '"1"', "-1"])
def test_a_note_whose_numbers_are_none_is_left_out(tmp_path: Path, owner: str) -> None:
    storage = open_storage(tmp_path)
    put_note(storage, Note(1, 5, "b"))
    assert read_notes(storage) == [Note(1, 5, "b")]
    said = (
        storage.get(note_name(1)).to_pybytes().replace(b'"owner": 1', f'"owner": {owner}'.encode())
    )
    storage.put(note_name(1), said)
    assert read_notes(storage) == []


@pytest.mark.parametrize("noted", [(), (1,)])
def test_what_was_guessed_is_not_exact_in_the_hands_of_the_next_owner(
    tmp_path: Path, noted: tuple[int, ...]
) -> None:
    """An owner that has done none or a part of the epochs in doubt, and is killed, leaves them in doubt."""
    storage = two_epochs_in_doubt(tmp_path)
    assert open_path(storage, Log(storage), "b", CHANGED).reported == 2  # as it is without it
    storage = two_epochs_in_doubt(tmp_path / "again")
    short_lived = open_path(storage, Log(storage), "b", PROGRAM)
    assert (short_lived.reported, short_lived.doubtful) == (0, 2)
    acknowledge(storage, short_lived, *noted)
    assert open_path(storage, Log(storage), "c", CHANGED).reported == 2


def test_an_owner_that_has_acknowledged_all_it_was_in_doubt_of_notes_exactly(
    tmp_path: Path,
) -> None:
    storage = two_epochs_in_doubt(tmp_path)
    log = Log(storage)
    opening = open_path(storage, log, "b", PROGRAM)
    acknowledge(storage, opening, 1, 2)
    append_epoch(log, opening.next, 2, opening.owner)
    later = open_path(storage, Log(storage), "c", CHANGED)
    assert (later.reported, later.doubtful) == (2, 0)  # the third was never acknowledged


def test_an_exact_note_is_passed_on_exactly(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    log = Log(storage)
    opening = open_path(storage, log, "a", PROGRAM)
    acknowledge(storage, opening)
    append_epoch(log, 1, 0, opening.owner)
    for identity in "bcd":
        opening = open_path(storage, Log(storage), identity, CHANGED)
        assert (opening.reported, opening.doubtful) == (0, 0)
        acknowledge(storage, opening)
        assert [note.is_exact for note in read_notes(storage)] == [True]


def test_a_note_goes_into_no_directory_that_has_come_in_place_of_ours(tmp_path: Path) -> None:
    """Another disk is mounted at the path, or a backup is put there, with files of the same names."""
    kept, away = tmp_path / "kept", tmp_path / "away"
    storage = open_storage(kept)
    assert storage.write_in_place("notes/1", b"ours")
    kept.rename(away)
    other = open_storage(kept)
    other.put("notes/1", b"else")
    assert not storage.write_in_place("notes/1", b"more")
    assert other.get("notes/1").to_pybytes() == b"else"
    assert (away / "notes" / "1").read_bytes() == b"ours"


def test_names_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"else")
    with pytest.raises(ValueError, match="not a path below"):
        open_storage(tmp_path / "kept").write_in_place("../outside", b"ours")
    assert (tmp_path / "outside").read_bytes() == b"else"


def test_of_two_who_note_the_greater_epoch_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread tries again what could not be written, and stops just before it writes; meanwhile more is noted."""
    storage = open_storage(tmp_path)
    acknowledger = Acknowledger(storage, 0, 0, doubtful=0)
    write, reached, more = storage.write_in_place, threading.Event(), threading.Event()
    here = threading.current_thread()

    def slow_write(name: str, data: Any) -> bool:
        if threading.current_thread() is not here:
            reached.set()
            more.wait(0.5)  # not for ever: whoever notes may have to wait for us
        elif not reached.is_set():
            return False  # just now
        return write(name, data)

    monkeypatch.setattr(storage, "write_in_place", slow_write)
    acknowledger.note(1)
    assert reached.wait(30)
    acknowledger.note(2)
    more.set()
    acknowledger.close()
    assert [note.epoch for note in read_notes(storage)] == [2]
    assert (tmp_path / note_name(0)).is_file()
