"""Shipping: running this package's code in tasks of Spark, on executors where the package may not be installed.

Workers (`launcher`), tasks that hand rows in (`ingest`) and tasks of the data source (`source`) are started through
`task` or `loader`. A task gets a function of plain Python, which first makes the package importable: it takes the
installed package if `riverrun.__version__` is that of the driver, and otherwise unpacks the package that travels with
the function. (In a local session nothing travels.) The packages that this one needs (pyarrow, numba, ...) must be
installed on executors; a task where one is missing names it.

The package is unpacked below the temporary folder, once for each content: the folder is named by a digest of the
sources. A process locks the folder that it uses for as long as it lives. A process that unpacks later removes folders
of other contents that are older than an hour and that no process has locked.
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
    """A function that finds a function of this package, by module and name, in whatever process it is called.

    The returned function is pickled by value and refers to no module of this package, since it is defined inside this
    function.
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
                """Remove folders that no process uses any more: of other versions, and half unpacked ones."""
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
                # The lock lasts as long as this process. Where there are no locks, no process removes folders.
                sys._riverrun_lock = locked(folder, fcntl.LOCK_SH)  # type: ignore[attr-defined]
                if sys._riverrun_lock is not None or os.path.isdir(folder):  # type: ignore[attr-defined]
                    break
            try:
                os.utime(folder)
                collect()
            except OSError:
                pass  # the next process that unpacks collects
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
