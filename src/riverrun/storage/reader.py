"""Reading a state from a checkpoint, as of an epoch, with no run alive.

`rr.read_checkpoint` and Spark's data source read what is stored through this module. A run says in its checkpoints
which outputs and which shared states it has, and which of the states in the checkpoint has the rows of each
(`about["outputs"]`, `about["shared"]`). These names are those of the run; the others are of states that only the run
itself uses. Laws:

- **Held epochs.** A checkpoint *holds* the epochs of a state that it can tell apart: those from the state's `since` up
  to, not including, its `upper`. The last complete epoch is always held: that is the state as it stands.
- **Same rows.** The rows read as of an epoch are those that the run gave as of that epoch, whichever checkpoint that
  holds the epoch they are read from.
- **Cuts make a whole.** `cuts` are hash ranges that together are the state. No range crosses the shares of two workers.
  They are cut between the blocks of the largest batch, so most files are read once.

>>> import pyarrow as pa
>>> from riverrun.state.spine import Spine
>>> stock = Spine("stock", Schema.of({"item": pa.string()}, {"left": pa.int64()}))
>>> stock.insert(pa.table({"item": ["rope", "sail"], "left": [5, 2]}), time=(0,))
>>> stock.insert(pa.table({"item": ["mast"], "left": [1]}), time=(1,))
>>> checkpoints = Checkpoints("memory:///")
>>> _ = checkpoints.save({"stock": stock.view()})
>>> stored = choose(checkpoints, "stock", epoch=0)
>>> stored.number, stored.epoch, stored.cuts()
(1, 0, [(0, 18446744073709551616)])
>>> view, time = stored.open(checkpoints)
>>> view.to_batch(time).column("item").to_pylist()
['sail', 'rope']
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from riverrun.errors import CheckpointError, TimeViolation
from riverrun.progress import Antichain, Timestamp
from riverrun.state.schema import Schema, free_name
from riverrun.state.shards import END
from riverrun.state.view import View
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.inspect import check_number
from riverrun.storage.manifest import Manifest, Share, say_version
from riverrun.storage.store import nothing_at, open_storage

CUT_ROWS = 4 << 20
_LAST_ROUND = (1 << 62) - 1  # a round that no loop comes to


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state in a checkpoint, as of an epoch that it holds."""

    number: int
    state: str
    epoch: int
    output: str | None
    """The name of the output or shared state; None where some other state was asked for."""
    columns: pa.Schema
    shares: tuple[Share, ...]

    def cuts(self, rows: int = CUT_ROWS) -> list[tuple[int, int]]:
        """Hash ranges that can be read apart from each other, each of about `rows` rows, if there are so many."""
        return [cut for share in self.shares for cut in _cuts(share, rows)]

    def open(
        self, checkpoints: Checkpoints, low: int = 0, high: int = END
    ) -> tuple[View, Timestamp]:
        """A view of a hash range of the state, and the time as of which to read the view."""
        mapped = checkpoints.storage.root is not None
        view = checkpoints.restore(self.state, low, high, number=self.number, mapped=mapped)
        (upper,) = view.upper
        rounds = (_LAST_ROUND,) * (len(upper) - 1)
        time = (self.epoch, *rounds)
        if view.since.less_equal(time):
            return view, time
        # The state as it stands: times before `upper` were advanced to it, and there are no others.
        after = Antichain([(upper[0] + 1, *upper[1:])])
        return view.with_frontiers(view.since, after), (upper[0], *rounds)


def look_into(place: str | Path) -> Checkpoints:
    """The checkpoints at a path or URL, to be read; no directory is made."""
    checkpoints = Checkpoints(open_storage(place, make=False))
    if not checkpoints.numbers():
        raise (
            nothing_at(place)
            if not checkpoints.storage.names("log")
            else CheckpointError(
                "checkpoint.none",
                f"cannot read a checkpoint at {place}: there is none, only a log",
                hint="a run publishes them; run.checkpoint() makes one now",
                place=str(place),
            )
        )
    return checkpoints


def held(shares: tuple[Share, ...]) -> range:
    """The epochs that a state can be read as of."""
    last = min((time[0] for time in shares[0].upper), default=0)
    first = max((time[0] for share in shares for time in share.since), default=0)
    return range(max(min(first, last - 1), 0), last)


def outputs(manifest: Manifest) -> Mapping[str, Mapping[str, Any]]:
    """The outputs that a checkpoint says it has: the state, columns and schema of each."""
    return _listed(manifest, "outputs")


def shared(manifest: Manifest) -> Mapping[str, Mapping[str, Any]]:
    """The shared states that a checkpoint says it has: as `outputs` has them."""
    return _listed(manifest, "shared")


def _listed(manifest: Manifest, what: str) -> Mapping[str, Mapping[str, Any]]:
    listed = manifest.about.get(what, {})
    return listed if isinstance(listed, dict) else {}


def choose(
    checkpoints: Checkpoints,
    name: str | None = None,
    *,
    epoch: int | None = None,
    number: int | None = None,
) -> StoredState:
    """The state to read: by default the only output, as of the newest epoch that the newest checkpoint holds.

    `name` is that of an output, of a shared state, or else of any other state in the checkpoint.
    """
    ranges: list[tuple[int, range]] = []
    for manifest in _candidates(checkpoints, number):
        try:
            state, columns, shown = _meant(manifest, name)
        except CheckpointError:
            if ranges:  # a newer checkpoint has it: this one is of another program
                continue
            raise
        shares = manifest.states[state]
        epochs = held(shares)
        ranges.append((manifest.number, epochs))
        if epochs and (epoch is None or epoch in epochs):
            say_version(manifest)
            read_epoch = epochs[-1] if epoch is None else epoch
            return StoredState(manifest.number, state, read_epoch, shown, columns, shares)
        if epoch is None:
            break
    raise _not_held(epoch, ranges, name)


def _candidates(checkpoints: Checkpoints, number: int | None) -> Iterator[Manifest]:
    """The checkpoints to look into, newest first; without a `number`, torn ones are left out."""
    numbers = checkpoints.numbers()
    if number is not None:
        check_number(numbers, number)
        yield checkpoints.load(number)
        return
    newest = checkpoints._manifest(None)  # logs which newer ones are torn, and raises if all are
    yield newest
    for older in reversed([each for each in numbers if each < newest.number]):
        try:
            yield checkpoints.load(older)
        except CheckpointError as error:
            if error.code not in ("checkpoint.corrupt", "checkpoint.missing"):
                raise


def _meant(manifest: Manifest, name: str | None) -> tuple[str, pa.Schema, str | None]:
    """The name of the state to read, its columns, and the output or shared state that it is, if any."""
    known, states = outputs(manifest), shared(manifest)
    if name is None:
        alone = known or states
        if len(alone) != 1:
            raise CheckpointError(
                "checkpoint.output",
                f"cannot tell which output of checkpoint {manifest.number} to read: it has: "
                f"{', '.join(alone) or 'none that it tells of'}",
                hint="say which one: name="
                if alone
                else "say which state: name=; riverrun checkpoints lists them",
                outputs=list(alone),
            )
        (name,) = alone
    known = {**states, **known}
    if name not in known:
        if name not in manifest.states:
            raise _unknown("output", name, manifest, known or manifest.states)
        return name, with_count(manifest.states[name][0].schema), None
    about = known[name]
    if about["state"] not in manifest.states:
        raise _unknown("state", about["state"], manifest, manifest.states)
    columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(about["schema"])))
    return about["state"], columns, name


def with_count(schema: Schema) -> pa.Schema:
    """The columns of a state, key first, and a last column with how often each row is there."""
    columns = [*schema.key, *schema.value]
    count = free_name("count", [column.name for column in columns], any_case=True)
    return pa.schema([*columns, pa.field(count, pa.int64())])


def _cuts(share: Share, rows: int) -> Iterator[tuple[int, int]]:
    total = sum(block.rows for block in share.blocks)
    largest = max(share.batches, key=lambda b: sum(x.rows for x in b.blocks), default=None)
    low = share.low
    if largest is not None and total > rows:
        size = sum(block.rows for block in largest.blocks)
        wanted, gathered = max(size * rows // total, 1), 0
        for block in largest.blocks:
            if gathered >= wanted and low < block.low < share.high:
                yield low, block.low
                low, gathered = block.low, 0
            gathered += block.rows
    yield low, share.high


def _unknown(what: str, name: str, manifest: Manifest, known: Mapping[str, Any]) -> CheckpointError:
    return CheckpointError(
        f"checkpoint.{what}_unknown",
        f"cannot read {what} {name!r} of checkpoint {manifest.number}: there are: {', '.join(known) or 'none'}",
        hint="check the spelling; riverrun checkpoints PATH NUMBER shows what is in it",
        **{what: name},
    )


def _not_held(
    epoch: int | None, ranges: list[tuple[int, range]], name: str | None
) -> TimeViolation:
    held_epochs = "; ".join(
        f"checkpoint {number}: {_shown(epochs)}" for number, epochs in reversed(ranges)
    )
    what = "the only output" if name is None else repr(name)
    when = "" if epoch is None else f" as of epoch {epoch}"
    return TimeViolation(
        "time.not_held",
        f"cannot read {what}{when}: the checkpoints hold: {held_epochs}",
        hint="a run with a longer history= keeps more epochs apart; older checkpoints are collected",
        epoch=epoch,
    )


def _shown(epochs: range) -> str:
    if not epochs:
        return "no epoch yet"
    if len(epochs) == 1:
        return f"epoch {epochs[0]}"
    return f"epochs {epochs[0]} to {epochs[-1]}"
