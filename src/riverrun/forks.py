"""Forks: a run belongs to the process that started it. A child made by ``os.fork`` has a copy that must do nothing.

A forked child (``os.fork``, ``multiprocessing`` with the start method "fork") has the memory of its parent and none of
its threads. A copied run would wait for threads that are not there; a copied lease would give back a path
that the parent uses, when the child ends; and a copied finalizer would delete the parent's files. Laws:

- **Refusal.** Every call of a run in a forked child is refused with ``run.forked``, before any lock is touched;
  ``close`` does nothing there.
- **Harmlessness.** Nothing that happens in a forked child, nor its end, changes files, leases or runs of the parent.

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
"""How many forks lie between the process that loaded this module and the present one."""


def _count() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)


class ProcessMark:
    """A mark of the process in which it was made, so that a forked child notices that an object is not its own."""

    __slots__ = ("_fork_count", "pid")

    def __init__(self) -> None:
        self._fork_count = _forks
        self.pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this process made the mark."""
        return self._fork_count == _forks

    def check(self, attempt: str, owner: str) -> None:
        """Refuse an attempt in a forked child; `owner` names the thing that belongs to the parent."""
        if self._fork_count != _forks:
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
    """Clear these registries in forked children: their entries belong to the parent."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: [registry.clear() for registry in registries])
