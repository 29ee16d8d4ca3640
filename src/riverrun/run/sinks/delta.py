"""A Delta table as a destination: each epoch that changed something is one commit to the table.

Users get one from ``run.write_delta``. With ``mode="changes"`` the changes are appended, with `diff` and `epoch`. With
``mode="mirror"`` the table is kept equal to the result: with a key, changes are merged into it; without a key, the
table is written anew. The last epoch of a table is in the transaction of its last commit. The laws are those of
`destination`. The package deltalake is optional (``pip install deltalake``), and imported when a table is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from riverrun.errors import PlanError, RiverrunError, SchemaError, TransportError
from riverrun.rows.column_names import checked_columns
from riverrun.rows.types import family, in_delta
from riverrun.rows.values import show
from riverrun.run.sinks.destination import Kept, _away, _fitted
from riverrun.run.sinks.queue import EpochChanges
from riverrun.state.columns import as_column
from riverrun.state.schema import free_name
from riverrun.state.soundness import check_rows

_KEYS = ("integer", "text", "enum", "boolean", "date", "timestamp", "decimal")
"""The families of types that the columns of a key may have."""
_COMMITS = 20  # how many of a table's last commits are searched for the sink's own


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
        self._table_handle = self._open(path, options)
        self.epoch = self._last_epoch()

    def content(self) -> pa.Table:
        """The changes that were appended, or the rows of the mirror, once each."""
        try:
            batches = list(self._batches(None))
            table = pa.Table.from_batches(batches) if batches else self._stored.empty_table()
            if self._mode == "mirror":
                ones = as_column(np.ones(table.num_rows, np.int64))
                table = table.append_column(self.changed.field(len(self.schema)), ones)
            table = check_rows(table.select(self.changed.names))
            return check_rows(_fitted(table, self.changed))
        except self.retried as error:
            raise _away(error) from error
        except (pa.ArrowException, ValueError, LookupError) as error:
            raise self._damaged("the table", error) from error

    def _batches(self, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        """The rows of the table's files. Each file is read without the statistics in the table's log, since Arrow would
        take them for values."""
        dataset = self._table_handle.to_pyarrow_dataset()
        for file in dataset.get_fragments():
            plain = file.format.make_fragment(file.path, file.filesystem)
            yield from plain.to_batches(schema=dataset.schema, columns=columns)

    def _last_epoch(self) -> int | None:
        """The epoch of the last transaction; the commit of that transaction must say the same epoch (the
        read-back-as-written law)."""
        try:
            epoch: int | None = self._table_handle.transaction_version(self._app)
            commits = self._table_handle.history(_COMMITS)
        except (self._delta.exceptions.DeltaError, OSError, ValueError) as error:
            raise self._damaged("its log", error) from error
        said = next((each["riverrun.epoch"] for each in commits if "riverrun.epoch" in each), None)
        if said is None and len(commits) <= self._table_handle.version():
            return epoch  # others have committed since, or the log was cleaned up
        if said != (None if epoch is None else str(epoch)):
            raise self._damaged(
                "its log", f"the last transaction is of epoch {epoch}, and its commit of {said}"
            )
        return epoch

    def _store(self, changes: EpochChanges, again: bool) -> None:
        self._table_handle.update_incremental()
        version = self._table_handle.transaction_version(self._app)
        if version is not None and version >= changes.epoch:
            if again and self._is_ours(changes.epoch):  # the earlier try failed after its commit
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
            epochs = as_column(np.full(table.num_rows, changes.epoch, np.int64))
            self._put(pa.table([*table.columns, epochs], schema=self.stamped), "append", properties)
        elif self._key:
            self._merge(self._added_up(table), properties, changes.epoch)
        else:
            self._rewrite(self._added_up(self.content(), table), properties, changes.epoch)

    def _put(self, table: pa.Table, how: Any, properties: Any) -> None:
        self._delta.write_deltalake(
            self._table_handle, _fitted(table, self._stored), mode=how, commit_properties=properties
        )

    def _rewrite(self, rows: pa.Table, properties: Any, epoch: int) -> None:
        """Write the mirror anew, each row as often as its count says."""
        counts = np.array(rows.column(len(self.schema)), np.int64)
        if len(counts) and counts.min() < 0:
            raise self._unlike(f"a row would be there {counts.min()} times", epoch)
        repeated = as_column(np.repeat(np.arange(len(counts)), counts))
        self._put(rows.select(self.schema.names).take(repeated), "overwrite", properties)

    def _merge(self, changed: pa.Table, properties: Any, epoch: int) -> None:
        """Bring the changes of an epoch into the mirror, by key."""
        key, diffs = list(self._key), np.array(changed.column(len(self.schema)), np.int64)
        if np.abs(diffs).max() > 1:
            raise self._no_key("a row is there more than once", epoch)
        rows = changed.select(self.schema.names)
        plus, minus = rows.filter(as_column(diffs > 0)), rows.filter(as_column(diffs < 0))
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
        flags = as_column(np.arange(plus.num_rows + gone.num_rows) >= plus.num_rows)
        source = _fitted(pa.concat_tables([plus, gone]), self._stored).append_column(flag, flags)
        deleted, retained = f"s.{flag} = true", f"s.{flag} = false"
        merged = self._table_handle.merge(
            source,
            predicate=" AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in key),
            source_alias="s",
            target_alias="t",
            commit_properties=properties,
        )
        merged = merged.when_matched_delete(deleted)
        merged = merged.when_matched_update_all(retained, except_cols=[flag])
        merged.when_not_matched_insert_all(retained, except_cols=[flag]).execute()

    @property
    def _keys(self) -> pa.Schema:
        """The columns of the key, in the types that the table has."""
        return pa.schema([self._stored.field(name) for name in self._key])

    def _keys_there(self, fresh: pl.DataFrame) -> pl.DataFrame:
        """Those of the keys `fresh` that some batch of the mirror has; none when the mirror has none of them."""
        if not fresh.height:
            return fresh
        key = list(self._key)
        # No filter is given to Arrow: Delta writes strings as views, which Arrow does not compare.
        for batch in self._batches(key):
            there = _frame(_fitted(pa.Table.from_batches([batch]), self._keys))
            common = fresh.join(there, on=key, how="semi")
            if common.height:
                return common
        return fresh.clear()

    def _is_ours(self, epoch: int) -> bool:
        mine = {"riverrun.writer": self._writer, "riverrun.epoch": str(epoch)}
        return any(
            mine.items() <= commit.items() for commit in self._table_handle.history(_COMMITS)
        )

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
            if family(kind) not in _KEYS:
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
            hint="pip install deltalake",
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


def _storage_options(options: object, output: str) -> dict[str, str] | None:
    """The user's `storage_options` as a dict from text to text; None for none."""
    pairs = options.items() if isinstance(options, Mapping) else []
    is_text = all(isinstance(part, str) for pair in pairs for part in pair)
    if options is not None and not (isinstance(options, Mapping) and is_text):
        raise PlanError(
            "plan.sink",
            f"cannot write {output!r} with storage_options={show(options)}: that is a dict from text to text",
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
    kind = in_delta(field.type)
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
