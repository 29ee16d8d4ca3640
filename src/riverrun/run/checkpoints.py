"""Results of a run that is over, or elsewhere: read from its checkpoints."""

from __future__ import annotations

from pathlib import Path

from riverrun.attributes import formerly
from riverrun.run.result import Result
from riverrun.runtime.stored_outputs import portions
from riverrun.state.types import shown_schema
from riverrun.storage.reader import choose, look_into


@formerly(
    as_of="rr.read_checkpoint(path, name, epoch=...)",
    output="rr.read_checkpoint(path, name)",
    state="rr.read_checkpoint(path, name): what a step keeps has a name too",
)
def read_checkpoint(
    path: str | Path,
    name: str | None = None,
    epoch: int | None = None,
    number: int | None = None,
) -> Result:
    """The output or shared state called `name`, read from a checkpoint at `path` while no run is alive.

    The name may be left out where there is only one output. The rows are as of `epoch`, which a checkpoint at the path
    must hold, by default the last epoch of the newest checkpoint; `number` says which checkpoint is meant.

    To look inside a program, give the name of what a step of it keeps, which ``riverrun checkpoints`` lists: then each
    row is there once, with a last column that says how often the state has the row.

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
    stored = choose(checkpoints, name, epoch=epoch, number=number)
    shown = stored.state if stored.output is None else stored.output
    columns = shown_schema(stored.columns)
    return Result.of(shown, columns, portions(checkpoints, stored), stored.epoch)
