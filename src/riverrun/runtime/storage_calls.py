"""Storing: what the instructions of workers and coordinator do to the storage.

The one place of the engine that touches it. An instruction is executed to the end and answered by
an `Outcome`; errors of the tree are part of it, so that whoever gave it decides. A `TransportError`
leaves open whether it was done, so every instruction may be executed twice.

>>> from riverrun.engine.messages import Survey
>>> checkpoints = Checkpoints("memory:///")
>>> execute(Survey(), checkpoints, Log(checkpoints.storage)).result
SurveyResult(number=0, about={}, top=0)
"""

from __future__ import annotations

from typing import Any

from riverrun.engine.messages import (
    AppendRecord,
    Collect,
    Outcome,
    Publish,
    Read,
    Recall,
    States,
    Survey,
    SurveyResult,
    Write,
)
from riverrun.errors import CheckpointError, RiverrunError
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.log import Log


def execute(instruction: Any, checkpoints: Checkpoints, log: Log) -> Outcome:
    """Do as the instruction says, and say what came of it."""
    try:
        return Outcome(instruction, _execute(instruction, checkpoints, log))
    except RiverrunError as error:
        return Outcome(instruction, error=error)


def _execute(instruction: Any, checkpoints: Checkpoints, log: Log) -> Any:
    match instruction:
        case AppendRecord():
            return log.append(instruction.position, instruction.header, instruction.inputs)
        case Write():
            return checkpoints.write(instruction.states, instruction.number, instruction.ranges)
        case Publish():
            checkpoints.publish(instruction.number, instruction.parts, instruction.about)
        case Collect():
            _collect(checkpoints, log, instruction)
        case Survey():
            manifest = checkpoints.latest()
            top = max(checkpoints.numbers(), default=0)
            if manifest is None:
                return SurveyResult(0, {}, top)
            return SurveyResult(manifest.number, manifest.about, top)
        case Read():
            return _read(checkpoints, instruction)
        case Recall():
            return log.read(instruction.position).inputs
        case _:
            raise TypeError(f"{instruction!r} is no instruction to the storage")
    return None


def _collect(checkpoints: Checkpoints, log: Log, collect: Collect) -> None:
    """Delete what is not retained; the log is kept from where the oldest retained checkpoint ends.

    Which ones are retained is read from the storage, so an owner that does not know of its
    successor deletes no more than that one would (law 3 of `saving`). One that has a successor deletes
    nothing: that one may be about to read what it has found ("Someone runs" in `state.log`).
    """
    if log.has_successor():
        return
    retain = collect.retain
    checkpoints.collect(retain)
    if collect.keep_log:
        return
    kept = checkpoints.newest(
        retain
    )  # a torn one that stands between them is nothing to go back to
    if len(kept) == retain:
        log.collect(min(int(manifest.about["position"]) for manifest in kept))


def _read(checkpoints: Checkpoints, read: Read) -> list[States]:
    """The states of some ranges, one piece for each; the first has all of those that every worker has."""
    states = checkpoints.load(read.source).states
    pieces: list[States] = []
    try:
        for at, (low, high) in enumerate(read.ranges):
            piece = {}
            for name, shares in states.items():
                if not shares[0].schema.everywhere:
                    piece[name] = checkpoints.restore(name, low, high, number=read.source)
                elif at == 0:
                    piece[name] = checkpoints.restore(name, number=read.source)
            pieces.append(piece)
        return pieces
    except CheckpointError as error:
        if error.code not in ("checkpoint.corrupt", "checkpoint.missing"):
            raise
        if read.source not in checkpoints.numbers():
            raise  # it was collected meanwhile
        raise _damaged(checkpoints, read.source, error) from error


def _damaged(checkpoints: Checkpoints, number: int, error: CheckpointError) -> CheckpointError:
    """Name the file, the checkpoint it belongs to, and one that does without it."""
    others = checkpoints.others(number, str(error.fields.get("file", "")))
    if others:
        hint = (
            f"flow.run(..., from_checkpoint={others[0]}) goes back to checkpoint {others[0]} and does the epochs "
            "since then again, from the log: nothing is lost"
        )
    else:
        hint = "no other checkpoint here does without it: put a copy of the file there, or start anew on another path"
    return CheckpointError(
        "checkpoint.corrupt",
        f"cannot go on from checkpoint {number}: {error.message}",
        hint=f"{hint}; `riverrun checkpoints PATH --verify` looks at every file",
        number=number,
        others=others,
        file=error.fields.get("file"),
    )
