"""Storage calls: the instructions of the coordinator and the workers to the storage, executed.

Coordinator and workers do no I/O; they send an instruction (`engine.messages`) wherever they need the storage. Clusters
and worker processes have it executed here, to the end: this is the only module that does so. Laws:

- **Answered.** Every instruction is answered by an `Outcome`. An error of Riverrun's own is part of the outcome, so the
  actor that gave the instruction decides what to do about it.
- **Nobody waits.** `StorageThreads` executes instructions in threads of their own: those that concern the log in one,
  all others in another, each in the order in which they were given. While the storage fails, a thread pauses after
  each instruction that the coordinator will give again (`retry.pause`).
- **Repeatable.** Every instruction may be executed twice, since a `TransportError` leaves open whether the storage has
  done it.

>>> from riverrun.engine.messages import Survey
>>> checkpoints = Checkpoints("memory:///")
>>> execute(Survey(), checkpoints, Log(checkpoints.storage)).result
SurveyResult(number=0, about={}, top=0)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Event
from typing import Any

from riverrun.engine.messages import (
    AppendRecord,
    Collect,
    ForgetRounds,
    Outcome,
    Publish,
    PublishRound,
    Read,
    ReadRounds,
    Recall,
    States,
    Survey,
    SurveyResult,
    Write,
    WriteRound,
)
from riverrun.errors import CheckpointError, RiverrunError
from riverrun.plan.saved_rounds import SavedRows
from riverrun.retry import pause
from riverrun.storage import saved_rounds
from riverrun.storage.checkpoint import Checkpoints
from riverrun.storage.log import Log
from riverrun.storage.threads import SerialThread


def execute(instruction: Any, checkpoints: Checkpoints, log: Log) -> Outcome:
    """Execute an instruction; return its result, or the error, as an `Outcome`."""
    try:
        return Outcome(instruction, _execute(instruction, checkpoints, log))
    except RiverrunError as error:
        return Outcome(instruction, error=error)


def _execute(instruction: Any, checkpoints: Checkpoints, log: Log) -> Any:
    storage = checkpoints.storage
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
        case WriteRound():
            return saved_rounds.write_part(storage, instruction.name, instruction.rows.parts)
        case PublishRound(record, owner, number, gone):
            saved_rounds.publish(storage, record, owner, number, gone)
        case ReadRounds():
            return [
                SavedRows(
                    share.loop, instruction.epoch, share.round, 0, share.is_own,
                    saved_rounds.read_part(storage, share.files),
                )
                for share in instruction.shares
            ]  # fmt: skip
        case ForgetRounds(owner, position):
            saved_rounds.forget(storage, owner, position)
        case _:
            raise TypeError(f"{instruction!r} is no instruction to the storage")
    return None


def _collect(checkpoints: Checkpoints, log: Log, collect: Collect) -> None:
    """Delete what is not retained; the log is kept from where the oldest retained checkpoint ends.

    Which checkpoints are retained is read from the storage, so an owner that does not know of its successor deletes no
    more than the successor would (the *covers no less* law of `checkpointing`). An owner that has a successor deletes
    nothing: the successor may be about to read what it has found (the *someone runs* law of `storage.takeover`).
    """
    if log.has_successor():
        return
    retain = collect.retain
    checkpoints.collect(retain)
    if collect.keep_log:
        return
    # A torn checkpoint among them does not count: nobody can go back to it.
    retained = checkpoints.newest(retain)
    if len(retained) == retain:
        log.collect(min(int(manifest.about["position"]) for manifest in retained))


def _read(checkpoints: Checkpoints, read: Read) -> list[States]:
    """The states of some ranges of hashes, a piece for each range. States that every worker has whole are in the first
    piece only."""
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
    """The error that names the damaged file, its checkpoint, and a checkpoint that does without the file."""
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


class StorageThreads:
    """Executes the instructions of a coordinator in threads, so that nobody has to wait for the storage."""

    def __init__(
        self,
        execute: Callable[[Any], Outcome],
        answer: Callable[[Outcome], None],
        stopped: Event,
    ) -> None:
        """`execute` must not raise; `answer` takes its outcome. When `stopped` is set, no pause is waited out."""
        self.store = SerialThread("riverrun-checkpoint")
        self._log = SerialThread("riverrun-log")
        self._execute = execute
        self._answer = answer
        self._stopped = stopped
        self._failures: Counter[type] = Counter()
        """How often instructions of a kind have failed in a row."""

    def submit(self, instruction: Any) -> None:
        """Have an instruction executed, and its outcome answered."""
        kind = type(instruction)

        def execute() -> None:
            outcome = self._execute(instruction)
            if kind in (AppendRecord, Recall, Publish):
                self._failures[kind] = 0 if outcome.error is None else self._failures[kind] + 1
                self._stopped.wait(pause(self._failures[kind]))
            self._answer(outcome)

        thread = self._log if kind in (AppendRecord, Recall) else self.store
        thread.submit(execute)

    def close(self) -> None:
        """End the threads; instructions that have not begun are dropped."""
        self._log.close()
        self.store.close()
