"""``riverrun checkpoints``: the contents of a checkpoint path, as tables for people or JSON for programs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from riverrun.errors import RiverrunError
from riverrun.state.types import type_text
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.inspect import (
    CheckpointFound,
    PathContents,
    Verified,
    check_number,
    is_collected,
    last_epoch,
    look,
    verify,
)
from riverrun.storage.manifest import Manifest, Share
from riverrun.storage.reader import held, outputs, shared
from riverrun.storage.store import FileFound, nothing_at, open_storage
from riverrun.version import __version__

DAMAGED = 1
_SHOWN = 20  # files of one kind
_WIDE = 200  # columns of a table that does not go to a terminal


def run(options: argparse.Namespace) -> int:
    """Do what the options ask for; return the exit code."""
    if options.name is not None:
        return _show_rows(options)
    checkpoints = Checkpoints(open_storage(options.path, make=False))
    if options.number is not None:
        check_number(checkpoints.numbers(), options.number)
    if options.verify:
        return _show_verified(options, checkpoints)
    if options.number is not None:
        return _show_one(options, checkpoints.load(options.number))
    contents = look(checkpoints)
    if contents.empty:
        raise nothing_at(options.path)
    if options.json:
        return _write_json({"path": options.path, **asdict_of(contents)})
    _show_contents(contents)
    return 0


# ---- all checkpoints


def _show_contents(contents: PathContents) -> None:
    table = _table("checkpoint", "epochs", "published", "workers", "states", "changes", "bytes")
    table.add_column("new bytes", justify="right")
    table.add_column("riverrun")
    for each in contents.checkpoints:
        _add(table, *_row(each))
    if contents.checkpoints:
        _print(table)
    else:
        _say("no checkpoint is published")
    for each in contents.checkpoints:
        if each.error is not None:
            _say(f"checkpoint {each.number} cannot be read: {each.error.message}")
    log = contents.log
    if log.records:
        epochs = "no epochs" if log.epochs is None else f"epochs {log.epochs[0]} to {log.epochs[1]}"
        refused = f", {log.refused} refused" if log.refused else ""
        _say(f"log: {log.records} records, {_size(log.bytes)}, {epochs}{refused}")
        _say(f"owner: the run {log.identity}, since {_when(log.opened)} (record {log.owner})")
        for name in log.torn:
            _say(f"torn: {name}")
    if contents.parcels.files:
        _say(f"parcels: {contents.parcels.files} files, {_size(contents.parcels.bytes)}")
    _say_unreferenced(contents.unreferenced)


def _row(each: CheckpointFound) -> list[str]:
    when = _when(each.published)
    if each.error is not None:
        torn = each.error.code == "checkpoint.corrupt"
        return [str(each.number), "damaged" if torn else "not readable", when, *[""] * 6]
    epochs = "none" if each.epoch is None else f"up to {each.epoch}"
    workers = "" if each.workers is None else str(each.workers)
    sizes = [f"{each.rows:,}", _size(each.bytes), _size(each.fresh)]
    return [
        str(each.number),
        epochs,
        when,
        workers,
        str(each.states),
        *sizes,
        _version(each.version),
    ]


def _version(version: str | None) -> str:
    if version is None:
        return "not said"
    return version if version == __version__ else f"{version} (this is {__version__})"


def _say_unreferenced(files: Sequence[FileFound]) -> None:
    ours = [file for file in files if is_collected(file.name)]
    others = [file for file in files if not is_collected(file.name)]
    for what, listed, note in (
        (
            "named by no checkpoint and no record",
            ours,
            "a run that is alive may be writing them; the next one collects what is left over",
        ),
        ("not made by a run", others, "no run reads them, and none removes them"),
    ):
        if listed:
            _say(f"{what}: {len(listed)} files, {_size(sum(file.size for file in listed))}")
            for file in listed[:_SHOWN]:
                _say(f"  {file.name}  {_size(file.size)}")
            if len(listed) > _SHOWN:
                _say(f"  and {len(listed) - _SHOWN} more")
            _say(f"  ({note})")


# ---- verifying


def _show_verified(options: argparse.Namespace, checkpoints: Checkpoints) -> int:
    if options.number is None and look(checkpoints).empty:
        raise nothing_at(options.path)
    verified = verify(checkpoints, options.number)
    code = DAMAGED if verified.damages else 0
    advice = _advice(verified)
    if options.json:
        report = {
            "path": options.path,
            **asdict_of(verified),
            "newest_whole": verified.newest_whole,
        }
        _write_json({**report, "advice": advice})
        return code
    read = f"{verified.files} files of blocks, {_size(verified.bytes)}"
    if options.number is None:
        read += f", {verified.records} records, {verified.parcels} parcels"
    _say(f"read {read}")
    for damage in verified.damages:
        needed = ", ".join(map(str, damage.checkpoints))
        whose = f" (checkpoint {needed})" if needed else ""
        _say(f"damaged: {damage.file}{whose}: {damage.why}")
    for number in verified.whole:
        _say(f"whole: checkpoint {number}")
    if not verified.damages:
        _say("nothing is damaged")
    for line in advice:
        _say(line)
    _say_unreferenced(verified.unreferenced)
    return code


def _advice(verified: Verified) -> list[str]:
    """What to do about damage."""
    if not verified.damages:
        return []
    hurt = sorted({number for damage in verified.damages for number in damage.checkpoints})
    lines = []
    if hurt and verified.newest_whole is None:
        lines.append("no checkpoint that was looked at is whole")
    elif hurt and verified.newest_whole is not None:
        whole = verified.newest_whole
        lines.append(f"the newest whole checkpoint is {whole}: number={whole} reads it")
        if any(number > whole for number in hurt):
            lines.append(
                f"to go on from it: flow.run(..., from_checkpoint={whole}), which does the epochs since again"
            )
    if any(not damage.checkpoints for damage in verified.damages):
        lines.append(
            "the log is damaged: checkpoints can be read, but a run cannot resume past the damage; restore the file "
            "from a copy, or start on another path"
        )
    return lines


# ---- one checkpoint


def _show_one(options: argparse.Namespace, manifest: Manifest) -> int:
    states = [_state(name, shares) for name, shares in manifest.states.items()]
    named, of_states = (
        {
            name: {"state": about["state"], "columns": about["columns"]}
            for name, about in listed.items()
        }
        for listed in (outputs(manifest), shared(manifest))
    )
    about = {
        key: value
        for key, value in manifest.about.items()
        if key not in ("outputs", "shared", "fingerprint", "code")
    }
    about["epoch"] = last = last_epoch(manifest.about)
    program = manifest.about.get("fingerprint", {})
    if options.json:
        report = {"path": options.path, "number": manifest.number, "about": about}
        report |= {"outputs": named, "shared": of_states}
        return _write_json({**report, "states": states, "program": program})
    _say(
        f"checkpoint {manifest.number} of {about.get('program', 'an unnamed program')}"
        + (": no epochs" if last is None else f": epochs up to {last}")
        + f", written by riverrun {_version(manifest.version)}"
    )
    for what, listed in (("output", named), ("shared state", of_states)):
        table = _table(what, "state")
        table.add_column("columns")
        for name, described in listed.items():
            _add(table, name, described["state"], ", ".join(described["columns"]))
        if listed:
            _print(table)
    table = _table("state", "epochs", "changes", "bytes", "batches", "since", "upper", "shares")
    table.add_column("columns")
    for each in states:
        first, last = each["epochs"] or (None, None)
        shown = "none" if last is None else str(last) if first == last else f"{first} to {last}"
        _add(
            table, each["name"], shown, f"{each['changes']:,}", _size(each["bytes"]), str(each["batches"]),
            str(each["since"]), str(each["upper"]), str(each["shares"]), ", ".join(each["columns"]),
        )  # fmt: skip
    _print(table)
    for stream, queries in about.get("offsets", {}).items():
        _say(f"stream {stream}: {json.dumps(queries)}")
    if about.get("application"):
        _say(f"application: {json.dumps(about['application'])}")
    if program:
        table = _table("node")
        table.add_column("what it is", overflow="fold")
        for name, what in program.items():
            _add(table, name, str(what))
        _print(table)
    return 0


def _state(name: str, shares: tuple[Share, ...]) -> dict[str, Any]:
    schema, epochs = shares[0].schema, held(shares)
    files = {block.file.name: block.file.size for share in shares for block in share.blocks}
    key = [f"{field.name}: {type_text(field.type)} (key)" for field in schema.key]
    return {
        "name": name,
        "columns": [*key, *(f"{field.name}: {type_text(field.type)}" for field in schema.value)],
        "epochs": [epochs[0], epochs[-1]] if epochs else None,
        "changes": sum(block.rows for share in shares for block in share.blocks),
        "bytes": sum(files.values()),
        "batches": sum(len(share.batches) for share in shares),
        "since": sorted({time for share in shares for time in share.since}),
        "upper": list(shares[0].upper),
        "shares": len(shares),
    }


# ---- rows


def _show_rows(options: argparse.Namespace) -> int:
    from riverrun.rows.records import python_rows
    from riverrun.run import read_checkpoint

    result = read_checkpoint(options.path, options.name, options.epoch, options.number)
    names = list(result.schema.names)
    batches = (batch for portion in result.portions for batch in portion.batches())
    rows = (row.values() for batch in batches for row in python_rows(batch))
    shown = [list(row) for row in islice(rows, options.limit)]
    if options.json:
        report = {"name": result.name, "epoch": result.epoch, "columns": names, "rows": shown}
        return _write_json({"path": options.path, **report})
    table = _table(*names)
    for row in shown:
        _add(table, *("null" if value is None else str(value) for value in row))
    _print(table)
    more = "" if next(rows, None) is None else "; there are more, see --limit"
    _say(f"{len(shown)} rows of {result.name!r} as of epoch {result.epoch}{more}")
    return 0


# ---- printing


def asdict_of(value: Any) -> Any:
    """A value in which dataclasses, times and errors are replaced by values of JSON."""
    if isinstance(value, RiverrunError):
        return {"code": value.code, "message": value.message, "hint": value.hint}
    if is_dataclass(value) and not isinstance(value, type):
        return {name: asdict_of(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, list | tuple):
        return [asdict_of(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _write_json(report: Any) -> int:
    sys.stdout.write(json.dumps(report, indent=1, default=str) + "\n")
    return 0


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    numbers = {"checkpoint", "workers", "states", "changes", "bytes", "batches", "shares"}
    for column in columns:
        table.add_column(Text(column), justify="right" if column in numbers else "left")
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*map(Text, cells))  # as Text, so that rich takes no brackets for markup


def _console() -> Console:
    # Without a terminal, for a file or a pipe, lines are not wrapped.
    return Console(
        file=sys.stdout,
        width=None if sys.stdout.isatty() else _WIDE,
        highlight=False,
        soft_wrap=True,
    )


def _print(table: Table) -> None:
    _console().print(table)


def _say(line: str) -> None:
    _console().print(Text(line))


def _when(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _size(size: int) -> str:
    """Bytes, for people.

    >>> _size(999), _size(1_536), _size(5 << 30)
    ('999 B', '1.5 KiB', '5.0 GiB')
    """
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 1024 or unit == "TiB":
            break
    return f"{amount:.1f} {unit}"
