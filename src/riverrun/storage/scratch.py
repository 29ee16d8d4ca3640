"""Scratch: temporary folders that do not outlive their process for long.

State beyond the memory budget, restored blocks and uploads that wait lie in folders below the temporary folder of the
system (``TMPDIR``, usually /tmp). A process that ends removes its folders. A process that is killed cannot; the next
run on the same machine removes them, after it has asked the kernel whether the process lives. Laws:

- **A lock that dies.** The folder itself is locked (flock) as long as its process lives. The kernel releases the lock
  when the process is gone, however it ended. Process numbers do not count: another process may have the number by now.
- **Nobody else's.** A folder is removed by a process that gets its lock, and only if it is a folder (no link to one),
  belongs to the same user, and was made on this kernel or on this host: locks of other machines, in a temporary folder
  that several share, may not be seen here.
- **Never half locked.** A folder gets the name under which runs look for it when it is locked, not before.

On a file system without such locks (some that are shared over a network) folders are removed when their process ends,
and otherwise stay. A child that was forked keeps the lock of its parent, and so the folders of its parent.

>>> folder = Scratch()
>>> folder.path.is_dir(), collect_abandoned()
(True, [])
>>> folder.close()
>>> folder.path.exists()
False

Cost: a folder costs 0.1 ms and a file descriptor; looking for abandoned ones lists the temporary folder once.
"""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock, Thread

_MAKING = "riverrun-making-"
_NAME = re.compile(r"riverrun-scratch-([0-9a-f]{12})-([0-9a-f]{12})-.+")
_STALE = 3600.0  # seconds after which a folder without its final name counts as abandoned
_LOG = logging.getLogger(__name__)
_SWEEPS = Lock()
_AGAIN = 600.0  # seconds between two sweeps
_SWEPT: list[float] = []  # when the last one was


class Scratch:
    """A temporary folder of this process; it is removed with this object at the latest."""

    def __init__(self, parent: str | Path | None = None) -> None:
        kernel, host = _machine()
        parent = Path(tempfile.gettempdir() if parent is None else parent)
        making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=parent))
        lock = os.open(making, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # no locks on this file system
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        name = making.name.removeprefix(_MAKING)
        self.path = parent / f"riverrun-scratch-{kernel}-{host}-{name}"
        os.rename(making, self.path)
        self._finalizer = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove the folder, with all that is in it. May be called again."""
        self._finalizer()


def _remove(path: Path, lock: int, maker: int) -> None:
    if os.getpid() == maker:  # not in a forked child: its parent uses the folder
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        os.close(lock)


def collect_abandoned(parent: str | Path | None = None) -> list[Path]:
    """Remove the folders of processes that are gone; return their paths."""
    parent = Path(tempfile.gettempdir() if parent is None else parent)
    gone = []
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in entries if entry.name.startswith("riverrun-")]
    except OSError:
        return []
    for name in names:
        try:
            if _collected(parent / name, name):
                gone.append(parent / name)
        except OSError as error:
            _LOG.debug("%s is left: %s", parent / name, error)
    if gone:
        _LOG.info("removed what killed processes left: %s", ", ".join(map(str, gone)))
    return gone


def sweep() -> None:
    """Have a thread remove what killed processes left: at the first run of this process, and at later runs if the last
    time was ten minutes ago."""
    with _SWEEPS:
        now = time.monotonic()
        if _SWEPT and now - _SWEPT[-1] < _AGAIN:
            return
        _SWEPT[:] = [now]
    Thread(target=collect_abandoned, name="riverrun-sweep", daemon=True).start()


def _collected(path: Path, name: str) -> bool:
    match, machine = _NAME.fullmatch(name), _machine()
    ours = match is not None and (match[1] == machine[0] or match[2] == machine[1])
    if not ours and not name.startswith(_MAKING):
        return False
    # A folder that has not its final name yet may be about to be locked.
    with locked_leftover(path, folder=True, idle=0.0 if ours else _STALE) as about:
        if about is None or about.st_uid != os.getuid():
            return False
        shutil.rmtree(path)
        return True


@contextmanager
def locked_leftover(
    path: Path, *, folder: bool = False, idle: float = 0.0
) -> Iterator[os.stat_result | None]:
    """Lock a file or folder whose process is gone, and yield its status; None where that process lives, or nothing is
    there.

    With `idle`, a path that was changed less than so many seconds ago is not even locked. Raises `OSError` for a link,
    and where the file system has no locks.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_DIRECTORY if folder else 0)
    try:
        lock = os.open(path, flags)
    except FileNotFoundError:
        yield None
        return
    try:
        about: os.stat_result | None = os.fstat(lock)
        assert about is not None
        if idle and time.time() - about.st_mtime < idle:
            about = None
        else:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                seen = os.lstat(path)
                if (seen.st_dev, seen.st_ino) != (about.st_dev, about.st_ino):
                    about = None
            except (BlockingIOError, FileNotFoundError):
                about = None
        yield about
    finally:
        os.close(lock)


def boot_id() -> str:
    """The identifier of this start of the kernel; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, ValueError):
        return ""


@cache
def _machine() -> tuple[str, str]:
    """This start of this kernel, and this host, as parts of a name."""
    kernel = blake2b((boot_id() or platform.node()).encode(), digest_size=6).hexdigest()
    return kernel, blake2b(platform.node().encode(), digest_size=6).hexdigest()
