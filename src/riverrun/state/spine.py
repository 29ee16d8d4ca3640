"""A spine: one state of an operator on one worker, as a chain of batches that merge in the background.

Most operators that keep something have one spine; a vertex has one for each of its tables. The operator appends a batch
for each time that is complete, and reads the spine through views. Two frontiers describe a
state: before `upper` no change will come any more, and before `since` versions can no longer be told apart. A state
can be read as of every time in [since, upper). Laws:

- **Chain.** Batches are adjacent: the `upper` of a batch is the `lower` of the next one. The `lower` of the first batch
  is that of the spine, and the `upper` of the last batch is that of the spine. Only neighbours merge.
- **Merging is invisible.** A merge changes no sum over the times at or before t, for any t at or after the `since` with
  which the merge was started; and `since` only moves forward.
- **Holds.** `since` is the lower envelope of all holds, so no time that a holder wants to read is compacted away.
- **Bounded work.** `append` of n rows handles O(n log N) rows of merging, or some ten thousand where n is small. It
  never finishes a larger merge for its own sake: the work of a call depends on the rows appended, not on the size of
  the state.

**Which batches merge.** Read from old to new, batches should shrink by half or more. From the first batch that is less
than twice as large as some later one, the pair of neighbours with the fewest rows merges. Several merges run at once,
at different places of the chain.

**Which batches wait.** The newest batch waits for the next one. A few batches before it wait too, until `since` has
passed them, as it soon does as a rule; merging then advances their changes to one time. Small batches at the end wait
until there are `FOLD_BATCHES` of them, and are then sorted into one. Two batches that are still small then are merged
at once, since a merge in steps costs some 100 microseconds however small it is.

**Why this suffices.** A chain that shrinks by halves has at most log2(N) batches, which bounds the cost of a read. As
to work, charge a merge to its rows when neither side is more than twice the other: the batch of a row then grows by
half at least, which happens at most log1.5(N) times. When one side is much smaller, the cause is a batch of n rows
that arrived after smaller batches. The smaller ones shrink by halves, and each is less than twice as large as the new
batch, so they hold less than 4n rows in all. Making one batch of them, the smallest pairs first, costs a constant times
n, which is charged to the batch that arrived. So an append of n rows causes O(n log N) rows of merging sooner or later.
It is given fuel for that (`_fuel`), which goes to the newest and smallest merges first. Should merges fall behind all
the same, the chain is longer, and the fuel with it. The fuel of small appends is saved up until it is worth a call
(`_pay`). So a call merges at most the rows that its own append and `WORTH_A_CALL` rows pay for, and the saved fuel is
never more than that.

**Memory.** With a `budget`, blocks beyond it are written to files and mapped, the oldest batches first; reads work as
before.

A spine is for one thread; its views may be read by any thread.

>>> import pyarrow as pa
>>> spine = Spine("stock", Schema.of({"item": pa.string()}, {"left": pa.int64()}))
>>> spine.insert(pa.table({"item": ["rope", "sail"], "left": [5, 2]}), time=(0,))
>>> spine.insert(pa.table({"item": ["rope", "rope"], "left": [5, 4]}), time=(1,), diffs=[-1, 1])
>>> spine.lookup(pa.array(["rope"]), as_of=(0,)).column("left").to_pylist()
[5]
>>> spine.lookup(pa.array(["rope"]), as_of=(1,)).column("left").to_pylist()
[4]
>>> spine.advance_since(Antichain([(1,)]))
>>> spine.lookup(pa.array(["rope"]), as_of=(0,))
Traceback (most recent call last):
    ...
riverrun.errors.TimeViolation: cannot read 'stock' as of (0,): it can be read from {(1,)} up to, not including, {(2,)}
Hint: hold the times you want to read back to, before they are compacted
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pyarrow as pa

from riverrun.errors import SchemaError, TimeViolation
from riverrun.progress import Antichain, Timestamp
from riverrun.progress.frontier import as_antichain
from riverrun.progress.timestamp import as_timestamp, check_depth
from riverrun.state.batch import Batch
from riverrun.state.block import BLOCK_ROWS, Block, resident_bytes
from riverrun.state.block_files import spill_block
from riverrun.state.buffers import BUFFERS
from riverrun.state.columns import Ints
from riverrun.state.merge import Merger, fold
from riverrun.state.schema import Rows, Schema
from riverrun.state.times import reaches
from riverrun.state.view import Asked, Selection, View

FOLD_ROWS = 256  # a batch of so few rows waits until FOLD_BATCHES of them are made one
FOLD_BATCHES = 8
WAITING = 3  # batches that wait for `since`; where it is further behind, only the newest one waits
LEAST_FUEL = 1024  # rows of merging that even the smallest append pays for
WORTH_A_CALL = 8192  # rows of merging that are done at once, at least: some 100 microseconds


class ReadHold:
    """Keeps times from `frontier` on readable, until the hold is moved on or released."""

    def __init__(self, spine: Spine, frontier: Antichain) -> None:
        self._spine = spine
        self.frontier = frontier

    def advance(self, frontier: Antichain) -> None:
        """Give up times that are not at or after `frontier`."""
        _check_forward(self._spine.name, "a read hold", self.frontier, frontier)
        self.frontier = frontier
        self._spine._update_since()

    def release(self) -> None:
        """Give up all times."""
        self._spine._release(self)

    def __enter__(self) -> ReadHold:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class Spine:
    """A chain of batches that takes changes in and can be read as of any time in [since, upper)."""

    def __init__(
        self,
        name: str,
        schema: Schema,
        *,
        depth: int = 1,
        lower: Antichain | None = None,
        budget: int | None = None,
        directory: Path | None = None,
    ) -> None:
        """An empty state for times of `depth` coordinates, at or after `lower`.

        `budget` is how many bytes of blocks stay in memory; the rest is kept in files in
        `directory`.
        """
        if (budget is None) != (directory is None):
            raise ValueError("a budget needs a directory to spill to, and a directory a budget")
        if not isinstance(schema, Schema):
            raise SchemaError(
                "schema.malformed",
                f"cannot make the state {name!r} with {schema!r} as its schema",
                hint='Spine(name, Schema.of(key, value)), for instance Schema.of({"k": pa.int64()}, {"v": pa.int64()})',
            )
        self.name = name
        self.schema = schema
        self.lower = Antichain.minimum(depth)
        if lower is not None:
            self.lower = as_antichain(lower, f"start the state {name!r}")
        self._upper = self.lower
        self._since = self.lower
        self._own = ReadHold(self, self.lower)
        self._holds = [self._own]
        self._chain: list[Batch | Merger] = []
        self._budget = budget
        self._directory = None if directory is None else Path(directory)
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
        self._view: View | None = None
        self._owed = 0  # saved fuel: rows of merging that were paid for and not done yet

    @classmethod
    def from_view(
        cls, view: View, *, budget: int | None = None, directory: Path | None = None
    ) -> Spine:
        """A state that starts from the batches of a view: one that was restored, or sliced by hashes."""
        lower = view.batches[0].lower if view.batches else view.upper
        spine = cls(view.name, view.schema, lower=lower, budget=budget, directory=directory)
        spine._chain = list(view.batches)
        spine._upper = view.upper
        spine._since = spine._own.frontier = view.since
        spine._balance()
        spine._spill()
        return spine

    def __repr__(self) -> str:
        return f"<Spine {self.name!r}: {len(self)} changes, readable from {self._since} up to {self._upper}>"

    @property
    def upper(self) -> Antichain:
        """No change at a time that is not at or after this will come any more."""
        return self._upper

    @property
    def since(self) -> Antichain:
        """Reads as of times at or after this are exact."""
        return self._since

    def __len__(self) -> int:
        """How many changes are stored."""
        return sum(len(batch) for batch in self._batches())

    @property
    def nbytes(self) -> int:
        """Bytes in memory, those of results of merges under way included."""
        return resident_bytes(list(self._blocks()))

    @property
    def merging(self) -> bool:
        """Whether merges are under way."""
        return any(isinstance(entry, Merger) for entry in self._chain)

    def insert(
        self,
        rows: Rows,
        time: Timestamp,
        diffs: int | Sequence[int] | Ints = 1,
        upper: Antichain | None = None,
    ) -> None:
        """Append all changes of one time.

        `upper` moves on past that time and all before it, unless told where to; so a time is
        appended once, with all its rows.
        """
        attempt = f"append to {self.name!r}"
        time = as_timestamp(time, attempt)
        for some in self.lower:
            check_depth([time], len(some), attempt)
        if upper is None:
            if not self._upper.less_equal(time):
                raise TimeViolation(
                    "time.went_back",
                    f"cannot {attempt} at {time}: the state is complete up to {self._upper}",
                    hint="what is complete does not change: gather the rows of one time into one table",
                    name=self.name,
                    time=time,
                )
            upper = self._upper.join(_past(time))
        self._check_upper(upper)
        self.append(
            Batch.build(
                self.schema,
                rows,
                time=time,
                diffs=diffs,
                lower=self._upper,
                upper=upper,
                attempt=attempt,
            )
        )

    def append(self, batch: Batch) -> None:
        """Append the changes up to a new `upper`; merges go on a bounded step."""
        if batch.lower is not self._upper and batch.lower != self._upper:
            raise TimeViolation(
                "time.not_adjacent",
                f"cannot append to {self.name!r}: the batch starts at {batch.lower}, "
                f"but the state is complete up to {self._upper}",
                hint="batches are appended in the order of their times, without gaps",
                name=self.name,
            )
        self._check_upper(batch.upper)
        if batch.schema is not self.schema and batch.schema != self.schema:
            raise SchemaError(
                "schema.other",
                f"cannot append to {self.name!r}: the batch has the columns "
                f"{', '.join(map(str, batch.schema.columns))}, and the state "
                f"{', '.join(map(str, self.schema.columns))}",
                hint="build the batch with the schema of the state",
                name=self.name,
            )
        self._upper = batch.upper
        self._view = None
        rows = batch.rows
        if rows:
            if rows > FOLD_ROWS:
                self._fold()
            self._chain.append(batch)
            if (
                not 1 < self._small() < FOLD_BATCHES
            ):  # one more small batch that waits causes no merge
                self._balance()
        elif self._chain:
            self._widen_last(batch.upper)
        else:
            self._chain.append(batch)
        self._pay(rows)

    def advance_upper(self, upper: Antichain) -> None:
        """Move `upper` on without a change: no change before it will come any more."""
        self._check_upper(upper)
        self.append(Batch(self.schema, (), self._upper, upper, self.lower))

    def hold(self, frontier: Antichain | None = None) -> ReadHold:
        """Keep times from `frontier` on (by default from `since` on) readable until the hold is released."""
        frontier = self._since if frontier is None else frontier
        _check_forward(self.name, "a read hold", self._since, frontier)
        hold = ReadHold(self, frontier)
        self._holds.append(hold)
        return hold

    def advance_since(self, frontier: Antichain) -> None:
        """Allow versions before `frontier` to be merged into one, as far as no hold keeps them apart."""
        _check_forward(self.name, "the since", self._own.frontier, frontier)
        if not _is_forward(frontier, self._upper) and not frontier.dominates(self._upper):
            raise TimeViolation(
                "time.since_past_upper",
                f"cannot compact {self.name!r} to {frontier}: the state is complete only up to {self._upper}",
                hint="move the upper first; times that may still change cannot be compacted",
                name=self.name,
            )
        self._own.frontier = frontier
        self._update_since()

    def view(self) -> View:
        """The state as it stands: for reading, and as the list of batches of a checkpoint."""
        if self._view is None:
            self._view = View(
                self.name, self.schema, tuple(self._batches()), self._since, self._upper
            )
        return self._view

    def lookup(self, keys: Asked, as_of: Timestamp) -> Selection:
        """See `View.lookup`."""
        return self.view().lookup(keys, as_of)

    def first(
        self, keys: Asked, as_of: Timestamp, k: int = 1, *, skip_null: bool = False
    ) -> Selection:
        """See `View.first`."""
        return self.view().first(keys, as_of, k, skip_null=skip_null)

    def last(
        self,
        keys: Asked,
        as_of: Timestamp,
        k: int = 1,
        *,
        at: pa.Array | None = None,
        closed: bool = True,
        skip_null: bool = False,
    ) -> Selection:
        """See `View.last`."""
        return self.view().last(keys, as_of, k, at=at, closed=closed, skip_null=skip_null)

    def scan(self, as_of: Timestamp) -> Iterator[Selection]:
        """See `View.scan`."""
        return self.view().scan(as_of)

    def to_batch(self, as_of: Timestamp) -> pa.RecordBatch:
        """See `View.to_batch`."""
        return self.view().to_batch(as_of)

    def work(self, fuel: int) -> int:
        """Merge up to `fuel` rows, the newest merges first; return what is left, which is 0 unless all is done."""
        at = len(self._chain) - 1
        while at >= 0 and fuel > 0:
            merger = self._chain[at]
            if isinstance(merger, Merger):
                fuel = merger.work(fuel)
                if merger.remaining == 0:
                    self._chain[at] = merger.result()
                    self._view = None
                    self._balance()
                    at = len(self._chain)
            at -= 1
        self._spill()
        BUFFERS.trim()
        return fuel

    def compact(self) -> None:
        """Merge everything into one batch with times advanced to `since`, and give spare memory back.

        Unbounded work: for idle moments.
        """
        self._finish()
        while len(self._chain) > 1:
            self._start(len(self._chain) - 2)  # the newest, which are the smallest, first
            self._finish()
        if self._chain and not self._is_compact():
            batch = self._chain[0]
            assert isinstance(batch, Batch)  # no merge is under way
            nothing = Batch(self.schema, (), batch.upper, batch.upper, self._since)
            self._chain[0] = Merger(batch, nothing, self._since)
            self._finish()
        BUFFERS.release()

    def _finish(self) -> None:
        """Work until no merge is under way, in steps, so that memory stays within the budget."""
        while self.work(BLOCK_ROWS) == 0:
            pass

    def _is_compact(self) -> bool:
        batch = self._chain[0]
        return isinstance(batch, Batch) and (len(batch) == 0 or batch.since == self._since)

    def _fuel(self, rows: int) -> int:
        """Rows of merging that an append of `rows` rows pays for."""
        return LEAST_FUEL + rows * (4 + 2 * len(self._chain))

    def _pay(self, rows: int) -> None:
        """Add the fuel of an append of `rows` rows to the saved fuel, and merge for it once that is worth a call."""
        self._owed += self._fuel(rows)
        if self._owed >= WORTH_A_CALL:
            owed, self._owed = self._owed, 0
            self.work(owed)
        else:
            self._spill()

    def _small(self) -> int:
        """How many small batches stand at the end of the chain."""
        count = 0
        for entry in reversed(self._chain):
            if isinstance(entry, Merger) or entry.rows > FOLD_ROWS:
                break
            count += 1
        return count

    def _waiting(self) -> int:
        """How many batches at the end of the chain do not merge yet."""
        count = 0
        for entry in reversed(self._chain):
            if isinstance(entry, Merger) or not self._is_ahead(entry):
                break
            count += 1
        return max(self._small(), count if count <= WAITING else 1, 1)

    def _is_ahead(self, batch: Batch) -> bool:
        """Whether `since` has yet to pass a batch whose times are epochs alone. Batches of loops, which it passes much
        later, do not count."""
        top = batch.top
        return top is not None and len(top) == 1 and all(time < top for time in self._since)

    def _fold(self) -> None:
        """Make one batch of the small ones at the end of the chain."""
        small = self._small()
        while small > 1 and not len(
            self._chain[-small]
        ):  # nothing to sort: the neighbour takes its times
            self._start(len(self._chain) - small)
            small -= 1
        if small > 1:
            batches = [batch for batch in self._chain[-small:] if isinstance(batch, Batch)]
            self._chain[-small:] = [fold(batches, self._since)]
            self._view = None

    def _balance(self) -> None:
        """Start the merges that the shape of the chain calls for."""
        if self._small() >= FOLD_BATCHES:
            self._fold()
        started = True
        while started:
            started = False
            largest = 0
            violating: tuple[int, int] | None = None  # the widest stretch, from its oldest batch on
            stop = len(self._chain) - self._waiting()
            for at in range(stop - 1, -1, -1):
                entry = self._chain[at]
                if isinstance(entry, Merger):
                    if violating is not None:
                        break
                    largest, stop = 0, at
                    continue
                size = entry.rows
                if at + 1 < stop and size < 2 * largest:
                    violating = (at, stop)
                largest = max(largest, size)
            if violating is not None:
                start, stop = violating
                pair = min(
                    range(start, stop - 1),
                    key=lambda at: len(self._chain[at]) + len(self._chain[at + 1]),
                )
                self._start(pair)
                started = True

    def _start(self, at: int) -> None:
        a, b = self._chain[at], self._chain[at + 1]
        assert isinstance(a, Batch)
        assert isinstance(b, Batch)
        self._view = None
        if len(a) and len(b):
            rows = len(a) + len(b)
            small = rows <= 2 * FOLD_ROWS * FOLD_BATCHES and self.schema.flat is not None
            merged = fold([a, b], self._since) if small else Merger(a, b, self._since)
            self._chain[at : at + 2] = [merged]
        else:
            whole = a if len(a) else b
            self._chain[at : at + 2] = [whole.with_frontiers(a.lower, b.upper)]

    def _widen_last(self, upper: Antichain) -> None:
        last = self._chain[-1]
        if isinstance(last, Merger):
            last.b = last.b.with_frontiers(last.b.lower, upper)
        else:
            self._chain[-1] = last.with_frontiers(last.lower, upper)

    def _batches(self) -> Iterator[Batch]:
        for entry in self._chain:
            if isinstance(entry, Merger):
                yield entry.a
                yield entry.b
            else:
                yield entry

    def _blocks(self) -> Iterator[Block]:
        for entry in self._chain:
            if isinstance(entry, Merger):
                yield from (*entry.a.blocks, *entry.b.blocks, *entry.blocks)
            else:
                yield from entry.blocks

    def _spill(self) -> None:
        """Bring the blocks in memory within the budget, the oldest batches first."""
        if self._budget is None or self._directory is None:
            return
        excess = self.nbytes - self._budget
        for at, entry in enumerate(self._chain):
            if excess <= 0:
                return
            lists = [entry.a, entry.b] if isinstance(entry, Merger) else [entry]
            for batch in lists:
                blocks, excess = spill_blocks(batch.blocks, self._directory, excess)
                if blocks != batch.blocks:
                    self._view = None
                    fresh = replace(batch, blocks=blocks)
                    if isinstance(entry, Merger):
                        entry.replace_input(batch, fresh)
                    else:
                        self._chain[at] = fresh
            if isinstance(entry, Merger):
                done, excess = spill_blocks(tuple(entry.blocks), self._directory, excess)
                entry.blocks = list(done)

    def _check_upper(self, upper: Antichain) -> None:
        _check_forward(self.name, "the upper", self._upper, upper)

    def _update_since(self) -> None:
        holds = self._holds
        if len(holds) == 1:
            self._since = holds[0].frontier
        else:
            self._since = reduce(Antichain.meet, (hold.frontier for hold in holds))
        if self._view is not None:
            self._view = self._view.with_frontiers(self._since, self._upper)

    def _release(self, hold: ReadHold) -> None:
        if hold in self._holds:
            self._holds.remove(hold)
            self._update_since()


def _past(time: Timestamp) -> Antichain:
    """The frontier of all times that are not at or before `time`."""
    zeros = (0,) * len(time)
    return Antichain((*zeros[:at], time[at] + 1, *zeros[at + 1 :]) for at in range(len(time)))


def spill_blocks(
    blocks: tuple[Block, ...], directory: Path, excess: int
) -> tuple[tuple[Block, ...], int]:
    """The same blocks, as many of them in files as bring `excess` to zero or less."""
    spilled = []
    for block in blocks:
        if excess > 0 and block.resident:
            excess -= block.nbytes
            block = spill_block(block, directory)
        spilled.append(block)
    return (
        (blocks, excess)
        if all(a is b for a, b in zip(blocks, spilled, strict=True))
        else (tuple(spilled), excess)
    )


def _is_forward(old: Antichain, new: Antichain) -> bool:
    """Whether `new` is at or after `old` and of its depth; False says nothing."""
    if not old.elements:
        return not new.elements
    depth = len(old.elements[0])
    for time in new.elements:  # noqa: SIM110 - a generator would cost three times as much
        if len(time) != depth or not reaches(old, time):
            return False
    return True


def _check_forward(name: str, what: str, old: Antichain, new: Antichain) -> None:
    """Refuse a frontier that is not at or after the one before it."""
    if old is new or (type(new) is Antichain and _is_forward(old, new)):
        return
    as_antichain(new, f"move {what} of {name!r}")
    for some in old:
        check_depth(new, len(some), f"move {what} of {name!r}")
    if old.dominates(new):
        return
    raise TimeViolation(
        "time.went_back",
        f"cannot move {what} of {name!r} from {old} to {new}: frontiers only move forward",
        hint="every time in the new frontier must be at or after some time in the old one",
        name=name,
    )
