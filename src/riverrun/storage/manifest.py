"""A manifest: a small JSON file that says what one checkpoint consists of.

`checkpoint` writes and reads manifests. A manifest lists, per state, the *shares* that workers held (a range of hashes
each), the batches of each share with their frontiers, and the blocks of each batch: the file, its size and checksum,
and which hashes of the block count. (Where a range was split, only a part of a block counts, and its file is still the
file of the whole block.) Laws:

- **Whole or refused.** A manifest carries a checksum over the rest of it; a torn manifest is refused.
- **Whole states.** The shares of a state are adjacent hash ranges from 0 up to 2**64, with one schema and one `upper`.
- **Names are checked.** The file of a block is called ``blocks/NUMBER-UID.arrow``, after the checkpoint that first
  wrote it and the block; no other file is ever opened or deleted as a block.
- **Numbers are plausible.** A manifest whose number is above `LAST` was not published by a run, which would need 31
  years for that at a checkpoint each second. Such a file is passed over like any other file that is not ours.

>>> manifest = Manifest(7, {}, {"epoch": 12})
>>> decode_manifest(manifest_name(7), encode_manifest(manifest)) == manifest
True
>>> decode_manifest(manifest_name(7), encode_manifest(manifest)[:-9])
Traceback (most recent call last):
    ...
riverrun.errors.CheckpointError: cannot read manifests/000000000007.json as a manifest: it is torn, or no JSON: ...
Hint: the file was damaged, or another program wrote it; restore from an older checkpoint
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from riverrun.errors import CheckpointError, RiverrunError
from riverrun.progress import Antichain
from riverrun.state.schema import Order, Schema
from riverrun.state.shards import END
from riverrun.state.soundness import read_json
from riverrun.state.types import type_text
from riverrun.storage.records import is_offset
from riverrun.storage.store import checksum
from riverrun.version import __version__

FORMAT = 2
HASH = 1  # the version of the key hash, see `kernels.values`
LAST = 10**9  # the greatest number of a checkpoint

BLOCKS, MANIFESTS = "blocks", "manifests"
_BLOCK = re.compile(rf"{BLOCKS}/(\d{{12}})-([0-9a-f]{{32}})\.arrow(?:#\d+)?")
_MISSHAPEN = (
    AttributeError,
    LookupError,
    OSError,
    TypeError,
    ValueError,
    RiverrunError,
    pa.ArrowException,
)
_LOG = logging.getLogger(__name__)
_MANIFEST = re.compile(rf"{MANIFESTS}/(\d{{12}})\.json")
_UNFINISHED = re.compile(rf"{MANIFESTS}/(\d{{12}})\.json#\d+")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The file of a block."""

    name: str
    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """The rows of a block whose hash is in [low, high), with their number."""

    file: StoredFile
    rows: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """A batch of a share: see `batch.Batch`."""

    lower: Antichain
    upper: Antichain
    since: Antichain
    blocks: tuple[BlockEntry, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker held of a state: the changes whose hash is in [low, high)."""

    schema: Schema
    low: int
    high: int
    since: Antichain
    upper: Antichain
    batches: tuple[BatchEntry, ...]

    @property
    def blocks(self) -> Iterator[BlockEntry]:
        return (block for batch in self.batches for block in batch.blocks)


@dataclass(frozen=True)
class Manifest:
    """A checkpoint. `about` is JSON that the publisher wants stored beside the states."""

    number: int
    states: Mapping[str, tuple[Share, ...]]
    about: Mapping[str, Any] = field(default_factory=dict)
    skipped: tuple[CheckpointError, ...] = field(default=(), compare=False)
    """Errors of newer manifests that are torn, where `Checkpoints.latest` returned this one."""

    @property
    def version(self) -> str | None:
        """The version of Riverrun that wrote the checkpoint, where it says so."""
        version = self.about.get("riverrun")
        return None if version is None else str(version)

    @property
    def files(self) -> dict[str, StoredFile]:
        """All files of the checkpoint, by name."""
        shares = (share for state in self.states.values() for share in state)
        return {block.file.name: block.file for share in shares for block in share.blocks}


def manifest_name(number: int) -> str:
    """The name of the manifest of a checkpoint."""
    return f"{MANIFESTS}/{number:012d}.json"


def manifest_number(name: str) -> int | None:
    """The number in the name of a manifest; None for any other file (the law numbers are plausible)."""
    match = _MANIFEST.fullmatch(name)
    return int(match[1]) if match and int(match[1]) <= LAST else None


def unfinished_number(name: str) -> int | None:
    """The number in the name of a manifest that a killed publisher left unfinished; None for any other file."""
    match = _UNFINISHED.fullmatch(name)
    return int(match[1]) if match else None


def block_name(number: int, uid: str) -> str:
    """The name of the file of a block that checkpoint `number` is the first to write."""
    name = f"{BLOCKS}/{number:012d}-{uid}.arrow"
    if not _BLOCK.fullmatch(name):
        raise ValueError(f"a block is named by 12 digits and 32 hex digits, not {number}, {uid!r}")
    return name


def parse_block_name(name: str) -> tuple[int, str] | None:
    """The number and uid in the name of a block's file, finished or not; None for any other file."""
    match = _BLOCK.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def check_whole(states: Mapping[str, tuple[Share, ...]], attempt: str) -> None:
    """Refuse states whose shares do not make up a whole (the law whole states); shares are sorted by hash."""
    for name, shares in states.items():
        ends = [0, *(share.high for share in shares)]
        if ends[-1] != END or any(s.low != at for s, at in zip(shares, ends, strict=False)):
            held = ", ".join(f"[{share.low:#x}, {share.high:#x})" for share in shares)
            raise CheckpointError(
                "checkpoint.incomplete",
                f"cannot {attempt}: the shares of state {name!r} do not follow each other "
                f"from 0 up to 2**64: {held}",
                hint="every hash belongs to one worker; publish when every worker has written its share",
                state=name,
            )
        for what, per_share in (
            ("schema", [share.schema for share in shares]),
            ("upper", [share.upper for share in shares]),
        ):
            other = next((each for each in per_share if each != per_share[0]), None)
            if other is not None:
                raise CheckpointError(
                    "checkpoint.incompatible",
                    f"cannot {attempt}: the shares of state {name!r} differ in {what}: "
                    f"{per_share[0]} and {other}",
                    hint="all workers write the same state as of the same frontier",
                    state=name,
                )


def encode_manifest(manifest: Manifest) -> bytes:
    """The file of a manifest: the same bytes for equal manifests, whoever writes them."""
    body = {
        "format": FORMAT,
        "hash": HASH,
        "number": manifest.number,
        "about": dict(manifest.about),
        "states": {name: _encode_state(shares) for name, shares in manifest.states.items()},
    }
    try:
        return json.dumps({**body, "checksum": _checksum(body)}, indent=1, sort_keys=True).encode()
    except TypeError as error:
        raise CheckpointError(
            "checkpoint.about",
            f"cannot publish checkpoint {manifest.number}: what is said about it is not JSON: {error}",
            hint="about= takes strings, numbers, booleans, None, and lists and dicts of these",
            number=manifest.number,
        ) from error


def decode_manifest(name: str, data: bytes) -> Manifest:
    """The manifest in a file called `name`, or a `CheckpointError` that says why it is none."""
    try:
        body = read_json(data)
        expected = body.pop("checksum")
        summed = _checksum(body)
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise _refuse(name, f"it is torn, or no JSON: {type(error).__name__}: {error}") from error
    if summed != expected:
        raise _refuse(name, "its checksum differs from the one it carries")
    for what, ours in (("format", FORMAT), ("hash", HASH)):
        if body.get(what) != ours:
            raise CheckpointError(
                "checkpoint.incompatible",
                f"cannot read {name}: its {what} has version {body.get(what)}, "
                f"and this Riverrun{_version(__version__)} reads version {ours}",
                hint=f"restore it with the version of Riverrun that wrote it{_version(_writer(body))}",
                file=name,
            )
    try:
        states = {state: _decode_state(entry) for state, entry in body["states"].items()}
        manifest = Manifest(int(body["number"]), states, _check_about(body["about"]))
    except _MISSHAPEN as error:
        raise _refuse(name, f"it has another shape: {type(error).__name__}: {error}") from error
    if manifest_name(manifest.number) != name:
        raise _refuse(name, f"it is the manifest of checkpoint {manifest.number}")
    check_whole(states, f"read {name}")
    return manifest


_COUNTS = ("epoch", "position", "owner", "kept", "workers")
_OBJECTS = ("fingerprint", "code", "application", "offsets", "outputs")


def _check_about(about: Any) -> dict[str, Any]:
    """The `about` of a manifest, checked: a ValueError where a resume could not rely on its shape."""
    if not isinstance(about, dict):
        raise ValueError(f"what it says about itself is {type(about).__name__}, not an object")
    for key in _COUNTS:
        if key in about and not (type(about[key]) is int and about[key] >= 0):
            raise ValueError(f"its {key} is {str(about[key])[:80]!r}")
    for key in _OBJECTS:
        if not isinstance(about.get(key, {}), dict):
            raise ValueError(f"its {key} is {type(about[key]).__name__}, not an object")
    for known in about.get("offsets", {}).values():
        if not (is_offset(known) or (isinstance(known, list) and all(map(is_offset, known)))):
            raise ValueError("its offsets are no numbers of batches")
    return about


def say_version(manifest: Manifest) -> None:
    """Warn if another version of Riverrun wrote a checkpoint that is about to be used."""
    if manifest.version not in (None, __version__):
        _LOG.warning(
            "checkpoint %d was written by riverrun %s, and this is %s",
            manifest.number, manifest.version, __version__,
        )  # fmt: skip


def _writer(body: Mapping[str, Any]) -> str | None:
    about = body.get("about")
    return str(about["riverrun"]) if isinstance(about, dict) and "riverrun" in about else None


def _version(version: str | None) -> str:
    return "" if version is None else f" ({version})"


def _refuse(name: str, why: str) -> CheckpointError:
    return CheckpointError(
        "checkpoint.corrupt",
        f"cannot read {name} as a manifest: {why}",
        hint="the file was damaged, or another program wrote it; restore from an older checkpoint",
        file=name,
    )


def _checksum(body: Mapping[str, Any]) -> str:
    return checksum(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _encode_state(shares: tuple[Share, ...]) -> dict[str, Any]:
    schema = shares[0].schema
    return {
        "schema": {
            "key": _encode_columns(schema.key),
            "value": _encode_columns(schema.value),
            "order": [[order.column, order.descending] for order in schema.order],
            "hash_mask": f"{schema.hash_mask:x}",
            "everywhere": schema.everywhere,
        },
        "upper": _encode_frontier(shares[0].upper),
        "shares": [
            {
                "low": f"{share.low:x}",
                "high": f"{share.high:x}",
                "since": _encode_frontier(share.since),
                "batches": [_encode_batch(batch) for batch in share.batches],
            }
            for share in shares
        ],
    }


def _encode_columns(schema: pa.Schema) -> dict[str, Any]:
    """The columns of a schema: for people, and for Arrow."""
    return {
        "columns": [[column.name, type_text(column.type)] for column in schema],
        "arrow": base64.b64encode(schema.serialize()).decode(),
    }


def _encode_batch(batch: BatchEntry) -> dict[str, Any]:
    return {
        "lower": _encode_frontier(batch.lower),
        "upper": _encode_frontier(batch.upper),
        "since": _encode_frontier(batch.since),
        "blocks": [
            {
                "file": block.file.name,
                "size": block.file.size,
                "checksum": block.file.checksum,
                "rows": block.rows,
                "low": f"{block.low:x}",  # hex: other readers of JSON have 53 bits
                "high": f"{block.high:x}",
            }
            for block in batch.blocks
        ],
    }


def _encode_frontier(frontier: Antichain) -> list[list[int]]:
    return [list(time) for time in frontier]


def _decode_state(entry: Mapping[str, Any]) -> tuple[Share, ...]:
    about = entry["schema"]
    schema = Schema.of(
        _decode_columns(about["key"]),
        _decode_columns(about["value"]),
        [Order(column, descending) for column, descending in about["order"]],
        int(about["hash_mask"], 16),
        everywhere=bool(about["everywhere"]),
    )
    upper = _decode_frontier(entry["upper"])
    return tuple(
        Share(
            schema,
            int(share["low"], 16),
            int(share["high"], 16),
            _decode_frontier(share["since"]),
            upper,
            tuple(_decode_batch(batch) for batch in share["batches"]),
        )
        for share in entry["shares"]
    )


def _decode_columns(entry: Mapping[str, Any]) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(entry["arrow"])))


def _decode_batch(entry: Mapping[str, Any]) -> BatchEntry:
    lower, upper, since = (_decode_frontier(entry[key]) for key in ("lower", "upper", "since"))
    return BatchEntry(lower, upper, since, tuple(_decode_block(block) for block in entry["blocks"]))


def _decode_block(entry: Mapping[str, Any]) -> BlockEntry:
    name = entry["file"]
    if parse_block_name(name) is None or "#" in name:
        raise ValueError(f"{name!r} is not the name of a block's file")
    file = StoredFile(name, int(entry["size"]), str(entry["checksum"]))
    return BlockEntry(file, int(entry["rows"]), int(entry["low"], 16), int(entry["high"], 16))


def _decode_frontier(times: list[list[int]]) -> Antichain:
    return Antichain(tuple(int(at) for at in time) for time in times)
