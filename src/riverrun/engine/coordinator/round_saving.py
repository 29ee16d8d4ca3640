"""Saving rounds: where the loops of the epoch under way were last, for when the epoch is done again.

A part of the coordinator, sans I/O. Where an epoch takes longer than the distance of checkpoints, the coordinator asks
all members to save their loops (`SaveRounds`). Loops that can be saved (`plan.saved_rounds`) hand out what their next
round begins with, and each member writes its part. When the parts of all members are written, the storage publishes a
record of them, and from then on a loop that is done again begins there: each member is told so with its rows of the
epoch (`Feed.saved`). Laws:

- **One execution.** The parts of a loop that a record names were written in one execution, one by each of its members.
- **This epoch alone.** What is saved counts for the epoch at one position of the log, done by one program, after the
  same epochs: `SavedEpoch` says which of them were refused. It is forgotten when the epoch is complete or refused, or
  when an epoch before it is refused, or when a member cannot use it.
- **A hint.** Nothing waits for a round to be saved. Where the storage fails, nothing is saved, and the next request
  comes after the same time.

>>> from riverrun.engine.messages import RoundWritten
>>> sent = []
>>> saver = RoundSaver(10.0, "word", 1, lambda to, message: sent.append(message))
>>> saver.begin(
...     UnderWay(
...         execution=1,
...         epoch=0,
...         position=2,
...         first=2,
...         refused=(),
...         members=(5,),
...         shards=Shards.even(1),
...     )
... )
>>> saver.tick(50.0), saver.tick(59.0), saver.tick(60.0), sent.pop()
(None, None, None, SaveRounds(execution=1, epoch=0, number=1, name='rounds/0000000000000001-0000000000000002-1'))
>>> saver.wrote(5, RoundWritten(1, 0, 1, "loop/", 15, ()))
>>> publish = sent[-1]
>>> publish.record.loops
{'loop/': SavedLoop(round=15, bounds=(0, 18446744073709551616), owners=(0,), workers=((),))}
>>> saver.published(publish, None)
>>> saver.begin(
...     UnderWay(
...         execution=2,
...         epoch=0,
...         position=2,
...         first=2,
...         refused=(),
...         members=(6,),
...         shards=Shards.even(1),
...     )
... )
>>> saver.share(0)
(SavedShare(loop='loop/', round=15, is_own=True, files=()),)

Cost: a comparison in each tick; three messages for each member and round that is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from riverrun.engine.messages import (
    CLIENT,
    STORAGE,
    ForgetRounds,
    LoopSaved,
    PublishRound,
    RoundWritten,
    SavedShare,
    SaveRounds,
)
from riverrun.errors import RiverrunError
from riverrun.state.shards import Shards
from riverrun.storage.saved_rounds import (
    SavedEpoch,
    SavedFile,
    SavedLoop,
    part_name,
    record_name,
)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The epoch that members are at."""

    execution: int
    epoch: int
    position: int
    """The position of its record in the log."""
    first: int
    """The position of the oldest epoch that may be done again."""
    refused: tuple[int, ...]
    """The positions of the refused epochs from there on, before this one."""
    members: tuple[int, ...]
    shards: Shards


@dataclass(slots=True)
class _WrittenLoop:
    """What members have written of a loop, for one request."""

    round: int
    files: dict[int, tuple[SavedFile, ...]] = field(default_factory=dict)
    """By member."""

    @property
    def names(self) -> list[str]:
        return [file.file for files in self.files.values() for file in files]


class RoundSaver:
    """What is saved of the epoch under way."""

    def __init__(
        self,
        seconds: float | None,
        program: str,
        owner: int,
        send: Callable[[int, Any], None],
        saved: SavedEpoch | None = None,
    ) -> None:
        """Save the loops of an epoch that is under way for so many seconds, and again after as many; None: never.

        `program` is a word for the program, and `saved` is what an owner before us has left.
        """
        self._seconds = seconds
        self._program = program
        self._owner = owner
        self._send = send
        self._saved = saved if saved is not None and saved.program == program else None
        self._current: UnderWay | None = None
        self._asked = 0
        self._since: float | None = None
        self._parts: dict[tuple[str, int], _WrittenLoop] = {}
        """By loop and request."""
        self._publishing: PublishRound | None = None
        self._replaced: list[str] = []
        """The files that the last record has replaced."""
        self._number = 0
        self._has_files = self._saved is not None
        """Whether there may be files of the epoch under way, or of epochs before."""
        if seconds is not None and self._saved is None:
            self.forget(owner)  # what owners before us have left

    def begin(self, current: UnderWay) -> None:
        """Members are fed an epoch."""
        if self._seconds is None:
            return
        self._current, self._since = current, None
        self._parts.clear()
        saved = self._saved
        if saved is None or current.position < saved.position:
            return
        if not _is_of(saved, current):
            self.forget(current.position)
            return
        for loop, at in saved.loops.items():
            self._send(CLIENT, LoopSaved(current.epoch, loop, at.round, again=True))

    def share(self, index: int) -> tuple[SavedShare, ...]:
        """What the member with this index is told of the epoch that begins."""
        current, saved = self._current, self._saved
        if current is None or saved is None or saved.position != current.position:
            return ()
        shares = []
        for loop, at in saved.loops.items():
            is_own = (at.bounds, at.owners) == (current.shards.bounds, current.shards.owners)
            workers = at.workers[index : index + 1] if is_own else at.workers
            files = tuple([file for each in workers for file in each])
            shares.append(SavedShare(loop, at.round, is_own, files))
        return tuple(shares)

    def tick(self, now: float) -> None:
        """It is `now`: ask for loops to be saved if it is time to."""
        current, saved = self._current, self._saved
        if self._seconds is None or current is None or self._publishing is not None:
            return
        if self._since is None:
            self._since = now
        if now - self._since < self._seconds:
            return
        if saved is not None and saved.position != current.position:
            return  # a later epoch has been under way: what is saved of that one stays
        self._since = now
        self._asked += 1
        self._has_files = True
        name = part_name(self._owner, current.position, str(current.execution))
        for member in current.members:
            self._send(member, SaveRounds(current.execution, current.epoch, self._asked, name))

    def wrote(self, sender: int, message: RoundWritten) -> None:
        """A member has written its part of a loop, or could not."""
        current, key = self._current, (message.loop, message.number)
        if current is None or message.epoch != current.epoch:
            return
        if message.error is None:
            self._parts.setdefault(key, _WrittenLoop(message.round)).files[sender] = message.files
            self._publish()
        else:
            self._parts.pop(key, None)

    def _publish(self) -> None:
        """Where all parts of a loop are written, have a record published that names them."""
        current, saved = self._current, self._saved
        if current is None or self._publishing is not None:
            return
        whole = [
            key for key, parts in self._parts.items() if parts.files.keys() >= set(current.members)
        ]
        if not whole:
            return
        loop, number = max(whole, key=lambda key: key[1])
        parts = self._parts.pop((loop, number))
        gone, self._replaced = self._replaced, []
        for key in [key for key in self._parts if key[0] == loop and key[1] < number]:
            self._replaced += self._parts.pop(key).names
        if saved is None:
            saved = SavedEpoch(
                self._program, current.epoch, current.position, current.first, current.refused, {}
            )
        elif loop in saved.loops:
            self._replaced += [f.file for files in saved.loops[loop].workers for f in files]
        if self._number:
            self._replaced.append(record_name(self._owner, current.position, self._number))
        self._number += 1
        files = tuple([parts.files[member] for member in current.members])
        shards = current.shards
        record = saved.with_loop(loop, SavedLoop(parts.round, shards.bounds, shards.owners, files))
        self._publishing = PublishRound(record, self._owner, self._number, tuple(gone))
        self._send(STORAGE, self._publishing)

    def published(self, publish: PublishRound, error: RiverrunError | None) -> None:
        """The storage has published a record, or could not."""
        if publish is not self._publishing:
            return
        self._publishing = None
        if error is None:
            known = {} if self._saved is None else self._saved.loops
            self._saved = publish.record
            for loop, at in publish.record.loops.items():
                if known.get(loop) != at:
                    self._send(CLIENT, LoopSaved(publish.record.epoch, loop, at.round))
        self._publish()

    def refused(self, position: int) -> None:
        """The epoch at a position of the log does not count: nor does what is saved of it, or of one behind it."""
        behind = [each.position for each in (self._saved, self._current) if each is not None]
        if self._has_files and behind and position <= max(behind):
            self.forget(max(behind))

    def end(self) -> None:
        """The epoch under way is complete."""
        current, self._current = self._current, None
        is_behind = (
            self._saved is not None
            and current is not None
            and self._saved.position > current.position
        )
        if current is not None and self._has_files and not is_behind:
            self.forget(current.position)

    def stop(self) -> None:
        """The execution is over, and with it the work on the epoch under way."""
        self._current = None
        self._parts.clear()

    def drop(self) -> None:
        """What is saved cannot be used."""
        if self._saved is not None:
            self.forget(self._saved.position)

    def forget(self, position: int) -> None:
        """Forget what is saved, and have the files deleted of epochs up to a position of the log."""
        self._saved, self._publishing = None, None
        self._parts.clear()
        self._replaced.clear()
        self._has_files = False
        self._send(STORAGE, ForgetRounds(self._owner, position))


def _is_of(saved: SavedEpoch, current: UnderWay) -> bool:
    """Whether what is saved is of the epoch under way (*this epoch alone*)."""
    first = max(saved.first, current.first)
    before, now = (
        {position for position in refused if position >= first}
        for refused in (saved.refused, current.refused)
    )
    at = (saved.epoch, saved.position)
    return at == (current.epoch, current.position) and before == now
