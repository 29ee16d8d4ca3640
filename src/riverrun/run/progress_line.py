"""A line in the terminal while a long commit is under way; nothing where there is no terminal.

The line appears after half a second, so that quick commits print nothing. A thread of its own writes the line, and
asks the run only for the number of changes made, and for the loop that the epoch is in: its name, its round, and the
rows that change there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Event, Thread

DELAY = 0.5
EVERY = 0.1
_UNSEEN = nullcontext()


class ProgressLine:
    """Watches the commits of one run.

    `touched` tells how many changes were made so far; `loops` tells which loops are going, the one with most rounds
    first.
    """

    def __init__(
        self,
        name: str,
        touched: Callable[[], int],
        loops: Callable[[], Sequence[object]] = tuple,
    ) -> None:
        self._name = name
        self._touched = touched
        self._loops = loops
        self._is_seen = sys.stderr.isatty()  # to ask at every commit takes longer than a short one

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

    def _show(self, epoch: int, rows: int, over: Event) -> None:
        began = time.monotonic()
        if over.wait(DELAY):
            return
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status("") as line:
            while not over.wait(EVERY):
                going = "".join(f", {escape(str(loop))}" for loop in self._loops()[:1])
                line.update(
                    f"{escape(self._name)}: epoch {epoch}, {rows:,} rows in, {self._touched():,} changes made"
                    f"{going}, {time.monotonic() - began:.1f} s"
                )
