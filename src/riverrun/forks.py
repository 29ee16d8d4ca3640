"""Forks: a run belongs to the process that started it. A child made by ``os.fork`` has a copy that must do nothing.

A forked child (``os.fork``, ``multiprocessing`` with the start method "fork") has the memory of its parent and none of
its threads. A copied run would wait for threads that are not there; a copied lease, when the child ends, would give
back a path that the parent uses, and a copied finalizer would delete the parent's files. Laws:

- **Refusal.** Every call of a run in a forked child is refused with ``run.forked``, before any lock is touched;
  ``close`` does nothing there.
- **Harmlessness.** Nothing that a forked child does or leaves undone, not its end either, changes what the parent has.

>>> mark = ProcessMark()
>>> mark.is_ours
True

Cost: a comparison of two integers for each call.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from riverrun.errors import RiverrunError

_forks = 0
"""How many forks lie between the process that loaded this and the present one."""


def _count() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)


class ProcessMark:
    """Which process something belongs to: the one that made the mark."""

    __slots__ = ("_made", "pid")

    def __init__(self) -> None:
        self._made = _forks
        self.pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this is that process."""
        return self._made == _forks

    def check(self, attempt: str, owner: str) -> None:
        """Refuse an attempt in a forked child; `owner` says what is used."""
        if self._made != _forks:
            raise RiverrunError(
                "run.forked",
                f"cannot {attempt}: {owner} belongs to process {self.pid}, and this is process {os.getpid()}, "
                "forked from it: the threads and connections of the run are not here",
                hint="use the run in the process that started it, and hand rows and results between the two; or have "
                'the child start a run of its own, in a fresh process: multiprocessing.get_context("spawn")',
                pid=self.pid,
            )


def finalize(
    thing: object, function: Callable[..., object], /, *arguments: Any
) -> weakref.finalize[Any, Any]:
    """`weakref.finalize`, which does nothing in a forked child."""
    return weakref.finalize(thing, _unless_forked, ProcessMark(), function, arguments)


def _unless_forked(
    mark: ProcessMark, function: Callable[..., object], arguments: tuple[Any, ...]
) -> None:
    if mark.is_ours:
        function(*arguments)


def forget_in_child(*registries: Any) -> None:
    """What these hold belongs to the parent: a forked child begins with none of it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: [registry.clear() for registry in registries])
