"""Checkpoints as DataFrames: read by Spark's tasks from the storage, with no run alive.

::

    spark.read.format("riverrun").load("/path/of/checkpoints")
    spark.read.format("riverrun").option("output", "counts").option("epoch", 12).load(
        "s3://bucket/path"
    )
    spark.read.format("riverrun").option("checkpoint", "/path").load("counts")

A path is what has a "/" in it; names of outputs have none. Options: `output`, needed where there are
several; `epoch`, one that one of the checkpoints holds, by default the last one; `number`, that of a
checkpoint; `state`, any state by its name in place of an output, with a last column for how often each row
is there; `columns`. Laws: a query reads one checkpoint, chosen when it is planned. Each task opens the
storage itself, where it runs, and reads a range of hashes; conditions are
applied there with `pushFilters` (see `source`).
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
    "output",
    "epoch",
    "changes",
    "columns",
    "pushFilters",
    "checkpoint",
    "number",
    "state",
)
_RENAMED = {"asof": "epoch", "as_of": "epoch"}
"""What options were called before."""
_UNSAID = ("path", "lent")
"""What load() gives, and what a frame of a result has."""


def option(options: Options, name: str) -> str | None:
    """An option of Spark's, which knows no case."""
    found = [value for key, value in options.items() if key.lower() == name.lower()]
    return found[0] if found else None


def number_of(options: Options, name: str, of: str) -> int | None:
    """An option that is the number of something."""
    given = option(options, name)
    if given is None:
        return None
    if not given.strip().isdigit():
        raise PlanError(
            "spark.source",
            f"cannot read with {name} {given!r}: that is the number of {of}",
            hint=f'.option("{name}", 7)',
        )
    return int(given)


def flag_of(options: Options, name: str) -> bool:
    """An option that is true or false; false where it is not given."""
    given = option(options, name)
    if given is not None and given.strip().lower() not in ("true", "false"):
        raise PlanError(
            "spark.source",
            f"cannot read with {name} {given!r}: that is true or false",
            hint=f'.option("{name}", "true"), or leave it out',
        )
    return given is not None and given.strip().lower() == "true"


def check_options(options: Options) -> None:
    """Refuse options that the source does not have. Those of Spark itself, which have a dot or a "_" first, pass."""
    known = {name.lower(): name for name in (*OPTIONS, *_UNSAID)}
    for given in options:
        if given.lower() not in known and "." not in given and not given.startswith("_"):
            meant = _RENAMED.get(given.lower(), given.lower())
            close = get_close_matches(meant, [name.lower() for name in OPTIONS], n=1)
            raise PlanError(
                "spark.source",
                f"cannot read with the option {given!r}: the options are {', '.join(OPTIONS)}",
                hint=f'did you mean .option("{known[close[0]]}", ...)?'
                if close
                else "leave it out",
            )
    for name in ("changes", "pushFilters"):
        flag_of(options, name)


def place_of(options: Options) -> str | None:
    """The path of checkpoints that is meant; None where a run is."""
    given, path = option(options, "checkpoint"), option(options, "path")
    if given is None:
        if path is None or "/" not in path:
            return None
        given = path
    return given if "://" in given else os.path.abspath(os.path.expanduser(given))


def schema(place: str, options: Options) -> pa.Schema:
    """The columns."""
    return _chosen(place, options)[1].columns


def plan(place: str, options: Options) -> list[Any]:
    """The partitions: plain values that say which checkpoint, what in it, and which hashes."""
    _, stored = _chosen(place, options)
    told = {"number": stored.number, "epoch": stored.epoch}
    told |= {"state": stored.state} if stored.output is None else {"output": stored.output}
    return [(None, place, told, cut) for cut in stored.cuts()]


def fetch(part: Any, columns: list[str], where: list[Any]) -> Iterator[pa.RecordBatch]:
    """The rows of a partition."""
    from riverrun.runtime.stored_outputs import StoredPortion
    from riverrun.storage.reader import choose, look_into

    _, place, told, (low, high) = part
    checkpoints = look_into(place)
    portion = StoredPortion(checkpoints, choose(checkpoints, **told), low, high)
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
    output = option(options, "output")
    if option(options, "checkpoint") is not None:
        output = output or option(options, "path")
    chosen = choose(
        checkpoints,
        output=output,
        state=option(options, "state"),
        epoch=number_of(options, "epoch", "an epoch"),
        number=number_of(options, "number", "a checkpoint"),
    )
    return checkpoints, chosen
