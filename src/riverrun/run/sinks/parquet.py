"""A folder of Parquet files as a destination: one file for each epoch that changed something.

Users get one from ``run.write_parquet``. A file has the columns of the output, `diff` and `epoch`. The name of the file
has the epoch; its metadata name the flow, output, run and writer, and have a checksum. On a local disk a file gets its
name once it is whole and synced (`_Folder`); in a bucket it is made by one conditional put (`_Bucket`). The laws are
those of `destination`.

>>> import tempfile, polars as pl, riverrun as rr
>>> flow = rr.Dataflow("words")
>>> words = flow.input("words", {"word": pl.String})
>>> flow.output("counts", words.group_by("word").count())
>>> with tempfile.TemporaryDirectory() as folder, flow.run() as run:
...     sink = run.write_parquet("counts", folder)
...     for word in ("sea", "sky", "sea"):
...         run.insert("words", [(word,)])
...         commit = run.commit()
...     sink.wait().epoch, sorted(pl.read_parquet(folder).rows())
(2, [('sea', 1, -1, 2), ('sea', 1, 1, 0), ('sea', 2, 1, 2), ('sky', 1, 1, 1)])
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from riverrun.errors import RiverrunError, SchemaError
from riverrun.rows.records import canonical_columns
from riverrun.run.sinks.destination import Kept, _columns, _fitted
from riverrun.run.sinks.queue import EpochChanges
from riverrun.state.changes import hash_rows
from riverrun.state.columns import as_column
from riverrun.state.soundness import check_rows
from riverrun.state.types import declared_schema
from riverrun.storage.scratch import locked_leftover
from riverrun.storage.store import Storage, checksum, open_storage

_FILE = re.compile(r"epoch-([0-9]{20})\.parquet")
_CHECKSUM = "riverrun.checksum"


class ParquetDirectory(Kept):
    """A directory, local or in an object store, with a file for each epoch that changed something."""

    def __init__(
        self,
        path: str | Path | Storage,
        flow: str,
        output: str,
        schema: pa.Schema,
        run: str = "",
    ) -> None:
        super().__init__(str(path), flow, output, schema, run)
        self._files = self._open(path)
        try:
            self._stored = pq.read_schema(
                pa.BufferReader(self._encoded(self.stamped.empty_table(), {}))
            )
        except (pa.ArrowException, ValueError) as error:
            raise SchemaError(
                "sink.schema",
                f"cannot write {output!r} to {path}: Parquet does not hold its columns: {error}",
                hint="cast the column to another type before flow.output(...)",
            ) from error
        try:
            names = self._names()
            for name in names[:1] + names[-1:]:
                self._check_file(name, self._files.get(name))
        except OSError as error:
            raise self._no_place(path, error) from error
        if names:
            self.epoch = _epoch_of(names[-1])

    def content(self) -> pa.Table:
        """The changes of all files."""
        tables = [self._rows(name, self._files.get(name)) for name in self._names()]
        return pa.concat_tables(tables) if tables else self.changed.empty_table()

    def _rows(self, name: str, data: pa.Buffer) -> pa.Table:
        """The changes that a file has, checked to be those that were written (the read-back-as-written law)."""
        labels = self._check_file(name, data)
        try:
            table = check_rows(pq.ParquetFile(pa.BufferReader(data)).read())
            stamped = check_rows(_fitted(table, self.stamped))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._damaged(name, error) from error
        if labels.pop(_CHECKSUM, None) != self._checksum(stamped, labels):
            raise self._damaged(name, "its rows or labels are not those that were written")
        return stamped.select(self.changed.names)

    def _checksum(self, stamped: pa.Table, labels: Mapping[str, str]) -> str:
        """A checksum of rows and labels, whatever their order and however the file encodes them."""
        schema, total = declared_schema(self.stamped), 0
        for batch in stamped.combine_chunks().to_batches():
            hashes = hash_rows(canonical_columns(batch, schema), batch.num_rows)
            total += int(hashes.sum(dtype=np.uint64))
        ours = sorted((k, v) for k, v in labels.items() if k.startswith("riverrun."))
        return checksum(f"{stamped.num_rows} {total % (1 << 64)} {ours}".encode())

    def _store(self, changes: EpochChanges, again: bool) -> None:
        table = self._table(changes)
        if not table.num_rows:
            return
        epochs = as_column(np.full(table.num_rows, changes.epoch, np.int64))
        stamped = pa.table([*table.columns, epochs], schema=self.stamped)
        name = f"epoch-{changes.epoch:020d}.parquet"
        labels = self._labels(changes)
        labels[_CHECKSUM] = self._checksum(stamped, labels)
        if not self._files.create(name, self._encoded(stamped, labels)):
            # This sink may have made the file, in a try that was reported as failed.
            labels = self._check_file(name, self._files.get(name))
            if labels.get("riverrun.writer") != self._writer:
                raise self._taken(changes.epoch)

    def _encoded(self, table: pa.Table, labels: Mapping[str, str]) -> pa.Buffer:
        labelled = {**(table.schema.metadata or {}), **{k: v.encode() for k, v in labels.items()}}
        stream = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata(labelled or None), stream)
        return stream.getvalue()

    def _names(self) -> list[str]:
        """The names of the sink's files, oldest first. Any other Parquet file is refused: readers of the folder would
        take its rows for changes."""
        names = self._files.names()
        strange = [n for n in names if n.endswith(".parquet") and not _FILE.fullmatch(n)]
        if strange:
            raise self._foreign(f"it has other files: {', '.join(map(ascii, strange[:3]))}")
        return [name for name in names if _FILE.fullmatch(name)]

    def _check_file(self, name: str, data: pa.Buffer) -> dict[str, str]:
        """The labels of a file, if the file belongs to this sink; its rows are not looked at."""
        try:
            schema = pq.read_schema(pa.BufferReader(data))
            columns = _columns(schema)  # names may not be UTF-8
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._foreign(f"{name} is no whole Parquet file: {error}") from error
        labels = {
            k.decode(errors="replace"): v.decode(errors="replace")
            for k, v in (schema.metadata or {}).items()
        }
        self._check_identity(labels, name)
        if not declared_schema(schema).equals(declared_schema(self._stored)):
            raise self._foreign(
                f"{name} has the columns {columns}, and this output with diff and epoch "
                f"{_columns(self._stored)}"
            )
        epoch = labels.get("riverrun.epoch")
        if epoch != str(_epoch_of(name)):
            raise self._damaged(name, f"it says that it is of epoch {epoch!r}")
        return labels

    def _open(self, path: str | Path | Storage) -> _Folder | _Bucket:
        if isinstance(path, Storage):
            return _Bucket(path)
        place = path.removeprefix("file://") if isinstance(path, str) else path
        try:
            if isinstance(place, str) and "://" in place:
                return _Bucket(open_storage(place, attempt="keep files"))
            return _Folder(Path(place).expanduser().absolute())
        except (RiverrunError, OSError, TypeError) as error:
            raise self._no_place(path, error) from error

    def _no_place(self, path: str | Path | Storage, error: Exception) -> RiverrunError:
        return RiverrunError(
            "sink.place",
            f"cannot write {self.output!r} to {path}: {getattr(error, 'message', error)}",
            hint="give a directory that can be written to, or a URL such as s3://bucket/path",
        )


def _epoch_of(name: str) -> int:
    match = _FILE.fullmatch(name)
    assert match is not None
    return int(match[1])


class _Folder:
    """A local directory. A file gets its name there once it is whole and on the disk: nobody reads half a file.

    Until then the file has no name at all, so nothing is left when its process is killed. Where the file system has no
    files without names (NFS, for one), the unfinished file lies beside the directory as ``.NAME-HEX.tmp``; where it
    cannot be linked from there, since the directory is a mount point, it lies in the directory. The writer holds a lock
    on the unfinished file, and the lock dies with the process. Unfinished files whose lock is free are removed when a
    sink is opened.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._partial = re.compile(rf"\.{re.escape(root.name)}-[0-9a-f]{{32}}\.tmp")
        for folder in {root.parent, root}:
            with suppress(OSError):
                for name in filter(self._partial.fullmatch, os.listdir(folder)):
                    _unlink_abandoned(folder / name)

    def names(self) -> list[str]:
        return sorted(path.relative_to(self._root).as_posix() for path in self._root.rglob("*"))

    def get(self, name: str) -> pa.Buffer:
        return pa.py_buffer((self._root / name).read_bytes())

    def create(self, name: str, data: pa.Buffer) -> bool:
        """Make a file, with its content and its name on the disk; return False when there is one of that name."""
        here = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for way in (self._unnamed, self._beside, self._inside):
                created = way(here, name, data)
                if created is not None:
                    break
            else:
                raise OSError(f"{self._root} takes no files by linking or renaming")
            if created:
                os.fsync(here)
            return created
        finally:
            os.close(here)

    def _unnamed(self, here: int, name: str, data: pa.Buffer) -> bool | None:
        """Make the file without a name until it is whole; None where the file system cannot do that."""
        try:
            descriptor = os.open(self._root, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        except (OSError, AttributeError):
            return None
        try:
            _write_synced(descriptor, data)
            source = f"/proc/self/fd/{descriptor}"
            os.link(source, name, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=True)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                return None
            raise
        finally:
            os.close(descriptor)
        return True

    def _beside(self, here: int, name: str, data: pa.Buffer) -> bool | None:
        try:
            return self._renamed(self._root.parent, here, name, data)
        except OSError as error:
            if error.errno in _NO_LINKS:  # another mount, or a parent that is not ours to write to
                return None
            raise

    def _inside(self, here: int, name: str, data: pa.Buffer) -> bool | None:
        return self._renamed(self._root, here, name, data)

    def _renamed(self, folder: Path, here: int, name: str, data: pa.Buffer) -> bool:
        partial = folder / f".{self._root.name}-{uuid4().hex}.tmp"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with suppress(OSError):  # no locks there: then nobody collects
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_synced(descriptor, data)
            try:
                os.link(partial, name, dst_dir_fd=here)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP):
                    raise
                if (self._root / name).exists():  # a disk without links
                    return False
                os.rename(partial, name, dst_dir_fd=here)
            return True
        finally:
            partial.unlink(missing_ok=True)
            os.close(descriptor)


_NO_LINKS = (
    errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP, errno.ENOENT, errno.EINVAL,
)  # fmt: skip


def _write_synced(descriptor: int, data: pa.Buffer) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def _unlink_abandoned(path: Path) -> None:
    """Remove a file that a killed process was writing: its lock is free, since a lock dies with its process."""
    with (
        suppress(OSError),
        locked_leftover(path) as about,
    ):  # OSError: a link, or there are no locks
        if about is not None:
            path.unlink(missing_ok=True)


class _Bucket:
    """A place in an object store, where a put is atomic by itself."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def names(self) -> list[str]:
        return self._storage.names("")

    def get(self, name: str) -> pa.Buffer:
        return self._storage.get(name)

    def create(self, name: str, data: pa.Buffer) -> bool:
        return self._storage.create(name, data)
