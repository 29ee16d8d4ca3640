"""Storage: a few named files in an object store, through obstore. Checkpoints, log and leases are kept in one.

A storage has these verbs: put, create, get (or the head of a file), map, take, list, delete. Names are paths below a
prefix. A put is atomic: readers see the whole file or none, and when the put returns, the store has the file. `create`
is a put that succeeds for one caller only; publishing rests on it.

**Durability.** In S3, Google Cloud Storage and Azure, files that were put survive. On local disk a file is written
beside its target and renamed (or linked, to create; `directory`), with *no* fsync: the file survives the death of any
process, but after a power cut it may be empty. Its checksum shows that, and the checkpoint is lost.
``open_storage(path, synced=True)`` makes each put wait until the file and its name are on the disk, at the disk's
speed, and each delete until the names are gone from it.

>>> storage = open_storage("memory:///")
>>> storage.create("log/1", b"one"), storage.create("log/1", b"two")
(True, False)
>>> storage.names("log"), storage.get("log/1").to_pybytes()
(['log/1'], b'one')
>>> storage.get("log/2")
Traceback (most recent call last):
    ...
riverrun.errors.CheckpointError: cannot read log/2: it is not in MemoryStore
Hint: it was collected, never written, or written somewhere else: check the path of the checkpoint
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import obstore
import pyarrow as pa
import xxhash
from obstore import exceptions
from obstore.store import LocalStore, from_url

from riverrun.errors import CheckpointError, TransportError
from riverrun.retry import SOON
from riverrun.storage.directory import Directory, sync_folder

if TYPE_CHECKING:
    from obstore.store import ObjectStore

RETRIES: Any = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=SOON),
    "backoff": {
        "init_backoff": timedelta(seconds=0.1),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}
"""How long obstore itself tries again: for a moment. Its default of three minutes would be silent, and be added to the
time of `retry`, which logs what it waits for and knows the deadline."""
PASSING: set[str] = set()
"""Names of files that need not outlive a power cut."""
_WORD = 8  # kernels read words where they lie
_UNFINISHED = re.compile(r"#\d+$")

# Errors that trying again cannot mend.
_REFUSED = (
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.UnknownConfigurationKeyError,
    PermissionError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class FileFound:
    """A file as a listing shows it."""

    name: str
    size: int
    modified: datetime | None


def open_storage(
    place: str | Path,
    *,
    synced: bool = False,
    make: bool = True,
    attempt: str = "keep checkpoints",
    **config: Any,
) -> Storage:
    """The storage at a path, which is made if need be (refused, where `make` is false), or at a URL.

    URLs are s3://bucket/path, gs://, az://, file:// and memory://. `config` is passed on to
    obstore: region, endpoint, credentials and so on.
    """
    if not isinstance(place, str | Path):
        raise CheckpointError(
            "checkpoint.refused",
            f"cannot {attempt} at {place!r}: that is no path or URL",
            hint="give a directory, or a URL such as s3://bucket/path",
        )
    local, is_url = str(place), isinstance(place, str) and "://" in place
    if is_url and local.startswith("file://"):
        local, is_url = local.removeprefix("file://"), False
    try:
        if is_url:
            return Storage(from_url(local, **{"retry_config": RETRIES, **config}), synced=synced)
        path = Path(local).expanduser().absolute()
        if not make and not path.is_dir():
            raise nothing_at(place)
        absent = [folder for folder in (path, *path.parents) if not folder.exists()]
        storage = Storage(LocalStore(path, mkdir=True, **config), synced=synced)
        for folder in absent if synced else ():
            sync_folder(folder.parent)
        return storage
    except (exceptions.BaseError, OSError, TypeError, ValueError) as error:
        raise CheckpointError(
            "checkpoint.refused",
            f"cannot {attempt} at {place}: {_first_line(error)}",
            hint="give a directory, or a URL that obstore reads, with its settings; HDFS is not one",
            place=str(place),
        ) from error


def nothing_at(place: object) -> CheckpointError:
    """The error for a path that has nothing of a run."""
    return CheckpointError(
        "checkpoint.nothing",
        f"there is nothing at {place}",
        hint="check the path: it is the one that flow.run(checkpoint=PATH) was given",
        place=str(place),
    )


def checksum(data: Any) -> str:
    """The XXH3 hash of some bytes, 128 bits, as hex: it finds accidents, not forgeries."""
    return xxhash.xxh3_128_hexdigest(data)


class Storage:
    """Files below `prefix` in an object store of obstore."""

    def __init__(self, store: ObjectStore, prefix: str = "", *, synced: bool = False) -> None:
        self.store = store
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.synced = synced
        self._directory: Directory | None = None
        if isinstance(store, LocalStore) and store.prefix is not None:
            self._directory = Directory(Path(store.prefix))

    def __repr__(self) -> str:
        return f"Storage({self.where})"

    @property
    def root(self) -> Path | None:
        """The local directory that names lie below; None when files are not on local disk."""
        if isinstance(self.store, LocalStore) and self.store.prefix is not None:
            return Path(self.store.prefix) / self.prefix
        return None

    def put(self, name: str, data: Any) -> None:
        """Put bytes under a name, in place of those that were there."""
        with self._translated("write", name):
            if self._directory is not None:
                synced = self.synced and name not in PASSING
                self._write(self._directory, name, data, fresh=False, synced=synced)
            else:
                obstore.put(self.store, self.prefix + name, _octets(data))

    def create(self, name: str, data: Any) -> bool:
        """Put bytes under a name that is free; False when it is not."""
        with self._translated("create", name):
            if self._directory is not None:
                return self._write(self._directory, name, data, fresh=True, synced=self.synced)
            try:
                obstore.put(self.store, self.prefix + name, _octets(data), mode="create")
            except exceptions.AlreadyExistsError:
                return False
        return True

    def _write(
        self, directory: Directory, name: str, data: Any, *, fresh: bool, synced: bool
    ) -> bool:
        return directory.write(self.prefix + name, _octets(data), fresh=fresh, synced=synced)

    def write_in_place(self, name: str, data: bytes) -> bool:
        """Write a few bytes over those under a name; False where that fails, as a rule since files are not on local
        disk."""
        if self._directory is None:
            return False
        try:
            self._directory.write_in_place(self.prefix + name, data)
        except OSError:
            return False
        return True

    def get(self, name: str) -> pa.Buffer:
        """The bytes under a name, in memory."""
        with self._translated("read", name):
            data = pa.py_buffer(obstore.get(self.store, self.prefix + name).bytes())
        return data if data.address % _WORD == 0 else pa.py_buffer(data.to_pybytes())

    def head(self, name: str, size: int) -> bytes:
        """The first `size` bytes under a name; the file has at least as many."""
        with self._translated("read", name):
            return bytes(obstore.get_range(self.store, self.prefix + name, start=0, length=size))

    def map(self, name: str) -> pa.Buffer:
        """The bytes under a name where they lie on local disk; readable even after a delete."""
        if self.root is None:
            raise CheckpointError(
                "checkpoint.not_local",
                f"cannot map {name}: {self.where} is not a local disk",
                hint="restore without mapped=True: the files are then fetched",
                file=name,
            )
        with self._translated("map", name):
            return _mapped(self._path(self.root, name))

    def take(self, name: str, folder: Path) -> pa.Buffer:
        """The bytes under a name, mapped from a file of our own in a local folder, which nobody else can delete.

        The file is linked where that works, otherwise copied. It has no name when this returns, and goes with the
        buffer.
        """
        folder.mkdir(parents=True, exist_ok=True)  # a cleaner may have deleted it while empty
        own = folder / uuid4().hex
        with self._translated("take", name):
            try:
                linked = self.root is not None
                if self.root is not None:
                    try:
                        os.link(self._path(self.root, name), own)
                    except FileNotFoundError:
                        raise
                    except OSError:  # another file system
                        linked = False
                if not linked:
                    own.write_bytes(self.get(name))
                return _mapped(own)
            finally:
                own.unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        """The names of all files in a folder, sorted."""
        return [file.name for file in self.files(folder)]

    def files(self, folder: str) -> list[FileFound]:
        """All files in a folder, sorted by name, with their sizes and when they were written."""
        start = len(self.prefix)
        with self._translated("list", folder):
            if self.root is not None:
                local = list(_local_files(self.root, folder))
                return sorted(local, key=lambda file: file.name)
            chunks = obstore.list(self.store, self.prefix + folder)
            listed = [
                FileFound(meta["path"][start:], meta["size"], meta["last_modified"])
                for chunk in chunks
                for meta in chunk
            ]
        return sorted(listed, key=lambda file: file.name)

    def unfinished(self, folder: str, name: str = "*") -> list[str]:
        """The names of files that killed processes left unfinished on local disk: NAME#1, which obstore does not
        list."""
        if self.root is None:
            return []
        start = f"{folder}/" if folder else ""
        left = (path.name for path in (self.root / folder).glob(f"{name}#*"))
        return sorted(start + each for each in left if each.isprintable())

    def unfinished_files(self, folder: str) -> list[FileFound]:
        """Unfinished files, with their sizes and when they were written."""
        files = []
        for name in self.unfinished(folder):
            assert self.root is not None
            with suppress(FileNotFoundError):  # its writer has finished it by now
                about = self._path(self.root, name).stat()
                modified = datetime.fromtimestamp(about.st_mtime, UTC)
                files.append(FileFound(name, about.st_size, modified))
        return files

    def delete(self, names: Iterable[str]) -> None:
        """Delete these files; files that are gone already are no error."""
        names = list(names)
        for name in names:
            with self._translated("delete", name):
                try:
                    if self.root is not None:  # obstore refuses the names of unfinished files
                        self._path(self.root, name).unlink()
                    else:
                        obstore.delete(self.store, self.prefix + name)
                except FileNotFoundError:
                    pass
        if self.synced and self._directory is not None:  # later deletes rely on this one
            with self._translated("delete", ", ".join(names[:1])):
                self._directory.sync({(self.prefix + name).rpartition("/")[0] for name in names})

    @staticmethod
    def _path(root: Path, name: str) -> Path:
        if {"", ".", ".."} & set(name.split("/")):  # as obstore does
            raise ValueError(f"{name!r} is not a path below the storage")
        return root / name

    @property
    def where(self) -> str:
        """The path, or the store and the prefix in it: for people."""
        if self.root is not None:
            return str(self.root)
        shown = repr(self.store)  # the bucket and the prefix, where there is one
        kind = type(self.store).__name__ if shown.startswith("<") else shown
        return f"{kind} {self.prefix}".rstrip()

    @contextmanager
    def _translated(self, verb: str, name: str) -> Iterator[None]:
        with _translated(verb, name, self.where):
            if self._directory is not None:
                self._directory.check()
            yield


def _local_files(root: Path, folder: str) -> Iterator[FileFound]:
    """The files in a local folder. Passed over are entries that no object store could have (names that are not UTF-8 or
    not printable, pipes, links that lead nowhere) and unfinished files."""
    try:
        with os.scandir(root / folder) as entries:
            listed = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in listed:
        name = f"{folder}/{entry.name}" if folder else entry.name
        if not entry.name.isprintable():
            continue
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _local_files(root, name)
            elif entry.is_file() and not _UNFINISHED.search(name):
                about = entry.stat()
                yield FileFound(name, about.st_size, datetime.fromtimestamp(about.st_mtime, UTC))
        except OSError:  # the entry is gone by now, or a link in a circle
            continue


def _mapped(path: Path) -> pa.Buffer:
    if path.stat().st_size == 0:  # nothing to map
        return pa.py_buffer(b"")
    with pa.memory_map(str(path), "r") as mapped:
        return mapped.read_buffer()


def _octets(data: Any) -> memoryview:
    """Bytes as obstore wants them: unsigned, where Arrow's buffers have signed ones."""
    return memoryview(data).cast("B")


@contextmanager
def _translated(verb: str, name: str, where: str) -> Iterator[None]:
    """Raise errors of the store as errors of Riverrun."""
    try:
        yield
    except FileNotFoundError as error:
        if verb in ("write", "create"):  # the bucket itself is not there
            raise _unreachable(verb, name, where, error) from error
        raise CheckpointError(
            "checkpoint.missing",
            f"cannot {verb} {name}: it is not in {where}",
            hint="it was collected, never written, or written somewhere else: check the path of the checkpoint",
            file=name,
        ) from error
    except _REFUSED as error:
        raise CheckpointError(
            "checkpoint.refused",
            f"cannot {verb} {name} in {where}: {_first_line(error)}",
            hint="check the path, the settings of the store and what its credentials allow",
            file=name,
        ) from error
    except (exceptions.BaseError, OSError) as error:
        raise _unreachable(verb, name, where, error) from error


def _unreachable(verb: str, name: str, where: str, error: Exception) -> TransportError:
    return TransportError(
        "storage.unreachable",
        f"cannot {verb} {name} in {where}: {_first_line(error)}",
        hint="try again; if it persists, check the disk, the network and the store",
        file=name,
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
