"""Checkpoints as DataFrames: read by Spark's tasks from the storage, with no run alive.

::

    spark.read.format("riverrun").load("/path/of/checkpoints")
    spark.read.format("riverrun").option("name", "counts").option("epoch", 12).load(
        "s3://bucket/path"
    )
    spark.read.format("riverrun").option("checkpoint", "/path").load("counts")

The data source "riverrun" (`source`) calls this module when it is given a path: a text with a "/" in it, which names of
outputs have not. Options: `name`, that of an output or shared state, needed where there are several outputs, or of what
a step of the program keeps, read with a last column for how often each row is there; `epoch`, which a checkpoint at the
path must hold, by default the last one; `number`, the number of a checkpoint; `columns`. Laws:

- **One checkpoint.** A query reads one checkpoint, chosen when the query is planned.
- **Read where tasks run.** Each task opens the storage itself, on its executor, and reads a range of hashes; with
  `pushFilters` it applies the query's conditions there (see `source`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from riverrun.errors import PlanError
from riverrun.rows.conditions import Where

Options = Mapping[str, str]
OPTIONS = (
    "run",
    "name",
    "epoch",
    "changes",
    "columns",
    "pushFilters",
    "checkpoint",
    "number",
)
_RENAMED = {"asof": "epoch", "as_of": "epoch", "output": "name", "state": "name"}
"""What options were called before."""
_UNSAID = ("path", "lent")
"""Options that nobody writes: `path` is the argument of load(), `lent` is set for the frame of a result."""


def option(options: Options, name: str) -> str | None:
    """An option of the reader, whose names have no case in Spark."""
    values = [value for key, value in options.items() if key.lower() == name.lower()]
    return values[0] if values else None


def number_of(options: Options, name: str, of: str) -> int | None:
    """An option that is the number of something."""
    text = option(options, name)
    if text is None:
        return None
    if not text.strip().isdigit():
        raise PlanError(
            "spark.source",
            f"cannot read with {name} {text!r}: that is the number of {of}",
            hint=f'.option("{name}", 7)',
        )
    return int(text)


def flag_of(options: Options, name: str) -> bool:
    """An option that is true or false; false where it is left out."""
    text = option(options, name)
    if text is not None and text.strip().lower() not in ("true", "false"):
        raise PlanError(
            "spark.source",
            f"cannot read with {name} {text!r}: that is true or false",
            hint=f'.option("{name}", "true"), or leave it out',
        )
    return text is not None and text.strip().lower() == "true"


def check_options(options: Options) -> None:
    """Refuse options that the source does not have. Spark's own pass: they have a dot, or begin with "_"."""
    known = {name.lower(): name for name in (*OPTIONS, *_UNSAID)}
    for name in options:
        if name.lower() not in known and "." not in name and not name.startswith("_"):
            meant = _RENAMED.get(name.lower(), name.lower())
            close = get_close_matches(meant, [name.lower() for name in OPTIONS], n=1)
            raise PlanError(
                "spark.source",
                f"cannot read with the option {name!r}: the options are {', '.join(OPTIONS)}",
                hint=f'did you mean .option("{known[close[0]]}", ...)?'
                if close
                else "leave it out",
            )
    for name in ("changes", "pushFilters"):
        flag_of(options, name)


def place_of(options: Options) -> str | None:
    """The path of checkpoints that the options name; None where they name a run."""
    path_option, path = option(options, "checkpoint"), option(options, "path")
    if path_option is None:
        if path is None or "/" not in path:
            return None
        path_option = path
    return path_option if "://" in path_option else os.path.abspath(os.path.expanduser(path_option))


def schema(place: str, options: Options) -> pa.Schema:
    """The columns of the chosen output or state."""
    return _chosen(place, options)[1].columns


def plan(place: str, options: Options) -> list[Any]:
    """The partitions: plain values that say which checkpoint is read, which output or state, and which hashes."""
    _, stored = _chosen(place, options)
    shown = stored.state if stored.output is None else stored.output
    choice = {"name": shown, "number": stored.number, "epoch": stored.epoch}
    return [(None, place, choice, cut) for cut in stored.cuts()]


def fetch(part: Any, columns: list[str], where: list[Any]) -> Iterator[pa.RecordBatch]:
    """The rows of a partition."""
    from riverrun.runtime.stored_outputs import StoredPortion
    from riverrun.storage.reader import choose, look_into

    _, place, choice, (low, high) = part
    checkpoints = look_into(place)
    portion = StoredPortion(checkpoints, choose(checkpoints, **choice), low, high)
    yield from portion.batches(columns, [Where(*each) for each in where])


def _chosen(place: str, options: Options) -> tuple[Any, Any]:
    from riverrun.storage.reader import choose, look_into

    for refused in ("changes", "run"):
        if (option(options, refused) or "false").lower() != "false":
            raise PlanError(
                "spark.source",
                f"cannot read {refused!r} from the checkpoints at {place}: they hold results, and no run is asked",
                hint='leave the option out; a run that is alive is read by the name of its output: .load("counts")',
            )
    checkpoints = look_into(place)
    name = option(options, "name")
    if option(options, "checkpoint") is not None:
        name = name or option(options, "path")
    chosen = choose(
        checkpoints,
        name,
        epoch=number_of(options, "epoch", "an epoch"),
        number=number_of(options, "number", "a checkpoint"),
    )
    return checkpoints, chosen
