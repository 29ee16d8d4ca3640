"""Shipping: what a task needs to run our code, on an executor that may not have it.

What is sent to tasks is a function that knows nothing of this package until it has made sure that
it is there: the installed one, if it is the same, and otherwise the one that travels with it. What
the package builds on (pyarrow, numba, ...) must be installed; a task that misses it says so.

What travels is unpacked once for each version, below the temporary folder. Processes lock the folder while they live:
whoever unpacks another version later removes those that nobody uses.
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

TaskFunction = Callable[[Iterator[Any]], Iterator[Any]]


@cache
def package() -> tuple[str, bytes]:
    """The digest of our sources, and all of them in a zip file."""
    root = Path(__file__).parents[1]
    digest, sink = blake2b(digest_size=16), io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            name, data = path.relative_to(root).as_posix(), path.read_bytes()
            digest.update(f"{name}\n{len(data)}\n".encode())
            digest.update(data)
            archive.writestr(zipfile.ZipInfo(f"riverrun/{name}"), data)
        archive.writestr(zipfile.ZipInfo("riverrun/py.typed"), b"")
    return digest.hexdigest(), sink.getvalue()


def loader(*, ship: bool) -> Callable[[str, str], Any]:
    """A function that gives a function of ours, by module and name, wherever it is called.

    It is pickled by value, with nothing of ours in it, since it is defined inside this one.
    """
    version = sys.modules["riverrun"].__version__
    digest, archive = package() if ship else ("", b"")

    def load(module: str, function: str) -> Any:
        import importlib
        import os
        import sys
        import tempfile

        def present() -> bool:
            if digest and getattr(sys, "_riverrun_shipped", None) == digest:
                return True
            try:
                installed = importlib.import_module("riverrun")
            except ImportError:
                return False
            return bool(installed.__version__ == version)

        def unpack() -> None:
            import fcntl
            import io
            import re
            import shutil
            import time
            import zipfile

            parent, mine = tempfile.gettempdir(), f"riverrun-code-{os.getuid()}-"
            folder = os.path.join(parent, mine + digest)

            def locked(path: str, how: int) -> int | None:
                """A folder of this user, opened and locked, or None. The lock dies with the process."""
                try:
                    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                except OSError:
                    return None
                try:
                    fcntl.flock(lock, how | fcntl.LOCK_NB)
                    about, seen = os.fstat(lock), os.lstat(path)
                    if about.st_uid == os.getuid() and about.st_ino == seen.st_ino:
                        return lock
                except OSError:
                    pass
                os.close(lock)
                return None

            def collect() -> None:
                """Remove what nobody uses any more: folders of other versions, and half unpacked ones."""
                for name in os.listdir(parent):
                    other = re.fullmatch(rf"{mine}[0-9a-f]{{32}}", name) and name != mine + digest
                    if other or name.startswith("riverrun-unpack-"):
                        path = os.path.join(parent, name)
                        if (
                            not os.path.islink(path)
                            and time.time() - os.lstat(path).st_mtime > 3600
                        ):
                            lock = locked(path, fcntl.LOCK_EX)
                            if lock is not None:
                                shutil.rmtree(path, ignore_errors=True)
                                os.close(lock)

            for _ in range(10):
                if not os.path.isdir(folder):
                    scratch = tempfile.mkdtemp(prefix="riverrun-unpack-")
                    zipfile.ZipFile(io.BytesIO(archive)).extractall(scratch)
                    try:
                        os.rename(scratch, folder)
                    except OSError:
                        shutil.rmtree(scratch, ignore_errors=True)
                about = os.lstat(folder)
                if about.st_uid != os.getuid() or about.st_mode & 0o022:
                    raise RuntimeError(f"{folder} belongs to somebody else: it is not used")
                # In use as long as this process lives. Where there are no locks, nobody removes it.
                sys._riverrun_lock = locked(folder, fcntl.LOCK_SH)  # type: ignore[attr-defined]
                if sys._riverrun_lock is not None or os.path.isdir(folder):  # type: ignore[attr-defined]
                    break
            try:
                os.utime(folder)
                collect()
            except OSError:
                pass  # the next one does
            for name in [n for n in sys.modules if n.partition(".")[0] == "riverrun"]:
                del sys.modules[name]
            sys.path.insert(0, folder)
            sys._riverrun_shipped = digest  # type: ignore[attr-defined]

        if not present():
            if not archive:
                raise RuntimeError(
                    f"this Python ({sys.executable}) does not have riverrun {version}: set PYSPARK_PYTHON to the "
                    "interpreter of the driver before the session is made"
                )
            unpack()
        try:
            return getattr(importlib.import_module(module), function)
        except ImportError as error:
            raise RuntimeError(
                f"riverrun cannot be imported by {sys.executable}: {error}; install what it needs on every executor"
            ) from error

    return load


def task(module: str, function: str, argument: bytes, *, ship: bool) -> TaskFunction:
    """A function for ``mapInArrow``: it calls ``module.function(argument, batches)`` on an executor."""
    load = loader(ship=ship)

    def run(batches: Any) -> Any:
        yield from load(module, function)(argument, batches)

    return run
