"""Machine code: compiled kernels in files, stored under a digest of their sources, and checked before they are loaded.

`compiling` uses it. A file holds one kernel, compiled for one signature. Laws:

- **Right code.** A kernel is loaded only if compiling it here and now would give the same code: a stale kernel would be
  a wrong answer. The folder of a file is named by the digest of everything on which machine code depends: the contents
  of all sources beside the kernel, and of those beside this module and in folders there, since kernels call each other
  across files; the versions of Numba and llvmlite, the minor version of Python and its ABI; the processor (`targets`),
  the platform, and the settings of Numba that change code. Times and paths of files do not count. So a folder that one
  checkout wrote serves another checkout, another user and a wheel, and a change in any source leads to another folder.
- **Whole files.** A file begins with a digest of its content, its name and its folder. A file that was cut off,
  damaged, renamed or moved from another folder is not loaded; the kernel is compiled, and replaces the file. Files are
  written under another name and then renamed, so no process sees half of one.
- **Trusted places.** Loaded code is executed, so files are read from trusted places only. The first is ``compiled/``
  beside the sources: who can write there can write the sources. A wheel, and the package that is shipped to executors
  of Spark, have their files there. The second, for when the first cannot be written, is ``$NUMBA_CACHE_DIR/riverrun``,
  or else the user's own folder (``$XDG_CACHE_HOME/riverrun``, ``~/.cache/riverrun``). This folder and each folder above
  it must belong to the user or to root, and others must not be able to write them, except for folders such as /tmp in
  which others cannot rename it. Otherwise it is neither read nor written, and each process compiles for itself. Where
  ``$NUMBA_CACHE_DIR`` is set, the second place is read before the first, and written in place of it. A worker on Spark
  also takes the files that its driver sends along with the task (`carry`): who sends a task sends code.

Cost: hashing some 200 kB of sources once a process (a millisecond); a file has 100 kB or so.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import stat
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import config
from numba.core.serialize import dumps

MAGIC = b"riverrun kernel 1\n"
SUFFIX = ".kernel"
FOLDER = "compiled"
DIGEST = 32
CARRIED: dict[str, bytes] = {}
"""Files that another process of the same program has sent, which this one trusts as it trusts its code."""
_HERE = Path(__file__).resolve().parent
REMEMBERED = 4  # folders of other sources, for one Python and processor, that are not removed
SETTINGS = (
    "OPT",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
    "EXTEND_VARIABLE_LIFETIMES",
    "LLVM_REFPRUNE_PASS",
    "LLVM_REFPRUNE_FLAGS",
    "USE_LLVMLITE_MEMORY_MANAGER",
)


@cache
def fingerprint(folder: Path) -> bytes:
    """The contents of all sources in a folder, and in the folders inside it."""
    digest = blake2b(digest_size=DIGEST)
    for source in sorted(folder.rglob("*.py")):
        content = source.read_bytes()
        name = source.relative_to(folder).as_posix()
        digest.update(f"{name}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.digest()


def environment() -> tuple[object, ...]:
    """Everything on which machine code depends besides sources and processor."""
    return (
        numba.__version__,
        llvmlite.__version__,
        sys.implementation.cache_tag,
        sysconfig.get_config_var("SOABI"),
        sys.byteorder,
        sys.maxsize,
        *((name, repr(getattr(config, name, None))) for name in SETTINGS),
    )


@cache
def folder_name(sources: Path, processor: tuple[str, ...]) -> str:
    """The name of the folder of kernels compiled from these sources, with this Python, for this processor."""
    digest = blake2b(digest_size=16)
    for part in (fingerprint(_HERE), fingerprint(sources)):
        digest.update(part)
    digest.update(repr((environment(), processor)).encode())
    readable = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{sys.implementation.cache_tag}-{processor[1]}")
    return f"{readable}-{digest.hexdigest()}"


def is_private(folder: Path) -> bool:
    """Whether only this user, or root, can put anything into a folder, or another folder into its place."""
    mine = (0, os.geteuid())
    try:
        resolved = folder.resolve(strict=True)
        at = resolved.stat()
        if at.st_uid not in mine or at.st_mode & 0o022:
            return False
        for above in resolved.parents:
            at = above.stat()
            shared = bool(at.st_mode & 0o022)
            if at.st_uid not in mine or (shared and not at.st_mode & stat.S_ISVTX):
                return False
    except OSError:
        return False
    return True


def _own_folder() -> Path | None:
    """The folder of this user for compiled kernels, which may not exist yet; None if there is no such folder."""
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR) / "riverrun"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "riverrun" / "kernels" if os.path.isabs(home) else None


class Shelf:
    """The places for the compiled kernels of one folder of sources, for one processor."""

    def __init__(self, source: Path, processor: tuple[str, ...]) -> None:
        # Of a package in a zip file, or without its sources, or of a function that was typed in, nothing says whether a
        # file is stale: no files are used.
        self.sources_are_known = source.is_file() and any(_HERE.glob("*.py"))
        # All kernels of this folder, and of the folders inside it, are beside each other.
        sources = _HERE if source.is_relative_to(_HERE) else source.parent
        self.name = folder_name(sources, processor)
        self._beside = sources / FOLDER
        self._own = _own_folder()

    def places(self) -> Iterator[Path]:
        """The folders in which files are looked for, in this order."""
        if self._own is not None and config.CACHE_DIR:
            yield from self._own_place(self._own)
        yield self._beside / self.name
        if self._own is not None and not config.CACHE_DIR:
            yield from self._own_place(self._own)

    def _own_place(self, own: Path) -> Iterator[Path]:
        if is_private(own):
            yield own / self.name

    def writable(self) -> Path | None:
        """The folder to which files are written, created if need be; None if there is no writable one."""
        if not config.CACHE_DIR:
            place = self._beside / self.name
            if _ensure_writable(self._beside) and _ensure_writable(place):
                return place
        if self._own is not None and _ensure_writable(self._own) and is_private(self._own):
            place = self._own / self.name
            if _ensure_writable(place):
                return place
        return None

    def find(self, file: str) -> Path | None:
        """The path of a file with this name that is whole; None without one."""
        return next((place / file for place, _ in self._whole(file) if place is not None), None)

    def read(self, file: str) -> Any:
        """The value in a file with this name that is whole; None without one."""
        for _, packed in self._whole(file):
            with suppress(Exception):  # written by a Numba that was changed by hand
                return pickle.loads(zlib.decompress(packed))
        return None

    def _whole(self, file: str) -> Iterator[tuple[Path | None, memoryview]]:
        """The copies of a file that are whole, each with its folder; with None, if the driver sent the copy."""
        start = len(MAGIC) + DIGEST
        for place, content in self._copies(file):
            packed = memoryview(content)[start:]
            if content[:start] == MAGIC + self._digest(file, packed):
                yield place, packed

    def _copies(self, file: str) -> Iterator[tuple[Path | None, bytes]]:
        if (carried := CARRIED.get(f"{self.name}/{file}")) is not None:
            yield None, carried
        for place in self.places():
            with suppress(OSError):
                yield place, (place / file).read_bytes()

    def has(self, file: str) -> bool:
        """Whether there is a file with this name, whole or not."""
        return f"{self.name}/{file}" in CARRIED or any(
            (place / file).is_file() for place in self.places()
        )

    def write(self, file: str, value: Any) -> None:
        """Write a value to a file. Without a writable folder nothing happens: the next process compiles it again."""
        place = self.writable()
        if place is None:
            return
        packed = zlib.compress(dumps(value), 6)
        with suppress(OSError):
            descriptor, scratch = tempfile.mkstemp(prefix=f".{file[:60]}-", dir=place)
            try:
                with open(descriptor, "wb") as target:
                    target.write(MAGIC + self._digest(file, packed))
                    target.write(packed)
                os.chmod(scratch, 0o644)
                os.replace(scratch, place / file)
            except BaseException:
                with suppress(OSError):
                    os.unlink(scratch)
                raise

    def _digest(self, file: str, packed: bytes | memoryview) -> bytes:
        digest = blake2b(f"{self.name}/{file}\n".encode(), digest_size=DIGEST)
        digest.update(packed)
        return digest.digest()


def _ensure_writable(folder: Path) -> bool:
    """Create a folder if need be, writable for its user whatever the umask says; return whether it can be written."""
    try:
        new = not folder.is_dir()
        if new:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
            _forget_others(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _forget_others(folder: Path) -> None:
    """Remove the folders of other sources for the same Python and processor, except the newest of them."""
    kind = folder.name.rpartition("-")[0]
    others = [each for each in folder.parent.glob(f"{kind}-*") if each != folder]
    if kind.startswith(str(sys.implementation.cache_tag)):
        others.sort(key=lambda each: each.stat().st_mtime)
        for each in others[:-REMEMBERED]:
            shutil.rmtree(each, ignore_errors=True)
