"""Inspecting: a list of the files at a checkpoint path, and a check of whether they are whole. Nothing there is
changed.

`riverrun checkpoints` uses it. `look` lists the checkpoints, the log, the parcels, and files that no manifest and no
record names. `verify` reads all files. Laws:

- **Looking is harmless.** Nothing is written, made or taken over; a run may be alive meanwhile. Files that it publishes
  or collects during the reading are looked at again, and never taken for damage.
- **As restoring does.** A file is whole when restoring takes it: the file is there, with the size and checksum of the
  manifest, holds a block of the state's schema, and has the rows that count.
- **Whole checkpoints.** A checkpoint is whole when its manifest is, and every file that the manifest names. `whole`
  lists the whole checkpoints; the last of them is the one to go back to.
- **Whole log.** The log stands without a gap from the position at which the oldest checkpoint ends. A torn record is
  damage, unless a later owner has declared it void.

Cost: looking reads the manifests and the first bytes of each record. Verifying reads every file once, `parallel` at a
time, which is also how many it holds in memory (of a local disk: mapped).

>>> import pyarrow as pa
>>> from riverrun.state.schema import Schema
>>> from riverrun.state.spine import Spine
>>> stock = Spine("stock", Schema.of({"item": pa.string()}, {"left": pa.int64()}))
>>> stock.insert(pa.table({"item": ["rope", "sail"], "left": [5, 2]}), time=(0,))
>>> checkpoints = Checkpoints("memory:///")
>>> manifest = checkpoints.save({"stock": stock.view()}, about={"epoch": 1})
>>> [(each.number, each.epoch, each.states, each.rows) for each in look(checkpoints).checkpoints]
[(1, 0, 1, 2)]
>>> verify(checkpoints).whole
(1,)
>>> checkpoints.storage.delete(manifest.files)
>>> [(damage.checkpoints, damage.why) for damage in verify(checkpoints).damages]
[((1,), 'it is missing')]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from riverrun.errors import CheckpointError
from riverrun.state.schema import Schema
from riverrun.state.soundness import UnsoundRows, read_stream
from riverrun.storage.checkpoint import PARALLEL, Checkpoints
from riverrun.storage.log import Log, is_logs_own
from riverrun.storage.manifest import (
    BLOCKS,
    MANIFESTS,
    BlockEntry,
    Manifest,
    StoredFile,
    manifest_name,
    manifest_number,
    parse_block_name,
    unfinished_number,
)
from riverrun.storage.records import LOG, PARCELS, record_name
from riverrun.storage.store import FileFound, Storage, checksum

TRIES = 5
FOLDERS = (MANIFESTS, BLOCKS, LOG, PARCELS)

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class CheckpointFound:
    """A checkpoint in a list. Where its manifest is torn, or of another version, `error` says so and the rest is
    empty."""

    number: int
    published: datetime | None
    epoch: int | None = None
    """The last epoch that the checkpoint holds; None where it holds none, or does not say."""
    workers: int | None = None
    states: int = 0
    rows: int = 0
    """How many changes are stored, at least as many as rows."""
    bytes: int = 0
    fresh: int = 0
    """Bytes of files that this checkpoint was the first to write."""
    version: str | None = None
    """The version of Riverrun that wrote the checkpoint."""
    error: CheckpointError | None = None


@dataclass(frozen=True, slots=True)
class LogFound:
    """The log: its records, the epochs among them, and who owns the path."""

    records: int = 0
    bytes: int = 0
    first: int | None = None
    last: int | None = None
    epochs: tuple[int, int] | None = None
    """The first and the last epoch whose input is in the log."""
    refused: int = 0
    owner: int | None = None
    """The position of the last ``opened`` record."""
    identity: str | None = None
    opened: datetime | None = None
    torn: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParcelsFound:
    """Rows of DataFrames that epochs take by name."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PathContents:
    """The files at a checkpoint path, as `look` lists them."""

    checkpoints: tuple[CheckpointFound, ...]
    log: LogFound
    parcels: ParcelsFound
    unreferenced: tuple[FileFound, ...]
    """Files of ours that no whole manifest and no record names: left over, or being written."""

    @property
    def empty(self) -> bool:
        return not (self.checkpoints or self.log.records or self.parcels.files or self.unreferenced)


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged file, what is wrong with it, and which checkpoints need it."""

    file: str
    why: str
    checkpoints: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Verified:
    """The answer of `verify`."""

    numbers: tuple[int, ...]
    """The checkpoints that were looked at."""
    whole: tuple[int, ...]
    """The numbers of whole checkpoints, in order."""
    damages: tuple[Damage, ...]
    files: int
    bytes: int
    records: int = 0
    parcels: int = 0
    unreferenced: tuple[FileFound, ...] = field(default=())

    @property
    def newest_whole(self) -> int | None:
        return self.whole[-1] if self.whole else None


# ---- looking


def look(checkpoints: Checkpoints) -> PathContents:
    """List the files of a run at its checkpoint path."""
    storage = checkpoints.storage
    manifests, errors = _manifests(checkpoints, None)
    when = {file.name: file.modified for file in storage.files(MANIFESTS)}
    summaries = [_summary(m, when.get(manifest_name(m.number))) for m in manifests.values()]
    summaries += [
        CheckpointFound(number, when.get(manifest_name(number)), error=error)
        for number, error in errors.items()
    ]
    log, parcels = _look_at_log(storage)
    stored = storage.files(PARCELS)
    return PathContents(
        tuple(sorted(summaries, key=lambda each: each.number)),
        log,
        ParcelsFound(len(stored), sum(file.size for file in stored)),
        _unreferenced(storage, manifests.values(), parcels),
    )


def _manifests(
    checkpoints: Checkpoints, only: int | None
) -> tuple[dict[int, Manifest], dict[int, CheckpointError]]:
    """The manifests that can be read, and why others cannot."""
    numbers = checkpoints.numbers()
    if only is not None:
        check_number(numbers, only)
        numbers = [only]
    manifests: dict[int, Manifest] = {}
    errors: dict[int, CheckpointError] = {}
    for number in numbers:
        try:
            manifests[number] = checkpoints.load(number)
        except CheckpointError as error:
            if error.code != "checkpoint.missing":  # it was collected since the listing
                errors[number] = error
    return manifests, errors


def check_number(numbers: Iterable[int], number: object) -> None:
    """Refuse the number of a checkpoint that is not there."""
    listed = list(numbers)
    if not isinstance(number, int) or isinstance(number, bool):
        raise CheckpointError(
            "checkpoint.unknown",
            f"cannot find checkpoint {number!r}: the number of a checkpoint is a whole number",
            hint=f"there are: {', '.join(map(str, listed)) or 'none'}",
            number=number,
        )
    if number not in listed:
        raise CheckpointError(
            "checkpoint.unknown",
            f"cannot find checkpoint {number}: there are: {', '.join(map(str, listed)) or 'none'}",
            hint="older ones are collected as new ones are published",
            number=number,
        )


def _summary(manifest: Manifest, published: datetime | None) -> CheckpointFound:
    files, about = manifest.files, manifest.about
    shares = [share for shares in manifest.states.values() for share in shares]
    return CheckpointFound(
        number=manifest.number,
        published=published,
        epoch=last_epoch(about),
        workers=about.get("workers"),
        states=len(manifest.states),
        rows=sum(block.rows for share in shares for block in share.blocks),
        bytes=sum(file.size for file in files.values()),
        fresh=sum(f.size for f in files.values() if _number_of(f.name) == manifest.number),
        version=manifest.version,
    )


def last_epoch(about: Mapping[str, Any]) -> int | None:
    """The last epoch that a checkpoint holds, given what it says of itself: there it names the epoch after that.

    >>> last_epoch({"epoch": 3}), last_epoch({"epoch": 0}), last_epoch({})
    (2, None, None)
    """
    following = about.get("epoch")
    return following - 1 if following else None


def _number_of(name: str) -> int:
    parsed = parse_block_name(name)
    return parsed[0] if parsed else 0


def _look_at_log(storage: Storage) -> tuple[LogFound, set[str]]:
    """The log, and the parcels that it names."""
    log = Log(storage)
    files = {file.name: file for file in storage.files(LOG)}
    positions = [at for at in log.positions() if record_name(at) in files]

    def read_header(position: int) -> Mapping[str, Any] | None:
        try:
            return log.header(position, files[record_name(position)].size)
        except CheckpointError as error:
            return None if error.code == "checkpoint.missing" else {"kind": "torn"}

    read = zip(positions, _in_parallel(read_header, positions), strict=True)
    headers = {at: header for at, header in read if header is not None}
    owner = max((at for at, header in headers.items() if header["kind"] == "opened"), default=None)
    epochs = [int(header["epoch"]) for header in headers.values() if header["kind"] == "epoch"]
    summary = LogFound(
        records=len(headers),
        bytes=sum(files[record_name(at)].size for at in headers),
        first=min(headers, default=None),
        last=max(headers, default=None),
        epochs=(min(epochs), max(epochs)) if epochs else None,
        refused=sum(header["kind"] == "refused" for header in headers.values()),
        owner=owner,
        identity=None if owner is None else headers[owner].get("identity"),
        opened=None if owner is None else files[record_name(owner)].modified,
        torn=tuple(record_name(at) for at, header in headers.items() if header["kind"] == "torn"),
    )
    named = {parcel["file"] for header in headers.values() for parcel in _parcels(header)}
    return summary, named


def _parcels(header: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = header.get("parcels", {}).values()
    return [parcel for parcels in listed for parcel in parcels if parcel["file"]]


def _unreferenced(
    storage: Storage, manifests: Iterable[Manifest], parcels: set[str]
) -> tuple[FileFound, ...]:
    used = {name for manifest in manifests for name in manifest.files}
    left = [file for file in storage.files(BLOCKS) if file.name not in used]
    left += [file for file in storage.files(PARCELS) if file.name not in parcels]
    left += [file for file in storage.files(MANIFESTS) if manifest_number(file.name) is None]
    left += [file for folder in FOLDERS for file in storage.unfinished_files(folder)]
    return tuple(left)


def is_collected(name: str) -> bool:
    """Whether runs remove a leftover file of such a name. Files of other names stay for ever."""
    parsed = (parse_block_name(name), unfinished_number(name))
    return any(about is not None for about in parsed) or is_logs_own(name)


# ---- verifying


def verify(checkpoints: Checkpoints, number: int | None = None) -> Verified:
    """Read one checkpoint, or all of them and the log; return which files are damaged."""
    for _ in range(TRIES):
        before = checkpoints.numbers()
        verified = _verify(checkpoints, number)
        if not verified.damages or checkpoints.numbers() == before:
            break
        checkpoints = Checkpoints(checkpoints.storage)  # a run went on meanwhile, and collected
    return verified


def _verify(checkpoints: Checkpoints, only: int | None) -> Verified:
    storage = checkpoints.storage
    manifests, errors = _manifests(checkpoints, only)
    damages = [Damage(manifest_name(n), _why(error), (n,)) for n, error in errors.items()]
    uses = _uses(manifests.values())
    bad = _in_parallel(lambda use: _refusal(checkpoints, use), list(uses))
    for use, why in zip(uses, bad, strict=True):
        if why is not None:
            damages.append(Damage(use.file.name, why, tuple(sorted(use.numbers))))
    hurt = {number for damage in damages for number in damage.checkpoints}
    looked = sorted([*manifests, *errors])
    records = parcels = 0
    unreferenced: tuple[FileFound, ...] = ()
    if only is None:
        listed, records, parcels = _verify_log(storage, manifests.values())
        damages += listed
        unreferenced = _unreferenced(storage, manifests.values(), _look_at_log(storage)[1])
    return Verified(
        numbers=tuple(looked),
        whole=tuple(number for number in looked if number not in hurt),
        damages=tuple(damages),
        files=len(uses),
        bytes=sum(use.file.size for use in uses),
        records=records,
        parcels=parcels,
        unreferenced=unreferenced,
    )


@dataclass
class _Use:
    """A file of a block, the manifests that name it, and their entries."""

    file: StoredFile
    schema: Schema
    numbers: set[int] = field(default_factory=set)
    entries: set[BlockEntry] = field(default_factory=set)


def _uses(manifests: Iterable[Manifest]) -> list[_Use]:
    uses: dict[tuple[StoredFile, str], _Use] = {}
    for manifest in manifests:
        for name, shares in manifest.states.items():
            for share in shares:
                for entry in share.blocks:
                    use = uses.setdefault((entry.file, name), _Use(entry.file, share.schema))
                    use.numbers.add(manifest.number)
                    use.entries.add(entry)
    return list(uses.values())


def _refusal(checkpoints: Checkpoints, use: _Use) -> str | None:
    try:
        checkpoints.check(use.file, use.schema, use.entries)
    except CheckpointError as error:
        return _why(error)
    return None


def _why(error: CheckpointError) -> str:
    """What is wrong with a file, without its name."""
    if error.code == "checkpoint.missing":
        return "it is missing"
    return error.message.partition(": ")[2] or error.message


def _verify_log(storage: Storage, manifests: Iterable[Manifest]) -> tuple[list[Damage], int, int]:
    """What is wrong with the log and its parcels, and how many of each there are."""
    log = Log(storage)
    ends = [int(m.about["position"]) for m in manifests if "position" in m.about]
    floor = min(ends, default=0)
    positions = log.positions()

    def check(position: int) -> tuple[Mapping[str, Any] | None, str | None]:
        try:
            return Log(storage).read(position).header, None
        except CheckpointError as error:
            if error.fields.get("torn"):
                torn.add(position)
            return None, _why(error)

    torn: set[int] = set()
    read = dict(zip(positions, _in_parallel(check, positions), strict=True))
    headers = {at: header for at, (header, _) in read.items() if header is not None}
    void = {at for header in headers.values() for at in header.get("void", ())}
    damages = []
    expected = floor
    for position in (at for at in positions if at >= floor):
        if position > expected:
            damages.append(Damage(record_name(expected), _missing(expected, position)))
        expected = position + 1
    for position, (_, why) in read.items():
        if why is None or position in void:
            continue
        if position in torn and not any(at > position for at in headers):
            why += "; as it is torn and the last, the next run leaves it out"
        damages.append(Damage(record_name(position), why))
    parcels = [p for at, header in headers.items() if at >= floor for p in _parcels(header)]
    for parcel, why in zip(
        parcels, _in_parallel(lambda each: _refused_parcel(storage, each), parcels), strict=True
    ):
        if why is not None:
            damages.append(Damage(parcel["file"], why))
    return damages, len(positions), len(parcels)


def _missing(first: int, following: int) -> str:
    if following == first + 1:
        return "it is missing, and later ones are there"
    return f"it and the next {following - first - 1} are missing, and later ones are there"


def _refused_parcel(storage: Storage, parcel: Mapping[str, Any]) -> str | None:
    try:
        data = storage.get(parcel["file"])
    except CheckpointError as error:
        return _why(error)
    if checksum(data) != parcel["checksum"]:
        return "its checksum differs from the one in the log"
    try:
        rows = sum(batch.num_rows for batch in read_stream(data))
    except UnsoundRows as error:
        return f"its rows are damaged: {error}"
    return None if rows == parcel["rows"] else f"it has {rows} rows, and not {parcel['rows']}"


def _in_parallel(function: Callable[[T], U], items: list[T]) -> list[U]:
    with ThreadPoolExecutor(PARALLEL, "inspect") as pool:
        return list(pool.map(function, items))
