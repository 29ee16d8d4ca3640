"""Where an output can go on its own: to a function, to Parquet files, to a Delta table.

A destination knows the last epoch that it has, and writes an epoch so that it is there whole or not at
all. What follows the run and calls it is a `Sink` (`following`). Laws, for files and tables:

1. **The sum is the result.** The sum of the diffs up to an epoch is the result as of that epoch. A
   mirror is the result as of the last epoch that changed it.
2. **Each epoch once.** What is written carries its epoch, in the same atomic step (the name of the file,
   the transaction of the commit); what is there already is not written again, whoever died in between.
3. **Nothing is left out.** When the run has gone on and its epochs cannot be told one by one any more,
   what the destination has is read back, and its difference to the result is written as one epoch, with
   `riverrun.from_epoch` in its metadata saying since when. So law 1 holds again.
4. **One owner.** Files of another run, output or schema are refused, a destination that is ahead of
   the run too; of two sinks that write to one place, the second to write an epoch fails.
5. **Read back as written.** A sink takes nothing for written that it did not write. A Parquet file carries a checksum
   of its labels and rows (`riverrun.checksum`), and the epoch of its name; the last commit to a Delta table carries
   the epoch of its transaction. What does not agree is refused as damaged, with the name of the file. (The files and
   the log of a Delta table have no checksums: its format has none.)

Epochs that changed nothing leave no trace. Writing is tried again when the disk or the network fails (`retry`).

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

Cost: for each epoch that changes something, a file or a commit: with few rows on local disk 1 ms for a file, 13 ms
for appending to Delta. A mirror without a key is read and written as a whole. Law 3 reads back all there is,
also when the last epochs before a restart changed nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from riverrun.engine.operators.linear import canonical_columns
from riverrun.errors import OperatorFailed, PlanError, RiverrunError, SchemaError, TransportError
from riverrun.retry import persist
from riverrun.run.columns import checked_columns
from riverrun.run.following import Followed, Sink, added_up
from riverrun.run.values import show
from riverrun.state.changes import hash_rows
from riverrun.state.schema import free_name
from riverrun.state.scratch import locked_leftover
from riverrun.state.soundness import check_rows
from riverrun.state.storage import Storage, checksum, open_storage
from riverrun.state.types import declared_schema

__all__ = ["DeltaTable", "Destination", "Function", "ParquetDirectory", "Sink"]

_FILE = re.compile(r"epoch-([0-9]{20})\.parquet")
_CHECKSUM = "riverrun.checksum"
_COMMITS = 20  # of a Delta table, among which the last one of a sink is looked for


class Destination(Protocol):
    """What a run writes an output to."""

    shown: str
    epoch: int | None

    def first(self, start: int | str, completed: int) -> int:
        """The first epoch that it wants, of a run with so many complete ones."""

    def write(self, changes: Followed) -> None:
        """Take in an epoch."""


# -- functions


class Function:
    """A function of the user's that is called for every epoch."""

    def __init__(self, function: Callable[[Followed, int], object], flow: str, output: str) -> None:
        self.shown = str(getattr(function, "__qualname__", type(function).__name__))
        self.epoch: int | None = None
        self._output = output
        self._function = function
        if not callable(function):
            raise PlanError(
                "plan.sink",
                f"cannot call {function!r} for each epoch of {output!r}: it is not a function",
                hint=f"run.for_each_epoch({output!r}, lambda changes, epoch: ...)",
            )

    def first(self, start: int | str, completed: int) -> int:
        """As the user asks for."""
        if start == "all":
            return 0
        if start == "now":
            return completed
        if isinstance(start, int) and not isinstance(start, bool) and 0 <= start <= completed:
            return start
        raise PlanError(
            "plan.sink",
            f"cannot follow {self._output!r} with start={start!r}: it is 'all', 'now', or the number of an epoch up "
            f"to {completed}, the next one",
            hint='start="all" gives first what is there, start="now" only what is to come',
        )

    def write(self, changes: Followed) -> None:
        """Call it; what it raises ends the sink."""
        try:
            self._function(changes, changes.epoch)
        except BaseException as error:
            raise OperatorFailed(
                "sink.function",
                f"the function {self.shown} failed for epoch {changes.epoch} of {self._output!r}: "
                f"{type(error).__name__}: {error}",
                hint="the cause has the traceback. The run goes on, and the function is not called any more: mend it, "
                "and follow the output again",
                epoch=changes.epoch,
            ) from error


# -- what files and tables have in common


class Kept:
    """A destination that keeps changes under their epoch, and can be read back."""

    retried: tuple[type[Exception], ...] = (OSError, TransportError)

    def __init__(
        self, shown: str, flow: str, output: str, schema: pa.Schema, run: str = ""
    ) -> None:
        """`run` tells runs apart whose epochs have nothing to do with each other."""
        self.shown = shown
        self.epoch: int | None = None
        self.output = output
        self.schema = schema
        self.identity = {"riverrun.flow": flow, "riverrun.output": output, "riverrun.run": run}
        diff = free_name("diff", schema.names, any_case=True)
        self.changed = schema.append(pa.field(diff, pa.int64()))
        """The columns of changes, and with the epoch those of what is stored."""
        self.stamped = self.changed.append(
            pa.field(free_name("epoch", self.changed.names, any_case=True), pa.int64())
        )
        self._writer = uuid4().hex
        self._over = Event()

    def first(self, start: int | str, completed: int) -> int:
        """The one after those that it has."""
        if self.epoch is None:
            return 0
        if self.epoch >= completed:
            raise RiverrunError(
                "sink.ahead",
                f"cannot write {self.output!r} to {self.shown}: it has epoch {self.epoch} already, and the run has "
                f"completed {completed} epochs",
                hint="resume the run that wrote it, with the same checkpoint= path, or write to a new place",
                epoch=self.epoch,
            )
        return self.epoch + 1

    def write(self, changes: Followed) -> None:
        """Store an epoch, and try again where that may help."""
        tried = False

        def store() -> None:
            nonlocal tried
            again, tried = tried, True
            try:
                self._store(changes, again=again)
            except self.retried as error:
                away = _away(error)
                raise away from (None if away is error else error)
            except (pa.ArrowException, ValueError) as error:
                raise SchemaError(
                    "sink.rows",
                    f"cannot write epoch {changes.epoch} of {self.output!r} to {self.shown}: {error}",
                    hint="cast the column it names to a type that the files can hold",
                    epoch=changes.epoch,
                ) from error

        what = f"write epoch {changes.epoch} of {self.output!r} to {self.shown}"
        try:
            persist(store, what, code="sink.unreachable", wait=self._over.wait)
        except TransportError as error:
            last = error.__cause__
            raise error from ((last and last.__cause__) or last)  # what the disk or the store said
        self.epoch = changes.epoch

    def stop(self) -> None:
        """Try no more."""
        self._over.set()

    def content(self) -> pa.Table:
        """The changes that it has: the columns of `changed`."""
        raise NotImplementedError

    def _store(self, changes: Followed, again: bool) -> None:
        raise NotImplementedError

    def _table(self, changes: Followed) -> pa.Table:
        """What to write for an epoch, or for several at once (law 3)."""
        table = pa.table(changes.to_arrow().columns, schema=self.changed)
        if not changes.whole or self.epoch is None:
            return table
        kept = self.content()
        negated = pc.negate(kept.column(kept.num_columns - 1))
        kept = kept.set_column(kept.num_columns - 1, kept.field(kept.num_columns - 1), negated)
        return self._added_up(table, kept)

    def _added_up(self, *tables: pa.Table) -> pa.Table:
        return added_up(self.schema, self.changed, *tables)

    def _labels(self, changes: Followed) -> dict[str, str]:
        return {
            **self.identity,
            "riverrun.epoch": str(changes.epoch),
            "riverrun.from_epoch": str(changes.from_epoch),
            "riverrun.writer": self._writer,
        }

    def _check_identity(self, found: Mapping[str, str], what: str) -> None:
        theirs = {name: found.get(name) for name in self.identity}
        if theirs != self.identity:
            raise self._foreign(
                f"{what} says {_listed(theirs)}, and this is {_listed(self.identity)}"
            )

    def _foreign(self, why: str) -> RiverrunError:
        return RiverrunError(
            "sink.foreign",
            f"cannot write {self.output!r} to {self.shown}: {why}",
            hint="a place belongs to one output of one run, with one schema: write to a new one, or resume the run "
            "that wrote it, with the same checkpoint= path",
            output=self.output,
        )

    def _damaged(self, what: str, why: object) -> RiverrunError:
        return RiverrunError(
            "sink.damaged",
            f"cannot write {self.output!r} to {self.shown}: {what} is damaged: {why}",
            hint="put a copy of the file back; or write to a new place, where a sink begins with the whole result",
            output=self.output,
            damaged=what,
        )

    def _taken(self, epoch: int) -> RiverrunError:
        return RiverrunError(
            "sink.taken",
            f"cannot write epoch {epoch} of {self.output!r} to {self.shown}: somebody else has written it",
            hint="one sink writes to a place at a time: is another run of this flow alive?",
            epoch=epoch,
        )


def _away(error: Exception) -> TransportError:
    """The disk, the network or the store failed; it is tried again."""
    if isinstance(error, TransportError):
        return error
    return TransportError(
        "storage.unreachable",
        f"{type(error).__name__}: {error}",
        hint="check the disk, the network and the store; a resumed run makes up for what is missing",
    )


def _listed(fields: Mapping[str, str | None]) -> str:
    shown = {name.removeprefix("riverrun."): value for name, value in fields.items()}
    return ", ".join(f"{name} {value!r}" for name, value in shown.items())


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table in the types of a schema with the same columns."""
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


# -- Parquet


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
        """The changes that a file has, as they were written (law 5)."""
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
        """The same for the same rows and labels, in whatever way a file holds them."""
        schema, total = declared_schema(self.stamped), 0
        for batch in stamped.combine_chunks().to_batches():
            hashes = hash_rows(canonical_columns(batch, schema), batch.num_rows)
            total += int(hashes.sum(dtype=np.uint64))
        ours = sorted((k, v) for k, v in labels.items() if k.startswith("riverrun."))
        return checksum(f"{stamped.num_rows} {total % (1 << 64)} {ours}".encode())

    def _store(self, changes: Followed, again: bool) -> None:
        table = self._table(changes)
        if not table.num_rows:
            return
        epochs = pa.array(np.full(table.num_rows, changes.epoch, np.int64))
        stamped = pa.table([*table.columns, epochs], schema=self.stamped)
        name = f"epoch-{changes.epoch:020d}.parquet"
        labels = self._labels(changes)
        labels[_CHECKSUM] = self._checksum(stamped, labels)
        if not self._files.create(name, self._encoded(stamped, labels)):
            # It may be ours: of a try that was said to have failed.
            labels = self._check_file(name, self._files.get(name))
            if labels.get("riverrun.writer") != self._writer:
                raise self._taken(changes.epoch)

    def _encoded(self, table: pa.Table, labels: Mapping[str, str]) -> pa.Buffer:
        labelled = {**(table.schema.metadata or {}), **{k: v.encode() for k, v in labels.items()}}
        stream = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata(labelled or None), stream)
        return stream.getvalue()

    def _names(self) -> list[str]:
        """Our files, oldest first; any other Parquet file would be read as if it were ours."""
        names = self._files.names()
        strange = [n for n in names if n.endswith(".parquet") and not _FILE.fullmatch(n)]
        if strange:
            raise self._foreign(f"it has other files: {', '.join(map(ascii, strange[:3]))}")
        return [name for name in names if _FILE.fullmatch(name)]

    def _check_file(self, name: str, data: pa.Buffer) -> dict[str, str]:
        """The labels of a file, if it is one of this sink; of its rows nothing is looked at."""
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


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


class _Folder:
    """A local directory. A file gets its name there when it is whole and on the disk: nobody reads half of one.

    Until then the file has no name at all, so nothing is left when its process is killed. Where the file system has no
    files without names (NFS, for one), the file lies beside the directory as ``.NAME-HEX.tmp``; or in the directory, if
    it cannot be linked from there, since a directory may be a mount point. Its writer holds a lock on such a file, and
    the lock dies with the process. Files whose lock is free are removed when a sink is opened.
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
        """Make a file, whole and on the disk, and its name too; False when there is one."""
        here = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for way in (self._unnamed, self._beside, self._inside):
                made = way(here, name, data)
                if made is not None:
                    break
            else:
                raise OSError(f"{self._root} takes no files by linking or renaming")
            if made:
                os.fsync(here)
            return made
        finally:
            os.close(here)

    def _unnamed(self, here: int, name: str, data: pa.Buffer) -> bool | None:
        """Without a name until it is whole; None where the file system cannot do that."""
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
    """Remove what a killed process was writing; its lock went with it."""
    with suppress(OSError), locked_leftover(path) as about:  # a link, or there are no locks
        if about is not None:
            path.unlink(missing_ok=True)


class _Bucket:
    """The same in an object store, where a put is atomic by itself."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def names(self) -> list[str]:
        return self._storage.names("")

    def get(self, name: str) -> pa.Buffer:
        return self._storage.get(name)

    def create(self, name: str, data: pa.Buffer) -> bool:
        return self._storage.create(name, data)


# -- Delta


class DeltaTable(Kept):
    """A Delta table: of changes, to which each epoch is appended, or that mirrors the result."""

    def __init__(
        self,
        path: str | Path,
        flow: str,
        output: str,
        schema: pa.Schema,
        mode: str = "changes",
        key: str | Sequence[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        run: str = "",
    ) -> None:
        super().__init__(str(path), flow, output, schema, run)
        self._delta = _deltalake()
        self.retried = (OSError, TransportError, self._delta.exceptions.DeltaError)
        self._key: tuple[str, ...] = ()
        options = _storage_options(storage_options, output)
        if key is not None:
            self._key = checked_columns(key, schema.names, f"mirror {output!r} by a key")
        self._mode = self._checked(mode)
        self.identity["riverrun.mode"] = mode
        self._app = f"riverrun/{flow}/{output}"
        rows = self.stamped if mode == "changes" else schema
        self._stored = pa.schema([_delta_field(field, output) for field in rows])
        _check_cases(
            list(self._stored), f"cannot write {output!r} to a Delta table: it has columns"
        )
        self._kept = self._open(path, options)
        self.epoch = self._last_epoch()

    def content(self) -> pa.Table:
        """The changes that were appended, or the rows of the mirror, once each."""
        try:
            batches = list(self._batches(None))
            table = pa.Table.from_batches(batches) if batches else self._stored.empty_table()
            if self._mode == "mirror":
                ones = pa.array(np.ones(table.num_rows, np.int64))
                table = table.append_column(self.changed.field(len(self.schema)), ones)
            table = check_rows(table.select(self.changed.names))
            return check_rows(_fitted(table, self.changed))
        except self.retried as error:
            raise _away(error) from error
        except (pa.ArrowException, ValueError, LookupError) as error:
            raise self._damaged("the table", error) from error

    def _batches(self, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        """The rows of the table's files; statistics of its log are not asked, which Arrow would take for values."""
        dataset = self._kept.to_pyarrow_dataset()
        for file in dataset.get_fragments():
            plain = file.format.make_fragment(file.path, file.filesystem)
            yield from plain.to_batches(schema=dataset.schema, columns=columns)

    def _last_epoch(self) -> int | None:
        """The epoch of the last transaction; the commit that has it says the same (law 5)."""
        try:
            epoch: int | None = self._kept.transaction_version(self._app)
            commits = self._kept.history(_COMMITS)
        except (self._delta.exceptions.DeltaError, OSError, ValueError) as error:
            raise self._damaged("its log", error) from error
        said = next((each["riverrun.epoch"] for each in commits if "riverrun.epoch" in each), None)
        if said is None and len(commits) <= self._kept.version():
            return epoch  # others have committed since, or the log was cleaned up
        if said != (None if epoch is None else str(epoch)):
            raise self._damaged(
                "its log", f"the last transaction is of epoch {epoch}, and its commit of {said}"
            )
        return epoch

    def _store(self, changes: Followed, again: bool) -> None:
        self._kept.update_incremental()
        version = self._kept.transaction_version(self._app)
        if version is not None and version >= changes.epoch:
            if again and self._is_ours(changes.epoch):  # it failed after the commit
                return
            raise self._taken(changes.epoch)
        table = self._table(changes)
        if not table.num_rows:
            return
        properties = self._delta.CommitProperties(
            custom_metadata=self._labels(changes),
            app_transactions=[self._delta.Transaction(self._app, changes.epoch)],
        )
        if self._mode == "changes":
            epochs = pa.array(np.full(table.num_rows, changes.epoch, np.int64))
            self._put(pa.table([*table.columns, epochs], schema=self.stamped), "append", properties)
        elif self._key:
            self._merge(self._added_up(table), properties, changes.epoch)
        else:
            self._rewrite(self._added_up(self.content(), table), properties, changes.epoch)

    def _put(self, table: pa.Table, how: Any, properties: Any) -> None:
        self._delta.write_deltalake(
            self._kept, _fitted(table, self._stored), mode=how, commit_properties=properties
        )

    def _rewrite(self, rows: pa.Table, properties: Any, epoch: int) -> None:
        """Write the mirror anew: each row as often as it is there."""
        counts = np.array(rows.column(len(self.schema)), np.int64)
        if len(counts) and counts.min() < 0:
            raise self._unlike(f"a row would be there {counts.min()} times", epoch)
        repeated = pa.array(np.repeat(np.arange(len(counts)), counts))
        self._put(rows.select(self.schema.names).take(repeated), "overwrite", properties)

    def _merge(self, changed: pa.Table, properties: Any, epoch: int) -> None:
        """Bring the changes of an epoch into the mirror, by key."""
        key, diffs = list(self._key), np.array(changed.column(len(self.schema)), np.int64)
        if np.abs(diffs).max() > 1:
            raise self._no_key("a row is there more than once", epoch)
        rows = changed.select(self.schema.names)
        plus, minus = rows.filter(pa.array(diffs > 0)), rows.filter(pa.array(diffs < 0))
        if any(column.null_count for column in rows.select(key).columns):
            raise self._no_key("a row has a null in it", epoch)
        now, before = (_frame(_fitted(part.select(key), self._keys)) for part in (plus, minus))
        if now.is_duplicated().any():
            twice = now.filter(now.is_duplicated()).row(0)
            raise self._no_key(f"there are two rows with {twice}", epoch)
        fresh = now.join(before, on=key, how="anti")
        there = self._keys_there(fresh)
        if there.height:
            raise self._no_key(f"there are two rows with {there.row(0)}", epoch)
        at = (
            before.with_row_index(free_name("at", key, any_case=True))
            .join(now, on=key, how="anti")
            .to_series(0)
        )
        gone = minus.take(at.to_arrow())
        flag = free_name("deleted", self.schema.names, any_case=True)
        flags = pa.array(np.arange(plus.num_rows + gone.num_rows) >= plus.num_rows)
        source = _fitted(pa.concat_tables([plus, gone]), self._stored).append_column(flag, flags)
        deleted, kept = f"s.{flag} = true", f"s.{flag} = false"
        merged = self._kept.merge(
            source,
            predicate=" AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in key),
            source_alias="s",
            target_alias="t",
            commit_properties=properties,
        )
        merged = merged.when_matched_delete(deleted)
        merged = merged.when_matched_update_all(kept, except_cols=[flag])
        merged.when_not_matched_insert_all(kept, except_cols=[flag]).execute()

    @property
    def _keys(self) -> pa.Schema:
        """The columns of the key, in the types that the table has."""
        return pa.schema([self._stored.field(name) for name in self._key])

    def _keys_there(self, fresh: pl.DataFrame) -> pl.DataFrame:
        """Some of these keys that the mirror has; none when it has none."""
        if not fresh.height:
            return fresh
        key = list(self._key)
        # Without a filter: of strings, Delta writes views into its files, and Arrow does not compare these.
        for batch in self._batches(key):
            there = _frame(_fitted(pa.Table.from_batches([batch]), self._keys))
            found = fresh.join(there, on=key, how="semi")
            if found.height:
                return found
        return fresh.clear()

    def _is_ours(self, epoch: int) -> bool:
        mine = {"riverrun.writer": self._writer, "riverrun.epoch": str(epoch)}
        return any(mine.items() <= commit.items() for commit in self._kept.history(_COMMITS))

    def _open(self, path: str | Path, options: dict[str, str] | None) -> Any:
        place = (
            path
            if isinstance(path, str) and "://" in path
            else str(Path(path).expanduser().absolute())
        )
        delta = self._delta
        try:
            if not delta.DeltaTable.is_deltatable(place, options):
                return delta.DeltaTable.create(
                    place,
                    self._stored,
                    mode="error",
                    storage_options=options,
                    configuration=self.identity,
                    raise_if_key_not_exists=False,
                )
            table = delta.DeltaTable(place, storage_options=options)
            configuration, schema = table.metadata().configuration, table.schema()
        except (delta.exceptions.DeltaError, OSError, TypeError, ValueError) as error:
            raise RiverrunError(
                "sink.place",
                f"cannot write {self.output!r} to {path}: {error}",
                hint="give a directory that can be written to, or a URL such as s3://bucket/path, with what the store "
                "needs in storage_options=",
            ) from error
        self._check_identity(configuration, "the table")
        wanted = delta.Schema.from_arrow(self._stored)
        if schema != wanted:
            raise self._foreign(
                f"the table has the columns {_delta_columns(schema)}, and it would need {_delta_columns(wanted)}"
            )
        return table

    def _checked(self, mode: str) -> str:
        if mode not in ("changes", "mirror") or (self._key and mode != "mirror"):
            raise PlanError(
                "plan.sink",
                f"cannot write {self.output!r} with mode={mode!r}"
                + (f" and key={self._key!r}" if self._key else ""),
                hint='mode="changes" appends what each epoch changed; mode="mirror" keeps the table equal to the '
                "result, and may have a key",
            )
        for name in self._key:
            kind = self.schema.field(name).type
            if not _is_key(kind):
                raise PlanError(
                    "plan.sink",
                    f"cannot mirror {self.output!r} by the key {name!r}, which is {kind}; its columns are: "
                    f"{', '.join(self.schema.names)}",
                    hint="a key is of integers, strings, enums, booleans, dates, timestamps or decimals",
                )
        return mode

    def _no_key(self, why: str, epoch: int) -> RiverrunError:
        return self._unlike(f"{', '.join(self._key)} is not its key: {why}", epoch)

    def _unlike(self, why: str, epoch: int) -> RiverrunError:
        return SchemaError(
            "sink.key",
            f"cannot mirror epoch {epoch} of {self.output!r} in {self.shown}: {why}",
            hint="give the columns that tell its rows apart as key=, or none, and the table is written anew each time",
            epoch=epoch,
        )


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise RiverrunError(
            "sink.missing_package",
            "cannot write a Delta table: the package deltalake is not installed",
            hint='pip install "riverrun[delta]"',
        ) from error
    return deltalake


def _frame(table: pa.Table) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _delta_columns(schema: Any) -> str:
    return ", ".join(
        f"{field.name}: {getattr(field.type, 'type', field.type)}" for field in schema.fields
    )


def _is_key(kind: pa.DataType) -> bool:
    t = pa.types
    if t.is_dictionary(kind):
        return _is_key(kind.value_type)
    tests = (
        t.is_integer,
        t.is_large_string,
        t.is_string,
        t.is_boolean,
        t.is_date,
        t.is_timestamp,
        t.is_decimal,
    )
    return any(test(kind) for test in tests)


_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}


def _storage_options(given: object, output: str) -> dict[str, str] | None:
    """What the store needs, from text to text; None for nothing."""
    pairs = given.items() if isinstance(given, Mapping) else []
    is_text = all(isinstance(part, str) for pair in pairs for part in pair)
    if given is not None and not (isinstance(given, Mapping) and is_text):
        raise PlanError(
            "plan.sink",
            f"cannot write {output!r} with storage_options={show(given)}: that is a dict from text to text",
            hint='for instance storage_options={"AWS_REGION": "eu-central-1"}; leave it out for a local path',
        )
    return dict(pairs) or None


def _check_cases(fields: Sequence[pa.Field], attempt: str) -> None:
    """Refuse names that differ in case only: to Delta they are one column."""
    names: dict[str, str] = {}
    for field in fields:
        other = names.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise SchemaError(
                "sink.schema",
                f"{attempt} {other!r} and {field.name!r}, and to Delta names that differ in case only are one",
                hint="rename one of them before flow.output(...)",
                column=field.name,
            )
        kind = field.type
        while pa.types.is_list(kind):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            _check_cases(
                list(kind), f"{attempt[: attempt.rindex(':')]}: column {field.name!r} has fields"
            )


def _delta_field(field: pa.Field, output: str) -> pa.Field:
    kind = _delta_type(field.type)
    if kind is None:
        raise SchemaError(
            "sink.schema",
            f"cannot write {output!r} to a Delta table: column {field.name!r} is {field.type}, which Delta does not "
            "hold exactly",
            hint="cast it before flow.output(...), for instance a time in nanoseconds to microseconds, an unsigned "
            "integer to pl.Int64, a duration to an integer",
            column=field.name,
        )
    return pa.field(field.name, kind)


def _delta_type(kind: pa.DataType) -> pa.DataType | None:
    """The type in which Delta holds values exactly; None when there is none."""
    t = pa.types
    if t.is_timestamp(kind):
        return None if kind.unit == "ns" else pa.timestamp("us", "UTC" if kind.tz else None)
    if t.is_dictionary(kind):
        return _delta_type(kind.value_type)
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return pa.binary()
    if t.is_list(kind) or t.is_large_list(kind):
        inner = _delta_type(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if t.is_struct(kind):
        fields = [(field.name, _delta_type(field.type)) for field in kind]
        if any(inner is None for _, inner in fields):
            return None
        return pa.struct([pa.field(name, inner) for name, inner in fields])
    plain = t.is_signed_integer(kind) or t.is_float32(kind) or t.is_float64(kind)
    if plain or t.is_boolean(kind) or t.is_date32(kind) or t.is_decimal128(kind):
        return kind
    return _WIDER.get(kind)
