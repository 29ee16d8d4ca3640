"""A line in the terminal while a long commit is under way; nothing where there is no terminal.

`pacing` has a `ProgressLine` for its run. The line appears after half a second, so that quick commits print nothing. A
thread of its own writes the line, and asks the run only for the number of changes made, and for the loop that the epoch
is in: its name, its round, and the rows that change there.

A loop that is followed (``run.rounds(name, live=True)``) leaves a line for each epoch in which it did anything: the
number of its rounds, what they touched and sent, how long they took, and as a row of bars how many messages each round
sent. While a long commit is under way, its line has a row of bars too: how many rows changed in that loop, look by
look.

Cost: nothing where there is no terminal; otherwise a thread for each commit, and ten looks a second after the first
half second.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Event, Thread

from riverrun.engine.loop_rounds import LoopRound
from riverrun.engine.round_history import RoundHistory
from riverrun.run.rounds import in_words, spark

DELAY = 0.5
EVERY = 0.1
LOOKS = 30
"""Looks at a loop whose rows are shown."""
_UNSEEN = nullcontext()


class ProgressLine:
    """Watches the commits of one run.

    `touched` tells how many changes were made so far; `loops` tells which loops are going, the one with most rounds
    first; `rounds` has what loops did in the epochs that are complete.
    """

    def __init__(
        self,
        name: str,
        touched: Callable[[], int],
        loops: Callable[[], Sequence[LoopRound]],
        rounds: RoundHistory,
    ) -> None:
        self._name = name
        self._touched = touched
        self._loops = loops
        self._rounds = rounds
        self._followed: dict[str, int] = {}
        """The loops that are followed, each with the last epoch that is shown."""
        self._is_seen = sys.stderr.isatty()  # to ask at every commit takes longer than a short one

    def follow(self, loop: str, *, on: bool) -> None:
        """From now on show what a loop does in each epoch; or no longer."""
        if on:
            last = self._rounds.last(loop)
            self._followed = {**self._followed, loop: -1 if last is None else last[0]}
        else:
            self._followed = {name: at for name, at in self._followed.items() if name != loop}

    def watching(self, epoch: int, rows: int) -> AbstractContextManager[None]:
        """Show that an epoch is under way, if that takes long and somebody can see it."""
        return self._watching(epoch, rows) if self._is_seen else _UNSEEN

    @contextmanager
    def _watching(self, epoch: int, rows: int) -> Iterator[None]:
        over = Event()
        watcher = Thread(target=self._show, args=(epoch, rows, over), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            self._show_rounds()

    def _show(self, epoch: int, rows: int, over: Event) -> None:
        began = time.monotonic()
        if over.wait(DELAY):
            return
        from rich.console import Console
        from rich.markup import escape

        looks: deque[LoopRound] = deque(maxlen=LOOKS)
        with Console(stderr=True).status("") as line:
            while not over.wait(EVERY):
                loops = self._loops()
                followed = [loop for loop in loops if loop.loop in self._followed]
                going = "".join(f", {escape(str(loop))}" for loop in (followed or loops)[:1])
                if followed and (not looks or looks[-1] != followed[0]):
                    looks.append(followed[0])
                going += f" {spark([look.rows for look in looks])}" if looks else ""
                line.update(
                    f"{escape(self._name)}: epoch {epoch}, {rows:,} rows in, {self._touched():,} changes made"
                    f"{going}, {time.monotonic() - began:.1f} s"
                )

    def _show_rounds(self) -> None:
        """Show what the loops that are followed did since the last call."""
        for loop, shown in list(self._followed.items()):
            for epoch, rounds in self._rounds.of(loop):
                if epoch > shown and loop in self._followed:
                    self._followed[loop] = epoch
                    words = f"{self._name}: epoch {epoch}, loop {loop!r}: {in_words(rounds)}"
                    sys.stderr.write(f"{words}\n")
