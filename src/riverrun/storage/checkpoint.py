"""Checkpoints: states saved to storage, a little at a time, and read back by any number of workers.

A checkpoint has a number. Each worker *writes* its part: the files of those blocks that the checkpoint before did not
have. Then the coordinator *publishes* a manifest that names all files (`manifest`). Blocks are immutable, so saving
reads pinned batches and never stops the spine they came from. Laws:

- **As of.** Restoring gives the state as it was pinned, with its `since` and `upper`, whatever the number of workers
  that wrote the checkpoint or read it (the state's part of the *resume* law of ARCHITECTURE).
- **Whole.** A manifest names only files that are whole: each file is put before the manifest, and a put returns when
  the store has the file. A file that is damaged later is noticed: every restore compares size and checksum, and names
  the file that it refuses.
- **Atomic.** Publishing is one conditional create: readers see the checkpoint before or the new one, and of two
  publishers of one number one is refused. A part or a publication that fails halfway leaves the checkpoint before as it
  was.
- **In use.** No file is collected that a retained manifest names, or that a checkpoint being written has or will name.
- **Going back.** `again` publishes an older checkpoint under the next number, so later checkpoints build on that one;
  files that only the skipped checkpoints name are collected in time. No number is ever used twice, so a number stands
  for the same checkpoint for ever.

Why the law in use holds, without clocks or locks: the number of a checkpoint is one more than that of the newest
manifest, and the newest whole manifest is its *base*. A checkpoint names files that its workers wrote, which have its
number in their names, and files that its base names; no other file is taken for saved. `collect` keeps the newest whole
manifests, the files they name, and all files with a greater number. So while nobody publishes n, no file goes that n
will name; and when somebody else has published n, our create of n fails. A decision to delete that is carried out late
does no harm either: a file that no retained manifest names cannot be named by a later one.

Cost: saving copies each new block once and writes it, `parallel` at a time, which is also how many files it holds in
memory. A small change to a large state writes the blocks of new batches, and of batches that were merged since.
Restoring reads each file of the range once; with `mapped` (local disk only) the file is read to be verified, and then
stays out of our memory. Both run at the speed of copying memory.

>>> import pyarrow as pa
>>> from riverrun.state.spine import Spine
>>> stock = Spine("stock", Schema.of({"item": pa.string()}, {"left": pa.int64()}))
>>> stock.insert(pa.table({"item": ["rope", "sail"], "left": [5, 2]}), time=(0,))
>>> checkpoints = Checkpoints("memory:///")
>>> checkpoints.save({"stock": stock.view()}, about={"epoch": 1}).number
1
>>> stock.insert(pa.table({"item": ["mast"], "left": [1]}), time=(1,))
>>> second = checkpoints.save({"stock": stock.view()})
>>> sorted(file.partition("-")[0] for file in second.files)  # the first block is not written again
['blocks/000000000001', 'blocks/000000000002']
>>> checkpoints.restore("stock").to_batch(as_of=(1,)).column("item").to_pylist()
['sail', 'rope', 'mast']
>>> half = [checkpoints.restore("stock", low, low + END // 2) for low in (0, END // 2)]
>>> [view.to_batch(as_of=(1,)).num_rows for view in half]
[1, 2]
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from riverrun.errors import CheckpointError, RiverrunError
from riverrun.state.batch import Batch
from riverrun.state.block import Block
from riverrun.state.block_files import read_block, write_block
from riverrun.state.schema import Schema
from riverrun.state.shards import END, Range
from riverrun.state.view import View, join_views
from riverrun.storage.manifest import (
    BLOCKS,
    LAST,
    MANIFESTS,
    BatchEntry,
    BlockEntry,
    Manifest,
    Share,
    StoredFile,
    block_name,
    check_whole,
    decode_manifest,
    encode_manifest,
    manifest_name,
    manifest_number,
    parse_block_name,
    unfinished_number,
)
from riverrun.storage.store import Storage, checksum, open_storage
from riverrun.storage.threads import in_parallel

PARALLEL = 4  # files on their way at once
_LOG = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class StatePart:
    """The part of a checkpoint that one worker wrote, on its way to the publisher. Pickles."""

    number: int
    base: int
    """The checkpoint whose files were not written again; 0 for none."""
    shares: Mapping[str, tuple[Share, ...]]


class Checkpoints:
    """The checkpoints in a storage, or at a path or URL."""

    def __init__(
        self,
        storage: Storage | str | Path,
        *,
        parallel: int = PARALLEL,
        scratch: Path | None = None,
    ) -> None:
        """`scratch` is a local folder for restored blocks; without one, they are held in memory."""
        self.storage = storage if isinstance(storage, Storage) else open_storage(storage)
        self._parallel = parallel
        self._scratch = scratch
        self._cached: Manifest | None = None
        self._written: set[str] = set()  # files of parts that are whole
        self._strays: set[str] = set()  # files that are no manifests, and were logged as such

    def save(self, views: Mapping[str, View], about: Mapping[str, Any] | None = None) -> Manifest:
        """Write and publish the next checkpoint, where one worker has everything."""
        number = self.next_number()
        return self.publish(number, [self.write(views, number)], about)

    def next_number(self) -> int:
        """The number of the next checkpoint."""
        number = max(self.numbers(), default=0) + 1
        _check_number(number, f"write checkpoint {number}")
        return number

    def write(
        self, views: Mapping[str, View], number: int, ranges: Sequence[Range] = ((0, END),)
    ) -> StatePart:
        """Put the files of the changes whose hash is in one of these ranges, except files that the base has.

        No manifest names the files until they are published.
        """
        for low, high in ranges:
            _check_range(low, high)
        _check_number(number, f"write checkpoint {number}")
        _check_views(views)
        base = self._base(number, f"write checkpoint {number}")
        saved = {} if base is None else {_uid(name): file for name, file in base.files.items()}
        cut = {
            name: [view.slice(low, high).batches for low, high in ranges]
            for name, view in views.items()
        }
        blocks = {
            block.uid: block
            for pieces in cut.values()
            for batches in pieces
            for batch in batches
            for block in batch.blocks
        }
        fresh = [block for uid, block in blocks.items() if uid not in saved]
        written = self._put_blocks(fresh, number)
        saved |= {block.uid: file for block, file in zip(fresh, written, strict=True)}
        shares = {
            name: tuple(
                Share(
                    view.schema, low, high, view.since, view.upper,
                    tuple(_batch_entry(batch, saved) for batch in batches),
                )
                for (low, high), batches in zip(ranges, cut[name], strict=True)
            )
            for name, view in views.items()
        }  # fmt: skip
        return StatePart(number, 0 if base is None else base.number, shares)

    def publish(
        self, number: int, parts: Iterable[StatePart], about: Mapping[str, Any] | None = None
    ) -> Manifest:
        """Make the parts of all workers a checkpoint, at once. Safe to repeat when the answer was lost."""
        parts, attempt = list(parts), f"publish checkpoint {number}"
        shares_by_state: dict[str, list[Share]] = {}
        for part in parts:
            for name, shares in part.shares.items():
                shares_by_state.setdefault(name, []).extend(shares)
        states = {
            name: tuple(sorted(shares, key=lambda share: share.low))
            for name, shares in shares_by_state.items()
        }
        check_whole(states, attempt)
        manifest = Manifest(number, states, {} if about is None else about)
        data = encode_manifest(manifest)
        if number not in self.numbers():
            base = self._base(number, attempt)
            expected = (number, 0 if base is None else base.number)
            stale = next((p for p in parts if (p.number, p.base) != expected), None)
            if stale is not None:
                raise CheckpointError(
                    "checkpoint.stale",
                    f"cannot {attempt} after {expected[1]}: a part was written "
                    f"for checkpoint {stale.number} after {stale.base}",
                    hint="write the parts again, for this number",
                    number=number,
                )
            if self.storage.create(manifest_name(number), data):
                self._cached = manifest
                return manifest
        # Somebody was first: ourselves, if the store answered late and the request was repeated.
        if self.storage.get(manifest_name(number)).to_pybytes() != data:
            raise _conflict(number, attempt)
        return manifest

    def again(self, number: int, about: Mapping[str, Any]) -> Manifest:
        """Publish an older checkpoint once more, as the newest one (the law going back)."""
        old = self.load(number)
        while True:
            manifest = Manifest(self.next_number(), old.states, {**old.about, **about})
            if self.storage.create(manifest_name(manifest.number), encode_manifest(manifest)):
                self._cached = manifest
                return manifest

    def others(self, number: int, without: str) -> list[int]:
        """Older checkpoints that do not need a file and have all their own, newest first."""
        listed = set(self.storage.names(BLOCKS))
        others = []
        for older in reversed([n for n in self.numbers() if n < number]):
            with suppress(CheckpointError):  # it is torn
                files = self.load(older).files
                if without not in files and listed.issuperset(files):
                    others.append(older)
        return others

    def numbers(self) -> list[int]:
        """The numbers of all checkpoints, torn ones included, in order. Other files there are logged, once."""
        names = self.storage.names(MANIFESTS)
        numbers = {name: manifest_number(name) for name in names}
        strays = {name for name, number in numbers.items() if number is None} - self._strays
        if strays:
            self._strays |= strays
            _LOG.warning(
                "what no run has published is passed over in %r: %s",
                self.storage, ", ".join(sorted(strays)[:5]),
            )  # fmt: skip
        return [number for number in numbers.values() if number is not None]

    def load(self, number: int) -> Manifest:
        """The manifest of a checkpoint."""
        if self._cached is None or self._cached.number != number:
            name = manifest_name(number)
            self._cached = decode_manifest(name, self.storage.get(name).to_pybytes())
        return self._cached

    def latest(self) -> Manifest | None:
        """The newest manifest that is whole, with the errors of newer ones that are torn; None when there is none."""
        newest = self._newest(self.numbers(), 1)
        return newest[0] if newest else None

    def restore(
        self,
        name: str,
        low: int = 0,
        high: int = END,
        *,
        number: int | None = None,
        mapped: bool = False,
    ) -> View:
        """The changes of a state whose hash is in [low, high), as saved in the newest checkpoint or in `number`.

        Workers that restore parts of one checkpoint all pass the same `number`, which `latest()` tells. The shares of
        several workers are joined (`join_views`). With `mapped`, blocks stay in their files.
        """
        return join_views(self.restore_shares(name, low, high, number=number, mapped=mapped))

    def restore_shares(
        self,
        name: str,
        low: int = 0,
        high: int = END,
        *,
        number: int | None = None,
        mapped: bool = False,
    ) -> list[View]:
        """The same rows, as one view for each worker that wrote a part of them, batches without rows included."""
        _check_range(low, high)
        manifest = self._manifest(number)
        if name not in manifest.states:
            raise CheckpointError(
                "checkpoint.state_missing",
                f"cannot restore {name!r} from checkpoint {manifest.number}: its states are: "
                f"{', '.join(manifest.states) or 'none'}",
                hint="a state is restored under the name it was saved with",
                state=name,
            )
        shares = [s for s in manifest.states[name] if s.low < high and low < s.high]
        files = {
            entry.file.name: entry.file
            for share in shares
            for entry in share.blocks
            if entry.low < high and low < entry.high
        }
        schema = shares[0].schema
        blocks = self._in_parallel(
            lambda file: self._get_block(file, schema, mapped), list(files.values())
        )
        blocks_by_file = dict(zip(files, blocks, strict=True))
        return [_view(name, share, blocks_by_file, low, high) for share in shares]

    def check(self, file: StoredFile, schema: Schema, entries: Iterable[BlockEntry]) -> None:
        """Read a file as restoring does; raise if restoring would refuse it."""
        block = self._get_block(file, schema, mapped=self.storage.root is not None)
        for entry in entries:
            _counted(block, entry)

    def collect(self, retain: int = 2) -> list[str]:
        """Delete all manifests but the newest `retain`, and files that none of these name; return the deleted names."""
        if retain < 1:
            raise ValueError(f"at least one checkpoint is retained, not {retain}")
        numbers = self.numbers()
        retained = self._newest(numbers, retain)
        if not retained:
            return []
        # Manifests first: should this be cut short, no manifest is left that names a deleted file.
        manifests = [manifest_name(n) for n in numbers if n < retained[-1].number]
        # Whoever was about to publish one of these is refused, or was killed.
        manifests += [
            name
            for name in self.storage.unfinished(MANIFESTS)
            if (about := unfinished_number(name)) is not None and about <= retained[0].number
        ]
        self.storage.delete(manifests)
        used = {name for manifest in retained for name in manifest.files}
        listed = [*self.storage.names(BLOCKS), *self.storage.unfinished(BLOCKS)]
        parsed = [(name, parse_block_name(name)) for name in listed]
        files = [
            name
            for name, about in parsed
            if about is not None and about[0] <= retained[0].number and name not in used
        ]
        self.storage.delete(files)
        return [*manifests, *files]

    def _manifest(self, number: int | None) -> Manifest:
        if number is not None:
            return self.load(number)
        manifest = self.latest()
        if manifest is None:
            torn = ", ".join(map(manifest_name, self.numbers()))
            raise CheckpointError(
                "checkpoint.none",
                f"cannot restore from {self.storage.where}: it has no checkpoint that is whole"
                + (f"; damaged: {torn}" if torn else ""),
                hint="without a checkpoint a run starts from its input"
                if torn
                else "check the path",
            )
        for error in manifest.skipped:
            _LOG.warning("going back to checkpoint %d: %s", manifest.number, error.message)
        return manifest

    def newest(self, count: int) -> list[Manifest]:
        """Up to `count` manifests that are whole, newest first."""
        return self._newest(self.numbers(), count)

    def _newest(self, numbers: list[int], count: int) -> list[Manifest]:
        """Up to `count` manifests that are whole, newest first; the first has the errors of newer ones that are
        torn."""
        manifests: list[Manifest] = []
        torn: list[CheckpointError] = []
        for number in reversed(numbers):
            try:
                manifest = self.load(number)
            except CheckpointError as error:
                if error.code == "checkpoint.missing" and (again := self.numbers()) != numbers:
                    return self._newest(again, count)  # it was collected since we looked
                if error.code != "checkpoint.corrupt":
                    raise
                if not manifests:
                    torn.append(error)
                continue
            manifests.append(manifest if manifests else replace(manifest, skipped=tuple(torn)))
            if len(manifests) == count:
                break
        if manifests:
            self._cached = manifests[0]
        return manifests

    def _base(self, number: int, attempt: str) -> Manifest | None:
        """The checkpoint that `number` comes after."""
        numbers = self.numbers()
        newest = max(numbers, default=0)
        if number <= newest:
            raise _conflict(number, attempt)
        if number != newest + 1:
            raise CheckpointError(
                "checkpoint.gap",
                f"cannot {attempt}: the newest is {newest}, and numbers have no gaps",
                hint="write one checkpoint at a time; next_number() tells which",
                number=number,
            )
        newest_whole = self._newest(numbers, 1)
        return newest_whole[0] if newest_whole else None

    def _put_blocks(self, blocks: list[Block], number: int) -> list[StoredFile]:
        """Put the files of a part. When that fails they are deleted again: they may have filled the disk.

        No manifest can name them then: a part that failed is not published, and the files of blocks have names of their
        own. Files of a part that was written whole stay, since its publisher may only be slow.
        """
        try:
            written = self._in_parallel(lambda block: self._put_block(block, number), blocks)
        except RiverrunError:
            names = {block_name(number, block.uid) for block in blocks} - self._written
            with suppress(RiverrunError):
                self.storage.delete(names)
            raise
        self._written = {file.name for file in written} | {
            name for name in self._written if name.startswith(block_name(number, "0" * 32)[:19])
        }
        return written

    def _put_block(self, block: Block, number: int) -> StoredFile:
        data = write_block(block)
        file = StoredFile(block_name(number, block.uid), data.size, checksum(data))
        self.storage.put(file.name, data)
        return file

    def _get_block(self, file: StoredFile, schema: Schema, mapped: bool) -> Block:
        if mapped:
            data = self.storage.map(file.name)
        elif self._scratch is not None:
            data = self.storage.take(file.name, self._scratch)
        else:
            data = self.storage.get(file.name)
        if data.size != file.size:
            raise _corrupt(file.name, f"it has {data.size} bytes, and was saved with {file.size}")
        if checksum(data) != file.checksum:
            raise _corrupt(file.name, "its checksum is not the one it was saved with")
        resident = not mapped and self._scratch is None
        block = read_block(data, schema, file.name, resident=resident)
        if block.uid != _uid(file.name):
            raise _corrupt(file.name, f"it is the file of block {block.uid}")
        return block

    def _in_parallel(self, function: Callable[[T], U], items: list[T]) -> list[U]:
        if len(items) <= 1:
            return [function(item) for item in items]
        return in_parallel(function, items, self._parallel)


def _batch_entry(batch: Batch, saved: Mapping[str, StoredFile]) -> BatchEntry:
    blocks = tuple(
        BlockEntry(saved[block.uid], len(block), block.first, block.last + 1)
        for block in batch.blocks
    )
    return BatchEntry(batch.lower, batch.upper, batch.since, blocks)


def _view(
    name: str, share: Share, blocks_by_file: Mapping[str, Block], low: int, high: int
) -> View:
    batches = []
    for entry in share.batches:
        blocks = []
        for part in entry.blocks:
            if part.file.name in blocks_by_file and part.low < high and low < part.high:
                rows = _counted(blocks_by_file[part.file.name], part)
                blocks.append(rows.slice(low, high))
        counted = tuple(block for block in blocks if block is not None)
        batches.append(Batch(share.schema, counted, entry.lower, entry.upper, entry.since))
    return View(name, share.schema, tuple(batches), share.since, share.upper)


def _counted(block: Block, entry: BlockEntry) -> Block:
    """The rows of a block that an entry counts."""
    rows = block.slice(entry.low, entry.high)
    if rows is None or len(rows) != entry.rows:
        raise _corrupt(entry.file.name, f"it has not the {entry.rows} rows it should have")
    return rows


def _uid(name: str) -> str:
    parsed = parse_block_name(name)
    assert parsed is not None  # names are made by `block_name`, or were checked when read
    return parsed[1]


def _check_views(views: object) -> None:
    if isinstance(views, Mapping) and all(isinstance(view, View) for view in views.values()):
        return
    raise CheckpointError(
        "checkpoint.not_a_view",
        f"cannot save {views!r}: what is saved is a mapping from names to views",
        hint='for instance save({"stock": stock.view()})',
    )


def _check_number(number: int, attempt: str) -> None:
    if number > LAST:
        raise CheckpointError(
            "checkpoint.numbers",
            f"cannot {attempt}: {LAST} is the last number of a checkpoint",
            hint=f"no run gets so far: look where {manifest_name(LAST)} comes from, and move it away",
            number=number,
        )


def _check_range(low: int, high: int) -> None:
    if not 0 <= low < high <= END:
        raise ValueError(
            f"a range of hashes is within [0, 2**64) and not empty, not [{low}, {high})"
        )


def _corrupt(name: str, why: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint.corrupt",
        f"cannot restore from {name}: {why}",
        hint="the file was damaged, or another program wrote it; if an older checkpoint does without it, "
        "restore(..., number=N) reads that one",
        file=name,
    )


def _conflict(number: int, attempt: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint.conflict",
        f"cannot {attempt}: somebody else has published checkpoint {number} or a later one here",
        hint="two applications use one checkpoint path, or this one was replaced: give each its own path",
        number=number,
    )
