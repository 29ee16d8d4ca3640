"""Crashes at every file operation of a durable program, enumerated.

`Disk` stands between our code and the files below a folder: it sees every open, write, fsync, link, rename, unlink and
mkdir there. A killed process leaves the files as they are at that moment. So instead of killing a process for each
operation, `Disk` takes a *snapshot* of the folder before each operation and after it, and after half of the bytes of
each write, while the program goes on. One run gives all states in which the program could have died; each state is
resumed and compared with the oracle. (`tests/chaos/storage/test_crashes.py` also kills real processes in some of them.)

Operations of other libraries below Python (delta-rs) are not seen. For these, `around` takes snapshots before and after
whole calls, and a snapshot *halfway*: with the files that the call has created, but without those in `_delta_log` that
make the others count.

With `power`, a snapshot is the worst case of a power cut: the bytes of a file as of its last fsync, and the names in a
folder as of that folder's last fsync.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any
from unittest import mock

OPERATIONS = ("open", "write", "fsync", "link", "replace", "rename", "unlink", "mkdir", "rmdir")


@dataclass(frozen=True)
class Snapshot:
    """What the folder held at a moment, and what had been said to the program's user by then."""

    operation: int
    what: str
    when: str
    path: Path
    answered: Any


@dataclass
class Disk:
    """The files below `root`, watched; `copies` is where snapshots go."""

    root: Path
    copies: Path
    power: bool = False
    answered: Any = None
    """What the program has promised so far: it sets this."""
    snapshots: list[Snapshot] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    crash: tuple[int, str] | None = None
    """An operation, and when, at which this process dies in earnest."""

    def __post_init__(self) -> None:
        self._lock = RLock()
        self._names: dict[str, dict[str, int]] = {}  # durable names of a folder: inodes
        self._bytes: dict[int, bytes] = {}  # durable bytes of an inode
        self._open: dict[int, int] = {}  # descriptors that keep inodes from being used again

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch, and take snapshots."""
        real = {name: getattr(os, name) for name in OPERATIONS}
        with mock.patch.multiple(
            os, **{name: self._around(name, function) for name, function in real.items()}
        ):
            yield
        for descriptor in self._open.values():
            os.close(descriptor)

    @contextmanager
    def around(self, owner: Any, *names: str) -> Iterator[None]:
        """Watch calls of functions of somebody else, too: the folder before, halfway and after each."""
        with ExitStack() as patches:
            for name in names:
                watched = self._around_call(name, getattr(owner, name))
                patches.enter_context(mock.patch.object(owner, name, watched))
            yield

    def _around_call(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:  # one call at a time: of two, each could be anywhere
                at = len(self.operations)
                self.operations.append(f"{name} called")
                self._moment(at, "before")
                before = self._files()
                try:
                    return function(*arguments, **options)
                finally:
                    self._moment(at, "after")
                    self._halfway(at, self._files() - before)

        return call

    def _files(self) -> set[Path]:
        return {path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file()}

    def _halfway(self, at: int, created: set[Path]) -> None:
        """Take back the commits of what a call has made: its data files are there, and nobody knows of them."""
        if self.crash is None and created:
            copy = self.copies / f"{at:05d}-halfway"
            shutil.copytree(self.copies / f"{at:05d}-after", copy, copy_function=os.link)
            for path in created:
                if path.parent.name == "_delta_log":
                    (copy / path).unlink(missing_ok=True)
            answered = self.snapshots[-1].answered
            self.snapshots.append(Snapshot(at, self.operations[at], "halfway", copy, answered))

    def _around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                where = self._where(name, arguments, options)
                if where is None or (name == "open" and not arguments[1] & os.O_CREAT):
                    return function(*arguments, **options)
                at = len(self.operations)
                self.operations.append(f"{name} {where}")
                self._moment(at, "before")
                if name == "write" and len(arguments[1]) > 1:
                    written = function(arguments[0], arguments[1][: len(arguments[1]) // 2])
                    self._moment(at, "torn")
                    return written  # the caller writes the rest
                try:
                    return function(*arguments, **options)
                finally:
                    if self.power and name == "fsync":
                        self._synced(arguments[0])
                    self._moment(at, "after")

        return call

    def _where(self, name: str, arguments: Any, options: Any) -> str | None:
        """The file that an operation is about, if it is below the folder."""
        try:
            if name in ("write", "fsync"):
                path = os.readlink(f"/proc/self/fd/{arguments[0]}")
            else:
                last = arguments[1] if name in ("link", "replace", "rename") else arguments[0]
                folder = options.get("dst_dir_fd", options.get("dir_fd"))
                path = os.fsdecode(last)
                if folder is not None and not path.startswith("/"):
                    path = os.readlink(f"/proc/self/fd/{folder}") + "/" + path
        except (OSError, TypeError):
            return None
        shown = path.removesuffix(" (deleted)")
        return os.path.relpath(shown, self.root) if shown.startswith(str(self.root)) else None

    def _moment(self, at: int, when: str) -> None:
        if self.crash == (at, when):
            os._exit(9)
        if self.crash is not None:
            return
        copy = self.copies / f"{at:05d}-{when}"
        (self._copy_durable if self.power else self._copy)(copy)
        self.snapshots.append(Snapshot(at, self.operations[at], when, copy, self.answered))

    def _copy(self, copy: Path) -> None:
        shutil.copytree(self.root, copy, symlinks=True, copy_function=_keep)

    # ---- power cuts

    def _synced(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        about = os.fstat(descriptor)
        if os.path.isdir(path):
            self._names[os.path.relpath(path, self.root)] = {
                entry.name: entry.inode() for entry in os.scandir(path)
            }
            return
        if about.st_ino not in self._open:
            self._open[about.st_ino] = os.dup(descriptor)
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            self._bytes[about.st_ino] = file.read()

    def _copy_durable(self, copy: Path) -> None:
        self._fill(copy, ".")

    def _fill(self, copy: Path, folder: str) -> None:
        copy.mkdir(exist_ok=True)
        for name, inode in self._names.get(folder, {}).items():
            below = os.path.normpath(f"{folder}/{name}")
            if below in self._names or (self.root / below).is_dir():
                self._fill(copy / name, below)
            else:
                (copy / name).write_bytes(self._bytes.get(inode, b""))


def _keep(source: str, target: str) -> None:
    """A file has its bytes when it has its name, for good; one that is being written has neither."""
    (shutil.copy2 if "#" in source or source.endswith(".tmp") else os.link)(source, target)


def bury(path: Path) -> None:
    """Have the owner of a path be dead, as it would be after a crash: its process is this one, which lives."""
    owner = path / "owner.json"
    if owner.exists():
        try:
            said = json.loads(owner.read_bytes())
        except ValueError:
            return
        owner.unlink()  # the file of other snapshots too
        owner.write_text(json.dumps(said | {"started": "0"}))
