"""A local directory in which files are written whole or not at all, and never into another directory at its path.

A storage on local disk writes through one. A path may come to lead somewhere else: a directory is moved, a disk
is not mounted. A process that then made the path anew would write where nobody looks for the file. So a file is written
through the directory itself, which is opened and compared with the one seen first, and not through its path. Laws:

- **Same directory.** A written file is in the directory that the path led to in the beginning, wherever that directory
  is by now; otherwise the write is an error.
- **Whole or none.** Readers see a whole file or none. Of several writers of a *fresh* file, one succeeds. Only
  `write_in_place` is apart: it overwrites the first bytes of a small file, a note that readers check by themselves.
- **Synced.** With `synced`, a write returns when the file is on the disk: first the bytes, then, when the file has its
  name, the folder with the name (the first time also the folders around that one). A file that a fresh write finds
  there already is put on the disk too.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     directory = Directory(Path(place) / "here", make=True)
...     _ = directory.write("log/1", b"one", fresh=True)
...     again = directory.write("log/1", b"two", fresh=True)
...     _ = (Path(place) / "here").rename(Path(place) / "there")
...     again, (Path(place) / "there" / "log" / "1").read_bytes(), directory.is_there
(False, b'one', False)

A process that is killed while it writes leaves an unfinished file beside the target, as NAME#123, with a number drawn
at random.

Cost: for each file, a file of another name, which is renamed or linked; with `synced`, the waits for the disk.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any


class Directory:
    """The directory that a path leads to now."""

    def __init__(self, path: Path, *, make: bool = False) -> None:
        self.path = path
        if make:
            path.mkdir(parents=True, exist_ok=True)
        self._identity = self._device_and_inode()
        self._synced: set[str] = set()  # folders whose own names are on the disk

    @property
    def is_there(self) -> bool:
        """Whether the path still leads to this directory."""
        return self._identity is not None and self._identity == self._device_and_inode()

    def check(self) -> None:
        """Raise if the path does not lead to this directory any more."""
        if not self.is_there:
            raise _moved()

    def write(self, name: str, data: Any, *, fresh: bool, synced: bool = False) -> bool:
        """Write bytes to a file, in place of a file that is there; or, with `fresh`, only where none is, and return
        whether.

        With `synced`, the bytes and the name are on the disk when this returns.
        """
        *folders, file = _parts(name)
        for more in (True, True, False):
            try:
                return self._write(folders, file, data, fresh, synced)
            except FileNotFoundError as error:  # not an error of the caller's, who writes
                if not more:
                    raise OSError("the folder or the file was taken away meanwhile") from error
                # A run that starts now may delete the unfinished file: it looks like that of a killed process.
        raise AssertionError("not reached")

    def _write(self, folders: list[str], file: str, data: Any, fresh: bool, synced: bool) -> bool:
        with ExitStack() as stack:
            chain = [stack.enter_context(self._opened())]
            for folder in folders:
                with suppress(FileExistsError):
                    os.mkdir(folder, dir_fd=chain[-1])
                chain.append(stack.enter_context(_open(folder, os.O_DIRECTORY, chain[-1])))
            here, beside = chain[-1], f"{file}#{secrets.randbelow(10**12)}"
            try:
                with _open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, here) as descriptor:
                    _fill(descriptor, data, synced)
                if not fresh:
                    os.replace(beside, file, src_dir_fd=here, dst_dir_fd=here)
                created = fresh and _linked(beside, file, here)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(beside, dir_fd=here)
            if synced:
                if fresh and not created:
                    # The file may be from an earlier try of ours that was not synced, and callers rely on it.
                    with _open(file, os.O_RDONLY, here) as descriptor:
                        os.fsync(descriptor)
                around = 1 if "/".join(folders) in self._synced else len(chain)
                for each in chain[: -around - 1 : -1]:
                    os.fsync(each)
                self._synced.add("/".join(folders))
        return created or not fresh

    def sync(self, folders: Iterable[str]) -> None:
        """Put on the disk which files these folders have, and have no more."""
        with self._opened() as root:
            for folder in sorted(folders):
                with (
                    suppress(FileNotFoundError),
                    _open(folder or ".", os.O_DIRECTORY, root) as each,
                ):
                    os.fsync(each)

    def write_in_place(self, name: str, data: bytes) -> None:
        """Write a few bytes over the beginning of a file, which is made if need be.

        The bytes outlive the process, but maybe not a power cut: for notes of use only as long as the machine is up.
        """
        _parts(name)
        try:  # as a rule the file is there
            with self._opened() as root, _open(name, os.O_WRONLY, root) as descriptor:
                if os.pwrite(descriptor, data, 0) != len(data):
                    raise OSError("there was room for a part only")
        except FileNotFoundError:
            self.write(name, data, fresh=False)

    def _device_and_inode(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """An open descriptor of the directory itself (the law same directory)."""
        try:
            descriptor = os.open(self.path, os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _moved() from error
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != self._identity:
                raise _moved()
            yield descriptor
        finally:
            os.close(descriptor)


def _parts(name: str) -> list[str]:
    """The folders and the file that a name is made of; refused where it may lead out of the directory."""
    parts = name.split("/")
    if {"", ".", ".."} & {*parts}:
        raise ValueError(f"{name!r} is not a path below a directory")
    return parts


def sync_folder(path: Path) -> None:
    """Put the names in a folder on the disk."""
    with _open(path, os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


@contextmanager
def _open(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _fill(descriptor: int, data: Any, synced: bool) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    if synced:
        os.fsync(descriptor)


def _linked(beside: str, file: str, folder: int) -> bool:
    try:
        os.link(beside, file, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        return False
    return True


def _moved() -> OSError:
    return OSError("the directory is not the one it was: it was moved, or is not mounted")
