"""Compiled kernels in files: found by what they were compiled from, and checked before they are believed.

`compiling` is the only user. A file holds one kernel, compiled for one signature.

**The right-code law.** A kernel is loaded only if compiling it here and now would give the same: a stale kernel would
be a wrong answer. Files lie in a folder named by the digest of everything that machine code depends on:

- the contents of all sources beside the kernel and beside this module, since kernels call each other across files;
- the versions of Numba and llvmlite, the minor version of Python and its ABI;
- the processor (`targets`), the platform, and Numba's settings that change code.

Times and paths of files are no part of it. So a folder that was made by one checkout serves another one, another
user and a wheel; and a change in any source leaves all of it behind.

**The whole-file law.** A file begins with a digest of what follows and of where the file belongs. A file that was cut
off, damaged, renamed or moved from another folder is not loaded; the kernel is compiled, and replaces the file. Files
are written beside their place and renamed, so that nobody sees half of one.

**The trusted-place law.** What is loaded is executed, so it is loaded from places that are trusted already:

1. ``compiled/`` beside the sources. Whoever can write there can write the sources. A wheel brings its files there, and
   what is shipped to Spark's executors too.
2. Where that cannot be written: ``$NUMBA_CACHE_DIR/riverrun``, or else the user's own folder
   (``$XDG_CACHE_HOME/riverrun``, ``~/.cache/riverrun``). It, and each folder above it, must belong to the user or to
   root and must not be writable by others, but for folders such as /tmp, where others cannot rename it. Where that does
   not hold it is neither read nor written, and each process compiles for itself.

A worker on Spark also takes the files that its driver sends along with the task (`carry`): who sends a task sends code.

``$NUMBA_CACHE_DIR``, where it is set, is written rather than the first place, and read before it.

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
    """The contents of all sources in a folder."""
    digest = blake2b(digest_size=DIGEST)
    for source in sorted(folder.glob("*.py")):
        content = source.read_bytes()
        digest.update(f"{source.name}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.digest()


def environment() -> tuple[object, ...]:
    """What machine code depends on besides sources and processor."""
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
    """The name of the folder for what is compiled of these sources, here, for this processor."""
    digest = blake2b(digest_size=16)
    for part in (fingerprint(_HERE), fingerprint(sources)):
        digest.update(part)
    digest.update(repr((environment(), processor)).encode())
    readable = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{sys.implementation.cache_tag}-{processor[1]}")
    return f"{readable}-{digest.hexdigest()}"


def is_private(folder: Path) -> bool:
    """Whether nobody but this user, or root, can put anything into a folder, or another one into its place."""
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
    """The folder of this user for what is compiled, or None; it may not be there yet."""
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR) / "riverrun"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "riverrun" / "kernels" if os.path.isabs(home) else None


class Shelf:
    """The places where kernels of one folder of sources lie, compiled for one processor."""

    def __init__(self, source: Path, processor: tuple[str, ...]) -> None:
        # A package in a zip file, or without its sources, or a function that was typed in: nothing says whether a
        # file is stale, so there are none.
        self.sources_are_known = source.is_file() and any(_HERE.glob("*.py"))
        sources = source.parent
        self.name = folder_name(sources, processor)
        self._beside = sources / FOLDER
        self._own = _own_folder()

    def places(self) -> Iterator[Path]:
        """Where files are looked for, in this order."""
        if self._own is not None and config.CACHE_DIR:
            yield from self._own_place(self._own)
        yield self._beside / self.name
        if self._own is not None and not config.CACHE_DIR:
            yield from self._own_place(self._own)

    def _own_place(self, own: Path) -> Iterator[Path]:
        if is_private(own):
            yield own / self.name

    def writable(self) -> Path | None:
        """Where files are written: the folder, made if need be, or None."""
        if not config.CACHE_DIR:
            place = self._beside / self.name
            if _made(self._beside) and _made(place):
                return place
        if self._own is not None and _made(self._own) and is_private(self._own):
            place = self._own / self.name
            if _made(place):
                return place
        return None

    def find(self, file: str) -> Path | None:
        """Where there is such a file, whole."""
        return next((place / file for place, _ in self._whole(file) if place is not None), None)

    def read(self, file: str) -> Any:
        """What a file holds, or None: there is none that can be believed."""
        for _, packed in self._whole(file):
            with suppress(Exception):  # written by a Numba that was changed by hand
                return pickle.loads(zlib.decompress(packed))
        return None

    def _whole(self, file: str) -> Iterator[tuple[Path | None, memoryview]]:
        """The copies of a file that are whole, each with the place where it lies; None: it was carried here."""
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
        """Whether there is such a file, whatever it holds."""
        return f"{self.name}/{file}" in CARRIED or any(
            (place / file).is_file() for place in self.places()
        )

    def write(self, file: str, value: Any) -> None:
        """Keep a value. Where nothing can be written, nothing is: the next process compiles it again."""
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


def _made(folder: Path) -> bool:
    """Whether a folder can be written; it is made if need be, for its user to write, whatever the umask says."""
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
    """Remove what other sources have left for the same Python and processor, but for the last ones."""
    kind = folder.name.rpartition("-")[0]
    others = [each for each in folder.parent.glob(f"{kind}-*") if each != folder]
    if kind.startswith(str(sys.implementation.cache_tag)):
        others.sort(key=lambda each: each.stat().st_mtime)
        for each in others[:-REMEMBERED]:
            shutil.rmtree(each, ignore_errors=True)
