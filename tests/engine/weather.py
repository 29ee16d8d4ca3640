"""A storage that is away, slow, or hangs, for as long as a test wants it to: all of them in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

from riverrun.errors import RiverrunError, TransportError
from riverrun.storage.store import Storage

HANG = 300.0  # seconds, at most, that a request does not come back


class Weather:
    """What becomes of requests to any storage."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str]] = []
        self.failed = 0
        self._bad: tuple[str, ...] = ()
        self._folders: tuple[str, ...] = ()
        self._error: RiverrunError | None = None
        self._slow = 0.0
        self._open = threading.Event()
        self._open.set()
        for verb in ("put", "create", "get", "names", "delete"):
            patch.setattr(Storage, verb, self._watched(verb, getattr(Storage, verb)))

    def away(
        self,
        *verbs: str,
        folders: Iterable[str] = (),
        error: RiverrunError | None = None,
    ) -> None:
        """Requests fail, those with these verbs in these folders; without any, all."""
        self._bad = verbs or ("put", "create", "get", "names", "delete")
        self._folders = tuple(folders)
        self._error = error

    def hangs(self) -> None:
        """Requests do not come back."""
        self._open.clear()

    @property
    def is_hanging(self) -> bool:
        """Whether requests still do not come back: nobody can have waited for one."""
        return not self._open.is_set()

    def slow(self, seconds: float) -> None:
        """Requests that write take their time."""
        self._slow = seconds

    def fine(self) -> None:
        """All is well again, also for those who wait."""
        self._bad, self._slow = (), 0.0
        self._open.set()

    def _watched(self, verb: str, original: Any) -> Any:
        def request(storage: Storage, name: Any, *data: Any) -> Any:
            shown = name if isinstance(name, str) else ""
            self.asked.append((verb, shown))
            if not self._open.wait(HANG):
                self._open.set()  # too late: `is_hanging` says so
            if self._slow and verb in ("put", "create"):
                time.sleep(self._slow)
            if verb in self._bad and (not self._folders or shown.startswith(self._folders)):
                self.failed += 1
                raise self._error or TransportError(
                    "storage.unreachable", f"cannot {verb} {shown}: bad weather", hint=""
                )
            return original(storage, name, *data)

        return request
