"""A line in the terminal while a long commit is under way; nothing where there is no terminal.

It appears after half a second, so that what is quick stays quiet.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

DELAY = 0.5
EVERY = 0.1


class Progress:
    """Watches commits of one run."""

    def __init__(self, name: str) -> None:
        self._name = name

    @contextmanager
    def watching(self, epoch: int, rows: int, cluster: Any) -> Iterator[None]:
        """Show that an epoch is under way, if that takes long and somebody can see it."""
        if not sys.stderr.isatty():
            yield
            return
        over = Event()
        watcher = Thread(target=self._show, args=(epoch, rows, cluster, over), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def _show(self, epoch: int, rows: int, cluster: Any, over: Event) -> None:
        began = time.monotonic()
        if over.wait(DELAY):
            return
        from rich.console import Console

        console = Console(stderr=True)
        with console.status("") as line:
            while not over.wait(EVERY):
                held = sum(
                    sum(state.get("rows", 0) for state in instance.stats().values())
                    for instance in list(cluster.instances)
                )
                line.update(
                    f"{self._name}: epoch {epoch}, {rows:,} rows in, {held:,} rows of state, "
                    f"{time.monotonic() - began:.1f} s"
                )
