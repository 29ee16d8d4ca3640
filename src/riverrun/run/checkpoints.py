"""Results of a run that is over, or elsewhere: read from its checkpoints."""

from __future__ import annotations

from pathlib import Path

from riverrun.attributes import formerly
from riverrun.run.result import Result
from riverrun.runtime.stored_outputs import portions
from riverrun.state.types import shown_schema
from riverrun.storage.reader import choose, look_into


@formerly(as_of="rr.read_checkpoint(path, output, epoch=...)")
def read_checkpoint(
    path: str | Path,
    output: str | None = None,
    epoch: int | None = None,
    number: int | None = None,
    *,
    state: str | None = None,
) -> Result:
    """An `output` as a checkpoint at `path` has it, with no run alive.

    By default it is the only output, as of the last epoch of the newest checkpoint. `epoch` is one that one of
    the checkpoints at the path holds; `number` says which of them is meant. With `state`, what is read is not an output
    but any state by its name: each row once, and a last column that says how often it is there.

    >>> import polars as pl, riverrun as rr, tempfile
    >>> flow = rr.Dataflow("words")
    >>> words = flow.input("words", {"word": pl.String})
    >>> flow.output("counts", words.group_by("word").count())
    >>> with tempfile.TemporaryDirectory() as path:
    ...     with flow.run(checkpoint=path) as run:
    ...         run.insert("words", [("sea",), ("sky",), ("sea",)])
    ...         _ = run.commit()
    ...         _ = run.checkpoint()
    ...     rr.read_checkpoint(path, "counts").rows()
    [('sea', 2), ('sky', 1)]
    """
    checkpoints = look_into(path)
    stored = choose(checkpoints, output=output, state=state, epoch=epoch, number=number)
    name = stored.state if stored.output is None else stored.output
    columns = shown_schema(stored.columns)
    return Result.of(name, columns, portions(checkpoints, stored), stored.epoch)
